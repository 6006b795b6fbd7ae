//! System calls made directly, for processes that run in memory that is not theirs alone.

use std::arch::asm;

pub(super) fn exit(code: usize) -> ! {
    loop {
        call(libc::SYS_exit_group, [code, 0, 0, 0, 0, 0]);
    }
}

/// One system call; a negative result is the error, and errno is left alone.
pub(super) fn call(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: every caller passes integers or pointers to memory that outlives the call; the
    // kernel preserves all registers but rax, rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// clone(2) onto another stack. The child calls `body(argument)` there, which never returns.
///
/// # Safety
/// `top` must be 16-byte aligned and the end of memory that nobody else uses until the child has
/// ended or executed; `argument` must stay valid as long.
pub(super) unsafe fn clone(
    flags: i32,
    top: usize,
    body: extern "C" fn(usize) -> !,
    argument: usize,
) -> isize {
    let result: isize;
    // SAFETY: in the child the stack pointer is `top`, so nothing of the caller's frame is used;
    // in the parent only rax, rcx and r11 have changed.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags as usize, in("rsi") top, in("rdx") 0usize, in("r10") 0usize, in("r8") 0usize,
            in("r12") argument, in("r13") body as usize,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

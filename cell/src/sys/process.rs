//! Processes: clone, wait, signal, execute, and the identity they run under.

use super::check;
use super::fd::from_raw;
use std::ffi::CString;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub type Pid = libc::pid_t;

#[repr(C, align(8))]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

pub enum Forked {
    Child,
    Parent { pid: Pid, pidfd: OwnedFd },
}

/// clone3 without sharing memory: like fork, into new namespaces and, if given, a v2 cgroup.
pub fn clone_into(namespaces: i32, cgroup: Option<RawFd>) -> io::Result<Forked> {
    let mut pidfd: RawFd = -1;
    let mut args = CloneArgs {
        flags: namespaces as u32 as u64 | libc::CLONE_PIDFD as u64,
        pidfd: &mut pidfd as *mut RawFd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup as u64;
    }
    // SAFETY: no memory is shared and no new stack is given, so this returns twice like fork.
    // The launcher and the guest are single-threaded, so no lock is held in the copy.
    let pid = check(unsafe {
        libc::syscall(libc::SYS_clone3, &mut args as *mut CloneArgs, std::mem::size_of::<CloneArgs>())
    })?;
    if pid == 0 {
        return Ok(Forked::Child);
    }
    Ok(Forked::Parent { pid: pid as Pid, pidfd: from_raw(pidfd.into()) })
}

/// Fork a child that reports with `signal`. Returns 0 in the child.
pub fn fork(signal: i32) -> io::Result<Pid> {
    // SAFETY: single-threaded, see above. A raw system call: no at-fork handlers run.
    check(unsafe { libc::syscall(libc::SYS_clone, signal, 0, 0, 0, 0) }).map(|pid| pid as Pid)
}

/// Let others run before going on.
pub fn give_way() {
    // SAFETY: cannot fail.
    unsafe { libc::sched_yield() };
}

pub fn exit(code: i32) -> ! {
    // SAFETY: ends this process without running destructors or flushing anything.
    unsafe { libc::_exit(code) }
}

/// What became of a child.
pub struct Ended {
    pub pid: Pid,
    pub status: i32,
    pub usage: libc::rusage,
}

/// What the kernel wrote as the usage of a process.
pub fn usage_of(bytes: [u8; std::mem::size_of::<libc::rusage>()]) -> libc::rusage {
    // SAFETY: it consists of integers only, so that every pattern of bits is one.
    unsafe { std::mem::transmute(bytes) }
}

/// Reap one child if any has ended.
pub fn reap(pid: Pid, block: bool) -> io::Result<Option<Ended>> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: the kernel writes one int and one rusage.
        let found = unsafe { libc::wait4(pid, &mut status, options | libc::__WALL, &mut usage) };
        match check(found.into()) {
            Ok(0) => return Ok(None),
            Ok(pid) => return Ok(Some(Ended { pid: pid as Pid, status, usage })),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Whether there is a child, alive or not, that reports with SIGCHLD. Whatever is adopted does, the
/// kernel sees to that; children cloned with another signal are passed over without `__WALL`.
pub fn has_plain_children() -> bool {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: a null info is allowed, and WNOWAIT leaves whatever is found as it is.
    let found = unsafe { libc::syscall(libc::SYS_waitid, libc::P_ALL, 0, 0usize, options, 0usize) };
    !matches!(check(found), Err(error) if error.raw_os_error() == Some(libc::ECHILD))
}

pub fn kill(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: sends a signal; a negative pid means the process group.
    check(unsafe { libc::kill(pid, signal) } as libc::c_long)?;
    Ok(())
}

pub fn pidfd_kill(pidfd: &impl AsRawFd, signal: i32) -> io::Result<()> {
    // SAFETY: a pidfd always names the process it was made for, or nothing.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, 0usize, 0u32) })?;
    Ok(())
}

pub fn getpid() -> Pid {
    // SAFETY: cannot fail.
    unsafe { libc::getpid() }
}

pub fn getuid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::getuid() }
}

pub fn getgid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::getgid() }
}

pub fn setsid() -> io::Result<()> {
    // SAFETY: starts a new session.
    check(unsafe { libc::setsid() } as libc::c_long)?;
    Ok(())
}

pub fn umask(mask: u32) {
    // SAFETY: cannot fail.
    unsafe { libc::umask(mask) };
}

/// Execute; returns only the reason it could not.
pub fn execve(program: &CString, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| {
        let mut raw: Vec<*const libc::c_char> = list.iter().map(|s| s.as_ptr()).collect();
        raw.push(std::ptr::null());
        raw
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays are null-terminated and the strings they point to are alive.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Become exactly this user: no supplementary groups, real, effective and saved ids alike.
pub fn become_user(uid: u32, gid: u32, drop_groups: bool) -> io::Result<()> {
    if drop_groups {
        // SAFETY: an empty list of groups.
        check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) })?;
    }
    // Raw system calls: libc's wrappers signal other threads, of which there are none.
    // SAFETY: plain integers.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })?;
    Ok(())
}

/// Become this user in every way but the saved id, which `become_user` replaces later.
pub fn act_as(uid: u32, gid: u32, drop_groups: bool) -> io::Result<()> {
    if drop_groups {
        // SAFETY: an empty list of groups.
        check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) })?;
    }
    // SAFETY: plain integers; -1 leaves an id as it is.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, -1) })?;
    Ok(())
}

/// Keep capabilities whatever the effective id becomes; for the launcher, which is root.
pub fn keep_capabilities_across_ids() -> io::Result<()> {
    const SECBIT_NO_SETUID_FIXUP: u64 = 1 << 2;
    prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP).map(|_| ())
}

pub fn set_effective_user(uid: u32) -> io::Result<()> {
    // SAFETY: plain integers; -1 leaves an id as it is.
    check(unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) })?;
    Ok(())
}

pub fn supplementary_groups() -> io::Result<usize> {
    // SAFETY: a zero size only asks for the count.
    check(unsafe { libc::getgroups(0, std::ptr::null_mut()) } as libc::c_long).map(|n| n as usize)
}

/// Default action for every signal, as a program expects to find it.
pub fn default_signals() {
    // The kernel's own structure: handler, flags, restorer, mask. All zero is the default action.
    let default = [0u64; 4];
    for signal in 1..=64 {
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            // The kernel's own call: libc's refuses the two signals it uses itself, which the
            // owner may have had ignored all the same.
            // SAFETY: the kernel reads one sigaction of 32 bytes.
            unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), 0usize, 8usize) };
        }
    }
}

pub fn unblock_signals() -> io::Result<()> {
    set_mask(libc::SIG_SETMASK, &[])
}

/// Block every signal: the first process takes those of its children from a descriptor and no other.
pub fn block_all_signals() -> io::Result<()> {
    let all: Vec<i32> = (1..=64).collect();
    set_mask(libc::SIG_SETMASK, &all)
}

fn set_mask(how: i32, signals: &[i32]) -> io::Result<()> {
    let mut bits: u64 = 0;
    for signal in signals {
        bits |= 1 << (signal - 1);
    }
    // The kernel's own call, with its 64-bit set: libc's hides two real-time signals.
    // SAFETY: the kernel reads eight bytes.
    check(unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &bits as *const u64, 0usize, 8usize) })?;
    Ok(())
}

/// Stand still until somebody sends SIGCONT.
///
/// Not by SIGSTOP: the kernel drops one that the first process of a namespace sends itself.
pub fn pause_until_continued() -> io::Result<()> {
    let bits: u64 = 1 << (libc::SIGCONT - 1);
    set_mask(libc::SIG_BLOCK, &[libc::SIGCONT])?;
    // SAFETY: the kernel reads eight bytes; a null info and a null time are allowed.
    check(unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &bits as *const u64, 0usize, 0usize, 8usize) })?;
    Ok(())
}

/// A descriptor that is readable when one of these signals, which must be blocked, has come.
pub fn signal_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    let bits: u64 = signals.iter().fold(0, |bits, signal| bits | 1 << (signal - 1));
    // SAFETY: the kernel reads eight bytes.
    check(unsafe {
        libc::syscall(
            libc::SYS_signalfd4,
            -1,
            &bits as *const u64,
            8usize,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )
    })
    .map(from_raw)
}

/// What `ps` calls this process; at most fifteen bytes.
pub fn set_name(name: &str) -> io::Result<()> {
    let name = super::cstring(name)?;
    // SAFETY: the kernel reads up to sixteen bytes of a NUL-terminated string.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0u64, 0u64, 0u64) } as libc::c_long)?;
    Ok(())
}

pub fn prctl(option: i32, value: u64) -> io::Result<libc::c_long> {
    // SAFETY: every option used takes integers only.
    check(unsafe { libc::prctl(option, value, 0u64, 0u64, 0u64) } as libc::c_long)
}

//! Starting a program under a keeper, both sharing this process's memory until the program is
//! executed: nothing is copied, so nothing has to be copied back.
//!
//! Between clone and execute these processes use the guest's own memory while the guest goes on.
//! So they touch nothing but what `Launch` points to, allocate nothing, and make their system
//! calls directly: a libc wrapper would write the guest's errno.

use super::shared::SharedBytes;
use std::arch::asm;
use std::ffi::CString;
use std::io;
use std::os::unix::io::RawFd;

const STACK: usize = 16 * 1024;

/// Where a child that cannot return a value leaves it: offsets into the shared bytes.
pub struct Mailbox<'a> {
    pub bytes: &'a SharedBytes,
    pub program: usize,
    pub status: usize,
    pub failure: usize,
    pub doomed: usize,
}

/// Everything about a start, prepared beforehand. It must live until the keeper has been reaped.
pub struct Launch {
    pub streams: [RawFd; 3],
    pub terminal: bool,
    /// None where the sandbox has a single id, which the process already is.
    pub identity: Option<(u32, u32)>,
    pub capabilities: u64,
    pub open_files: u64,
    pub cwd: CString,
    pub candidates: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    strings: Vec<CString>,
    stack: Stack,
    mailbox: *const Mailbox<'static>,
    slot: usize,
}

/// What a child was doing when it failed.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Doing {
    Terminal = 1,
    Streams = 2,
    Identity = 3,
    Directory = 4,
    Execute = 5,
    Fork = 7,
}

/// Memory for two stacks: the keeper's on top, the program's below it.
pub struct Stack {
    base: *mut libc::c_void,
}

impl Stack {
    pub fn new() -> io::Result<Stack> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        // SAFETY: asks for fresh memory, owned by the returned value alone.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), 2 * STACK, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Stack { base })
    }

    /// Have the kernel find the pages now instead of in the middle of a start.
    pub fn touch(&self) {
        for top in [self.keeper_top(), self.program_top()] {
            // SAFETY: the last word below each top belongs to this mapping, and nothing uses it.
            unsafe { ((top - 8) as *mut u64).write_volatile(0) };
        }
    }

    fn keeper_top(&self) -> usize {
        self.base as usize + 2 * STACK
    }

    fn program_top(&self) -> usize {
        self.base as usize + STACK
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; the processes that ran on it have been reaped.
        unsafe { libc::munmap(self.base, 2 * STACK) };
    }
}

impl Launch {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        streams: [RawFd; 3],
        terminal: bool,
        identity: Option<(u32, u32)>,
        capabilities: u64,
        open_files: u64,
        cwd: CString,
        candidates: Vec<CString>,
        argv: Vec<CString>,
        env: Vec<CString>,
        stack: Stack,
    ) -> Box<Launch> {
        let pointers = |list: &[CString]| {
            let mut raw: Vec<*const libc::c_char> = list.iter().map(|s| s.as_ptr()).collect();
            raw.push(std::ptr::null());
            raw
        };
        let (argv_pointers, env_pointers) = (pointers(&argv), pointers(&env));
        let mut strings = argv;
        strings.extend(env);
        Box::new(Launch {
            streams,
            terminal,
            identity,
            capabilities,
            open_files,
            cwd,
            candidates,
            argv: argv_pointers,
            env: env_pointers,
            strings,
            stack,
            mailbox: std::ptr::null(),
            slot: 0,
        })
    }

    /// Start the keeper, which starts the program. `mailbox` must outlive the keeper.
    pub fn start(&mut self, mailbox: &'static Mailbox<'static>, slot: usize) -> io::Result<libc::pid_t> {
        debug_assert!(self.strings.len() + 2 == self.argv.len() + self.env.len());
        self.mailbox = mailbox;
        self.slot = slot;
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: the keeper runs on its own stack, reads only `self`, which the caller keeps in
        // place until the keeper has been reaped, and never returns.
        let pid = unsafe { clone(flags, self.stack.keeper_top(), keeper, self as *const Launch as usize) };
        if pid < 0 {
            return Err(io::Error::from_raw_os_error(-pid as i32));
        }
        Ok(pid as libc::pid_t)
    }

    /// The stacks, for another start. The keeper must have been reaped.
    pub fn into_stack(self) -> Stack {
        self.stack
    }

    fn mailbox(&self) -> &Mailbox<'static> {
        // SAFETY: `start` set it to a reference that outlives the keeper.
        unsafe { &*self.mailbox }
    }

    fn fail(&self, doing: Doing, error: isize) -> ! {
        let mailbox = self.mailbox();
        mailbox.bytes.write(self.slot + mailbox.status, &((-error) as i32).to_le_bytes());
        mailbox.bytes.write(self.slot + mailbox.failure, &[0, doing as u8]);
        mailbox.bytes.write(self.slot, &[1]);
        exit(127)
    }
}

/// Stands between the guest and the program: adopts what the program orphans, and waits.
extern "C" fn keeper(argument: usize) -> ! {
    // SAFETY: `start` passed a Launch that lives until this process has been reaped.
    let launch = unsafe { &*(argument as *const Launch) };
    let mailbox = launch.mailbox();
    call(libc::SYS_prctl, [libc::PR_SET_CHILD_SUBREAPER as usize, 1, 0, 0, 0, 0]);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the program runs on its own stack while this process is suspended, until it executes.
    let program = unsafe { clone(flags, launch.stack.program_top(), program, argument) };
    if program < 0 {
        launch.fail(Doing::Fork, program);
    }
    mailbox.bytes.write(launch.slot + mailbox.program, &(program as i32).to_le_bytes());
    // Nothing to hold, nothing to be able to do: it only waits.
    let closed = call(libc::SYS_close_range, [0, u32::MAX as usize, 0, 0, 0, 0]);
    if closed < 0 || set_capabilities(0) < 0 {
        exit(1);
    }
    loop {
        let mut status: i32 = 0;
        let ended = call(
            libc::SYS_wait4,
            [usize::MAX, &mut status as *mut i32 as usize, libc::__WALL as usize, 0, 0, 0],
        );
        if ended == program {
            let mut said = [0u8; 1];
            mailbox.bytes.read(launch.slot, &mut said);
            // A program that could not be executed has said why; its status would only hide that.
            if said[0] == 0 {
                mailbox.bytes.write(launch.slot + mailbox.status, &status.to_le_bytes());
                mailbox.bytes.write(launch.slot, &[2]);
            }
            exit(0);
        }
        if ended < 0 && ended != -(libc::EINTR as isize) {
            exit(1);
        }
    }
}

/// The program's own process, up to the moment it executes.
extern "C" fn program(argument: usize) -> ! {
    // SAFETY: as in `keeper`; the keeper is suspended meanwhile.
    let launch = unsafe { &*(argument as *const Launch) };
    let must = |doing: Doing, result: isize| if result < 0 { launch.fail(doing, result) } else { result };
    // A session only for a terminal: the kernel makes a scheduling group for each, which takes
    // longer than all the rest of this function. A process group is what signals need.
    let alone = if launch.terminal { libc::SYS_setsid } else { libc::SYS_setpgid };
    must(Doing::Streams, call(alone, [0; 6]));
    // Lifted out of the way first: a stream may have the number of another's target.
    let mut high = [0usize; 3];
    for (index, stream) in launch.streams.iter().enumerate() {
        high[index] = must(
            Doing::Streams,
            call(libc::SYS_fcntl, [*stream as usize, libc::F_DUPFD_CLOEXEC as usize, 10, 0, 0, 0]),
        ) as usize;
    }
    for (number, stream) in high.iter().enumerate() {
        must(Doing::Streams, call(libc::SYS_dup2, [*stream, number, 0, 0, 0, 0]));
    }
    if launch.terminal {
        must(Doing::Terminal, call(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0, 0, 0]));
    }
    let files = libc::rlimit64 { rlim_cur: launch.open_files, rlim_max: launch.open_files };
    must(
        Doing::Identity,
        call(
            libc::SYS_prlimit64,
            [0, libc::RLIMIT_NOFILE as usize, &files as *const libc::rlimit64 as usize, 0, 0, 0],
        ),
    );
    if let Some((uid, gid)) = launch.identity {
        let (uid, gid) = (uid as usize, gid as usize);
        must(Doing::Identity, call(libc::SYS_setresgid, [gid, gid, gid, 0, 0, 0]));
        must(Doing::Identity, call(libc::SYS_setresuid, [uid, uid, uid, 0, 0, 0]));
        // A change of identity can make the memory dumpable again (fs.suid_dumpable), and until
        // it executes this process's memory is the guest's.
        must(Doing::Identity, call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 0, 0, 0, 0, 0]));
    }
    must(Doing::Identity, set_capabilities(launch.capabilities));
    let nothing: u64 = 0;
    must(
        Doing::Identity,
        call(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK as usize, &nothing as *const u64 as usize, 0, 8, 0, 0],
        ),
    );
    must(Doing::Directory, call(libc::SYS_chdir, [launch.cwd.as_ptr() as usize, 0, 0, 0, 0, 0]));
    // Whoever kills the tree says so here first and looks for this process afterwards: it sees the
    // word, or it is seen.
    let mut doomed = [0u8; 1];
    launch.mailbox().bytes.read(launch.slot + launch.mailbox().doomed, &mut doomed);
    if doomed[0] != 0 {
        let own = call(libc::SYS_getpid, [0; 6]);
        call(libc::SYS_kill, [own as usize, libc::SIGKILL as usize, 0, 0, 0, 0]);
    }
    // Each place on the path, as a shell would; a found but forbidden program is the answer only
    // if nothing better follows.
    let mut answer = -(libc::ENOENT as isize);
    for candidate in &launch.candidates {
        let error = call(
            libc::SYS_execve,
            [
                candidate.as_ptr() as usize,
                launch.argv.as_ptr() as usize,
                launch.env.as_ptr() as usize,
                0,
                0,
                0,
            ],
        );
        match -error as i32 {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => answer = error,
            _ => launch.fail(Doing::Execute, error),
        }
    }
    launch.fail(Doing::Execute, answer)
}

fn set_capabilities(set: u64) -> isize {
    let header: [u32; 2] = [0x2008_0522, 0];
    let half = |bits: u64| [bits as u32, bits as u32, 0];
    let data = [half(set), half(set >> 32)];
    call(libc::SYS_capset, [header.as_ptr() as usize, data.as_ptr() as usize, 0, 0, 0, 0])
}

fn exit(code: usize) -> ! {
    loop {
        call(libc::SYS_exit_group, [code, 0, 0, 0, 0, 0]);
    }
}

/// One system call; a negative result is the error, and errno is left alone.
fn call(number: libc::c_long, a: [usize; 6]) -> isize {
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
unsafe fn clone(flags: i32, top: usize, body: extern "C" fn(usize) -> !, argument: usize) -> isize {
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

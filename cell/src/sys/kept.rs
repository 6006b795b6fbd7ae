//! Starting a program, as a child of this process or under a keeper. They share this process's
//! memory until the program is executed: nothing is copied, so nothing has to be copied back.
//!
//! Between clone and execute these processes use the guest's own memory while the guest goes on.
//! So they touch nothing but what `Launch` points to, allocate nothing, and make their system
//! calls directly: a libc wrapper would write the guest's errno.

use super::raw::{call, clone, exit};
use super::shared::SharedBytes;
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
    pub usage: usize,
}

/// What the first byte of a slot says.
pub const NOTHING: u8 = 0;
pub const FAILED: u8 = 1;
/// The program has ended, and its keeper does too.
pub const ENDED: u8 = 2;
/// The program has ended; its keeper stays for what the program left behind, and from now on
/// touches nothing but its own stack.
pub const LEFT: u8 = 3;

/// How keepers and clerks report, so that plain children can be told from them: see
/// `process::has_plain_children`.
pub const KEEPER_SIGNAL: i32 = libc::SIGUSR1;

/// Everything about a start, prepared beforehand. It must live until what `start` returned has been
/// reaped.
pub struct Launch {
    pub streams: [RawFd; 3],
    pub terminal: bool,
    /// None where the sandbox has a single id, which the process already is.
    pub identity: Option<(u32, u32)>,
    pub capabilities: u64,
    pub open_files: u64,
    /// Where the process that is started first enters its control group by its number; or -1.
    pub group: RawFd,
    /// The directory of all those groups, which no path may lead the program into; or -1.
    pub groups: RawFd,
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
            group: -1,
            groups: -1,
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

    /// Start the program, as a child of this process or, `kept`, under a keeper, whose number is
    /// then the one returned.
    pub fn start(
        &mut self,
        mailbox: &'static Mailbox<'static>,
        slot: usize,
        kept: bool,
    ) -> io::Result<libc::pid_t> {
        debug_assert!(self.strings.len() + 2 == self.argv.len() + self.env.len());
        self.mailbox = mailbox;
        self.slot = slot;
        let (signal, top, body): (i32, usize, extern "C" fn(usize) -> !) = if kept {
            (KEEPER_SIGNAL, self.stack.keeper_top(), keeper)
        } else {
            (libc::SIGCHLD, self.stack.program_top(), program)
        };
        // SAFETY: the child runs on its own stack, reads only `self`, which the caller keeps in
        // place until it has been reaped, and never returns.
        let pid = unsafe { clone(libc::CLONE_VM | signal, top, body, self as *const Launch as usize) };
        if pid < 0 {
            return Err(io::Error::from_raw_os_error(-pid as i32));
        }
        Ok(pid as libc::pid_t)
    }

    /// The stacks, for another start once what runs on them has been reaped.
    pub fn into_stack(self) -> Stack {
        self.stack
    }

    fn mailbox(&self) -> &Mailbox<'static> {
        // SAFETY: `start` set it to a reference that is never given up.
        unsafe { &*self.mailbox }
    }

    /// Whatever is started from here on is found by its group. A keeper's program is in it already.
    fn enter_group(&self) {
        if self.group < 0 {
            return;
        }
        let mut digits = [0u8; 20];
        let (mut left, mut at) = (call(libc::SYS_getpid, [0; 6]) as u64, digits.len());
        while left > 0 && at > 0 {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        let text = &digits[at..];
        let entered =
            call(libc::SYS_write, [self.group as usize, text.as_ptr() as usize, text.len(), 0, 0, 0]);
        if entered < 0 {
            self.fail(Doing::Fork, entered);
        }
    }

    fn fail(&self, doing: Doing, error: isize) -> ! {
        let mailbox = self.mailbox();
        mailbox.bytes.write(self.slot + mailbox.status, &((-error) as i32).to_le_bytes());
        mailbox.bytes.write(self.slot + mailbox.failure, &[0, doing as u8]);
        mailbox.bytes.write(self.slot, &[FAILED]);
        exit(127)
    }
}

/// Stands between the guest and the program: adopts what the program orphans, and waits for all
/// of it, also after the program has ended, so that it never becomes a child of the guest.
extern "C" fn keeper(argument: usize) -> ! {
    // SAFETY: `start` passed a Launch that lives until this process has been reaped.
    let launch = unsafe { &*(argument as *const Launch) };
    let mailbox = launch.mailbox();
    launch.enter_group();
    call(libc::SYS_prctl, [libc::PR_SET_CHILD_SUBREAPER as usize, 1, 0, 0, 0, 0]);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the program runs on its own stack while this process is suspended, until it executes.
    let started = unsafe { clone(flags, launch.stack.program_top(), program, argument) };
    if started == -(libc::EAGAIN as isize) {
        // No room for two: this process is the program then, and adopts what it orphans itself.
        let own = call(libc::SYS_getpid, [0; 6]);
        mailbox.bytes.write(launch.slot + mailbox.program, &(own as i32).to_le_bytes());
        program(argument);
    }
    if started < 0 {
        launch.fail(Doing::Fork, started);
    }
    mailbox.bytes.write(launch.slot + mailbox.program, &(started as i32).to_le_bytes());
    // Nothing to hold, nothing to be able to do: it only waits.
    let closed = call(libc::SYS_close_range, [0, super::fd::LAST as usize, 0, 0, 0, 0]);
    if closed < 0 || set_capabilities(0) < 0 {
        exit(1);
    }
    let mut status: i32 = 0;
    loop {
        let ended = wait(&mut status, 0);
        if ended == started {
            break;
        }
        if ended < 0 && ended != -(libc::EINTR as isize) {
            exit(1);
        }
    }
    let mut said = [NOTHING];
    mailbox.bytes.read(launch.slot, &mut said);
    // A program that could not be executed has said why; its status would only hide that.
    if said[0] != NOTHING {
        exit(0);
    }
    mailbox.bytes.write(launch.slot + mailbox.status, &status.to_le_bytes());
    let mut left = 1;
    while left > 0 {
        left = wait(&mut status, libc::WNOHANG);
    }
    if left < 0 {
        mailbox.bytes.write(launch.slot, &[ENDED]);
        exit(0);
    }
    let mut usage = [0u8; std::mem::size_of::<libc::rusage>()];
    call(libc::SYS_getrusage, [libc::RUSAGE_CHILDREN as usize, usage.as_mut_ptr() as usize, 0, 0, 0, 0]);
    mailbox.bytes.write(launch.slot + mailbox.usage, &usage);
    mailbox.bytes.write(launch.slot, &[LEFT]);
    call(libc::SYS_kill, [1, KEEPER_SIGNAL as usize, 0, 0, 0, 0]);
    loop {
        let ended = wait(&mut status, 0);
        if ended < 0 && ended != -(libc::EINTR as isize) {
            exit(0);
        }
    }
}

/// Wait for any child.
fn wait(status: &mut i32, options: i32) -> isize {
    let options = (libc::__WALL | options) as usize;
    call(libc::SYS_wait4, [usize::MAX, status as *mut i32 as usize, options, 0, 0, 0])
}

/// The program's own process, up to the moment it executes.
extern "C" fn program(argument: usize) -> ! {
    // SAFETY: as in `keeper`, which is suspended meanwhile if there is one.
    let launch = unsafe { &*(argument as *const Launch) };
    let must = |doing: Doing, result: isize| if result < 0 { launch.fail(doing, result) } else { result };
    launch.enter_group();
    // A session only for a terminal: the kernel makes a scheduling group for each, which takes
    // longer than all the rest of this function. A process group is what signals need.
    let alone = if launch.terminal { libc::SYS_setsid } else { libc::SYS_setpgid };
    must(Doing::Streams, call(alone, [0; 6]));
    // Lifted out of the way first: a stream may have the number of another's target.
    let mut high = [0usize; 3];
    for (index, stream) in launch.streams.iter().enumerate() {
        high[index] = *stream as usize;
        if *stream < 3 {
            let lift = [*stream as usize, libc::F_DUPFD_CLOEXEC as usize, 3, 0, 0, 0];
            high[index] = must(Doing::Streams, call(libc::SYS_fcntl, lift)) as usize;
        }
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
    if launch.groups >= 0 {
        // Closed by execve in any case, but `/proc/self/fd` is a way to it until then.
        must(Doing::Directory, call(libc::SYS_close, [launch.groups as usize, 0, 0, 0, 0, 0]));
    }
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

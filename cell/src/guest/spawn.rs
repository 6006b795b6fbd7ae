//! Starting a program: streams or a terminal, a keeper, and the identity it is given.

use super::duct::Duct;
use super::jobs::{Job, Jobs, Terminal};
use super::keeper;
use super::slots::Slots;
use super::{House, Refused};
use crate::sys::{cstring, fd, libc, mount, process, socket, wall};
use crate::wire::message::Start;
use std::ffi::CString;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;

/// What a child says it was doing when it failed; the host shows the name.
pub const STEPS: &[&str] = &["", "terminal", "streams", "identity", "directory", "execute", "file"];
const AT_TERMINAL: u8 = 1;
const AT_STREAMS: u8 = 2;
const AT_IDENTITY: u8 = 3;
const AT_DIRECTORY: u8 = 4;
const AT_EXECUTE: u8 = 5;

/// The child's three streams, and the guest's ends where the guest carries the bytes itself.
struct Streams {
    child: [OwnedFd; 3],
    ducts: Vec<Duct>,
    terminal: Option<Terminal>,
}

pub fn start(house: &House, jobs: &mut Jobs, ducts: &mut Vec<Duct>, id: u32, start: &Start, fds: Vec<OwnedFd>) -> Result<(), Refused> {
    let streams = match start.pty {
        Some((rows, cols)) => terminal(house, id, start, rows, cols, fds).map_err(Refused::at("terminal"))?,
        None if house.stream_transport => piped(id, start).map_err(Refused::at("streams"))?,
        None => given(start, fds).map_err(Refused::at("streams"))?,
    };
    let program = Program::prepare(start).map_err(Refused::at("execute"))?;
    let told = if start.tell { Some(fd::pipe().map_err(Refused::at("streams"))?) } else { None };
    let before = jobs.processes_so_far();
    let slot = jobs.slots.take().ok_or(Refused { step: "execute", errno: libc::EAGAIN })?;
    let pid = match process::fork() {
        Ok(0) => {
            in_keeper(&jobs.slots, slot, house, start, &program, &streams);
        }
        Ok(pid) => pid,
        Err(error) => {
            jobs.slots.give_back(slot);
            return Err(Refused::at("fork")(error));
        }
    };
    ducts.extend(streams.ducts);
    jobs.insert(id, Job { pid, slot, before, keeper: true, terminal: streams.terminal, starting: told.map(|(read, _)| read), orphan: None });
    Ok(())
}

fn in_keeper(slots: &Slots, slot: usize, house: &House, start: &Start, program: &Program, streams: &Streams) -> ! {
    if keeper::adopt_orphans().is_err() {
        process::exit(1);
    }
    match process::fork() {
        Ok(0) => in_program(slots, slot, house, start, program, streams),
        Ok(pid) => keeper::keep(slots, slot, pid),
        Err(error) => {
            slots.failed(slot, AT_EXECUTE, crate::sys::errno_of(&error), b"fork");
            process::exit(1)
        }
    }
}

/// In the program's process, up to the moment it executes.
fn in_program(slots: &Slots, slot: usize, house: &House, start: &Start, program: &Program, streams: &Streams) -> ! {
    let (step, error) = match prepare(house, start, streams) {
        Ok(()) => program.execute(),
        Err(failed) => failed,
    };
    slots.failed(slot, step, crate::sys::errno_of(&error), b"");
    process::exit(127)
}

fn prepare(house: &House, start: &Start, streams: &Streams) -> Result<(), (u8, io::Error)> {
    let at = |step: u8| move |error: io::Error| (step, error);
    process::setsid().map_err(at(AT_STREAMS))?;
    // Lifted out of the way first: a stream may arrive under the number of another's target.
    let mut high = Vec::new();
    for stream in &streams.child {
        high.push(fd::dup_above(stream.as_raw_fd(), 10).map_err(at(AT_STREAMS))?);
    }
    for (stream, number) in high.iter().zip(0..) {
        fd::dup_to(stream.as_raw_fd(), number as RawFd).map_err(at(AT_STREAMS))?;
    }
    if streams.terminal.is_some() {
        fd::take_terminal(0).map_err(at(AT_TERMINAL))?;
    }
    become_workload(house, start.uid, start.gid).map_err(at(AT_IDENTITY))?;
    process::chdir(&cstring(&start.cwd).map_err(at(AT_DIRECTORY))?).map_err(at(AT_DIRECTORY))
}

/// The identity of everything that is not the guest: the named user, no capabilities but the
/// profile's, and those only for the sandbox's root.
pub fn become_workload(house: &House, uid: u32, gid: u32) -> io::Result<()> {
    wall::set_rlimit(libc::RLIMIT_NOFILE, house.open_files, house.open_files)?;
    if house.change_identity {
        process::become_user(uid, gid, false)?;
    } else if (uid, gid) != (process::getuid(), process::getgid()) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    wall::set_capabilities(if uid == 0 { house.root_caps } else { 0 })?;
    process::unblock_signals()
}

fn given(start: &Start, fds: Vec<OwnedFd>) -> io::Result<Streams> {
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF));
    let stdin = if start.stdin { next()? } else { fd::open("/dev/null", libc::O_RDONLY, 0)? };
    Ok(Streams { child: [stdin, next()?, next()?], ducts: Vec::new(), terminal: None })
}

/// Where descriptors cannot travel the guest makes the pipes and carries the bytes.
fn piped(id: u32, start: &Start) -> io::Result<Streams> {
    let mut ducts = Vec::new();
    let stdin = if start.stdin {
        let (read, write) = fd::pipe()?;
        ducts.push(Duct::from_wire(id, STDIN, write)?);
        read
    } else {
        fd::open("/dev/null", libc::O_RDONLY, 0)?
    };
    let mut out = |stream: u8| -> io::Result<OwnedFd> {
        let (read, write) = fd::pipe()?;
        ducts.push(Duct::to_wire(id, stream, read)?);
        Ok(write)
    };
    Ok(Streams { child: [stdin, out(STDOUT)?, out(STDERR)?], ducts, terminal: None })
}

/// A pseudo-terminal of the sandbox's own; the host's terminals do not exist in here.
fn terminal(house: &House, id: u32, start: &Start, rows: u16, cols: u16, fds: Vec<OwnedFd>) -> io::Result<Streams> {
    let master = fd::open("/dev/ptmx", libc::O_RDWR, 0)?;
    let number = fd::unlock_pty(&master)?;
    let slave = fd::open(format!("/dev/pts/{number}"), libc::O_RDWR, 0)?;
    fd::set_window(&master, rows, cols)?;
    if house.change_identity {
        mount::fchown(&slave, start.uid, start.gid)?;
    }
    let (read, write) = (fd::dup_above(master.as_raw_fd(), 3)?, fd::dup_above(master.as_raw_fd(), 3)?);
    let ducts = match fds.into_iter().next() {
        Some(host) => {
            let back = fd::dup_above(host.as_raw_fd(), 3)?;
            vec![Duct::between(id, STDOUT, read, host)?, Duct::between(id, STDIN, back, write)?]
        }
        None => vec![Duct::to_wire(id, STDOUT, read)?, Duct::from_wire(id, STDIN, write)?],
    };
    let copy = || fd::dup_above(slave.as_raw_fd(), 3);
    Ok(Streams { child: [copy()?, copy()?, copy()?], ducts, terminal: Some(Terminal { master }) })
}

/// Connect to a port of the sandbox's loopback and carry the bytes both ways.
pub fn dial(house: &House, ducts: &mut Vec<Duct>, id: u32, port: u16, fds: Vec<OwnedFd>) -> Result<(), Refused> {
    let refused = Refused::at("connect");
    let remote = socket::connect_loopback(port).map_err(&refused)?;
    // Loopback connects at once or not at all.
    let mut waits = [fd::wait_for(remote.as_raw_fd(), libc::POLLOUT)];
    fd::poll(&mut waits, 1000).map_err(&refused)?;
    if waits[0].revents == 0 {
        return Err(Refused { step: "connect", errno: libc::ETIMEDOUT });
    }
    socket::connect_outcome(&remote).map_err(&refused)?;
    let copy = fd::dup_above(remote.as_raw_fd(), 3).map_err(&refused)?;
    let pair = match fds.into_iter().next() {
        Some(host) if !house.stream_transport => {
            let back = fd::dup_above(host.as_raw_fd(), 3).map_err(&refused)?;
            [Duct::between(id, STDOUT, remote, host), Duct::between(id, STDIN, back, copy)]
        }
        _ => [Duct::to_wire(id, STDOUT, remote), Duct::from_wire(id, STDIN, copy)],
    };
    for duct in pair {
        ducts.push(duct.map_err(&refused)?);
    }
    Ok(())
}

/// Argument and environment strings, made before the fork so that the child allocates nothing.
struct Program {
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    fn prepare(start: &Start) -> io::Result<Program> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let name = start.argv.first().filter(|name| !name.is_empty()).ok_or_else(invalid)?;
        let all = |list: &[Vec<u8>]| list.iter().map(cstring).collect::<io::Result<Vec<_>>>();
        let candidates = if name.contains(&b'/') {
            vec![cstring(name)?]
        } else {
            let path = start.env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or(b"/usr/bin:/bin");
            path.split(|byte| *byte == b':')
                .filter(|dir| !dir.is_empty())
                .map(|dir| cstring([dir, b"/", name].concat()))
                .collect::<io::Result<Vec<_>>>()?
        };
        Ok(Program { candidates, argv: all(&start.argv)?, env: all(&start.env)? })
    }

    /// Try each place on the path, as a shell would; a found but forbidden program is the answer
    /// only if nothing better follows.
    fn execute(&self) -> (u8, io::Error) {
        let mut answer = io::Error::from_raw_os_error(libc::ENOENT);
        for candidate in &self.candidates {
            let error = process::execve(candidate, &self.argv, &self.env);
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => answer = error,
                _ => return (AT_EXECUTE, error),
            }
        }
        (AT_EXECUTE, answer)
    }
}

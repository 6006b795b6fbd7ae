//! Starting a program: streams or a terminal, under whom, and the identity it is given.

use super::duct::Duct;
use super::jobs::{Job, Jobs, Kind, Terminal};
use super::{House, Refused};
use crate::sys::kept::{Launch, Stack};
use crate::sys::{cstring, fd, libc, mount, socket};
use crate::wire::message::Start;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;

/// The names of `Doing`, and of what a clerk does; the host shows them.
pub const STEPS: &[&str] = &["", "terminal", "streams", "identity", "directory", "execute", "file", "fork"];

/// The child's three streams, and the guest's ends where the guest carries the bytes itself.
struct Streams {
    child: [OwnedFd; 3],
    ducts: Vec<Duct>,
    terminal: Option<Terminal>,
}

pub fn start(
    house: &House,
    jobs: &mut Jobs,
    ducts: &mut Vec<Duct>,
    id: u32,
    start: &Start,
    fds: Vec<OwnedFd>,
) -> Result<(), Refused> {
    let streams = match start.pty {
        Some((rows, cols)) => terminal(house, id, start, rows, cols, fds).map_err(Refused::at("terminal"))?,
        None if house.stream_transport => piped(jobs, id, start).map_err(Refused::at("streams"))?,
        None => given(jobs, start, fds).map_err(Refused::at("streams"))?,
    };
    let numbers = [streams.child[0].as_raw_fd(), streams.child[1].as_raw_fd(), streams.child[2].as_raw_fd()];
    let stack = jobs.stack().map_err(Refused::at("execute"))?;
    let mut launch =
        prepare(house, start, numbers, streams.terminal.is_some(), stack).map_err(Refused::at("execute"))?;
    let told = if start.tell { Some(fd::pipe().map_err(Refused::at("streams"))?) } else { None };
    let group = match &mut jobs.groups {
        Some(groups) => Some(groups.make().map_err(Refused::at("fork"))?),
        None => None,
    };
    launch.group = group.as_ref().map_or(-1, |(_, door)| door.as_raw_fd());
    launch.groups = jobs.groups.as_ref().map_or(-1, |groups| groups.directory());
    let slot = jobs.slots.take().ok_or(Refused { step: "execute", errno: libc::EAGAIN })?;
    let (mailbox, place) = jobs.slots.mailbox(slot);
    // One that the host keeps a hold of is likely to live for long: it would only keep later ones
    // from being started directly.
    let kind = if !start.tell && jobs.may_start_directly() { Kind::Direct } else { Kind::Kept };
    let pid = match launch.start(mailbox, place, kind == Kind::Kept) {
        Ok(pid) => pid,
        Err(error) => {
            jobs.slots.give_back(slot);
            return Err(Refused::at("fork")(error));
        }
    };
    ducts.extend(streams.ducts);
    let starting = told.map(|(read, _)| read);
    let mut job = Job::new(kind, pid, slot);
    job.launch = Some(launch);
    job.group = group.map(|(number, _)| number);
    job.terminal = streams.terminal;
    job.starting = starting;
    jobs.insert(id, job);
    Ok(())
}

/// Everything the program needs, laid out before the clone so that its process allocates nothing.
fn prepare(
    house: &House,
    start: &Start,
    streams: [RawFd; 3],
    terminal: bool,
    stack: Stack,
) -> io::Result<Box<Launch>> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let name = start.argv.first().filter(|name| !name.is_empty()).ok_or_else(invalid)?;
    let all = |list: &[Vec<u8>]| list.iter().map(cstring).collect::<io::Result<Vec<_>>>();
    let candidates = if name.contains(&b'/') {
        vec![cstring(name)?]
    } else {
        let path =
            start.env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or(b"/usr/bin:/bin");
        path.split(|byte| *byte == b':')
            .filter(|dir| !dir.is_empty())
            .map(|dir| cstring([dir, b"/", name].concat()))
            .collect::<io::Result<Vec<_>>>()?
    };
    let identity = house.identity(start.uid, start.gid)?;
    let capabilities = house.capabilities(start.uid);
    Ok(Launch::new(
        streams,
        terminal,
        identity,
        capabilities,
        house.open_files,
        cstring(&start.cwd)?,
        candidates,
        all(&start.argv)?,
        all(&start.env)?,
        stack,
    ))
}

fn given(jobs: &Jobs, start: &Start, fds: Vec<OwnedFd>) -> io::Result<Streams> {
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF));
    let stdin = if start.stdin { next()? } else { jobs.no_input()? };
    Ok(Streams { child: [stdin, next()?, next()?], ducts: Vec::new(), terminal: None })
}

/// Where descriptors cannot travel the guest makes the pipes and carries the bytes.
fn piped(jobs: &Jobs, id: u32, start: &Start) -> io::Result<Streams> {
    let mut ducts = Vec::new();
    let stdin = if start.stdin {
        let (read, write) = fd::pipe()?;
        ducts.push(Duct::from_wire(id, STDIN, write)?);
        read
    } else {
        jobs.no_input()?
    };
    let mut out = |stream: u8| -> io::Result<OwnedFd> {
        let (read, write) = fd::pipe()?;
        ducts.push(Duct::to_wire(id, stream, read)?);
        Ok(write)
    };
    Ok(Streams { child: [stdin, out(STDOUT)?, out(STDERR)?], ducts, terminal: None })
}

/// A pseudo-terminal of the sandbox's own; the host's terminals do not exist in here.
fn terminal(
    house: &House,
    id: u32,
    start: &Start,
    rows: u16,
    cols: u16,
    fds: Vec<OwnedFd>,
) -> io::Result<Streams> {
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
pub fn dial(
    house: &House,
    ducts: &mut Vec<Duct>,
    id: u32,
    port: u16,
    fds: Vec<OwnedFd>,
) -> Result<(), Refused> {
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

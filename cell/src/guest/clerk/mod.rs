//! The clerk: a short-lived process that does one file operation under the named user.
//!
//! It runs inside the wall like any program: whatever a path leads to, it leads to there.

mod entry;
mod parcel;
mod plain;
mod remove;
mod watch;

use super::duct::Duct;
use super::jobs::{Job, Jobs, Kind};
use super::spawn::{STDIN, STDOUT};
use super::{House, Refused};
use crate::sys::kept::KEEPER_SIGNAL;
use crate::sys::{fd, libc, process, wall};
use crate::wire::message::File;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub const READ: u8 = 1;
pub const WRITE: u8 = 2;
pub const LIST: u8 = 3;
pub const STAT: u8 = 4;
pub const MAKE: u8 = 5;
pub const MOVE: u8 = 6;
pub const REMOVE: u8 = 7;
pub const PUT: u8 = 8;
pub const GET: u8 = 9;
pub const WATCH: u8 = 10;
pub const SPACE: u8 = 11;

/// Flags of the operations; each uses some.
pub const PARENTS: u32 = 1;
pub const APPEND: u32 = 2;
pub const RECURSIVE: u32 = 4;
pub const REPLACE: u32 = 8;
pub const FOLLOW: u32 = 16;

/// Index into the step names: "file".
const AT_FILE: u8 = 6;

/// What went wrong, and on which path if not the one that was asked for.
pub struct Trouble {
    pub error: io::Error,
    pub path: Vec<u8>,
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble { error, path: Vec::new() }
    }
}

pub fn on(path: &[u8]) -> impl Fn(io::Error) -> Trouble + '_ {
    move |error| Trouble { error, path: path.to_vec() }
}

pub fn trouble(errno: i32) -> Trouble {
    io::Error::from_raw_os_error(errno).into()
}

pub fn start(
    house: &House,
    jobs: &mut Jobs,
    ducts: &mut Vec<Duct>,
    id: u32,
    file: &File,
    fds: Vec<OwnedFd>,
) -> Result<(), Refused> {
    let (input, output) = ends(house, ducts, id, fds).map_err(Refused::at("streams"))?;
    let slot = jobs.slots.take().ok_or(Refused { step: "file", errno: libc::EAGAIN })?;
    let pid = match process::fork(KEEPER_SIGNAL) {
        Ok(0) => {
            let outcome = perform(house, file, input, output);
            if let Err(trouble) = outcome {
                jobs.slots.failed(slot, AT_FILE, crate::sys::errno_of(&trouble.error), &trouble.path);
                process::exit(1);
            }
            process::exit(0)
        }
        Ok(pid) => pid,
        Err(error) => {
            jobs.slots.give_back(slot);
            return Err(Refused::at("fork")(error));
        }
    };
    jobs.insert(id, Job::new(Kind::Clerk, pid, slot));
    Ok(())
}

fn ends(house: &House, ducts: &mut Vec<Duct>, id: u32, fds: Vec<OwnedFd>) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = fds.into_iter();
    if let (Some(input), Some(output)) = (fds.next(), fds.next()) {
        return Ok((input, output));
    }
    if !house.stream_transport {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let (input, feed) = fd::pipe()?;
    let (result, output) = fd::pipe()?;
    ducts.push(Duct::from_wire(id, STDIN, feed)?);
    ducts.push(Duct::to_wire(id, STDOUT, result)?);
    Ok((input, output))
}

fn perform(house: &House, file: &File, input: OwnedFd, output: OwnedFd) -> Result<(), Trouble> {
    let input = fd::dup_above(input.as_raw_fd(), 3)?;
    let output = fd::dup_above(output.as_raw_fd(), 3)?;
    fd::close_all_but(&[input.as_raw_fd(), output.as_raw_fd()])?;
    fd::set_nonblocking(&input, false)?;
    fd::set_nonblocking(&output, false)?;
    become_workload(house, file.uid, file.gid)?;
    let (input, output) = (input.as_raw_fd(), output.as_raw_fd());
    match file.operation {
        READ => plain::read(file, output),
        WRITE => plain::write(file, input),
        LIST => entry::list(file, output),
        STAT => entry::stat(file, output),
        MAKE => plain::make(&file.path, file.mode, file.flags & PARENTS != 0),
        MOVE => plain::rename(file),
        REMOVE => remove::remove(&file.path, file.flags & RECURSIVE != 0),
        PUT => parcel::unpack(&file.path, input),
        GET => parcel::pack(&file.path, output),
        WATCH => watch::watch(file, output),
        SPACE => entry::space(output),
        _ => Err(trouble(libc::ENOSYS)),
    }
}

/// The same identity that a program of this user would have.
fn become_workload(house: &House, uid: u32, gid: u32) -> io::Result<()> {
    wall::set_rlimit(libc::RLIMIT_NOFILE, house.open_files, house.open_files)?;
    if let Some((uid, gid)) = house.identity(uid, gid)? {
        process::become_user(uid, gid, false)?;
    }
    wall::set_capabilities(house.capabilities(uid))?;
    process::unblock_signals()
}

/// Fill a buffer or find the end of input: false if it ended before the first byte.
pub fn read_exact(input: RawFd, buffer: &mut [u8]) -> Result<bool, Trouble> {
    let mut have = 0;
    while have < buffer.len() {
        match fd::read(input, &mut buffer[have..])? {
            0 if have == 0 => return Ok(false),
            0 => return Err(trouble(libc::EPIPE)),
            n => have += n,
        }
    }
    Ok(true)
}

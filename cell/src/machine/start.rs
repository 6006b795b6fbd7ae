//! Executes the program that is a machine: what it works on comes as descriptors, not as names.

use crate::contain::seccomp::{self, rules::Options};
use crate::sys::{cstring, fd, libc, process, socket, wall};
use crate::warden;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// The first number that a descriptor has in the program.
const FIRST: i32 = 3;
/// The word with which the socket comes that connections are asked for on.
const DIAL: u8 = b'd';

/// Take `count` descriptors from the socket that is standard input, and execute `argv` with them as
/// 3, 4 and so on, the log after the last. Returns only the reason it could not.
pub fn run(count: usize, argv: &[String]) -> io::Error {
    match receive(count).and_then(|()| argv.iter().map(cstring).collect::<io::Result<Vec<_>>>()) {
        Ok(argv) if !argv.is_empty() => process::execve(&argv[0], &argv, &[]),
        Ok(_) => io::Error::from_raw_os_error(libc::EINVAL),
        Err(error) => error,
    }
}

fn receive(count: usize) -> io::Result<()> {
    let mut held = Vec::new();
    while held.len() < count {
        let (mut byte, mut fds) = ([0u8; 1], Vec::new());
        if socket::receive(0, &mut byte, &mut fds)? == 0 {
            return Err(io::Error::from_raw_os_error(libc::ECONNABORTED));
        }
        match (byte[0], fds.pop()) {
            (DIAL, Some(requests)) => start_dialling(requests)?,
            (_, last) => held.extend(fds.into_iter().chain(last)),
        }
    }
    // Lifted out of the way first: one may have the number of another's target.
    let top = FIRST + held.len() as i32;
    let lifted: Vec<_> =
        held.iter().map(|each| fd::dup_above(each.as_raw_fd(), top + 1)).collect::<io::Result<_>>()?;
    drop(held);
    for (number, each) in (FIRST..).zip(&lifted) {
        fd::dup_to(each.as_raw_fd(), number)?;
    }
    // Once more under a number that is no standard stream's, which some programs refuse.
    fd::dup_to(2, top)
}

/// Beside the program, in its network, which the host is not in: everything there leads to the gateway.
/// It ends with the program, which is the first process here.
fn start_dialling(requests: OwnedFd) -> io::Result<()> {
    if process::fork(libc::SIGCHLD)? != 0 {
        return Ok(());
    }
    let outcome = dial_all(&requests);
    process::exit(i32::from(outcome.is_err()))
}

/// As little as a guest may do is enough here; and a program that was taken over cannot go on in it.
fn dial_all(requests: &OwnedFd) -> io::Result<()> {
    fd::close_all_but(&[requests.as_raw_fd()])?;
    process::set_name("cloister-dial")?;
    process::prctl(libc::PR_SET_DUMPABLE, 0)?;
    let lines = seccomp::table::lines().map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))?;
    let options =
        Options { allow_ptrace: false, deny_set_id_bits: true, keep_core_limit: true, shield_first: false };
    wall::load_filter(&seccomp::compile(&lines, options))?;
    while warden::dial(requests)? {}
    Ok(())
}

//! Executes the program that is a machine: what it works on comes as descriptors, not as names.

use crate::sys::{cstring, fd, libc, process, socket};
use std::io;
use std::os::unix::io::AsRawFd;

/// The first number that a descriptor has in the program.
const FIRST: i32 = 3;

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
        let mut byte = [0u8; 1];
        if socket::receive(0, &mut byte, &mut held)? == 0 {
            return Err(io::Error::from_raw_os_error(libc::ECONNABORTED));
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

//! Files of the host's that are shown inside, as the host gives their content: in parts, since a letter
//! is short. They are written again in place when another goes on from this machine's memory.

use crate::sys::{fd, libc};
use std::io;
use std::os::unix::io::AsRawFd;

/// `u8 number | u8 whether it goes on | bytes`; a plan names the file as `/given/NUMBER`.
pub fn write(part: &[u8]) -> io::Result<()> {
    let (number, flags, bytes) = match part {
        [number, 0, bytes @ ..] => (number, libc::O_TRUNC, bytes),
        [number, 1, bytes @ ..] => (number, libc::O_APPEND, bytes),
        _ => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
    };
    let file = fd::open(format!("/given/{number}"), libc::O_CREAT | libc::O_WRONLY | flags, 0o444)?;
    fd::write_all(file.as_raw_fd(), bytes)
}

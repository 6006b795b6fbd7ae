//! The first process around another kernel: it runs that kernel's program, and another program that
//! saves its memory when the host says so. It ends with the first.
//!
//! The host's word comes on standard error, a socket: one byte, and with it the end of a pipe that is
//! told how the saving ended, or a socket on which connections are asked for. This process is in the
//! sandbox's network, where everything leads to the gateway; the host is not. What the programs complain is passed on there; they are given a pipe,
//! since another kernel that lets go of a socket shuts it down for everybody.

use crate::sys::process::{Ended, Pid};
use crate::sys::{cstring, fd, libc, process, socket};
use std::ffi::CString;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

const SAVE: u8 = b's';
const DIAL: u8 = b'd';
const WORD: i32 = 2;

/// Returns only if it could not begin, or its words are not understood.
pub fn run(arguments: &[String]) -> Option<io::Result<()>> {
    let at = arguments.iter().position(|word| word == "--")?;
    let (program, saver) = (&arguments[..at], &arguments[at + 1..]);
    if program.is_empty() || saver.is_empty() {
        return None;
    }
    Some(words(program).and_then(|program| serve(&program, &words(saver)?)))
}

fn words(arguments: &[String]) -> io::Result<Vec<CString>> {
    arguments.iter().map(cstring).collect()
}

fn serve(program: &[CString], saver: &[CString]) -> io::Result<()> {
    process::block_all_signals()?;
    let signals = process::signal_descriptor(&[libc::SIGCHLD])?;
    let (complaints, complaining) = fd::pipe()?;
    fd::set_nonblocking(&complaints, true)?;
    fd::set_nonblocking(&WORD, true)?;
    let program = start(program, &complaining)?;
    // The connection is the program's: while it were open here too, its end would not be seen.
    drop((fd::adopt(0)?, fd::adopt(1)?));
    let mut saving: Option<(Pid, OwnedFd)> = None;
    let mut dialling: Option<OwnedFd> = None;
    let mut over = None;
    loop {
        let word = if saving.is_none() { WORD } else { -1 };
        let mut waits = [
            fd::wait_for(signals.as_raw_fd(), libc::POLLIN),
            fd::wait_for(word, libc::POLLIN),
            fd::wait_for(complaints.as_raw_fd(), libc::POLLIN),
            fd::wait_for(dialling.as_ref().map_or(-1, AsRawFd::as_raw_fd), libc::POLLIN),
        ];
        fd::poll(&mut waits, -1)?;
        pass_on(&complaints);
        if waits[1].revents != 0 {
            match hear()? {
                (SAVE, answer) => saving = Some((start(saver, &complaining)?, answer)),
                (_, requests) => dialling = Some(requests),
            }
        }
        if waits[3].revents != 0 {
            if let Some(requests) = dialling.take() {
                dialling = dial(&requests)?.then_some(requests);
            }
        }
        if waits[0].revents == 0 {
            continue;
        }
        drop(fd::read(signals.as_raw_fd(), &mut [0u8; 128]));
        while let Some(ended) = process::reap(-1, false)? {
            if ended.pid == program {
                over = Some(code(&ended));
            } else if saving.as_ref().map_or(false, |(pid, _)| *pid == ended.pid) {
                if let Some((_, answer)) = saving.take() {
                    // Whoever asked may have gone: then nobody is to be told.
                    drop(fd::write_all(answer.as_raw_fd(), &[code(&ended) as u8]));
                }
            }
        }
        if let (Some(code), None) = (over, &saving) {
            process::exit(code);
        }
    }
}

/// Take the host's word and what came with it; the end of its words is the end of everything.
fn hear() -> io::Result<(u8, OwnedFd)> {
    let (mut byte, mut fds) = ([0u8; 1], Vec::new());
    match (socket::receive(WORD, &mut byte, &mut fds)?, fds.pop()) {
        (1, Some(fd)) if [SAVE, DIAL].contains(&byte[0]) => Ok((byte[0], fd)),
        _ => process::exit(1),
    }
}

/// Begin one connection: `u32 address | u16 port`, answered by `u32 errno` and the socket. False when
/// nobody asks any more.
pub fn dial(requests: &OwnedFd) -> io::Result<bool> {
    let (mut asked, mut fds) = ([0u8; 6], Vec::new());
    if socket::receive(requests.as_raw_fd(), &mut asked, &mut fds)? != asked.len() {
        return Ok(false);
    }
    let address = u32::from_le_bytes([asked[0], asked[1], asked[2], asked[3]]);
    let port = u16::from_le_bytes([asked[4], asked[5]]);
    let (errno, made) = match socket::connect_to(address, port) {
        Ok(made) => (0, Some(made)),
        Err(error) => (crate::sys::errno_of(&error) as u32, None),
    };
    let fds: Vec<_> = made.iter().map(AsRawFd::as_raw_fd).collect();
    // Who has gone meanwhile is not answered.
    Ok(socket::send(requests.as_raw_fd(), &errno.to_le_bytes(), &fds).is_ok())
}

/// What the host has no room for is dropped: nobody is held up by complaining.
fn pass_on(complaints: &OwnedFd) {
    let mut buffer = [0u8; 4096];
    if let Ok(count @ 1..) = fd::read(complaints.as_raw_fd(), &mut buffer) {
        drop(socket::send(WORD, &buffer[..count], &[]));
    }
}

fn start(argv: &[CString], complaining: &OwnedFd) -> io::Result<Pid> {
    let pid = process::fork(libc::SIGCHLD)?;
    if pid != 0 {
        return Ok(pid);
    }
    let environment = [CString::new("PATH=/").unwrap_or_default()];
    process::default_signals();
    if fd::dup_to(complaining.as_raw_fd(), WORD).is_ok() && process::unblock_signals().is_ok() {
        drop(process::execve(&argv[0], argv, &environment));
    }
    process::exit(127)
}

fn code(ended: &Ended) -> i32 {
    match libc::WIFEXITED(ended.status) {
        true => libc::WEXITSTATUS(ended.status),
        false => 128 + libc::WTERMSIG(ended.status),
    }
}

//! The one connection to the host: frames in, frames out, descriptors in the order they came.

use crate::sys::own_memory::Pages;
use crate::sys::{fd, libc, socket};
use crate::wire::codec::Malformed;
use crate::wire::frame::{Assembler, MAX_TO_GUEST};
use crate::wire::message::{ToGuest, ToHost};
use std::collections::VecDeque;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// Past this many waiting bytes no output is read from any process: a slow host slows the writer.
const HIGH_WATER: usize = 256 * 1024;

pub struct Link {
    socket: OwnedFd,
    /// Whether descriptors come with the bytes; otherwise it need not be a socket at all.
    carries_descriptors: bool,
    frames: Assembler,
    fds: VecDeque<OwnedFd>,
    waiting: Vec<u8>,
    sent: usize,
    /// Made once; only what has been received takes up memory.
    inbox: Pages,
}

impl Link {
    pub fn new(socket: OwnedFd, carries_descriptors: bool) -> io::Result<Link> {
        fd::set_nonblocking(&socket, true)?;
        Ok(Link {
            socket,
            carries_descriptors,
            frames: Assembler::new(MAX_TO_GUEST),
            fds: VecDeque::new(),
            waiting: Vec::new(),
            sent: 0,
            inbox: Pages::new(64 * 1024)?,
        })
    }

    pub fn number(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub fn wants(&self) -> i16 {
        libc::POLLIN | if self.waiting.is_empty() { 0 } else { libc::POLLOUT }
    }

    pub fn has_room(&self) -> bool {
        self.waiting.len() - self.sent < HIGH_WATER
    }

    /// Read what is there. False at the end of the connection.
    pub fn fill(&mut self) -> io::Result<bool> {
        let mut fds = Vec::new();
        let number = self.socket.as_raw_fd();
        let received = if self.carries_descriptors {
            socket::receive(number, self.inbox.bytes(), &mut fds)
        } else {
            fd::read(number, self.inbox.bytes())
        };
        match received {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.frames.feed(&self.inbox.bytes()[..n]);
                self.fds.extend(fds);
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn next(&mut self) -> io::Result<Option<(u32, ToGuest)>> {
        let frame = match self.frames.next().map_err(broken)? {
            Some(frame) => frame,
            None => return Ok(None),
        };
        let message = ToGuest::decode(frame.kind, &frame.payload).map_err(broken)?;
        Ok(Some((frame.id, message)))
    }

    pub fn take_fds(&mut self, count: usize) -> io::Result<Vec<OwnedFd>> {
        if self.fds.len() < count {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        Ok(self.fds.drain(..count).collect())
    }

    pub fn say(&mut self, id: u32, message: &ToHost) -> io::Result<()> {
        self.waiting.extend_from_slice(&message.encode(id));
        self.flush()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.waiting.len() {
            let (number, rest) = (self.socket.as_raw_fd(), &self.waiting[self.sent..]);
            let sent = if self.carries_descriptors {
                socket::send(number, rest, &[])
            } else {
                fd::write(number, rest)
            };
            match sent {
                Ok(n) => self.sent += n,
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.waiting.clear();
        self.waiting.shrink_to(4096);
        self.sent = 0;
        Ok(())
    }
}

fn broken(malformed: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed.0)
}

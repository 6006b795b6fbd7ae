//! One direction of bytes that the guest carries itself: from a descriptor or the wire, to a
//! descriptor or the wire. Never more than one buffer is held: a slow reader slows the writer.

use super::link::Link;
use crate::sys::fd::{self, Wait};
use crate::sys::{libc, socket};
use crate::wire::message::ToHost;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// Bytes one side may send before the other has said it took them.
pub const WINDOW: usize = 256 * 1024;
const CHUNK: usize = 64 * 1024;

pub struct Duct {
    pub job: u32,
    stream: u8,
    /// None: bytes come from the wire.
    from: Option<OwnedFd>,
    /// None: bytes go to the wire.
    to: Option<OwnedFd>,
    buffer: Vec<u8>,
    written: usize,
    credit: usize,
    no_more: bool,
    /// Bytes from the wire found nobody to take them: the host is told, or it would wait for ever.
    refused: bool,
    /// The program has ended: what is in the pipe now is all that counts.
    last: bool,
    closed: bool,
    /// Nobody is left who asked for these bytes: they are taken, so that their writer goes on, and dropped.
    forsaken: bool,
}

impl Duct {
    pub fn between(job: u32, stream: u8, from: OwnedFd, to: OwnedFd) -> io::Result<Duct> {
        Duct::new(job, stream, Some(from), Some(to))
    }

    pub fn to_wire(job: u32, stream: u8, from: OwnedFd) -> io::Result<Duct> {
        Duct::new(job, stream, Some(from), None)
    }

    pub fn from_wire(job: u32, stream: u8, to: OwnedFd) -> io::Result<Duct> {
        Duct::new(job, stream, None, Some(to))
    }

    fn new(job: u32, stream: u8, from: Option<OwnedFd>, to: Option<OwnedFd>) -> io::Result<Duct> {
        for end in [&from, &to].into_iter().flatten() {
            fd::set_nonblocking(end, true)?;
        }
        Ok(Duct {
            job,
            stream,
            from,
            to,
            buffer: Vec::new(),
            written: 0,
            credit: WINDOW,
            no_more: false,
            refused: false,
            last: false,
            closed: false,
            forsaken: false,
        })
    }

    /// Whether data of this stream from the wire belongs here.
    pub fn takes(&self, job: u32, stream: u8) -> bool {
        self.job == job && self.stream == stream && self.from.is_none()
    }

    /// Whether this duct sends that stream to the wire.
    pub fn gives(&self, job: u32, stream: u8) -> bool {
        self.job == job && self.stream == stream && self.to.is_none()
    }

    /// Bytes from the wire. More than the window is a host that does not keep the contract.
    pub fn accept(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.pending() + bytes.len() > WINDOW {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        if !self.closed {
            self.buffer.extend_from_slice(bytes);
        }
        Ok(())
    }

    pub fn finish(&mut self) {
        self.no_more = true;
    }

    pub fn credit(&mut self, bytes: u32) {
        self.credit = (self.credit + bytes as usize).min(WINDOW);
    }

    pub fn last_words(&mut self) {
        self.last = true;
        if self.from.is_none() {
            self.closed = true;
        }
    }

    /// Let go of a connection as one that was cut.
    pub fn cut(self) -> io::Result<()> {
        self.from.iter().chain(&self.to).try_for_each(socket::reset_when_closed)
    }

    /// The host that asked for this is gone: what comes is dropped, what was to be sent has ended.
    pub fn forsake(&mut self) {
        self.forsaken = true;
        if self.from.is_none() {
            self.finish();
        }
    }

    /// Whether what is read may go somewhere now.
    fn may_pass(&self, link_has_room: bool) -> bool {
        self.to.is_some() || self.forsaken || (self.credit > 0 && link_has_room)
    }

    pub fn done(&self) -> bool {
        self.closed
    }

    fn pending(&self) -> usize {
        self.buffer.len() - self.written
    }

    /// Always two entries, so that the caller can match them up by position.
    pub fn add_waits(&self, waits: &mut Vec<Wait>, link_has_room: bool) {
        let may_read = !self.no_more && self.pending() == 0 && self.may_pass(link_has_room);
        let source = self.from.as_ref().filter(|_| may_read).map_or(-1, AsRawFd::as_raw_fd);
        let target = self.to.as_ref().filter(|_| self.pending() > 0).map_or(-1, AsRawFd::as_raw_fd);
        waits.push(fd::wait_for(source, libc::POLLIN));
        waits.push(fd::wait_for(target, libc::POLLOUT));
    }

    /// There is something to do that no descriptor will announce: an end to pass on, or, after
    /// the program has ended, a last look for what a writer that may never come has left.
    pub fn in_hurry(&self, link_has_room: bool) -> bool {
        if self.no_more && self.pending() == 0 && !self.closed {
            return true;
        }
        self.last && !self.no_more && self.pending() == 0 && self.may_pass(link_has_room)
    }

    pub fn serve(&mut self, waits: &[Wait], link: &mut Link) -> io::Result<()> {
        let readable = waits[0].revents != 0 || (self.last && waits[0].fd >= 0);
        if readable && !self.no_more {
            self.read(link)?;
        }
        self.write(link)
    }

    fn read(&mut self, link: &mut Link) -> io::Result<()> {
        let from = match &self.from {
            Some(from) => from.as_raw_fd(),
            None => return Ok(()),
        };
        let limit = if self.to.is_some() || self.forsaken { CHUNK } else { CHUNK.min(self.credit) };
        let mut chunk = vec![0u8; limit];
        match fd::read(from, &mut chunk) {
            Ok(0) => self.no_more = true,
            Ok(_) if self.forsaken && self.to.is_none() => {}
            Ok(n) if self.to.is_some() => {
                chunk.truncate(n);
                self.buffer = chunk;
                self.written = 0;
            }
            Ok(n) => {
                chunk.truncate(n);
                self.credit -= n;
                link.say(self.job, &ToHost::Data { stream: self.stream, bytes: chunk })?;
            }
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => self.no_more |= self.last,
            // EIO is how a terminal says that its last user has gone; a reset connection is over too.
            Err(_) => self.no_more = true,
        }
        Ok(())
    }

    fn write(&mut self, link: &mut Link) -> io::Result<()> {
        if let Some(to) = &self.to {
            let mut taken = 0;
            while self.written < self.buffer.len() {
                match fd::write(to.as_raw_fd(), &self.buffer[self.written..]) {
                    Ok(n) => {
                        self.written += n;
                        taken += n;
                    }
                    Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => break,
                    // Nobody reads any more: the rest goes nowhere, and no more is asked for.
                    Err(_) => {
                        self.refused = self.from.is_none();
                        taken += self.pending();
                        self.written = self.buffer.len();
                        self.no_more = true;
                    }
                }
            }
            if self.pending() == 0 {
                self.buffer.clear();
                self.written = 0;
            }
            if self.from.is_none() && taken > 0 && !self.forsaken {
                link.say(self.job, &ToHost::Credit { stream: self.stream, bytes: taken as u32 })?;
            }
        }
        if self.no_more && self.pending() == 0 && !self.closed {
            self.closed = true;
            match &self.to {
                // Half-close a connection; for anything else dropping the descriptor says it.
                Some(to) => {
                    drop(socket::shutdown_write(to.as_raw_fd()));
                    if self.refused && !self.forsaken {
                        link.say(self.job, &ToHost::Close { stream: self.stream })?;
                    }
                }
                None if self.forsaken => {}
                None => link.say(self.job, &ToHost::Close { stream: self.stream })?,
            }
        }
        Ok(())
    }
}

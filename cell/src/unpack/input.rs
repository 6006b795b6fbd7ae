//! The stream an archive comes in: blocks of 512 bytes, and content that is counted as it is read.

use super::{refuse, Outcome};
use crate::sys::fd;
use std::os::unix::io::RawFd;

pub const BLOCK: usize = 512;
const BUFFER: usize = 256 * 1024;

pub struct Input {
    from: RawFd,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Of the entry at hand, without and with its padding.
    content_left: u64,
    padding_left: u64,
    content_bytes: u64,
    most_bytes: u64,
}

impl Input {
    pub fn new(from: RawFd, most_bytes: u64) -> Input {
        Input {
            from,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            content_left: 0,
            padding_left: 0,
            content_bytes: 0,
            most_bytes,
        }
    }

    pub fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// The next block, or None where the stream ends between two.
    pub fn block(&mut self) -> Outcome<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut at = 0;
        while at < BLOCK {
            let chunk = self.available(BLOCK - at)?;
            if chunk.is_empty() {
                return if at == 0 { Ok(None) } else { refuse("the archive ends in the middle of a header") };
            }
            let n = chunk.len();
            block[at..at + n].copy_from_slice(chunk);
            self.start += n;
            at += n;
        }
        Ok(Some(block))
    }

    /// Announce the content of the entry at hand; refused before any of it is read.
    pub fn announce(&mut self, size: u64) -> Outcome<()> {
        let room = self.most_bytes.saturating_sub(self.content_bytes);
        if size > room {
            return refuse(format!("the archive holds more than {} bytes, the limit", self.most_bytes));
        }
        self.content_bytes += size;
        self.content_left = size;
        self.padding_left = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        Ok(())
    }

    pub fn left(&self) -> u64 {
        self.content_left
    }

    /// At most `most` bytes of the content, empty at its end; `use_it` gets them where they are.
    pub fn content<T>(&mut self, most: u64, use_it: impl FnOnce(&[u8]) -> T) -> Outcome<(T, u64)> {
        let most = most.min(self.content_left);
        let want = usize::try_from(most).unwrap_or(usize::MAX);
        let chunk = if want == 0 { &[][..] } else { self.available(want)? };
        if chunk.is_empty() && want > 0 {
            return refuse("the archive ends in the middle of a file");
        }
        let n = chunk.len();
        let outcome = use_it(chunk);
        self.start += n;
        self.content_left -= n as u64;
        Ok((outcome, n as u64))
    }

    /// All of the content; the caller has compared its size with a limit.
    pub fn whole(&mut self) -> Outcome<Vec<u8>> {
        let mut all = Vec::with_capacity(usize::try_from(self.content_left).unwrap_or(0));
        while self.content_left > 0 {
            self.content(u64::MAX, |chunk| all.extend_from_slice(chunk))?;
        }
        self.finish()?;
        Ok(all)
    }

    /// Pass over what is left of the entry, padding included.
    pub fn finish(&mut self) -> Outcome<()> {
        while self.content_left > 0 {
            self.content(u64::MAX, |_| ())?;
        }
        self.content_left = std::mem::take(&mut self.padding_left);
        while self.content_left > 0 {
            self.content(u64::MAX, |_| ())?;
        }
        Ok(())
    }

    /// Read to the end of the stream, so that whoever writes it is not cut off.
    pub fn drain(&mut self) -> Outcome<()> {
        let mut left = self.most_bytes;
        loop {
            let n = self.available(BUFFER)?.len();
            self.start += n;
            match left.checked_sub(n as u64) {
                _ if n == 0 => return Ok(()),
                Some(rest) => left = rest,
                None => return refuse("the archive goes on after its end for longer than its limit"),
            }
        }
    }

    fn available(&mut self, most: usize) -> Outcome<&[u8]> {
        if self.start == self.end {
            self.start = 0;
            self.end = fd::read(self.from, &mut self.buffer)?;
        }
        let n = most.min(self.end - self.start);
        Ok(&self.buffer[self.start..self.start + n])
    }
}

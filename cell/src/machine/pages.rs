//! Writes down the memory of a machine that stands still: what it began from, and what is its own by now.
//!
//! A record is where it belongs and how long it is, 8 bytes each, and the bytes; pages of zeros have none.

use crate::contain::posture::read_small;
use crate::sys::{fd, libc, process, wall};
use std::io;
use std::os::unix::io::{AsRawFd, RawFd};

const PAGE: usize = 4096;
/// As much as is looked at together.
const PART: usize = 512 * PAGE;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// Still a page of the file, not one of the machine's own.
const OF_FILE: u64 = 1 << 61;
/// QEMU maps its memory once; who took it over does not have us read a list without an end.
const MOST_SPANS: usize = 256;

struct Span {
    address: u64,
    offset: u64,
    length: u64,
}

/// Write to `out` what process `pid` has in its private mapping of the file `base`.
pub fn run(pid: process::Pid, base: RawFd, out: RawFd) -> io::Result<()> {
    if process::getuid() != 0 {
        // Whoever owns the ids of the machine may look at it from among them.
        wall::join_users(&fd::open(format!("/proc/{pid}/ns/user"), libc::O_RDONLY, 0)?)?;
    }
    let status = fd::fstat(&base)?;
    let spans = spans(pid, status.st_ino)?;
    let memory = fd::open(format!("/proc/{pid}/mem"), libc::O_RDONLY, 0)?;
    let pagemap = fd::open(format!("/proc/{pid}/pagemap"), libc::O_RDONLY, 0)?;
    let mut part = vec![0u8; PART];
    let size = status.st_size as u64;
    let mut offset = 0;
    while offset < size {
        let part = &mut part[..PART.min((size - offset) as usize)];
        let mut is_used = false;
        if fd::next_data(base, offset as i64)?.map_or(false, |at| (at as u64) < offset + part.len() as u64) {
            read_exactly(base, part, offset)?;
            is_used = true;
        } else {
            part.fill(0);
        }
        for span in &spans {
            is_used |= overlay(&memory, &pagemap, span, part, offset)?;
        }
        if is_used {
            write_runs(out, part, offset)?;
        }
        offset += part.len() as u64;
    }
    Ok(())
}

/// Where the file is mapped, as the kernel lists it: addresses, rights, offset, device, number of the file.
fn spans(pid: process::Pid, number: u64) -> io::Result<Vec<Span>> {
    let mut found = Vec::new();
    for line in read_small(&format!("/proc/{pid}/maps"))?.lines() {
        let words: Vec<&str> = line.split_whitespace().take(6).collect();
        let [range, _, offset, _, file, name] = words[..] else { continue };
        if file.parse() != Ok(number) || !name.starts_with("/memfd:") {
            continue;
        }
        let hex = |word: &str| u64::from_str_radix(word, 16).map_err(|_| malformed());
        let (first, last) = range.split_once('-').ok_or_else(malformed)?;
        let address = hex(first)?;
        let length = hex(last)?.checked_sub(address).ok_or_else(malformed)?;
        found.push(Span { address, offset: hex(offset)?, length });
    }
    match found.len() {
        1..=MOST_SPANS => Ok(found),
        _ => Err(malformed()),
    }
}

fn malformed() -> io::Error {
    io::Error::from_raw_os_error(libc::EPROTO)
}

/// Put the machine's own pages over those of the file, for a part that begins at `offset`. False if there are none.
fn overlay(
    memory: &impl AsRawFd,
    pagemap: &impl AsRawFd,
    span: &Span,
    part: &mut [u8],
    offset: u64,
) -> io::Result<bool> {
    let first = offset.max(span.offset);
    let last = (offset + part.len() as u64).min(span.offset.saturating_add(span.length));
    if first >= last {
        return Ok(false);
    }
    let address = span.address + (first - span.offset);
    let mut entries = vec![0u8; (last - first) as usize / PAGE * 8];
    read_exactly(pagemap.as_raw_fd(), &mut entries, address / PAGE as u64 * 8)?;
    let is_own = |entry: &[u8]| {
        let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
        entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0
    };
    let own: Vec<bool> = entries.chunks_exact(8).map(is_own).collect();
    for (start, count) in runs(&own) {
        let at = (first - offset) as usize + start * PAGE;
        let from = address + (start * PAGE) as u64;
        read_exactly(memory.as_raw_fd(), &mut part[at..at + count * PAGE], from)?;
    }
    Ok(own.contains(&true))
}

fn write_runs(out: RawFd, part: &[u8], offset: u64) -> io::Result<()> {
    static ZEROS: [u8; PAGE] = [0; PAGE];
    let used: Vec<bool> = part.chunks(PAGE).map(|page| page != &ZEROS[..page.len()]).collect();
    for (start, count) in runs(&used) {
        let bytes = &part[start * PAGE..part.len().min((start + count) * PAGE)];
        let mut head = [0u8; 16];
        head[..8].copy_from_slice(&(offset + (start * PAGE) as u64).to_le_bytes());
        head[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        fd::write_all(out, &head)?;
        fd::write_all(out, bytes)?;
    }
    Ok(())
}

/// Where what is wanted begins, and how many follow each other.
fn runs(wanted: &[bool]) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for (index, _) in wanted.iter().enumerate().filter(|(_, is_wanted)| **is_wanted) {
        match found.last_mut() {
            Some((start, count)) if *start + *count == index => *count += 1,
            _ => found.push((index, 1)),
        }
    }
    found
}

fn read_exactly(file: RawFd, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut got = 0;
    while got < buffer.len() {
        match fd::pread(file, &mut buffer[got..], (offset + got as u64) as i64)? {
            0 => return Err(io::Error::from_raw_os_error(libc::EIO)),
            n => got += n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn what_follows_each_other_is_one_run() {
        assert_eq!(runs(&[false, true, true, false, true]), [(1, 2), (4, 1)]);
        assert_eq!(runs(&[]), []);
    }
}

//! Writes down the memory of a machine that stands still: what it began from, and what is its own by now.
//!
//! A record is where it belongs and how long it is, 8 bytes each, and the bytes. All of it is without pages of zeros;
//! what changed has records of zeros too, whose length has the highest bit and no bytes after it.

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
const HEAD: usize = 16;
/// Of a record that has no bytes: as many zeros are there.
const ZEROS: u64 = 1 << 63;
static ZERO_PAGE: [u8; PAGE] = [0; PAGE];

struct Span {
    address: u64,
    offset: u64,
    length: u64,
}

/// Write to `out` what process `pid` has in its private mapping of the file `base`.
///
/// With a `listed` file of heads it is what differs from `base`, and what is listed whether it differs or not.
pub fn run(pid: process::Pid, base: RawFd, out: RawFd, listed: Option<RawFd>) -> io::Result<()> {
    if process::getuid() != 0 {
        // Whoever owns the ids of the machine may look at it from among them.
        wall::join_users(&fd::open(format!("/proc/{pid}/ns/user"), libc::O_RDONLY, 0)?)?;
    }
    let status = fd::fstat(&base)?;
    let size = status.st_size as u64;
    let listed = listed.map(|file| read_list(file, size)).transpose()?;
    let spans = spans(pid, status.st_ino)?;
    let memory = fd::open(format!("/proc/{pid}/mem"), libc::O_RDONLY, 0)?;
    let pagemap = fd::open(format!("/proc/{pid}/pagemap"), libc::O_RDONLY, 0)?;
    let (mut part, mut before) = (vec![0u8; PART], vec![0u8; PART]);
    let mut offset = 0;
    while offset < size {
        let length = PART.min((size - offset) as usize);
        let (part, before) = (&mut part[..length], &mut before[..length]);
        let first = offset as usize / PAGE;
        let mut own = vec![false; pages(length)];
        for span in &spans {
            mark_own(&pagemap, span, offset, length, &mut own)?;
        }
        let listed = listed.as_ref().map(|all| &all[first..first + own.len()]);
        let has_own = own.contains(&true);
        let is_wanted = match listed {
            Some(listed) => has_own || listed.contains(&true),
            None => has_own || has_data(base, offset, length)?,
        };
        if is_wanted {
            if has_data(base, offset, length)? {
                read_exactly(base, before, offset)?;
            } else {
                before.fill(0);
            }
            part.copy_from_slice(before);
            for span in &spans {
                overlay(&memory, span, &own, part, offset)?;
            }
            let wanted = match listed {
                Some(listed) => changed(part, before, listed),
                None => vec![true; own.len()],
            };
            write_records(out, part, offset, &wanted, listed.is_some())?;
        }
        offset += length as u64;
    }
    Ok(())
}

/// Return for each page whether a list of heads names it.
fn read_list(file: RawFd, size: u64) -> io::Result<Vec<bool>> {
    let mut heads = vec![0u8; fd::fstat(&file)?.st_size as usize];
    read_exactly(file, &mut heads, 0)?;
    let mut listed = vec![false; pages(size as usize)];
    for head in heads.chunks(HEAD) {
        let (offset, length) = parse_head(head).ok_or_else(malformed)?;
        let end = offset.checked_add(length).filter(|end| *end <= size).ok_or_else(malformed)?;
        listed[offset as usize / PAGE..pages(end as usize)].fill(true);
    }
    Ok(listed)
}

fn pages(bytes: usize) -> usize {
    (bytes + PAGE - 1) / PAGE
}

fn parse_head(head: &[u8]) -> Option<(u64, u64)> {
    let offset = u64::from_le_bytes(head.get(..8)?.try_into().ok()?);
    let length = u64::from_le_bytes(head.get(8..HEAD)?.try_into().ok()?);
    Some((offset, length & !ZEROS))
}

fn has_data(base: RawFd, offset: u64, length: usize) -> io::Result<bool> {
    Ok(fd::next_data(base, offset as i64)?.map_or(false, |at| (at as u64) < offset + length as u64))
}

fn changed(part: &[u8], before: &[u8], listed: &[bool]) -> Vec<bool> {
    let pages = part.chunks(PAGE).zip(before.chunks(PAGE));
    pages.zip(listed).map(|((now, then), is_listed)| *is_listed || now != then).collect()
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

/// Mark which pages of a part that begins at `offset` are the machine's own.
fn mark_own(
    pagemap: &impl AsRawFd,
    span: &Span,
    offset: u64,
    length: usize,
    own: &mut [bool],
) -> io::Result<()> {
    let Some((first, last)) = common(span, offset, length) else { return Ok(()) };
    let address = span.address + (first - span.offset);
    let mut entries = vec![0u8; (last - first) as usize / PAGE * 8];
    read_exactly(pagemap.as_raw_fd(), &mut entries, address / PAGE as u64 * 8)?;
    let marks = &mut own[(first - offset) as usize / PAGE..];
    for (mark, entry) in marks.iter_mut().zip(entries.chunks_exact(8)) {
        let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
        *mark |= entry & (PRESENT | SWAPPED) != 0 && entry & OF_FILE == 0;
    }
    Ok(())
}

/// Put the machine's own pages over those of the file, for a part that begins at `offset`.
fn overlay(memory: &impl AsRawFd, span: &Span, own: &[bool], part: &mut [u8], offset: u64) -> io::Result<()> {
    let Some((first, last)) = common(span, offset, part.len()) else { return Ok(()) };
    let address = span.address + (first - span.offset);
    let skipped = (first - offset) as usize / PAGE;
    let count = (last - first) as usize / PAGE;
    for (start, count) in runs(&own[skipped..skipped + count]) {
        let at = (skipped + start) * PAGE;
        let from = address + (start * PAGE) as u64;
        read_exactly(memory.as_raw_fd(), &mut part[at..at + count * PAGE], from)?;
    }
    Ok(())
}

/// Where a part of the file and a mapping of it are the same.
fn common(span: &Span, offset: u64, length: usize) -> Option<(u64, u64)> {
    let first = offset.max(span.offset);
    let last = (offset + length as u64).min(span.offset.saturating_add(span.length));
    (first < last).then_some((first, last))
}

/// Write records of the pages that are wanted; of zeros only where those are said.
fn write_records(out: RawFd, part: &[u8], offset: u64, wanted: &[bool], says_zeros: bool) -> io::Result<()> {
    let is_zero: Vec<bool> = part.chunks(PAGE).map(|page| page == &ZERO_PAGE[..page.len()]).collect();
    for value in [false, true] {
        if value && !says_zeros {
            break;
        }
        let chosen: Vec<bool> = wanted.iter().zip(&is_zero).map(|(w, zero)| *w && *zero == value).collect();
        for (start, count) in runs(&chosen) {
            let bytes = &part[start * PAGE..part.len().min((start + count) * PAGE)];
            let length = bytes.len() as u64 | if value { ZEROS } else { 0 };
            let mut head = [0u8; HEAD];
            head[..8].copy_from_slice(&(offset + (start * PAGE) as u64).to_le_bytes());
            head[8..].copy_from_slice(&length.to_le_bytes());
            fd::write_all(out, &head)?;
            if !value {
                fd::write_all(out, bytes)?;
            }
        }
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
    use super::{changed, parse_head, runs, PAGE, ZEROS};

    #[test]
    fn what_follows_each_other_is_one_run() {
        assert_eq!(runs(&[false, true, true, false, true]), [(1, 2), (4, 1)]);
        assert_eq!(runs(&[]), []);
    }

    #[test]
    fn what_is_listed_is_written_though_it_is_as_it_was() {
        let before = vec![7u8; 3 * PAGE];
        let mut part = before.clone();
        part[PAGE] = 8;
        assert_eq!(changed(&part, &before, &[false, false, true]), [false, true, true]);
    }

    #[test]
    fn a_record_of_zeros_is_as_long_as_one_with_bytes() {
        let mut head = [0u8; 16];
        head[..8].copy_from_slice(&8192u64.to_le_bytes());
        head[8..].copy_from_slice(&(4096 | ZEROS).to_le_bytes());
        assert_eq!(parse_head(&head), Some((8192, 4096)));
        assert_eq!(parse_head(&head[..15]), None);
    }
}

//! How this process's own memory is laid out, so that what is cloned from it begins quickly.
//!
//! A clone shares all memory until somebody writes: each page that either side touches is then a
//! fault, and faults are a tenth of what building a wall takes.

use super::{check, fd};
use std::io;
use std::os::unix::io::AsRawFd;

/// Memory that takes up only the pages that have been written to. It lasts as long as the process.
pub struct Pages {
    start: *mut u8,
    length: usize,
}

impl Pages {
    pub fn new(length: usize) -> io::Result<Pages> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: asks for fresh zeroed memory, which the returned value alone owns.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if start == libc::MAP_FAILED {
            check(-1)?;
        }
        Ok(Pages { start: start.cast(), length })
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this long, is never given up, and is borrowed as this value is.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

/// Have small pieces of the heap joined when they are freed and not all at once: that goes over the
/// whole heap, in the launcher after each clone and in each clone.
pub fn keep_heap_still() {
    // SAFETY: changes a number of the allocator's; nothing else runs in this process.
    unsafe { libc::mallopt(libc::M_MXFAST, 0) };
}

/// Have clones of this process inherit where its code is. The kernel leaves that out, to be found
/// again page by page, unless a page there is the process's own: so one is made its own, with what
/// was there before. It is no more writable than it was.
pub fn hand_down_code() -> io::Result<()> {
    extern "C" {
        static __executable_start: u8;
        static etext: u8;
    }
    // SAFETY: the linker's own names for where the program begins and where its code ends.
    let (first, end) = unsafe { (&__executable_start as *const u8 as usize, &etext as *const u8 as usize) };
    let code = hand_down_code as fn() -> io::Result<()> as usize;
    let memory = fd::open("/proc/self/mem", libc::O_RDWR, 0)?;
    for address in [first, code] {
        let mut byte = [0u8; 1];
        fd::pread(memory.as_raw_fd(), &mut byte, address as i64)?;
        // SAFETY: writes one byte of this program over itself.
        check(unsafe { libc::pwrite(memory.as_raw_fd(), byte.as_ptr().cast(), 1, address as libc::off_t) }
            as libc::c_long)?;
    }
    // SAFETY: only has the kernel look up what is there; nothing is changed.
    check(unsafe { libc::madvise(first as *mut libc::c_void, end - first, MADV_POPULATE_READ) }.into())?;
    Ok(())
}

const MADV_POPULATE_READ: i32 = 22;

#[cfg(test)]
mod tests {
    use super::*;

    fn kilobytes(mapping: &str, field: &str) -> u64 {
        let line = mapping.lines().find(|line| line.starts_with(field)).expect(field);
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect(field)
    }

    #[test]
    fn all_code_is_there_and_a_page_of_it_is_our_own() {
        hand_down_code().expect("/proc/self/mem can be written");
        let address = hand_down_code as fn() -> io::Result<()> as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let holds = |line: &str| {
            let ends = line.split_whitespace().next().and_then(|word| word.split_once('-'));
            let number = |text: &str| usize::from_str_radix(text, 16).ok();
            let range = ends.and_then(|(first, end)| Some((number(first)?, number(end)?)));
            range.map_or(false, |(first, end)| (first..end).contains(&address))
        };
        let start = maps.lines().position(holds).expect("a mapping of our code");
        let mapping: Vec<&str> = maps.lines().skip(start).take(24).collect();
        let mapping = mapping.join("\n");
        assert_eq!(kilobytes(&mapping, "Rss:"), kilobytes(&mapping, "Size:"));
        assert!(kilobytes(&mapping, "Anonymous:") > 0);
    }

    #[test]
    fn pages_begin_as_zeroes_and_keep_what_is_written() {
        let mut pages = Pages::new(64 * 1024).expect("memory");
        assert!(pages.bytes().iter().all(|byte| *byte == 0));
        pages.bytes()[65_535] = 7;
        assert_eq!(pages.bytes()[65_535], 7);
    }
}

//! A few words of memory shared between the guest and the children it has forked but that
//! have not yet executed a program: how a child says what went wrong without a pipe.

use super::check;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

/// An anonymous shared mapping. It disappears from a child when the child executes.
pub struct SharedBytes {
    start: *const AtomicU8,
    length: usize,
}

impl SharedBytes {
    pub fn new(length: usize) -> io::Result<SharedBytes> {
        // SAFETY: asks for fresh zeroed memory, owned by the returned value alone.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            check(-1)?;
        }
        Ok(SharedBytes { start: start.cast(), length })
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate().take(self.length.saturating_sub(offset)) {
            self.cell(offset + index).store(*byte, Ordering::SeqCst);
        }
    }

    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        for (index, byte) in bytes.iter_mut().enumerate().take(self.length.saturating_sub(offset)) {
            *byte = self.cell(offset + index).load(Ordering::SeqCst);
        }
    }

    fn cell(&self, index: usize) -> &AtomicU8 {
        // SAFETY: both callers keep `index` below the length of the mapping, which lives as long
        // as the process; atomics make concurrent access from another process defined.
        unsafe { &*self.start.add(index) }
    }
}

//! How the sandboxes compete with the host's own processes for the processors.
//!
//! To the kernel the group that holds them all is one competitor, however many they are. It is
//! given the weight of as many processes, up to what keeps every processor busy twice over: a
//! hundred sandboxes are not one process, and do not push a process of the host aside either.

use crate::sys::{fd, libc};
use std::cell::Cell;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// The file of each version of control groups, and what one process weighs there.
const FILES: &[(&str, u64)] = &[("cpu.shares", 1024), ("cpu.weight", 100)];

pub struct Weight {
    file: OwnedFd,
    one: u64,
    most: u64,
    said: Cell<u64>,
}

impl Weight {
    /// None where the directory has no weight, or one that is not ours to say.
    pub fn of(directory: &OwnedFd) -> Option<Weight> {
        let found = FILES.iter().find_map(|(name, one)| {
            Some((fd::openat(directory.as_raw_fd(), name, libc::O_WRONLY, 0).ok()?, *one))
        });
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        found.map(|(file, one)| Weight { file, one, most: 2 * processors, said: Cell::new(1) })
    }

    /// Say how many there are now, of all processes that use this directory.
    pub fn say(&self, directory: &OwnedFd) {
        let links = match fd::fstat(directory) {
            Ok(stat) => stat.st_nlink,
            Err(_) => return,
        };
        // A directory of the kernel's has two links, and one more for each directory in it.
        let count = links.saturating_sub(2).clamp(1, self.most);
        // Said again below that: others count and say it too.
        if count < self.most || self.said.get() != count {
            self.said.set(count);
            // It is no wall: without it they compete as one.
            drop(fd::write_all(self.file.as_raw_fd(), (self.one * count).to_string().as_bytes()));
        }
    }
}

//! Programs and all they start, told apart by control groups: for a kernel in which no process can
//! adopt what another orphans, so that a tree cannot be found by who is whose parent.

use super::tree;
use crate::sys::process::Pid;
use crate::sys::{fd, libc, mount, process};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// How often a group is looked at until nobody who lives is left in it. What has been killed is
/// gone after a few looks; this only bounds the wait for a kernel that is out of order.
const LOOKS: usize = 20_000;

pub struct Groups {
    /// The group that all others are made in.
    top: OwnedFd,
    next: u64,
    /// Groups of programs that have ended and left something running.
    busy: Vec<u64>,
}

impl Groups {
    pub fn new(top: OwnedFd) -> Groups {
        Groups { top, next: 0, busy: Vec::new() }
    }

    pub fn directory(&self) -> RawFd {
        self.top.as_raw_fd()
    }

    /// A group for a program: its number, and where a process enters it by writing its own.
    pub fn make(&mut self) -> io::Result<(u64, OwnedFd)> {
        self.next += 1;
        let (number, at) = (self.next, self.top.as_raw_fd());
        mount::mkdirat(at, number.to_string().as_bytes(), 0o700)?;
        let door = fd::openat(at, format!("{number}/cgroup.procs"), libc::O_WRONLY, 0)?;
        Ok((number, fd::dup_above(door.as_raw_fd(), 3)?))
    }

    /// Kill everybody in it but `spared`, whoever they started meanwhile included.
    pub fn kill(&self, number: u64, spared: Pid) -> io::Result<()> {
        for _ in 0..LOOKS {
            let mut living = 0;
            for pid in self.members(number)? {
                if pid == spared || !tree::is_living(pid) {
                    continue;
                }
                living += 1;
                tree::signal(pid, libc::SIGKILL)?;
            }
            if living == 0 {
                break;
            }
            process::give_way();
        }
        Ok(())
    }

    fn members(&self, number: u64) -> io::Result<Vec<Pid>> {
        let file = fd::openat(self.top.as_raw_fd(), format!("{number}/cgroup.procs"), libc::O_RDONLY, 0)?;
        let mut text = Vec::new();
        let mut buffer = [0u8; 4096];
        loop {
            match fd::read(file.as_raw_fd(), &mut buffer)? {
                0 => break,
                n => text.extend_from_slice(&buffer[..n]),
            }
        }
        let text = String::from_utf8_lossy(&text);
        Ok(text.split_whitespace().filter_map(|word| word.parse().ok()).collect())
    }

    /// Its program has ended: the group goes once it is empty.
    pub fn part_with(&mut self, number: u64) {
        self.busy.push(number);
        let at = self.top.as_raw_fd();
        self.busy.retain(|number| mount::unlinkat(at, number.to_string().as_bytes(), true).is_err());
    }
}

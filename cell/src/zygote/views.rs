//! The launcher's two views of the filesystem: all of the host's mounts, and next to none.
//!
//! It lives in the second, because a clone copies every mount of the view it is made in and the
//! guest then has to let go of them all. It looks into the first to open what a plan names.

use crate::contain::step::during;
use crate::sys::{fd, libc, mount, wall};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

pub struct Views {
    full: OwnedFd,
    slim: OwnedFd,
}

impl Views {
    /// Leave the host's mounts for a view whose root is the launcher's own tmpfs, with /proc.
    pub fn part(directory: &[u8]) -> io::Result<Views> {
        let full = here()?;
        wall::unshare(libc::CLONE_NEWNS).map_err(|e| during(e, "a second view of the mounts"))?;
        let root = fd::open(directory, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        let point = fd::openat(root.as_raw_fd(), "proc", libc::O_PATH | libc::O_DIRECTORY, 0)?;
        mount::attach(&mount::open_tree(libc::AT_FDCWD, b"/proc")?, &point)
            .map_err(|e| during(e, "keeping /proc"))?;
        mount::fchdir(&root)?;
        mount::pivot_here().map_err(|e| during(e, "leaving the host's mounts"))?;
        Ok(Views { full, slim: here()? })
    }

    /// Do something with all of the host's mounts in sight, and come back whatever happens.
    pub fn in_full<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        wall::enter_mounts(&self.full)?;
        let outcome = act();
        wall::enter_mounts(&self.slim)?;
        outcome
    }
}

fn here() -> io::Result<OwnedFd> {
    fd::open("/proc/self/ns/mnt", libc::O_RDONLY, 0)
}

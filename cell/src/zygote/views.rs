//! The launcher's two views of the filesystem: the host's mounts, and next to none.
//!
//! It lives in the second, because a clone copies every mount of the view it is made in and the
//! guest then has to let go of them all. It looks into the first to open what a plan names.

use crate::contain::step::during;
use crate::sys::{fd, libc, mount, wall};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

pub struct Views {
    host: OwnedFd,
    slim: OwnedFd,
    /// Where the launcher's own tmpfs is, by the host's names; in the slim view it is the root.
    own: Vec<u8>,
}

/// The mounts of whoever started the launcher, before it has any of its own.
pub fn of_the_host() -> io::Result<OwnedFd> {
    fd::open("/proc/self/ns/mnt", libc::O_RDONLY, 0)
}

impl Views {
    /// Leave the host's mounts for a view whose root is the launcher's own tmpfs, with /proc.
    ///
    /// The host is looked at itself, as it is then: what is mounted later is seen, and what is
    /// unmounted is not held by a copy. Who may not go back there, being root of a user namespace
    /// alone, keeps a copy, which follows the host's mounts where the host shares them.
    pub fn part(host: OwnedFd, directory: &[u8]) -> io::Result<Views> {
        let copy = of_the_host()?;
        wall::unshare(libc::CLONE_NEWNS).map_err(|e| during(e, "a second view of the mounts"))?;
        let root = fd::open(directory, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        let point = fd::openat(root.as_raw_fd(), "proc", libc::O_PATH | libc::O_DIRECTORY, 0)?;
        mount::attach(&mount::open_tree(libc::AT_FDCWD, b"/proc")?, &point)
            .map_err(|e| during(e, "keeping /proc"))?;
        mount::fchdir(&root)?;
        mount::pivot_here().map_err(|e| during(e, "leaving the host's mounts"))?;
        let slim = of_the_host()?;
        let host = match wall::enter_mounts(&host) {
            Ok(()) => {
                wall::enter_mounts(&slim)?;
                host
            }
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => copy,
            Err(error) => return Err(during(error, "looking back at the host's mounts")),
        };
        Ok(Views { host, slim, own: [directory, b"/"].concat() })
    }

    /// Do something with the host's mounts in sight, and come back whatever happens.
    pub fn in_host<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        wall::enter_mounts(&self.host)?;
        let outcome = act();
        wall::enter_mounts(&self.slim)?;
        outcome
    }

    /// A detached copy of the tree at a path, from within `in_host`.
    ///
    /// The path was resolved by the host; a link that appeared anywhere on it since is refused.
    pub fn open_tree(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let own = match path.strip_prefix(self.own.as_slice()) {
            Some(own) => own,
            None => return open_here(path),
        };
        wall::enter_mounts(&self.slim)?;
        let tree = open_here(own);
        wall::enter_mounts(&self.host)?;
        tree
    }
}

fn open_here(path: &[u8]) -> io::Result<OwnedFd> {
    let top = fd::open("/", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let place = mount::open_beneath(top.as_raw_fd(), path, libc::O_PATH, 0, mount::Walk::NoLinks)?;
    mount::open_tree(place.as_raw_fd(), b"")
}

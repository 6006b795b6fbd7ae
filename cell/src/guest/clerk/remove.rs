//! Removing trees of any depth, without recursion and without one descriptor per level.

use super::entry::is;
use super::{on, Trouble};
use crate::sys::{fd, libc, mount};
use std::io;
use std::os::unix::io::{AsRawFd, RawFd};

pub fn remove(path: &[u8], recursive: bool) -> Result<(), Trouble> {
    let stat = mount::lstatat(libc::AT_FDCWD, path)?;
    if !is(&stat, libc::S_IFDIR) {
        return mount::unlinkat(libc::AT_FDCWD, path, false).map_err(Trouble::from);
    }
    if recursive {
        empty(path)?;
    }
    mount::unlinkat(libc::AT_FDCWD, path, true).map_err(Trouble::from)
}

/// Flatten as we go: the directories of a directory are moved up to the top before it is removed,
/// so that every step works at depth one.
fn empty(path: &[u8]) -> Result<(), Trouble> {
    open_up(libc::AT_FDCWD, path)?;
    let top = mount::open_directory(libc::AT_FDCWD, path)?;
    let at = top.as_raw_fd();
    let mut moved = 0u64;
    loop {
        // Opened anew each round: a listing does not see what was moved in meanwhile.
        let listing = fd::openat(at, ".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        let names = mount::names(listing, 4096)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            if !unlink_file(at, &name).map_err(on(&name))? {
                hoist(at, &name, &mut moved).map_err(on(&name))?;
                mount::unlinkat(at, &name, true).map_err(on(&name))?;
            }
        }
    }
}

/// True if it was no directory and is gone.
fn unlink_file(at: RawFd, name: &[u8]) -> io::Result<bool> {
    match mount::unlinkat(at, name, false) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(true),
            Some(libc::EISDIR | libc::EPERM) => {
                let stat = mount::lstatat(at, name)?;
                if is(&stat, libc::S_IFDIR) {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
            _ => Err(error),
        },
    }
}

fn hoist(top: RawFd, name: &[u8], moved: &mut u64) -> io::Result<()> {
    open_up(top, name)?;
    let dir = mount::open_directory(top, name)?;
    let at = dir.as_raw_fd();
    loop {
        let listing = fd::openat(at, ".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        let names = mount::names(listing, 4096)?;
        if names.is_empty() {
            return Ok(());
        }
        for child in names {
            if !unlink_file(at, &child)? {
                open_up(at, &child)?;
                *moved += 1;
                mount::renameat(at, &child, top, format!(".cloister-removing-{moved}").as_bytes(), false)?;
            }
        }
    }
}

/// A directory of mode 000 is still its owner's to open.
fn open_up(at: RawFd, name: &[u8]) -> io::Result<()> {
    let stat = mount::lstatat(at, name)?;
    if is(&stat, libc::S_IFDIR) && stat.st_mode & 0o700 != 0o700 {
        mount::chmodat(at, name, (stat.st_mode & 0o777) | 0o700)?;
    }
    Ok(())
}

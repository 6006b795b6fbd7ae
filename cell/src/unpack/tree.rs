//! What stands in an open directory under one name: looked at, replaced, emptied, never followed.

use super::stack::{enter, OPAQUE_NAME, OPAQUE_VALUE};
use crate::sys::{fd, layer, libc, mount};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// Open the directory of that name, made if need be. In the place of something else, a removed name
/// among it, it is a new beginning: what layers below have there stays hidden.
pub fn directory(at: RawFd, name: &[u8]) -> io::Result<OwnedFd> {
    let there = look(at, name)?;
    match there {
        Some(stat) if is(&stat, libc::S_IFDIR) => enter(at, name),
        _ => {
            clear(at, name)?;
            mount::mkdirat(at, name, 0o700)?;
            let dir = enter(at, name)?;
            if there.is_some() {
                layer::set_attribute(&dir, OPAQUE_NAME, OPAQUE_VALUE)?;
            }
            Ok(dir)
        }
    }
}

pub fn make_opaque(at: RawFd, name: &[u8]) -> io::Result<()> {
    layer::set_attribute(&enter(at, name)?, OPAQUE_NAME, OPAQUE_VALUE)
}

pub fn fresh(at: RawFd, name: &[u8]) -> io::Result<OwnedFd> {
    fd::openat(at, name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW, 0o600)
}

/// Remove what is there, whatever it is.
pub fn clear(at: RawFd, name: &[u8]) -> io::Result<()> {
    match look(at, name)? {
        None => Ok(()),
        Some(stat) if is(&stat, libc::S_IFDIR) => {
            empty(enter(at, name)?)?;
            mount::unlinkat(at, name, true)
        }
        Some(_) => mount::unlinkat(at, name, false),
    }
}

/// No deeper than names may be, so one descriptor for each level is bounded.
fn empty(top: OwnedFd) -> io::Result<()> {
    let mut stack: Vec<(OwnedFd, Vec<u8>)> = vec![(top, Vec::new())];
    while let Some((dir, _)) = stack.last() {
        let at = dir.as_raw_fd();
        let mut deeper = None;
        loop {
            let names = mount::names(fd::openat(at, ".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?, 4096)?;
            if names.is_empty() {
                break;
            }
            for name in names {
                if is(&mount::lstatat(at, &name)?, libc::S_IFDIR) {
                    deeper = Some(name);
                    break;
                }
                mount::unlinkat(at, &name, false)?;
            }
            if deeper.is_some() {
                break;
            }
        }
        if let Some(name) = deeper {
            let dir = enter(at, &name)?;
            stack.push((dir, name));
            continue;
        }
        if let (Some((_, name)), Some((above, _))) = (stack.pop(), stack.last()) {
            mount::unlinkat(above.as_raw_fd(), &name, true)?;
        }
    }
    Ok(())
}

pub fn look(at: RawFd, name: &[u8]) -> io::Result<Option<libc::stat>> {
    match mount::lstatat(at, name) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        other => other.map(Some),
    }
}

pub fn is(stat: &libc::stat, kind: u32) -> bool {
    stat.st_mode & libc::S_IFMT == kind
}

//! The open directories from the top down to where the next entry goes.
//!
//! Each was opened by its name in the one above it, without following a link. When one is left, it
//! gets its time back, which every change inside of it has moved: so times are exact at the end
//! without a list of all directories.

use super::{about, refuse, Outcome};
use crate::sys::{fd, layer, libc, mount};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub struct Stack {
    top: Open,
    below: Vec<(Vec<u8>, Open)>,
    pub implied: u64,
}

struct Open {
    dir: OwnedFd,
    mtime: libc::timespec,
}

impl Open {
    fn new(dir: OwnedFd) -> io::Result<Open> {
        let stat = fd::fstat(&dir)?;
        Ok(Open { dir, mtime: libc::timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec } })
    }

    fn leave(self) -> io::Result<()> {
        layer::set_open_times(&self.dir, self.mtime)
    }
}

const EPOCH: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };

impl Stack {
    pub fn new(top: OwnedFd) -> Outcome<Stack> {
        mount::fchmod(&top, 0o755)?;
        layer::set_open_times(&top, EPOCH)?;
        Ok(Stack { top: Open::new(top)?, below: Vec::new(), implied: 0 })
    }

    /// The deepest open directory.
    pub fn here(&self) -> &OwnedFd {
        self.below.last().map_or(&self.top.dir, |(_, open)| &open.dir)
    }

    pub fn is_at_top(&self) -> bool {
        self.below.is_empty()
    }

    /// The top has been given a time of its own.
    pub fn set_top_time(&mut self, mtime: libc::timespec) {
        self.top.mtime = mtime;
    }

    /// Go to a directory. Those on the way that are missing are made where `make` says so.
    pub fn go(&mut self, path: &[Vec<u8>], make: bool) -> Outcome<()> {
        let common = self.below.iter().zip(path).take_while(|((name, _), wanted)| name == *wanted).count();
        while self.below.len() > common {
            self.leave()?;
        }
        for name in &path[common..] {
            let dir = match enter(self.here().as_raw_fd(), name) {
                Err(error) if make && error.raw_os_error() == Some(libc::ENOENT) => self.imply(path, name)?,
                Err(error) if make && is_no_directory(&error) => self.revive(path, name)?,
                other => other.map_err(about(name))?,
            };
            self.below.push((name.clone(), Open::new(dir)?));
        }
        Ok(())
    }

    pub fn finish(mut self) -> Outcome<u64> {
        while !self.below.is_empty() {
            self.leave()?;
        }
        self.top.leave()?;
        Ok(self.implied)
    }

    fn leave(&mut self) -> Outcome<()> {
        if let Some((name, open)) = self.below.pop() {
            open.leave().map_err(about(&name))?;
        }
        Ok(())
    }

    /// A directory that no entry has described: archives may leave them out.
    fn imply(&mut self, path: &[Vec<u8>], name: &[u8]) -> Outcome<OwnedFd> {
        let at = self.here().as_raw_fd();
        // Others than these may be anybody's; these two are everybody's in every image.
        let is_shared = |known: &[&[u8]]| self.below.len() + 1 == known.len() && starts(path, known);
        let mode = if is_shared(&[b"tmp"]) || is_shared(&[b"var", b"tmp"]) { 0o1777 } else { 0o755 };
        mount::mkdirat(at, name, 0o700).map_err(about(name))?;
        let dir = enter(at, name).map_err(about(name))?;
        mount::fchmod(&dir, mode)?;
        layer::set_open_times(&dir, EPOCH)?;
        self.implied += 1;
        Ok(dir)
    }

    /// An entry inside of what is no directory. Inside of what was removed it is a new beginning;
    /// through a link or a file there is no way.
    fn revive(&mut self, path: &[Vec<u8>], name: &[u8]) -> Outcome<OwnedFd> {
        let at = self.here().as_raw_fd();
        let stat = mount::lstatat(at, name).map_err(about(name))?;
        if !is_whiteout(&stat) {
            let whole = path.join(&b"/"[..]);
            return refuse(format!(
                "an entry goes into {}, where {} is a link or a file",
                super::shown(&whole),
                super::shown(name)
            ));
        }
        mount::unlinkat(at, name, false).map_err(about(name))?;
        let dir = self.imply(path, name)?;
        layer::set_attribute(&dir, OPAQUE_NAME, OPAQUE_VALUE).map_err(about(name))?;
        Ok(dir)
    }
}

pub const OPAQUE_NAME: &[u8] = b"user.overlay.opaque";
pub const OPAQUE_VALUE: &[u8] = b"y";

pub fn enter(at: RawFd, name: &[u8]) -> io::Result<OwnedFd> {
    mount::open_directory(at, name)
}

pub fn is_whiteout(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == 0
}

fn is_no_directory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP))
}

fn starts(path: &[Vec<u8>], known: &[&[u8]]) -> bool {
    path.len() >= known.len() && path.iter().zip(known).all(|(part, name)| part == name)
}

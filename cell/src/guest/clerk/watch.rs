//! Watching a directory: events as records `u32 length | u8 kind | path`, until nobody listens.

use super::entry::is;
use super::{trouble, Trouble, RECURSIVE};
use crate::sys::{fd, libc, mount};
use crate::wire::codec::Writer;
use crate::wire::message::File;
use std::collections::HashMap;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

const CREATED: u8 = 1;
const CHANGED: u8 = 2;
const REMOVED: u8 = 3;
const MOVED_FROM: u8 = 4;
const MOVED_TO: u8 = 5;
const MODE: u8 = 6;
/// Events were lost: the watcher must look for itself.
const OVERFLOW: u8 = 7;
/// The watch stands; everything from here on is seen.
const READY: u8 = 8;

const MASK: u32 = libc::IN_CREATE
    | libc::IN_CLOSE_WRITE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_ATTRIB
    | libc::IN_DELETE_SELF
    | libc::IN_MOVE_SELF
    | libc::IN_DONT_FOLLOW
    | libc::IN_EXCL_UNLINK;
const MAX_WATCHES: usize = 8192;

struct Watcher {
    inotify: OwnedFd,
    paths: HashMap<i32, Vec<u8>>,
    recursive: bool,
    output: RawFd,
}

pub fn watch(file: &File, output: RawFd) -> Result<(), Trouble> {
    let stat = mount::statat(libc::AT_FDCWD, &file.path, 0)?;
    let mut watcher = Watcher {
        inotify: mount::inotify()?,
        paths: HashMap::new(),
        recursive: file.flags & RECURSIVE != 0,
        output,
    };
    watcher.add(&file.path, is(&stat, libc::S_IFDIR))?;
    watcher.tell(READY, &file.path)?;
    watcher.run(&file.path)
}

impl Watcher {
    fn add(&mut self, path: &[u8], directory: bool) -> Result<(), Trouble> {
        let mut queue = vec![(path.to_vec(), directory)];
        while let Some((path, directory)) = queue.pop() {
            if self.paths.len() >= MAX_WATCHES {
                return Err(trouble(libc::ENOSPC));
            }
            match mount::inotify_add(&self.inotify, &path, MASK) {
                Ok(number) => {
                    self.paths.insert(number, path.clone());
                }
                // Gone again before it could be watched.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) && !self.paths.is_empty() => {
                    continue
                }
                Err(error) => return Err(error.into()),
            }
            if !(directory && self.recursive) {
                continue;
            }
            let dir = match mount::open_directory(libc::AT_FDCWD, &path) {
                Ok(dir) => dir,
                Err(_) => continue,
            };
            let at = dir.as_raw_fd();
            for name in mount::names(fd::dup_above(at, 3)?, MAX_WATCHES)? {
                if matches!(mount::lstatat(at, &name), Ok(stat) if is(&stat, libc::S_IFDIR)) {
                    queue.push(([path.as_slice(), b"/", &name].concat(), true));
                }
            }
        }
        Ok(())
    }

    /// Wait for changes, and for the listener to go away.
    fn run(&mut self, top: &[u8]) -> Result<(), Trouble> {
        let mut buffer = vec![0u8; 64 * 1024];
        loop {
            let mut waits =
                [fd::wait_for(self.inotify.as_raw_fd(), libc::POLLIN), fd::wait_for(self.output, 0)];
            fd::poll(&mut waits, -1)?;
            if waits[1].revents != 0 {
                return Ok(());
            }
            let n = fd::read(self.inotify.as_raw_fd(), &mut buffer)?;
            let mut at = 0;
            while at + 16 <= n {
                let number =
                    |offset: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i: usize| buffer[at + offset + i]));
                let (watch, mask, length) = (number(0) as i32, number(4), number(12) as usize);
                let raw = &buffer[at + 16..(at + 16 + length).min(n)];
                let name = raw.split(|b| *b == 0).next().unwrap_or(raw).to_vec();
                at += 16 + length;
                if !self.event(watch, mask, &name, top)? {
                    return Ok(());
                }
            }
        }
    }

    /// False when what was watched no longer exists.
    fn event(&mut self, watch: i32, mask: u32, name: &[u8], top: &[u8]) -> Result<bool, Trouble> {
        if mask & libc::IN_Q_OVERFLOW != 0 {
            self.tell(OVERFLOW, top)?;
            return Ok(true);
        }
        let base = match self.paths.get(&watch) {
            Some(base) => base.clone(),
            None => return Ok(true),
        };
        if mask & libc::IN_IGNORED != 0 {
            self.paths.remove(&watch);
            return Ok(!self.paths.is_empty());
        }
        if is_draft(name) {
            return Ok(true);
        }
        let path = if name.is_empty() { base.clone() } else { [base.as_slice(), b"/", name].concat() };
        if mask & libc::IN_ISDIR != 0 && mask & (libc::IN_CREATE | libc::IN_MOVED_TO) != 0 && self.recursive {
            self.add(&path, true)?;
        }
        let kinds = [
            (libc::IN_CREATE, CREATED),
            (libc::IN_CLOSE_WRITE, CHANGED),
            (libc::IN_DELETE, REMOVED),
            (libc::IN_MOVED_FROM, MOVED_FROM),
            (libc::IN_MOVED_TO, MOVED_TO),
            (libc::IN_ATTRIB, MODE),
        ];
        for (bit, kind) in kinds {
            if mask & bit != 0 {
                self.tell(kind, &path)?;
            }
        }
        if mask & (libc::IN_DELETE_SELF | libc::IN_MOVE_SELF) != 0 && base == top {
            self.tell(REMOVED, &path)?;
            return Ok(false);
        }
        Ok(true)
    }

    fn tell(&self, kind: u8, path: &[u8]) -> io::Result<()> {
        let mut w = Writer::default();
        w.u32(path.len() as u32 + 1).u8(kind);
        w.bytes.extend_from_slice(path);
        fd::write_all(self.output, &w.bytes)
    }
}

/// The names files have while we write or remove them: nobody's business but ours.
fn is_draft(name: &[u8]) -> bool {
    let mark = b".cloister-";
    let number = match name.windows(mark.len()).rposition(|window| window == mark) {
        Some(at) => &name[at + mark.len()..],
        None => return false,
    };
    let number = number.strip_prefix(b"removing-").unwrap_or(number);
    !number.is_empty() && number.iter().all(u8::is_ascii_digit)
}

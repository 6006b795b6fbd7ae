//! Entries put where they belong: made anew, never written through what is there already.

use super::entry::{Entry, Kind};
use super::facts::Facts;
use super::input::Input;
use super::name::{self, Meaning};
use super::sparse::Map;
use super::stack::{is_whiteout, Stack, OPAQUE_NAME, OPAQUE_VALUE};
use super::tree::{clear, directory, fresh, is, look, make_opaque};
use super::{about, refuse, shown, Marks, Outcome, Owners, Refusal};
use crate::sys::{fd, layer, libc, mount};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

const SET_ID_BITS: u32 = 0o6000;
/// The kernel keeps two numbers for "nobody in particular".
const MOST_ID: i64 = 0xFFFF_FFFE;

pub struct Place {
    stack: Stack,
    facts: Facts,
    owners: Owners,
    marks: Marks,
}

impl Place {
    pub fn new(top: OwnedFd, owners: Owners, marks: Marks) -> Outcome<Place> {
        Ok(Place { stack: Stack::new(top)?, facts: Facts::default(), owners, marks })
    }

    pub fn finish(mut self) -> Outcome<Facts> {
        self.facts.implied = self.stack.finish()?;
        Ok(self.facts)
    }

    pub fn put(&mut self, entry: &Entry, input: &mut Input) -> Outcome<()> {
        self.facts.attributes += entry.dropped_attributes;
        match self.meaning(&entry.path)? {
            Meaning::Bookkeeping => self.facts.bookkeeping += 1,
            Meaning::Opaque => self.opaque(entry)?,
            Meaning::Whiteout(hidden) => self.whiteout(entry, &hidden)?,
            Meaning::Plain => match entry.path.split_last() {
                None => self.top(entry)?,
                Some((name, parents)) => self.plain(entry, parents, name, input)?,
            },
        }
        Ok(())
    }

    fn meaning(&self, path: &[Vec<u8>]) -> Outcome<Meaning> {
        match self.marks {
            Marks::Names => name::meaning(path),
            Marks::Entries => Ok(Meaning::Plain),
        }
    }

    fn opaque(&mut self, entry: &Entry) -> Outcome<()> {
        self.stack.go(&entry.path[..entry.path.len() - 1], true)?;
        if self.stack.is_at_top() {
            self.facts.opaque_top = true;
        }
        self.facts.opaque += 1;
        layer::set_attribute(self.stack.here(), OPAQUE_NAME, OPAQUE_VALUE).map_err(about(b"opaque mark"))
    }

    /// Only layers below are meant. What this layer has put there itself stays, and hides them: a
    /// file by being there, a directory by being opaque.
    fn whiteout(&mut self, entry: &Entry, hidden: &[u8]) -> Outcome<()> {
        self.stack.go(&entry.path[..entry.path.len() - 1], true)?;
        let at = self.stack.here().as_raw_fd();
        self.facts.whiteouts += 1;
        match look(at, hidden).map_err(about(hidden))? {
            None => layer::make_whiteout(at, hidden).map_err(about(hidden))?,
            Some(stat) if is(&stat, libc::S_IFDIR) => make_opaque(at, hidden).map_err(about(hidden))?,
            Some(_) => {}
        }
        Ok(())
    }

    fn top(&mut self, entry: &Entry) -> Outcome<()> {
        if !matches!(entry.kind, Kind::Directory) {
            return refuse("the top of the layer is an entry, and no directory");
        }
        self.stack.go(&[], false)?;
        let dir = fd::dup_above(self.stack.here().as_raw_fd(), 3)?;
        self.dress(&dir, entry, b".")?;
        self.stack.set_top_time(time(entry));
        Ok(())
    }

    fn plain(&mut self, entry: &Entry, parents: &[Vec<u8>], name: &[u8], input: &mut Input) -> Outcome<()> {
        let wrong = || about(name);
        if let Kind::HardLink(target) = &entry.kind {
            return self.hard_link(target, parents, name);
        }
        if matches!(entry.kind, Kind::Device) && self.marks == Marks::Names {
            self.facts.devices += 1;
            return Ok(());
        }
        self.stack.go(parents, true)?;
        let at = self.stack.here().as_raw_fd();
        if let Kind::Directory = entry.kind {
            let dir = directory(at, name).map_err(wrong())?;
            self.dress(&dir, entry, name)?;
            if entry.is_opaque && self.marks == Marks::Entries {
                self.facts.opaque += 1;
                layer::set_attribute(&dir, OPAQUE_NAME, OPAQUE_VALUE).map_err(wrong())?;
            }
            return layer::set_open_times(&dir, time(entry)).map_err(wrong());
        }
        clear(at, name).map_err(wrong())?;
        match &entry.kind {
            Kind::File => {
                let file = fresh(at, name).map_err(wrong())?;
                copy(input, &file, u64::MAX, name)?;
                self.dress(&file, entry, name)?;
                layer::set_open_times(&file, time(entry)).map_err(wrong())
            }
            Kind::Sparse(map) => {
                let file = fresh(at, name).map_err(wrong())?;
                copy_pieces(input, &file, map, name)?;
                self.dress(&file, entry, name)?;
                layer::set_open_times(&file, time(entry)).map_err(wrong())
            }
            Kind::SymbolicLink(target) => {
                mount::symlinkat(target, at, name).map_err(wrong())?;
                self.own(entry, |uid, gid| mount::lchownat(at, name, uid, gid)).map_err(wrong())?;
                self.facts.attributes += entry.attributes.len() as u64;
                mount::set_times(at, name, nanoseconds(entry)).map_err(wrong())
            }
            Kind::Pipe => {
                layer::make_pipe(at, name).map_err(wrong())?;
                let kept = self.own(entry, |uid, gid| mount::lchownat(at, name, uid, gid)).map_err(wrong())?;
                mount::chmodat(at, name, self.mode(entry, kept)).map_err(wrong())?;
                self.facts.attributes += entry.attributes.len() as u64;
                mount::set_times(at, name, nanoseconds(entry)).map_err(wrong())
            }
            Kind::Device => {
                self.facts.whiteouts += 1;
                layer::make_whiteout(at, name).map_err(wrong())
            }
            Kind::Directory | Kind::HardLink(_) => Ok(()),
        }
    }

    /// The target must be in this layer already. A symbolic link is linked itself, not what it says.
    fn hard_link(&mut self, target: &[Vec<u8>], parents: &[Vec<u8>], name: &[u8]) -> Outcome<()> {
        let (target_name, target_parents) = match target.split_last() {
            Some(split) => split,
            None => return refuse(format!("{} is a hard link to the top of the layer", shown(name))),
        };
        let missing = |_| {
            let whole = target.join(&b"/"[..]);
            Refusal(format!("{} is a hard link to {}, which is not in the layer", shown(name), shown(&whole)))
        };
        if self.meaning(target)? != Meaning::Plain {
            return Err(missing(()));
        }
        self.stack.go(target_parents, false).map_err(|_| missing(()))?;
        let from = fd::dup_above(self.stack.here().as_raw_fd(), 3)?;
        let found = mount::lstatat(from.as_raw_fd(), target_name).map_err(|_| missing(()))?;
        if is(&found, libc::S_IFDIR) || is_whiteout(&found) {
            return Err(missing(()));
        }
        self.stack.go(parents, true)?;
        let at = self.stack.here().as_raw_fd();
        if let Some(there) = look(at, name).map_err(about(name))? {
            if (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino) {
                return Ok(());
            }
            clear(at, name).map_err(about(name))?;
        }
        layer::linkat(from.as_raw_fd(), target_name, at, name).map_err(about(name))
    }

    /// Owner, attributes and mode of an open file or directory, in the order in which none undoes another.
    fn dress(&mut self, file: &OwnedFd, entry: &Entry, name: &[u8]) -> Outcome<()> {
        let kept = self.own(entry, |uid, gid| mount::fchown(file, uid, gid)).map_err(about(name))?;
        for (key, value) in &entry.attributes {
            match layer::set_attribute(file, key, value) {
                // This filesystem has none: as with those that are left out, it is told.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => self.facts.attributes += 1,
                other => other.map_err(about(name))?,
            }
        }
        mount::fchmod(file, self.mode(entry, kept)).map_err(about(name))
    }

    /// Give it to its owner; true if it could be. An owner without an id here loses it to root.
    fn own(&mut self, entry: &Entry, give: impl FnOnce(u32, u32) -> io::Result<()>) -> io::Result<bool> {
        self.facts.uid_max = self.facts.uid_max.max(entry.uid);
        self.facts.gid_max = self.facts.gid_max.max(entry.gid);
        if self.owners == Owners::Single {
            return Ok(entry.uid == 0 && entry.gid == 0);
        }
        let possible = (0..=MOST_ID).contains(&entry.uid) && (0..=MOST_ID).contains(&entry.gid);
        let given = if possible { give(entry.uid as u32, entry.gid as u32) } else { Err(no_such_id()) };
        match given {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.facts.strangers += 1;
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    /// Set-id bits are of no use here and stay as data, but never for another owner than meant.
    fn mode(&self, entry: &Entry, owner_kept: bool) -> u32 {
        let mode = if owner_kept { entry.mode } else { entry.mode & !SET_ID_BITS };
        match (self.owners, &entry.kind) {
            // Without capabilities the owner must be able to go on inside, and the store to read.
            (Owners::Single, Kind::Directory) => mode | 0o700,
            (Owners::Single, _) => mode | 0o400,
            (Owners::Kept, _) => mode,
        }
    }
}

fn no_such_id() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

fn copy(input: &mut Input, file: &OwnedFd, mut left: u64, name: &[u8]) -> Outcome<()> {
    while left > 0 && input.left() > 0 {
        let (written, n) = input.content(left, |chunk| fd::write_all(file.as_raw_fd(), chunk))?;
        written.map_err(about(name))?;
        left -= n;
    }
    Ok(())
}

fn copy_pieces(input: &mut Input, file: &OwnedFd, map: &Map, name: &[u8]) -> Outcome<()> {
    for (offset, length) in &map.pieces {
        fd::lseek(file.as_raw_fd(), *offset as i64).map_err(about(name))?;
        copy(input, file, *length, name)?;
    }
    layer::truncate(file, map.real_size).map_err(about(name))
}

fn time(entry: &Entry) -> libc::timespec {
    libc::timespec { tv_sec: entry.mtime.0, tv_nsec: entry.mtime.1 }
}

fn nanoseconds(entry: &Entry) -> i64 {
    entry.mtime.0.saturating_mul(1_000_000_000).saturating_add(entry.mtime.1)
}

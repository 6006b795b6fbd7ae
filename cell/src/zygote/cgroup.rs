//! Control groups: made and filled by the launcher, so that limits hold before the guest exists.

use super::weight::Weight;
use crate::contain::step::during;
use crate::plan::Limit;
use crate::sys::{fd, libc, mount, socket};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// A directory that groups are made in, held open: the launcher's own view does not have it.
/// `unified` is the v2 hierarchy.
pub struct Parent {
    dir: OwnedFd,
    unified: bool,
    weight: Option<Weight>,
}

impl Parent {
    /// `weighs` where the directory is for sandboxes alone, and ours.
    pub fn open(path: &[u8], unified: bool, weighs: bool) -> io::Result<Parent> {
        let dir = fd::open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0);
        let dir = dir.map_err(|e| during(e, format!("opening {}", String::from_utf8_lossy(path))))?;
        let weight = if weighs { Weight::of(&dir) } else { None };
        Ok(Parent { dir, unified, weight })
    }

    /// There is one more in it, or one less.
    fn changed(&self) {
        if let Some(weight) = &self.weight {
            weight.say(&self.dir);
        }
    }
}

/// What counts how often a limit was reached, and under which word: of memory, and of processes.
pub const COUNTS: [(&str, &str); 2] = [("memory.events", "oom_kill"), ("pids.events", "max")];

/// A process that waits for a disk stops late; one that never does is not waited for.
const FREEZE_LOOKS: usize = 10;
const FREEZE_WAIT_MS: i32 = 50;

/// The groups of one sandbox, one in each hierarchy.
#[derive(Default)]
pub struct Groups {
    made: Vec<Rc<Parent>>,
    name: String,
    unified: Option<OwnedFd>,
    /// Where the child writes itself into the groups that clone cannot place it in.
    doors: Vec<OwnedFd>,
    /// Where the child reads how often its limits were reached, if nobody outside can.
    counts: Vec<OwnedFd>,
}

impl Groups {
    /// Make the groups of one kind of hierarchy and write their limits. The unified one comes
    /// first, because clone places the guest there; the others are made while the guest works on
    /// its root. On an error the caller removes what was made.
    pub fn make(
        &mut self,
        parents: &[Rc<Parent>],
        unified: bool,
        name: &str,
        limits: &[Limit],
    ) -> io::Result<()> {
        self.name = name.to_owned();
        for (index, parent) in parents.iter().enumerate().filter(|(_, parent)| parent.unified == unified) {
            let at = parent.dir.as_raw_fd();
            mount::mkdirat(at, name.as_bytes(), 0o755)
                .map_err(|e| during(e, format!("making the group {name}")))?;
            self.made.push(parent.clone());
            parent.changed();
            let group = fd::openat(at, name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
            for limit in limits.iter().filter(|limit| usize::from(limit.group) == index) {
                write(&group, limit)?;
            }
            if unified {
                self.unified =
                    Some(fd::openat(group.as_raw_fd(), ".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?);
            } else {
                self.doors.push(fd::openat(group.as_raw_fd(), "tasks", libc::O_WRONLY, 0)?);
            }
        }
        Ok(())
    }

    /// The group that clone can place the child into directly.
    pub fn clone_target(&self) -> Option<i32> {
        self.unified.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Have the guest told how often its limits were reached: all of them, or none where they are not here.
    pub fn tell_counts(&mut self) -> io::Result<()> {
        let dir = match &self.unified {
            Some(dir) => dir.as_raw_fd(),
            None => return Ok(()),
        };
        for (name, _) in COUNTS {
            match fd::openat(dir, name, libc::O_RDONLY, 0) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    self.counts.clear();
                    return Ok(());
                }
                opened => self.counts.push(opened?),
            }
        }
        Ok(())
    }

    /// Give the guest what it needs to enter the groups, and what it may read of them; nobody else keeps it.
    pub fn hand_doors(&mut self, sync: RawFd) -> io::Result<()> {
        let handed: Vec<RawFd> = self.doors.iter().chain(&self.counts).map(AsRawFd::as_raw_fd).collect();
        socket::send(sync, &[self.doors.len() as u8, self.counts.len() as u8], &handed)?;
        self.doors.clear();
        self.counts.clear();
        Ok(())
    }

    /// Stop or continue everything in the sandbox, and return once it has stopped.
    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        let dir = match &self.unified {
            Some(dir) => dir.as_raw_fd(),
            None => return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        };
        let events = fd::openat(dir, "cgroup.events", libc::O_RDONLY, 0)?;
        let file = fd::openat(dir, "cgroup.freeze", libc::O_WRONLY, 0)?;
        fd::write_all(file.as_raw_fd(), if frozen { b"1" } else { b"0" })?;
        let wanted: &[u8] = if frozen { b"frozen 1" } else { b"frozen 0" };
        for _ in 0..FREEZE_LOOKS {
            let mut text = [0u8; 128];
            let n = fd::pread(events.as_raw_fd(), &mut text, 0)?;
            if text[..n].split(|byte| *byte == b'\n').any(|line| line == wanted) {
                return Ok(());
            }
            // The kernel reports a change of this file as exceptional data.
            fd::poll(&mut [fd::wait_for(events.as_raw_fd(), libc::POLLPRI)], FREEZE_WAIT_MS)?;
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// True once all are gone. A group stays busy until the kernel has forgotten its last process.
    pub fn remove(&mut self) -> io::Result<bool> {
        self.unified = None;
        self.doors.clear();
        let mut busy = Vec::new();
        for parent in std::mem::take(&mut self.made) {
            match mount::unlinkat(parent.dir.as_raw_fd(), self.name.as_bytes(), true) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => busy.push(parent),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                other => {
                    other?;
                    parent.changed();
                }
            }
        }
        self.made = busy;
        Ok(self.made.is_empty())
    }
}

fn write(group: &OwnedFd, limit: &Limit) -> io::Result<()> {
    let words = || {
        format!(
            "writing {} to {}",
            String::from_utf8_lossy(&limit.value),
            String::from_utf8_lossy(&limit.file)
        )
    };
    let file =
        fd::openat(group.as_raw_fd(), &limit.file, libc::O_WRONLY, 0).map_err(|e| during(e, words()))?;
    fd::write_all(file.as_raw_fd(), &limit.value).map_err(|e| during(e, words()))
}

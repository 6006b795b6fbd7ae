//! Control groups: made and filled by the launcher, so that limits hold before the guest exists.

use crate::contain::step::{during, refuse};
use crate::plan::Limit;
use crate::sys::{fd, libc, mount};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// A directory that groups are made in; `unified` is the v2 hierarchy.
pub struct Parent {
    pub dir: Vec<u8>,
    pub unified: bool,
}

/// The groups of one sandbox, one in each hierarchy.
#[derive(Default)]
pub struct Groups {
    made: Vec<Vec<u8>>,
    unified: Option<OwnedFd>,
    /// Where the child writes itself into the groups that clone cannot place it in.
    doors: Vec<OwnedFd>,
}

impl Groups {
    /// Make every group and write its limits. On an error the caller removes what was made.
    pub fn make(&mut self, parents: &[Parent], name: &str, limits: &[Limit]) -> io::Result<()> {
        for parent in parents {
            let mut dir = parent.dir.clone();
            dir.push(b'/');
            dir.extend_from_slice(name.as_bytes());
            let words = || format!("making {}", String::from_utf8_lossy(&dir));
            mount::mkdirat(libc::AT_FDCWD, &dir, 0o755).map_err(|e| during(e, words()))?;
            self.made.push(dir.clone());
            if parent.unified {
                self.unified = Some(fd::open(&dir, libc::O_RDONLY | libc::O_DIRECTORY, 0)?);
            } else {
                self.doors.push(fd::open([&dir[..], b"/tasks"].concat(), libc::O_WRONLY, 0)?);
            }
        }
        self.limit(limits)
    }

    /// The group that clone can place the child into directly.
    pub fn clone_target(&self) -> Option<i32> {
        self.unified.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub fn doors(&self) -> &[OwnedFd] {
        &self.doors
    }

    /// The child has gone through them.
    pub fn close_doors(&mut self) {
        self.doors.clear();
    }

    fn limit(&self, limits: &[Limit]) -> io::Result<()> {
        for limit in limits {
            let dir = self.made.get(usize::from(limit.group)).ok_or_else(|| refuse(libc::EINVAL, "a limit names no group"))?;
            write(dir, &limit.file, &limit.value).map_err(|e| {
                during(e, format!("writing {} to {}", String::from_utf8_lossy(&limit.value), String::from_utf8_lossy(&limit.file)))
            })?;
        }
        Ok(())
    }

    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        match &self.unified {
            Some(dir) => {
                let file = fd::openat(dir.as_raw_fd(), "cgroup.freeze", libc::O_WRONLY, 0)?;
                fd::write_all(file.as_raw_fd(), if frozen { b"1" } else { b"0" })
            }
            None => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    /// True once all are gone. A group stays busy until the kernel has forgotten its last process.
    pub fn remove(&mut self) -> io::Result<bool> {
        self.unified = None;
        self.doors.clear();
        let mut busy = Vec::new();
        for dir in std::mem::take(&mut self.made) {
            match mount::unlinkat(libc::AT_FDCWD, &dir, true) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => busy.push(dir),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                other => other?,
            }
        }
        self.made = busy;
        Ok(self.made.is_empty())
    }
}

fn write(dir: &[u8], file: &[u8], value: &[u8]) -> io::Result<()> {
    let mut path = dir.to_vec();
    path.push(b'/');
    path.extend_from_slice(file);
    let file = fd::open(&path, libc::O_WRONLY, 0)?;
    fd::write_all(file.as_raw_fd(), value)
}

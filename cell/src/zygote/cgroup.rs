//! Control groups: made and filled by the launcher, so that limits hold before the guest exists.

use crate::contain::step::during;
use crate::plan::Cgroup;
use crate::sys::process::Pid;
use crate::sys::{fd, libc, mount};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// The groups of one sandbox, one in each hierarchy that limits it.
#[derive(Default)]
pub struct Groups {
    made: Vec<Vec<u8>>,
    unified: Option<OwnedFd>,
    joined_by_clone: Option<usize>,
}

impl Groups {
    /// Make every group and write its limits. On an error the caller drops what was made.
    pub fn make(&mut self, wanted: &[Cgroup]) -> io::Result<()> {
        for group in wanted {
            let name = String::from_utf8_lossy(&group.dir).into_owned();
            mount::mkdirat(libc::AT_FDCWD, &group.dir, 0o755).map_err(|e| during(e, format!("making {name}")))?;
            if group.unified {
                self.joined_by_clone = Some(self.made.len());
                self.unified = Some(fd::open(&group.dir, libc::O_RDONLY | libc::O_DIRECTORY, 0)?);
            }
            self.made.push(group.dir.clone());
            for (file, value) in &group.writes {
                write(&group.dir, file, value).map_err(|e| {
                    during(e, format!("writing {} to {name}/{}", String::from_utf8_lossy(value), String::from_utf8_lossy(file)))
                })?;
            }
        }
        Ok(())
    }

    /// The group that clone can place the child into directly.
    pub fn clone_target(&self) -> Option<i32> {
        self.unified.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub fn join(&self, pid: Pid) -> io::Result<()> {
        for (index, dir) in self.made.iter().enumerate() {
            if self.joined_by_clone != Some(index) {
                write(dir, b"cgroup.procs", pid.to_string().as_bytes())
                    .map_err(|e| during(e, format!("joining {}", String::from_utf8_lossy(dir))))?;
            }
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

//! What gVisor's kernel cannot save, and would end over: files on the disk that a program holds and that
//! have no name any more.

use crate::sys::{fd, libc, mount, process};
use std::io;
use std::os::unix::io::AsRawFd;

const DELETED: &[u8] = b" (deleted)";
/// In this kernel's own memory, which is saved: what lies in /dev, and what never had a name.
const IN_MEMORY: &[&[u8]] = &[b"/dev/", b"/memfd:"];
/// What is looked at of one process: its programs may have made it as much as they like.
const MOST_FILES: usize = 65_536;
const MOST_MAPS: usize = 4 * 1024 * 1024;
const MOST_SAID: usize = 300;

/// Return the first such file, with whose it is; None if there is none. Who ends meanwhile has none.
pub fn find() -> io::Result<Option<Vec<u8>>> {
    let proc = fd::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    for name in mount::names(proc, usize::MAX)? {
        let pid = std::str::from_utf8(&name).ok().and_then(|name| name.parse::<process::Pid>().ok());
        let Some(pid) = pid.filter(|pid| *pid != process::getpid()) else { continue };
        let found = match open_files(pid) {
            Ok(Some(path)) => Some(path),
            _ => mapped_files(pid).unwrap_or(None),
        };
        if let Some(path) = found {
            let shown = &path[..path.len().min(MOST_SAID)];
            return Ok(Some([format!("process {pid} holds ").as_bytes(), shown].concat()));
        }
    }
    Ok(None)
}

fn open_files(pid: process::Pid) -> io::Result<Option<Vec<u8>>> {
    let directory = fd::open(format!("/proc/{pid}/fd"), libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let again = fd::dup_above(directory.as_raw_fd(), 3)?;
    for number in mount::names(again, MOST_FILES)? {
        // Closed since they were listed.
        let Ok(path) = mount::readlinkat(directory.as_raw_fd(), &number) else { continue };
        if is_unsaved(&path) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn mapped_files(pid: process::Pid) -> io::Result<Option<Vec<u8>>> {
    let file = fd::open(format!("/proc/{pid}/maps"), libc::O_RDONLY, 0)?;
    let (mut text, mut part) = (Vec::new(), vec![0u8; 64 * 1024]);
    while text.len() < MOST_MAPS {
        match fd::read(file.as_raw_fd(), &mut part)? {
            0 => break,
            n => text.extend_from_slice(&part[..n]),
        }
    }
    // A path begins with the first slash: what stands before it are numbers.
    let mut paths = text
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.iter().position(|byte| *byte == b'/').map(|at| &line[at..]));
    Ok(paths.find(|path| is_unsaved(path)).map(<[u8]>::to_vec))
}

fn is_unsaved(path: &[u8]) -> bool {
    path.starts_with(b"/")
        && path.ends_with(DELETED)
        && !IN_MEMORY.iter().any(|beginning| path.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::is_unsaved;

    #[test]
    fn only_what_lay_on_the_disk_and_has_no_name_is_unsaved() {
        for path in [&b"/workspace/x (deleted)"[..], b"/tmp/#1 (deleted)", b"/memory (deleted)"] {
            assert!(is_unsaved(path));
        }
        for path in [
            &b"/workspace/x"[..],
            b"/dev/shm/x (deleted)",
            b"/dev/zero (deleted)",
            b"/memfd:x (deleted)",
            b"pipe:[3]",
            b"anon_inode:[x] (deleted)",
        ] {
            assert!(!is_unsaved(path));
        }
    }
}

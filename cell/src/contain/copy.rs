//! Copies configuration: small files that everybody may read, their directories and links.

use crate::sys::{fd, libc, mount};
use std::io;
use std::os::unix::io::AsRawFd;

/// Configuration files are small; a larger one is not configuration.
const MAX_FILE: u64 = 4 * 1024 * 1024;
const MAX_DEPTH: usize = 8;
const MAX_NAMES: usize = 65536;

/// Copy what everybody may read. The rest is left out, not refused: it is a secret.
pub fn copy(from: i32, to: i32, name: &[u8]) -> io::Result<()> {
    copy_below(from, to, name, 0)
}

/// Copy all that a directory holds into another.
pub fn copy_all(from: i32, to: i32) -> io::Result<()> {
    copy_names(from, b".", to, 0)
}

fn copy_below(from: i32, to: i32, name: &[u8], depth: usize) -> io::Result<()> {
    let stat = match mount::lstatat(from, name) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        other => other?,
    };
    let mode = stat.st_mode & 0o7777;
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFLNK => {
            make_parents(to, name).and_then(|()| mount::symlinkat(&mount::readlinkat(from, name)?, to, name))
        }
        libc::S_IFREG if mode & 0o004 != 0 && stat.st_size as u64 <= MAX_FILE => {
            make_parents(to, name)?;
            let source = fd::openat(from, name, libc::O_RDONLY | libc::O_NOFOLLOW, 0)?;
            let target = fd::openat(to, name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, mode & 0o755)?;
            let mut buffer = [0u8; 65536];
            loop {
                let n = fd::read(source.as_raw_fd(), &mut buffer)?;
                if n == 0 {
                    break;
                }
                fd::write_all(target.as_raw_fd(), &buffer[..n])?;
            }
            // Compiled copies elsewhere (Python's, for one) are held to the time of their source.
            mount::set_times(to, name, stat.st_mtime * 1_000_000_000 + stat.st_mtime_nsec)
        }
        libc::S_IFDIR if mode & 0o005 == 0o005 && depth < MAX_DEPTH => {
            make_parents(to, name)?;
            mount::mkdirat(to, name, 0o755)?;
            let target = fd::openat(to, name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
            copy_names(from, name, target.as_raw_fd(), depth + 1)
        }
        _ => Ok(()),
    }
}

fn copy_names(from: i32, name: &[u8], to: i32, depth: usize) -> io::Result<()> {
    let source = fd::openat(from, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)?;
    let at = source.as_raw_fd();
    for entry in mount::names(fd::dup_above(at, 3)?, MAX_NAMES)? {
        copy_below(at, to, &entry, depth)?;
    }
    Ok(())
}

pub fn make_parents(to: i32, path: &[u8]) -> io::Result<()> {
    for (index, byte) in path.iter().enumerate() {
        if *byte == b'/' {
            match mount::mkdirat(to, &path[..index], 0o755) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                other => other?,
            }
        }
    }
    Ok(())
}

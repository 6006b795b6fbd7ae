//! What all sandboxes of this launcher share, read-only, on a tmpfs that only the launcher's own
//! mount namespace has: six devices, an empty directory, and the public part of /etc.

use super::message::Configuration;
use crate::contain::step::during;
use crate::sys::{fd, libc, mount};
use std::io;
use std::os::unix::io::AsRawFd;

/// Name and minor number; null to urandom have major 1, the terminal of a process has 5.
const DEVICES: &[(&str, u32, u32)] =
    &[("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const LINKS: &[(&str, &str)] = &[
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
    ("pts/ptmx", "dev/ptmx"),
];
/// Configuration files are small; a larger one is not configuration.
const MAX_FILE: u64 = 4 * 1024 * 1024;
const MAX_DEPTH: usize = 8;

pub fn build(configuration: &Configuration) -> io::Result<()> {
    mount::make_private()?;
    let options = b"size=64m,mode=0755";
    mount::mount("tmpfs", &configuration.directory, "tmpfs", libc::MS_NOSUID, options)
        .map_err(|e| during(e, "mounting the launcher's own tmpfs"))?;
    let base = fd::open(&configuration.directory, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let at = base.as_raw_fd();
    for name in ["dev", "dev/pts", "dev/shm", "empty", "cell", "etc", "proc"] {
        mount::mkdirat(at, name.as_bytes(), 0o755)?;
    }
    for (name, major, minor) in DEVICES {
        device(at, name, *major, *minor).map_err(|e| during(e, format!("/dev/{name}")))?;
    }
    for (target, name) in LINKS {
        mount::symlinkat(target.as_bytes(), at, name.as_bytes())?;
    }
    cover(at, "empty", "empty")?;
    drop(fd::openat(at, "null", libc::O_CREAT | libc::O_RDONLY, 0o444)?);
    cover(at, "dev/null", "null")?;
    let etc = fd::openat(at, "etc", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let host = fd::open("/etc", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    for name in &configuration.etc {
        copy(host.as_raw_fd(), etc.as_raw_fd(), name, 0)
            .map_err(|e| during(e, format!("copying /etc/{}", String::from_utf8_lossy(name))))?;
    }
    for file in &configuration.files {
        write(etc.as_raw_fd(), &file.path, file.mode, &file.content)?;
    }
    Ok(())
}

/// A device of our own where we may make one; otherwise the host's, mounted over a file.
fn device(at: i32, name: &str, major: u32, minor: u32) -> io::Result<()> {
    let path = format!("dev/{name}");
    match mount::make_device(at, path.as_bytes(), 0o666, libc::makedev(major, minor)) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        other => return other,
    }
    let point = fd::openat(at, &path, libc::O_CREAT | libc::O_RDONLY, 0o666)?;
    mount::attach(&mount::open_tree(libc::AT_FDCWD, format!("/dev/{name}").as_bytes())?, &point)
}

/// Something to mask with: mounted read-only here, once, for all the copies made of it.
fn cover(at: i32, source: &str, target: &str) -> io::Result<()> {
    let place = fd::openat(at, source, libc::O_PATH, 0)?;
    let tree = mount::open_tree(place.as_raw_fd(), b"")?;
    mount::set_attributes(&tree, mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NOEXEC, None)?;
    mount::attach(&tree, &fd::openat(at, target, libc::O_PATH, 0)?)
}

/// Copy what everybody on the host may read. The rest is left out, not refused: it is a secret.
fn copy(from: i32, to: i32, name: &[u8], depth: usize) -> io::Result<()> {
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
                    return Ok(());
                }
                fd::write_all(target.as_raw_fd(), &buffer[..n])?;
            }
        }
        libc::S_IFDIR if mode & 0o005 == 0o005 && depth < MAX_DEPTH => {
            make_parents(to, name)?;
            mount::mkdirat(to, name, 0o755)?;
            let source = fd::openat(from, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)?;
            let target = fd::openat(to, name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
            let at = source.as_raw_fd();
            for entry in mount::names(fd::dup_above(at, 3)?, 65536)? {
                copy(at, target.as_raw_fd(), &entry, depth + 1)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn write(to: i32, path: &[u8], mode: u32, content: &[u8]) -> io::Result<()> {
    make_parents(to, path)?;
    match mount::unlinkat(to, path, false) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        other => other?,
    }
    let file = fd::openat(to, path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, mode)?;
    fd::write_all(file.as_raw_fd(), content)
}

fn make_parents(to: i32, path: &[u8]) -> io::Result<()> {
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

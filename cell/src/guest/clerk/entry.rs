//! What is there: one entry, or all of a directory, as records `u32 length | record`.

use super::{on, Trouble, FOLLOW};
use crate::sys::{fd, libc, mount};
use crate::wire::codec::Writer;
use crate::wire::message::File;
use std::io;
use std::os::unix::io::{AsRawFd, RawFd};

pub fn stat(file: &File, output: RawFd) -> Result<(), Trouble> {
    let flags = if file.flags & FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    let stat = mount::statat(libc::AT_FDCWD, &file.path, flags)?;
    let mut out = Writer::default();
    let target =
        if is(&stat, libc::S_IFLNK) { mount::readlinkat(libc::AT_FDCWD, &file.path)? } else { Vec::new() };
    record(&mut out, &file.path, &stat, &target);
    fd::write_all(output, &out.bytes).map_err(Trouble::from)
}

pub fn list(file: &File, output: RawFd) -> Result<(), Trouble> {
    let dir = fd::open(&file.path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK, 0)?;
    let at = dir.as_raw_fd();
    let mut out = Writer::default();
    let mut left = if file.length == 0 { u64::MAX } else { file.length };
    mount::for_each_name(fd::dup_above(at, 3)?, |name| {
        if left == 0 {
            return Ok(false);
        }
        left -= 1;
        // One that vanished since it was listed is not an error of the listing.
        if let Some(stat) = look(at, name)? {
            let target = if is(&stat, libc::S_IFLNK) {
                mount::readlinkat(at, name).unwrap_or_default()
            } else {
                Vec::new()
            };
            record(&mut out, name, &stat, &target);
        }
        if out.bytes.len() > 64 * 1024 {
            fd::write_all(output, &out.bytes)?;
            out.bytes.clear();
        }
        Ok(true)
    })
    .map_err(on(&file.path))?;
    fd::write_all(output, &out.bytes).map_err(Trouble::from)
}

fn look(at: RawFd, name: &[u8]) -> io::Result<Option<libc::stat>> {
    match mount::lstatat(at, name) {
        Ok(stat) => Ok(Some(stat)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

pub fn is(stat: &libc::stat, kind: u32) -> bool {
    stat.st_mode & libc::S_IFMT == kind
}

fn record(out: &mut Writer, name: &[u8], stat: &libc::stat, target: &[u8]) {
    let mut w = Writer::default();
    w.u32(stat.st_mode).u32(stat.st_uid).u32(stat.st_gid).u64(stat.st_size as u64);
    w.i64(stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec));
    w.u64(stat.st_ino).u64(stat.st_nlink).bytes(name).bytes(target);
    out.bytes(&w.bytes);
}

/// How full the sandbox's disk is.
pub fn space(output: RawFd) -> Result<(), Trouble> {
    let mut w = Writer::default();
    for number in mount::space(b"/")? {
        w.u64(number);
    }
    w.u64(processes()?);
    fd::write_all(output, &w.bytes).map_err(Trouble::from)
}

/// How many processes there are but the guest and this one.
fn processes() -> io::Result<u64> {
    let proc = fd::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut count: u64 = 0;
    mount::for_each_name(proc, |name| {
        count += u64::from(name.iter().all(u8::is_ascii_digit));
        Ok(true)
    })?;
    Ok(count.saturating_sub(2))
}

//! What an unpacked layer is made of besides files and directories: links, pipes, marks, times.

use super::{check, cstring};
use std::io;
use std::os::unix::io::{AsRawFd, RawFd};

/// A second name for what `from` is; a symbolic link gets the name itself and is not followed.
pub fn linkat(from_dir: RawFd, from: &[u8], to_dir: RawFd, to: &[u8]) -> io::Result<()> {
    let (from, to) = (cstring(from)?, cstring(to)?);
    // SAFETY: NUL-terminated paths.
    check(unsafe { libc::linkat(from_dir, from.as_ptr(), to_dir, to.as_ptr(), 0) } as libc::c_long)?;
    Ok(())
}

pub fn make_pipe(dir: RawFd, path: &[u8]) -> io::Result<()> {
    let path = cstring(path)?;
    // SAFETY: NUL-terminated path.
    check(unsafe { libc::mknodat(dir, path.as_ptr(), libc::S_IFIFO | 0o600, 0) } as libc::c_long)?;
    Ok(())
}

/// The mark of an overlay for "nothing here, whatever is below": a character device without number.
pub fn make_whiteout(dir: RawFd, path: &[u8]) -> io::Result<()> {
    let path = cstring(path)?;
    // SAFETY: NUL-terminated path.
    check(unsafe { libc::mknodat(dir, path.as_ptr(), libc::S_IFCHR, 0) } as libc::c_long)?;
    Ok(())
}

pub fn set_attribute(fd: &impl AsRawFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    let name = cstring(name)?;
    // SAFETY: a NUL-terminated name, and `value.len()` bytes that the kernel reads.
    check(unsafe { libc::fsetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) }
        as libc::c_long)?;
    Ok(())
}

pub fn attribute(fd: &impl AsRawFd, name: &[u8]) -> io::Result<Vec<u8>> {
    let name = cstring(name)?;
    // As large as the kernel lets one be.
    let mut value = vec![0u8; 64 * 1024];
    // SAFETY: a NUL-terminated name, and a buffer of the stated size that the kernel fills.
    let n = check(unsafe {
        libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    } as libc::c_long)?;
    value.truncate(n as usize);
    Ok(value)
}

/// The names of the attributes of an open file or directory.
pub fn attributes(fd: &impl AsRawFd) -> io::Result<Vec<Vec<u8>>> {
    // As much as the kernel lists.
    let mut names = vec![0u8; 64 * 1024];
    // SAFETY: a buffer of the stated size that the kernel fills.
    let listed =
        check(unsafe { libc::flistxattr(fd.as_raw_fd(), names.as_mut_ptr().cast(), names.len()) }
            as libc::c_long);
    match listed {
        // A filesystem without any.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(n) => {
            let whole = &names[..n as usize];
            Ok(whole.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
        }
    }
}

/// Set the modification time of an open file or directory; the time of access is left alone.
pub fn set_open_times(fd: &impl AsRawFd, mtime: libc::timespec) -> io::Result<()> {
    let times = [libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT }, mtime];
    // SAFETY: the kernel reads two timespecs.
    check(unsafe { libc::futimens(fd.as_raw_fd(), times.as_ptr()) } as libc::c_long)?;
    Ok(())
}

pub fn truncate(fd: &impl AsRawFd, size: u64) -> io::Result<()> {
    let size = i64::try_from(size).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: plain integers on an open descriptor.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) } as libc::c_long)?;
    Ok(())
}

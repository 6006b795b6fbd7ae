//! Reading, writing, making and moving single files and directories.

use super::{on, read_exact, trouble, Trouble, APPEND, PARENTS, REPLACE};
use crate::sys::{fd, libc, mount, process};
use crate::wire::message::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

const CHUNK: usize = 256 * 1024;

pub fn read(file: &File, output: RawFd) -> Result<(), Trouble> {
    let source = open_regular(&file.path, libc::O_RDONLY)?;
    if file.offset > 0 {
        let offset = i64::try_from(file.offset).map_err(|_| trouble(libc::EINVAL))?;
        fd::lseek(source.as_raw_fd(), offset)?;
    }
    let mut left = if file.length == 0 { u64::MAX } else { file.length };
    let mut buffer = vec![0u8; CHUNK];
    while left > 0 {
        let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let n = fd::read(source.as_raw_fd(), &mut buffer[..want])?;
        if n == 0 {
            break;
        }
        fd::write_all(output, &buffer[..n])?;
        left -= n as u64;
    }
    Ok(())
}

/// A pipe, a socket or a device in the place of a file would block, or never end.
pub fn open_regular(path: &[u8], flags: i32) -> Result<OwnedFd, Trouble> {
    let file = fd::open(path, flags | libc::O_NONBLOCK, 0)?;
    match fd::fstat(&file)?.st_mode & libc::S_IFMT {
        libc::S_IFREG => Ok(file),
        libc::S_IFDIR => Err(trouble(libc::EISDIR)),
        _ => Err(trouble(libc::EINVAL)),
    }
}

/// Content comes in chunks, `u32 length | bytes`, and ends with a zero length: an input that was
/// cut is told from one that is complete, and leaves the old content in place.
pub fn write(file: &File, input: RawFd) -> Result<(), Trouble> {
    let path = follow(&file.path);
    if file.flags & PARENTS != 0 {
        if let Some(parent) = Path::new(std::ffi::OsStr::from_bytes(&path)).parent() {
            make(parent.as_os_str().as_bytes(), 0o755, true).map_err(above)?;
        }
    }
    if file.flags & APPEND != 0 {
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NONBLOCK;
        let target = match fd::open(&path, flags, file.mode) {
            // A pipe that nobody reads.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Err(trouble(libc::EINVAL)),
            other => other?,
        };
        if fd::fstat(&target)?.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(trouble(libc::EINVAL));
        }
        return take_chunks(input, &target);
    }
    replace(&path, file.mode, true, |target| take_chunks(input, target))
}

/// Fill a file under another name and rename it when it is complete: a reader sees the old content
/// or the new, and a source that breaks off leaves the old. `keep_mode` of a file that is there.
pub fn replace(
    path: &[u8],
    mode: u32,
    keep_mode: bool,
    fill: impl FnOnce(&OwnedFd) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let mode = match mount::statat(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG if keep_mode => stat.st_mode & 0o777,
            libc::S_IFREG | libc::S_IFLNK => mode & 0o777,
            libc::S_IFDIR => return Err(trouble(libc::EISDIR)),
            _ => return Err(trouble(libc::EINVAL)),
        },
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => mode & 0o777,
        Err(error) => return Err(error.into()),
    };
    let draft = [path, format!(".cloister-{}", process::getpid()).as_bytes()].concat();
    match fd::open(&draft, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o600) {
        Ok(target) => {
            let outcome = fill(&target)
                .and_then(|()| mount::fchmod(&target, mode).map_err(Trouble::from))
                .and_then(|()| {
                    mount::renameat(libc::AT_FDCWD, &draft, libc::AT_FDCWD, path, true).map_err(Trouble::from)
                });
            if outcome.is_err() {
                mount::unlinkat(libc::AT_FDCWD, &draft, false)?;
            }
            outcome
        }
        // No new names may be made here, or none this long: write in place, as an editor would.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ENAMETOOLONG)
            ) =>
        {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NONBLOCK | libc::O_NOFOLLOW;
            fill(&fd::open(path, flags, mode)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// A link is written through, as everybody expects; one that leads nowhere stays as it is named.
fn follow(path: &[u8]) -> Vec<u8> {
    match std::fs::canonicalize(Path::new(std::ffi::OsStr::from_bytes(path))) {
        Ok(real) => real.into_os_string().into_vec(),
        Err(_) => path.to_vec(),
    }
}

fn take_chunks(input: RawFd, target: &OwnedFd) -> Result<(), Trouble> {
    let mut buffer = vec![0u8; CHUNK];
    loop {
        let mut header = [0u8; 4];
        if !read_exact(input, &mut header)? {
            return Err(trouble(libc::ECANCELED));
        }
        let mut left = u32::from_le_bytes(header) as usize;
        if left == 0 {
            return Ok(());
        }
        while left > 0 {
            let want = left.min(buffer.len());
            let n = fd::read(input, &mut buffer[..want])?;
            if n == 0 {
                return Err(trouble(libc::ECANCELED));
            }
            fd::write_all(target.as_raw_fd(), &buffer[..n])?;
            left -= n;
        }
    }
}

pub fn make(path: &[u8], mode: u32, parents: bool) -> Result<(), Trouble> {
    if parents {
        for (index, byte) in path.iter().enumerate().skip(1) {
            if *byte == b'/' {
                make_unless_there(&path[..index], 0o755).map_err(above)?;
            }
        }
        return make_unless_there(path, mode);
    }
    mount::mkdirat(libc::AT_FDCWD, path, mode).map_err(Trouble::from)
}

/// Something that is there, where a directory to put things into is wanted.
fn above(trouble: Trouble) -> Trouble {
    if trouble.error.raw_os_error() == Some(libc::EEXIST) {
        return Trouble { error: std::io::Error::from_raw_os_error(libc::ENOTDIR), ..trouble };
    }
    trouble
}

fn make_unless_there(path: &[u8], mode: u32) -> Result<(), Trouble> {
    match mount::mkdirat(libc::AT_FDCWD, path, mode) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            let stat = mount::statat(libc::AT_FDCWD, path, 0).map_err(on(path))?;
            if stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
                Ok(())
            } else {
                Err(Trouble { error, path: path.to_vec() })
            }
        }
        other => other.map_err(on(path)),
    }
}

pub fn rename(file: &File) -> Result<(), Trouble> {
    let replace = file.flags & REPLACE != 0;
    mount::renameat(libc::AT_FDCWD, &file.path, libc::AT_FDCWD, &file.other, replace).map_err(Trouble::from)
}

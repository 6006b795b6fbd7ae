//! Trees as a stream, both ways: `u8 kind | u32 mode | i64 mtime | u64 size | path | target`,
//! then the content of a file; kind 0 ends it. The other end is `sandbox/parcel.py`.

use super::entry::is;
use super::plain::{make, open_regular, replace};
use super::{on, read_exact, trouble, Trouble};
use crate::sys::{fd, libc, mount};
use crate::wire::codec::Writer;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

const END: u8 = 0;
const FILE: u8 = 1;
const DIR: u8 = 2;
const LINK: u8 = 3;
const MAX_NAME: usize = 4096;
const MAX_DEPTH: usize = 512;
const CHUNK: usize = 256 * 1024;

/// Send the tree at `path`. Pipes, sockets and devices are left out; names are relative to it.
pub fn pack(path: &[u8], output: RawFd) -> Result<(), Trouble> {
    let stat = mount::statat(libc::AT_FDCWD, path, 0)?;
    let mut out = Packer { output, buffer: vec![0u8; CHUNK] };
    if is(&stat, libc::S_IFDIR) {
        out.header(DIR, &stat, 0, b"", b"")?;
        let dir = fd::open(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK, 0)?;
        out.directory(dir)?;
    } else {
        let file = open_regular(path, libc::O_RDONLY)?;
        out.file(&file, b"")?;
    }
    fd::write_all(output, &[END]).map_err(Trouble::from)
}

struct Packer {
    output: RawFd,
    buffer: Vec<u8>,
}

impl Packer {
    fn directory(&mut self, top: OwnedFd) -> Result<(), Trouble> {
        let listed = |dir: &OwnedFd| mount::names(fd::dup_above(dir.as_raw_fd(), 3)?, usize::MAX);
        let names = listed(&top)?;
        let mut stack: Vec<(OwnedFd, Vec<Vec<u8>>, usize)> = vec![(top, names, 0)];
        let mut path: Vec<u8> = Vec::new();
        while let Some((dir, names, base)) = stack.last_mut() {
            let at = dir.as_raw_fd();
            path.truncate(*base);
            let name = match names.pop() {
                Some(name) => name,
                None => {
                    stack.pop();
                    continue;
                }
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            if path.len() > MAX_NAME || stack.len() >= MAX_DEPTH {
                return Err(on(&path)(io::Error::from_raw_os_error(libc::ENAMETOOLONG)));
            }
            if let Some((dir, names)) = self.entry(at, &name, &path).map_err(on(&path))? {
                let base = path.len();
                stack.push((dir, names, base));
            }
        }
        Ok(())
    }

    /// Send one entry; if it is a directory, return it with its names.
    fn entry(&mut self, at: RawFd, name: &[u8], path: &[u8]) -> io::Result<Option<(OwnedFd, Vec<Vec<u8>>)>> {
        let stat = match mount::lstatat(at, name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            other => other?,
        };
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFLNK => {
                let target = mount::readlinkat(at, name)?;
                self.header(LINK, &stat, 0, path, &target)?;
            }
            libc::S_IFREG => {
                let file = fd::openat(at, name, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK, 0)?;
                if is(&fd::fstat(&file)?, libc::S_IFREG) {
                    self.file(&file, path)?;
                }
            }
            libc::S_IFDIR => {
                let dir = mount::open_directory(at, name)?;
                self.header(DIR, &stat, 0, path, b"")?;
                let names = mount::names(fd::dup_above(dir.as_raw_fd(), 3)?, usize::MAX)?;
                return Ok(Some((dir, names)));
            }
            _ => {}
        }
        Ok(None)
    }

    /// The size is promised first: a file that grows is cut there, one that shrinks is padded.
    fn file(&mut self, file: &OwnedFd, path: &[u8]) -> io::Result<()> {
        let stat = fd::fstat(file)?;
        let mut left = stat.st_size as u64;
        self.header(FILE, &stat, left, path, b"")?;
        while left > 0 {
            let want = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let mut n = fd::read(file.as_raw_fd(), &mut self.buffer[..want])?;
            if n == 0 {
                self.buffer[..want].fill(0);
                n = want;
            }
            fd::write_all(self.output, &self.buffer[..n])?;
            left -= n as u64;
        }
        Ok(())
    }

    fn header(&self, kind: u8, stat: &libc::stat, size: u64, path: &[u8], target: &[u8]) -> io::Result<()> {
        let mut w = Writer::default();
        w.u8(kind).u32(stat.st_mode & 0o777);
        w.i64(stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec));
        w.u64(size).bytes(path).bytes(target);
        fd::write_all(self.output, &w.bytes)
    }
}

/// Receive a tree below `path`, which is made. Everything happens inside the wall, so a name that
/// climbs hurts nobody but the sandbox; it is refused all the same.
pub fn unpack(path: &[u8], input: RawFd) -> Result<(), Trouble> {
    let mut buffer = vec![0u8; CHUNK];
    loop {
        let mut head = [0u8; 21];
        if !read_exact(input, &mut head[..1])? {
            return Err(trouble(libc::ECANCELED));
        }
        if head[0] == END {
            return Ok(());
        }
        if !read_exact(input, &mut head[1..])? {
            return Err(trouble(libc::ECANCELED));
        }
        let number =
            |from: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| head[from + i]));
        let mode = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) & 0o777;
        let (mtime, size) = (number(5) as i64, number(13));
        let name = read_name(input)?;
        let target = read_name(input)?;
        if name.split(|b| *b == b'/').any(|part| part == b"..") || name.first() == Some(&b'/') {
            return Err(on(&name)(io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let full = if name.is_empty() { path.to_vec() } else { [path, b"/", &name].concat() };
        match head[0] {
            DIR => make(&full, mode | 0o700, true)?,
            LINK => link(&full, &target).map_err(on(&full))?,
            FILE => {
                receive_file(&full, mode, size, input, &mut buffer)?;
                mount::set_times(libc::AT_FDCWD, &full, mtime).map_err(on(&full))?;
            }
            _ => return Err(trouble(libc::EPROTO)),
        }
    }
}

fn link(full: &[u8], target: &[u8]) -> io::Result<()> {
    match mount::unlinkat(libc::AT_FDCWD, full, false) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        other => other?,
    }
    mount::symlinkat(target, libc::AT_FDCWD, full)
}

fn receive_file(full: &[u8], mode: u32, size: u64, input: RawFd, buffer: &mut [u8]) -> Result<(), Trouble> {
    // The parent is made on demand: a single file may be sent into a place that is not there.
    let parent = &full[..full.iter().rposition(|b| *b == b'/').unwrap_or(0)];
    if !parent.is_empty() && mount::statat(libc::AT_FDCWD, parent, 0).is_err() {
        make(parent, 0o755, true)?;
    }
    replace(full, mode, false, |file| {
        let mut left = size;
        while left > 0 {
            let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let n = fd::read(input, &mut buffer[..want])?;
            if n == 0 {
                return Err(trouble(libc::ECANCELED));
            }
            fd::write_all(file.as_raw_fd(), &buffer[..n])?;
            left -= n as u64;
        }
        Ok(())
    })
    .map_err(|trouble| if trouble.path.is_empty() { on(full)(trouble.error) } else { trouble })
}

fn read_name(input: RawFd) -> Result<Vec<u8>, Trouble> {
    let mut length = [0u8; 4];
    if !read_exact(input, &mut length)? {
        return Err(trouble(libc::ECANCELED));
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_NAME {
        return Err(trouble(libc::ENAMETOOLONG));
    }
    let mut name = vec![0u8; length];
    if length > 0 && !read_exact(input, &mut name)? {
        return Err(trouble(libc::ECANCELED));
    }
    Ok(name)
}

#[cfg(test)]
mod tests;

//! Sends what is on the disk of a machine to the host, as one archive, from a machine in which nothing of that
//! disk is executed. The host takes every byte of it for chosen by whoever wrote the disk.

use super::letters::Port;
use crate::sys::{fd, layer, libc, mount};
use crate::unpack::OPAQUE_MARK;
use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

const BLOCK: usize = 512;
const PIECE: usize = 256 * 1024;
/// In the place of a length: what follows is why there is no more.
const FAILED: u32 = u32::MAX;
/// One less than a reader of archives takes of one file, for the last may have to be the rest.
const MOST_PIECES: usize = 65_000;
const MOST_DEPTH: usize = 250;
const OVERLAY: &[u8] = b"user.overlay.";
const OPAQUE: &[u8] = b"user.overlay.opaque";
const WHITEOUT: &[u8] = b"user.overlay.whiteout";

/// Send the tree `name` of a directory: pieces after their lengths, and a length of nothing at the end.
pub fn send(desk: &Port, directory: &str, name: &[u8]) -> io::Result<()> {
    let mut archive = Archive { desk: desk.number(), held: Vec::with_capacity(PIECE), names: HashMap::new() };
    let outcome = fd::open(directory, libc::O_RDONLY | libc::O_DIRECTORY, 0)
        .and_then(|top| archive.tree(&top, name))
        .and_then(|()| archive.put(&[0; 2 * BLOCK]))
        .and_then(|()| archive.flush());
    match outcome {
        Ok(()) => fd::write_all(desk.number(), &0u32.to_le_bytes()),
        Err(error) => {
            let words = error.to_string();
            fd::write_all(desk.number(), &FAILED.to_le_bytes())?;
            fd::write_all(desk.number(), &(words.len() as u32).to_le_bytes())?;
            fd::write_all(desk.number(), words.as_bytes())
        }
    }
}

struct Archive {
    desk: RawFd,
    held: Vec<u8>,
    /// Of files with several names: the first.
    names: HashMap<u64, Vec<u8>>,
}

struct Facts<'a> {
    path: &'a [u8],
    stat: &'a libc::stat,
    kind: u8,
    size: u64,
    records: Vec<u8>,
}

impl Archive {
    fn tree(&mut self, top: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let mut path = Vec::new();
        let mut above = Vec::new();
        if let Some(dir) = self.entry(top, name, &mut path)? {
            above.push((names_in(&dir)?, dir, path.len()));
        }
        while let Some((names, dir, length)) = above.last_mut() {
            path.truncate(*length);
            let Some(name) = names.pop() else {
                above.pop();
                continue;
            };
            if let Some(below) = self.entry(dir, &name, &mut path)? {
                if above.len() == MOST_DEPTH {
                    let words = format!("a tree is deeper than {MOST_DEPTH} directories");
                    return Err(io::Error::new(io::ErrorKind::Other, words));
                }
                above.push((names_in(&below)?, below, path.len()));
            }
        }
        Ok(())
    }

    /// One entry; a directory is returned, with `path` naming it, for what is in it to follow.
    fn entry(&mut self, dir: &OwnedFd, name: &[u8], path: &mut Vec<u8>) -> io::Result<Option<OwnedFd>> {
        let at = dir.as_raw_fd();
        let stat = match mount::lstatat(at, name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            other => other?,
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let plain = |kind| Facts { path, stat: &stat, kind, size: 0, records: Vec::new() };
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFDIR => {
                let open = fd::openat(at, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)?;
                let mut facts = plain(b'5');
                for (key, value) in attributes(&open)? {
                    if key == OPAQUE && value == b"y" {
                        record(&mut facts.records, OPAQUE_MARK, b"y");
                    }
                    keep(&mut facts.records, &key, &value);
                }
                self.head(facts)?;
                return Ok(Some(open));
            }
            libc::S_IFREG => self.file(at, name, path, &stat)?,
            libc::S_IFLNK => {
                let mut facts = plain(b'2');
                record(&mut facts.records, b"linkpath", &mount::readlinkat(at, name)?);
                self.head(facts)?;
            }
            libc::S_IFIFO => self.head(plain(b'6'))?,
            libc::S_IFCHR if stat.st_rdev == 0 => self.head(plain(b'3'))?,
            // Sockets have nobody who listens any more, and devices are nobody's to make.
            _ => {}
        }
        Ok(None)
    }

    fn file(&mut self, at: RawFd, name: &[u8], path: &[u8], stat: &libc::stat) -> io::Result<()> {
        let mut facts = Facts { path, stat, kind: b'0', size: 0, records: Vec::new() };
        if stat.st_nlink > 1 {
            if let Some(first) = self.names.get(&stat.st_ino) {
                facts.kind = b'1';
                record(&mut facts.records, b"linkpath", first);
                return self.head(facts);
            }
            self.names.insert(stat.st_ino, path.to_vec());
        }
        let file = fd::openat(at, name, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK, 0)?;
        let size = stat.st_size as u64;
        for (key, value) in attributes(&file)? {
            if key == WHITEOUT && size == 0 {
                return self.head(Facts { path, stat, kind: b'3', size: 0, records: Vec::new() });
            }
            keep(&mut facts.records, &key, &value);
        }
        let pieces = pieces(&file, size)?;
        if pieces == [(0, size)] || size == 0 {
            facts.size = size;
            self.head(facts)?;
        } else {
            let mut map = format!("{}\n", pieces.len());
            for (offset, length) in &pieces {
                // Writing to text does not fail.
                write!(map, "{offset}\n{length}\n")
                    .map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
            }
            let mut map = map.into_bytes();
            map.resize((map.len() + BLOCK - 1) / BLOCK * BLOCK, 0);
            facts.size = map.len() as u64 + pieces.iter().map(|(_, length)| length).sum::<u64>();
            record(&mut facts.records, b"GNU.sparse.major", b"1");
            record(&mut facts.records, b"GNU.sparse.minor", b"0");
            record(&mut facts.records, b"GNU.sparse.name", path);
            record(&mut facts.records, b"GNU.sparse.realsize", size.to_string().as_bytes());
            self.head(facts)?;
            self.put(&map)?;
        }
        let mut part = vec![0u8; PIECE];
        let mut total = 0;
        for (offset, length) in if size == 0 { Vec::new() } else { pieces } {
            let mut done = 0;
            while done < length {
                let most = part.len().min((length - done) as usize);
                match fd::pread(file.as_raw_fd(), &mut part[..most], (offset + done) as i64)? {
                    0 => return Err(io::Error::from_raw_os_error(libc::EIO)),
                    n => {
                        self.put(&part[..n])?;
                        done += n as u64;
                    }
                }
            }
            total += length;
        }
        self.put(&[0; BLOCK][..(BLOCK - total as usize % BLOCK) % BLOCK])
    }

    fn head(&mut self, facts: Facts<'_>) -> io::Result<()> {
        let mut records = facts.records;
        record(&mut records, b"path", facts.path);
        record(&mut records, b"uid", facts.stat.st_uid.to_string().as_bytes());
        record(&mut records, b"gid", facts.stat.st_gid.to_string().as_bytes());
        record(&mut records, b"size", facts.size.to_string().as_bytes());
        record(&mut records, b"mtime", time(facts.stat.st_mtime, facts.stat.st_mtime_nsec).as_bytes());
        self.put(&block(b'x', 0, records.len() as u64))?;
        self.put(&records)?;
        self.put(&[0; BLOCK][..(BLOCK - records.len() % BLOCK) % BLOCK])?;
        self.put(&block(facts.kind, facts.stat.st_mode & 0o7777, facts.size.min(MOST_OCTAL)))
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = bytes.len().min(PIECE - self.held.len());
            self.held.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if self.held.len() == PIECE {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.held.is_empty() {
            fd::write_all(self.desk, &(self.held.len() as u32).to_le_bytes())?;
            fd::write_all(self.desk, &self.held)?;
            self.held.clear();
        }
        Ok(())
    }
}

/// What eleven digits can say; the extended header says the rest.
const MOST_OCTAL: u64 = 0o777_7777_7777;

fn names_in(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    mount::names(fd::openat(dir.as_raw_fd(), ".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?, usize::MAX)
}

fn attributes(file: &OwnedFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    for name in layer::attributes(file)? {
        if name.starts_with(b"user.") {
            let value = layer::attribute(file, &name)?;
            found.push((name, value));
        }
    }
    Ok(found)
}

/// The overlay's own are not what a program has set.
fn keep(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    if !key.starts_with(OVERLAY) {
        record(records, &[b"SCHILY.xattr.", key].concat(), value);
    }
}

/// `length key=value` and a line's end, of which the length counts itself.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

fn time(seconds: i64, nanoseconds: i64) -> String {
    if seconds < 0 && nanoseconds > 0 {
        return format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds);
    }
    format!("{seconds}.{nanoseconds:09}")
}

fn block(kind: u8, mode: u32, size: u64) -> [u8; BLOCK] {
    let mut block = [0u8; BLOCK];
    let mut write = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    write(0, "entry");
    write(100, &format!("{mode:07o}"));
    write(108, "0000000");
    write(116, "0000000");
    write(124, &format!("{size:011o}"));
    write(136, "00000000000");
    write(148, "        ");
    write(257, "ustar\x0000");
    block[156] = kind;
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Where a file has content: offset and length of each piece.
fn pieces(file: &OwnedFd, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let Some(start) = fd::next_data(file.as_raw_fd(), at as i64)? else { break };
        let start = (start as u64).min(size);
        let end = if found.len() < MOST_PIECES {
            (fd::next_hole(file.as_raw_fd(), start as i64)? as u64).min(size)
        } else {
            size
        };
        if end <= start {
            break;
        }
        found.push((start, end - start));
        at = end;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{record, time};

    #[test]
    fn a_record_counts_its_own_length() {
        for size in [1, 85, 86, 87, 88, 89, 90, 91, 985, 990, 995] {
            let mut records = Vec::new();
            record(&mut records, b"k", &vec![b'v'; size]);
            let text = String::from_utf8(records).unwrap_or_default();
            let stated = text.split(' ').next().and_then(|word| word.parse().ok());
            assert_eq!(stated, Some(text.len()));
        }
    }

    #[test]
    fn times_before_the_epoch_are_fractions_below_it() {
        assert_eq!(time(5, 7), "5.000000007");
        assert_eq!(time(-6, 750_000_000), "-5.250000000");
        assert_eq!(time(-1, 500_000_000), "-0.500000000");
    }
}

//! Descriptors: opening, reading, polling, closing ranges of them.

use super::{check, cstring};
use std::io;
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub fn from_raw(fd: libc::c_long) -> OwnedFd {
    // SAFETY: every caller passes a descriptor that a successful call has just created.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// Take over a descriptor inherited at exec under an agreed number.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD only asks; it fails cleanly when the number is not open.
    check(unsafe { libc::fcntl(number, libc::F_GETFD) } as libc::c_long)?;
    set_cloexec(number)?;
    Ok(from_raw(number as libc::c_long))
}

pub fn set_cloexec(number: RawFd) -> io::Result<()> {
    // SAFETY: sets a flag on an open descriptor.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } as libc::c_long)?;
    Ok(())
}

pub fn set_nonblocking(fd: &impl AsRawFd, on: bool) -> io::Result<()> {
    // SAFETY: reads and writes the status flags of an open descriptor.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) } as libc::c_long)? as i32;
    let wanted = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    if wanted != flags {
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, wanted) } as libc::c_long)?;
    }
    Ok(())
}

/// `open(2)`, always close-on-exec and never taking a controlling terminal.
pub fn open(path: impl AsRef<[u8]>, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    openat(libc::AT_FDCWD, path, flags, mode)
}

pub fn openat(dir: RawFd, path: impl AsRef<[u8]>, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let path = cstring(path)?;
    loop {
        // SAFETY: `path` is a NUL-terminated string that outlives the call.
        let fd =
            check(
                unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC | libc::O_NOCTTY, mode) }
                    as libc::c_long,
            );
        match fd {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            other => return other.map(from_raw),
        }
    }
}

pub fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the kernel writes at most `buffer.len()` bytes into it.
        let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        match check(n as libc::c_long) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            other => return other.map(|n| n as usize),
        }
    }
}

pub fn pread(fd: RawFd, buffer: &mut [u8], offset: i64) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes into it.
    let n = unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), offset) };
    check(n as libc::c_long).map(|n| n as usize)
}

pub fn write(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the kernel reads at most `bytes.len()` bytes from it.
        let n = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        match check(n as libc::c_long) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            other => return other.map(|n| n as usize),
        }
    }
}

pub fn write_all(fd: RawFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = write(fd, bytes)?;
        bytes = &bytes[n..];
    }
    Ok(())
}

pub fn lseek(fd: RawFd, offset: i64) -> io::Result<()> {
    // SAFETY: moves the file position only.
    check(unsafe { libc::lseek(fd, offset, libc::SEEK_SET) } as libc::c_long)?;
    Ok(())
}

/// Where the next bytes of a file are that is full of holes, from `offset` on.
pub fn next_data(fd: RawFd, offset: i64) -> io::Result<Option<i64>> {
    // SAFETY: moves the file position only.
    match check(unsafe { libc::lseek(fd, offset, libc::SEEK_DATA) } as libc::c_long) {
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        other => other.map(Some),
    }
}

/// Where the next hole at or after `offset` begins; the end of a file counts as one.
pub fn next_hole(fd: RawFd, offset: i64) -> io::Result<i64> {
    // SAFETY: plain integers.
    check(unsafe { libc::lseek(fd, offset, libc::SEEK_HOLE) })
}

/// Duplicate to a number of at least `floor`, close-on-exec.
pub fn dup_above(fd: RawFd, floor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: creates a new descriptor.
    check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) } as libc::c_long).map(from_raw)
}

/// Duplicate to exactly this number, to be kept across an execution.
pub fn dup_to(fd: RawFd, number: RawFd) -> io::Result<()> {
    // SAFETY: whatever had that number is closed; its owner has given it up.
    check(unsafe { libc::dup2(fd, number) } as libc::c_long)?;
    Ok(())
}

/// Close every descriptor except those listed; the list is what the next step may use.
pub fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    keep.dedup();
    let mut first = 0u32;
    for fd in keep {
        let fd = fd as u32;
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = fd + 1;
    }
    close_range(first, LAST)
}

/// The highest number there can be; gVisor takes a larger one for a negative.
pub(super) const LAST: u32 = i32::MAX as u32;

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the caller has given up every descriptor in the range.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
    Ok(())
}

pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the kernel fills the two-element array.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } as libc::c_long)?;
    Ok((from_raw(fds[0].into()), from_raw(fds[1].into())))
}

pub fn fstat(fd: &impl AsRawFd) -> io::Result<libc::stat> {
    // SAFETY: an all-zero stat is a valid value, and the kernel fills it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writes for the whole call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } as libc::c_long)?;
    Ok(stat)
}

pub fn set_window(fd: &impl AsRawFd, rows: u16, cols: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &size) } as libc::c_long)?;
    Ok(())
}

/// Unlock the slave of a pty master and say which number it has.
pub fn unlock_pty(master: &impl AsRawFd) -> io::Result<u32> {
    let unlock: libc::c_int = 0;
    let mut number: libc::c_uint = 0;
    // SAFETY: TIOCSPTLCK reads one int.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock) } as libc::c_long)?;
    // SAFETY: TIOCGPTN writes one unsigned int.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &mut number) } as libc::c_long)?;
    Ok(number)
}

pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: creates a descriptor.
        check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } as libc::c_long)
            .map(|fd| Epoll(from_raw(fd)))
    }

    pub fn add(&self, fd: RawFd, token: u64, events: i32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, events)
    }

    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, op: i32, fd: RawFd, token: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the kernel reads one epoll_event.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &mut event) } as libc::c_long)?;
        Ok(())
    }

    /// Collect the tokens of what is ready.
    pub fn wait(&self, ready: &mut Vec<u64>, timeout_ms: i32) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        ready.clear();
        let n = loop {
            // SAFETY: the kernel writes at most 64 events into the array.
            let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, timeout_ms) };
            match check(n as libc::c_long) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                other => break other? as usize,
            }
        };
        ready.extend(events[..n].iter().map(|e| e.u64));
        Ok(())
    }
}

/// What to wait for on one descriptor, and what happened. -1 as number waits for nothing.
pub type Wait = libc::pollfd;

pub fn wait_for(number: RawFd, events: i16) -> Wait {
    libc::pollfd { fd: number, events, revents: 0 }
}

pub fn poll(waits: &mut [Wait], timeout_ms: i32) -> io::Result<()> {
    loop {
        // SAFETY: the kernel reads and writes `waits.len()` pollfd structures.
        let n = unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, timeout_ms) };
        match check(n as libc::c_long) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            other => return other.map(|_| ()),
        }
    }
}

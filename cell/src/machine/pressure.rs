//! Ends a program that has gone past the limit of memory and is kept going by its kernel all the same, which drops
//! the files it executes and reads them again, for ever: memory that is shared cannot be dropped, and a disk is
//! slow enough that this never comes to an end.

use crate::sys::process::Pid;
use crate::sys::{fd, libc, mount};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

const GROUPS: &str = "/groups";
const END_LARGEST: &str = "/proc/sysrq-trigger";
/// Wake when somebody waited so long for memory, within so long: in microseconds.
const TRIGGER: &[u8] = b"some 50000 500000\0";
/// What a program has to itself is past its limit when less than this part is left for files.
const ROOM_SHARE: u64 = 128;
/// So often was each page read again that there is still room for, from one look to the next.
const TURNS: u64 = 16;
const LEAST_REFAULTS: u64 = 256;
/// Looks that are further apart say nothing together.
const TOGETHER: Duration = Duration::from_secs(5);
/// What was killed gives its shared memory back last of all: until then others would be killed in its place.
const END: Duration = Duration::from_secs(5);
const PAGE: u64 = 4096;
const REFAULTS: &str = "workingset_refault_file";

pub struct Pressure {
    trigger: OwnedFd,
    stat: OwnedFd,
    /// Has the kernel end the largest program of the machine, and count that where its limit is.
    end_largest: OwnedFd,
    limit_bytes: u64,
    last: Option<Look>,
    ended: Option<Instant>,
}

struct Look {
    at: Instant,
    refaults: u64,
}

impl Pressure {
    /// Watch the sandbox's group, once it is there. The launcher has no more children after that one, who would
    /// be spared as well.
    pub fn watch(launcher: Pid) -> io::Result<Pressure> {
        let group = only_group()?;
        let open = |name: &str, flags| {
            fd::openat(group.as_raw_fd(), name, flags, 0).map_err(|error| during(error, name))
        };
        let trigger = open("memory.pressure", libc::O_RDWR)?;
        fd::write_all(trigger.as_raw_fd(), TRIGGER)?;
        let spared = fd::open(format!("/proc/{launcher}/oom_score_adj"), libc::O_WRONLY, 0)?;
        fd::write_all(spared.as_raw_fd(), b"-1000")?;
        let limit = text(&open("memory.max", libc::O_RDONLY)?)?;
        let stat = open("memory.stat", libc::O_RDONLY)?;
        if !text(&stat)?.contains(REFAULTS) {
            return Err(during(io::Error::from_raw_os_error(libc::ENOENT), REFAULTS));
        }
        Ok(Pressure {
            trigger,
            stat,
            end_largest: fd::open(END_LARGEST, libc::O_WRONLY, 0)
                .map_err(|error| during(error, END_LARGEST))?,
            limit_bytes: limit.trim().parse().map_err(|_| io::Error::from_raw_os_error(libc::EPROTO))?,
            last: None,
            ended: None,
        })
    }

    pub fn number(&self) -> RawFd {
        self.trigger.as_raw_fd()
    }

    /// Somebody waits for memory. Twice in a row with next to no room for files, all of which was read again and
    /// again meanwhile, is a program that would have been killed had its files been gone at once.
    pub fn look(&mut self) -> io::Result<()> {
        let stat = text(&self.stat)?;
        let droppable = counted(&stat, "active_file") + counted(&stat, "inactive_file");
        let now = Look { at: Instant::now(), refaults: counted(&stat, REFAULTS) };
        if matches!(self.ended, Some(ended) if now.at - ended < END) {
            return Ok(());
        }
        if droppable >= self.limit_bytes / ROOM_SHARE {
            self.last = None;
            return Ok(());
        }
        let needed = (droppable / PAGE * TURNS).max(LEAST_REFAULTS);
        match &self.last {
            Some(last) if now.at - last.at < TOGETHER => {
                if now.refaults.saturating_sub(last.refaults) < needed {
                    return Ok(());
                }
                self.last = None;
                self.ended = Some(now.at);
                fd::write_all(self.end_largest.as_raw_fd(), b"f")
            }
            _ => {
                self.last = Some(now);
                Ok(())
            }
        }
    }
}

/// A machine has one sandbox, and that has one group.
fn only_group() -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let top = fd::open(GROUPS, flags, 0)?;
    let names = mount::names(fd::open(GROUPS, flags, 0)?, MOST_NAMES)?;
    let found = names.iter().find_map(|name| fd::openat(top.as_raw_fd(), name, flags, 0).ok());
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the sandbox has no control group"))
}

const MOST_NAMES: usize = 512;

/// Without it a program could stay past its limit for as long as it likes: such a kernel is of no use.
fn during(error: io::Error, name: &str) -> io::Error {
    let needs = "the machine's kernel needs CONFIG_PSI and CONFIG_MAGIC_SYSRQ";
    io::Error::new(error.kind(), format!("{name}: {error}; {needs}"))
}

fn text(file: &OwnedFd) -> io::Result<String> {
    let mut buffer = [0u8; 8192];
    let n = fd::pread(file.as_raw_fd(), &mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

fn counted(text: &str, word: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

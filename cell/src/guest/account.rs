//! What a program has used, and what the host is told when it has ended.

use crate::sys::{fd, libc, mount};
use crate::wire::message::{Exited, ToHost};
use crate::zygote::cgroup::COUNTS;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// What processes have used, those they waited for included.
#[derive(Default)]
pub struct Used {
    user_us: u64,
    system_us: u64,
    peak_kib: u64,
    read_blocks: u64,
    written_blocks: u64,
}

impl Used {
    pub fn add(&mut self, usage: &libc::rusage) {
        let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        self.user_us += micros(usage.ru_utime);
        self.system_us += micros(usage.ru_stime);
        self.peak_kib = self.peak_kib.max(usage.ru_maxrss as u64);
        self.read_blocks += usage.ru_inblock as u64;
        self.written_blocks += usage.ru_oublock as u64;
    }
}

/// How often limits were reached, where only this side can read that.
#[derive(Default)]
pub struct Hits {
    counts: Vec<OwnedFd>,
    /// Disks beside its own that it writes to.
    volumes: Vec<OwnedFd>,
    told: [u64; COUNTS.len()],
}

impl Hits {
    pub fn new(counts: Vec<OwnedFd>, volumes: Vec<OwnedFd>) -> Hits {
        Hits { counts, volumes, ..Hits::default() }
    }

    /// Which were reached since this was asked last: bit 2 for memory, bit 3 for processes.
    fn fresh(&mut self) -> u8 {
        let mut flags = 0;
        for (index, (file, (_, word))) in self.counts.iter().zip(COUNTS).enumerate() {
            let mut text = [0u8; 512];
            let count = fd::pread(file.as_raw_fd(), &mut text, 0).map_or(0, |n| counted(&text[..n], word));
            if count > self.told[index] {
                flags |= FIRST_HIT << index;
                self.told[index] = count;
            }
        }
        flags
    }
}

const FIRST_HIT: u8 = 4;

fn counted(text: &[u8], word: &str) -> u64 {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' ').map(str::to_owned));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

pub fn exited(used: &Used, status: i32, processes: u32, hits: &mut Hits) -> ToHost {
    let signal = status & 0x7F;
    let code = if signal == 0 { (status >> 8 & 0xFF) as u32 } else { 0 };
    ToHost::Exited(Exited {
        code,
        signal: signal as u8,
        flags: hits.fresh() | if status == 0 { 0 } else { fullness(&hits.volumes) },
        user_us: used.user_us,
        system_us: used.system_us,
        peak_kib: used.peak_kib,
        read_blocks: used.read_blocks,
        written_blocks: used.written_blocks,
        processes,
    })
}

/// Whether a disk was full when something failed: bit 0 for bytes, bit 1 for inodes.
fn fullness(volumes: &[OwnedFd]) -> u8 {
    let own = mount::space(b"/").map(|[size, blocks, free, inodes, free_inodes]| {
        let free = mount::available(b"/").unwrap_or(free);
        [size, blocks, free, inodes, free_inodes]
    });
    let others = volumes.iter().map(mount::space_in);
    std::iter::once(own).chain(others).flatten().map(is_full).fold(0, |all, one| all | one)
}

fn is_full([size, blocks, free, inodes, free_inodes]: [u64; 5]) -> u8 {
    let nearly = free * size < 64 * 1024 || free < blocks / 2048;
    // btrfs counts none, and says that there are none and none are free.
    u8::from(nearly) | u8::from(inodes > 0 && free_inodes == 0) << 1
}

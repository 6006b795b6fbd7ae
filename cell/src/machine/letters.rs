//! What the host says before there is a guest: packets for the launcher, each after its length.

use crate::contain::posture::read_small;
use crate::sys::{fd, libc, mount, process};
use crate::wire::message::ToHost;
use crate::wire::GENERATION;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// The line that becomes the guest's, and the one that stays ours.
pub const WIRE: &str = "/dev/vport0p1";
pub const DESK: &str = "/dev/vport0p2";
const DONE: &[u8] = b"D";
/// As long as a packet for the launcher may be.
const MAX_LETTER: usize = 512 * 1024;

pub struct Port {
    device: OwnedFd,
}

impl Port {
    /// The host's end is announced a moment after the driver is there.
    pub fn open(path: &str) -> io::Result<Port> {
        let changes = mount::inotify()?;
        mount::inotify_add(&changes, b"/dev", libc::IN_CREATE)?;
        loop {
            match fd::open(path, libc::O_RDWR, 0) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => process::give_way(),
                other => return other.map(|device| Port { device }),
            }
            let mut waits = [fd::wait_for(changes.as_raw_fd(), libc::POLLIN)];
            fd::poll(&mut waits, LOOK_MS)?;
        }
    }

    pub fn number(&self) -> RawFd {
        self.device.as_raw_fd()
    }

    /// One letter, and not a byte of what comes after it: that is for the guest.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0u8; 4];
        self.read_exactly(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_LETTER {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let mut letter = vec![0; length];
        self.read_exactly(&mut letter)?;
        Ok(letter)
    }

    fn read_exactly(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut got = 0;
        while got < buffer.len() {
            match fd::read(self.device.as_raw_fd(), &mut buffer[got..])? {
                // Nobody has the other end yet.
                0 => {
                    let mut waits = [fd::wait_for(self.device.as_raw_fd(), libc::POLLIN)];
                    fd::poll(&mut waits, LOOK_MS)?;
                }
                n => got += n,
            }
        }
        Ok(())
    }

    pub fn say_done(&self) -> io::Result<()> {
        fd::write_all(self.device.as_raw_fd(), DONE)
    }

    /// As a guest greets, so that whoever waits for one is answered.
    pub fn say_ready(&self) -> io::Result<()> {
        let facts = format!("kernel={}\n", read_small("/proc/version")?.trim()).into_bytes();
        let hello = ToHost::Hello { generation: GENERATION, facts };
        fd::write_all(self.device.as_raw_fd(), &hello.encode(0))
    }
}

const LOOK_MS: i32 = 20;

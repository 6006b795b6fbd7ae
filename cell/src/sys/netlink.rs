//! Netlink: a request is bytes laid out here, the kernel's answer is an error number or none.

use super::check;
use super::fd::{self, from_raw};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

const HEADER: usize = 16;
const NESTED: u16 = 1 << 15;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
pub const CREATE: u16 = 0x400;
pub const EXCLUSIVE: u16 = 0x200;
pub const APPEND: u16 = 0x800;
const ERROR: u16 = 2;

pub fn open(protocol: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: creates a descriptor.
    let socket = check(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) } as libc::c_long)?;
    Ok(from_raw(socket))
}

/// Messages that are sent together; those between the two ends of a batch are done all or none.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    answers: usize,
}

impl Batch {
    /// Begin a message; its body and attributes follow.
    pub fn message(&mut self, kind: u16, flags: u16, body: &[u8], attributes: &[u8]) -> &mut Batch {
        let length = HEADER + body.len() + attributes.len();
        self.answers += usize::from(flags & ACKNOWLEDGE != 0);
        self.bytes.extend_from_slice(&(length as u32).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(flags | REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&1u32.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(body);
        self.bytes.extend_from_slice(attributes);
        pad(&mut self.bytes);
        self
    }

    /// The same, and wait for the kernel's word on it.
    pub fn asked(&mut self, kind: u16, flags: u16, body: &[u8], attributes: &[u8]) -> &mut Batch {
        self.message(kind, flags | ACKNOWLEDGE, body, attributes)
    }

    /// Send all of it, and return the first refusal.
    pub fn send(&self, socket: &OwnedFd) -> io::Result<()> {
        fd::write_all(socket.as_raw_fd(), &self.bytes)?;
        let mut buffer = [0u8; 8192];
        let mut answers = 0;
        while answers < self.answers {
            let n = fd::read(socket.as_raw_fd(), &mut buffer)?;
            let mut rest = &buffer[..n];
            while rest.len() >= HEADER + 4 {
                let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
                let kind = u16::from_ne_bytes([rest[4], rest[5]]);
                let number = i32::from_ne_bytes([rest[16], rest[17], rest[18], rest[19]]);
                if kind == ERROR && number != 0 {
                    return Err(io::Error::from_raw_os_error(-number));
                }
                answers += usize::from(kind == ERROR);
                if length < HEADER {
                    break;
                }
                rest = rest.get((length + 3) & !3..).unwrap_or(&[]);
            }
        }
        Ok(())
    }
}

pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(value.len() + 8);
    bytes.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    pad(&mut bytes);
    bytes
}

pub fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &parts.concat())
}

/// A text attribute ends with a zero byte.
pub fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

fn pad(bytes: &mut Vec<u8>) {
    while bytes.len() % 4 != 0 {
        bytes.push(0);
    }
}

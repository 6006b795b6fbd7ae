//! Frames: `u32 length | u8 kind | u32 id | payload`, cut out of a byte stream.

use super::codec::Malformed;

/// From the host: room for 2 MiB of arguments and environment.
pub const MAX_TO_GUEST: usize = 4 * 1024 * 1024;
const HEADER: usize = 5;

#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub id: u32,
    pub payload: Vec<u8>,
}

pub fn encode(kind: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + HEADER + payload.len());
    bytes.extend_from_slice(&((HEADER + payload.len()) as u32).to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Collects bytes until whole frames are there. The cap is checked before the bytes arrive.
pub struct Assembler {
    pending: Vec<u8>,
    start: usize,
    limit: usize,
}

impl Assembler {
    pub fn new(limit: usize) -> Assembler {
        Assembler { pending: Vec::new(), start: 0, limit }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start == self.pending.len() {
            self.pending.clear();
            self.start = 0;
        } else if self.start > 64 * 1024 {
            self.pending.drain(..self.start);
            self.start = 0;
        }
        self.pending.extend_from_slice(bytes);
    }

    pub fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let rest = &self.pending[self.start..];
        if rest.len() < 4 {
            return Ok(None);
        }
        let length = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        if length < HEADER || length > self.limit {
            return Err(Malformed("frame length out of bounds"));
        }
        if rest.len() < 4 + length {
            return Ok(None);
        }
        let body = &rest[4..4 + length];
        let frame = Frame {
            kind: body[0],
            id: u32::from_le_bytes([body[1], body[2], body[3], body[4]]),
            payload: body[HEADER..].to_vec(),
        };
        self.start += 4 + length;
        if self.start == self.pending.len() {
            self.pending.clear();
            self.start = 0;
            // An idle sandbox does not keep the buffer of its largest request.
            self.pending.shrink_to(8 * 1024);
        }
        Ok(Some(frame))
    }
}

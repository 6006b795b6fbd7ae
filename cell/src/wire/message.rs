//! The messages of the wire, one type each, and their payloads.

use super::codec::{Malformed, Reader, Writer};
use super::frame;

pub const START: u8 = 1;
pub const SIGNAL: u8 = 2;
pub const RESIZE: u8 = 3;
pub const DIAL: u8 = 4;
pub const FILE: u8 = 5;
pub const DATA: u8 = 6;
pub const CLOSE: u8 = 7;
pub const CREDIT: u8 = 8;
pub const PING: u8 = 9;
pub const HOLD: u8 = 10;
pub const PROCEED: u8 = 11;
pub const RENEW: u8 = 12;
pub const ANSWER: u8 = 13;

pub const HELLO: u8 = 32;
pub const STARTED: u8 = 33;
pub const EXITED: u8 = 34;
pub const FAILED: u8 = 35;
pub const PONG: u8 = 36;
pub const HELD: u8 = 37;
pub const ACCEPTED: u8 = 38;
pub const ASKED: u8 = 39;
pub const REFUSED: u8 = 40;

/// Requests that the guest makes have numbers from here on.
pub const FIRST_OF_GUEST: u32 = 1 << 31;

/// Run a program.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Start {
    pub uid: u32,
    pub gid: u32,
    pub pty: Option<(u16, u16)>,
    /// Answer STARTED once the program has been executed.
    pub tell: bool,
    pub stdin: bool,
    pub cwd: Vec<u8>,
    pub argv: Vec<Vec<u8>>,
    pub env: Vec<Vec<u8>>,
}

/// Whom a signal reaches.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Reach {
    Process,
    Group,
    Tree,
}

/// A file operation, done inside by a short-lived process under the named user.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct File {
    pub operation: u8,
    pub uid: u32,
    pub gid: u32,
    pub path: Vec<u8>,
    pub other: Vec<u8>,
    pub mode: u32,
    pub flags: u32,
    pub offset: u64,
    pub length: u64,
}

#[derive(Debug, PartialEq, Eq, Clone)]
pub enum ToGuest {
    Start(Start),
    Signal {
        signal: u8,
        reach: Reach,
    },
    Resize {
        rows: u16,
        cols: u16,
    },
    Dial {
        port: u16,
    },
    File(File),
    Data {
        stream: u8,
        bytes: Vec<u8>,
    },
    Close {
        stream: u8,
    },
    Credit {
        stream: u8,
        bytes: u32,
    },
    Ping,
    /// Send nothing more, after one HELD, until PROCEED or RENEW.
    Hold,
    Proceed,
    /// The same after a restart from memory: there is another host at the other end.
    Renew {
        renewal: u64,
        seed: Vec<u8>,
        name: Vec<u8>,
    },
    /// The answer to one ASKED.
    Answer {
        bytes: Vec<u8>,
    },
}

#[derive(Debug, PartialEq, Eq, Clone, Default)]
pub struct Exited {
    pub code: u32,
    pub signal: u8,
    /// Bit 0: the disk was full when it ended. Bit 1: its inodes were used up. Bit 2: memory ran out since
    /// another ended badly, and bit 3: processes did; both only where the host cannot read it itself.
    pub flags: u8,
    pub user_us: u64,
    pub system_us: u64,
    pub peak_kib: u64,
    pub read_blocks: u64,
    pub written_blocks: u64,
    pub processes: u32,
}

#[derive(Debug, PartialEq, Eq, Clone)]
pub enum ToHost {
    /// The guest is there; what it found to be true of itself, as `name=value` lines.
    Hello {
        generation: u8,
        facts: Vec<u8>,
    },
    Started {
        pid: u32,
    },
    Exited(Exited),
    Failed {
        errno: u32,
        step: Vec<u8>,
        detail: Vec<u8>,
    },
    Data {
        stream: u8,
        bytes: Vec<u8>,
    },
    Close {
        stream: u8,
    },
    Credit {
        stream: u8,
        bytes: u32,
    },
    Pong,
    Held,
    /// A program has connected to one of the doors, meaning this address.
    Accepted {
        door: u8,
        address: u32,
        port: u16,
    },
    /// A question for a name, as a datagram.
    Asked {
        bytes: Vec<u8>,
    },
    /// What the kernel inside says of a packet that it refused.
    Refused {
        bytes: Vec<u8>,
    },
}

impl ToGuest {
    pub fn decode(kind: u8, payload: &[u8]) -> Result<ToGuest, Malformed> {
        let mut r = Reader::new(payload);
        let message = match kind {
            START => ToGuest::Start(Start {
                uid: r.u32()?,
                gid: r.u32()?,
                pty: if r.flag()? { Some((r.u16()?, r.u16()?)) } else { None },
                tell: r.flag()?,
                stdin: r.flag()?,
                cwd: r.bytes()?,
                argv: r.list(Reader::bytes)?,
                env: r.list(Reader::bytes)?,
            }),
            SIGNAL => ToGuest::Signal {
                signal: r.u8()?,
                reach: match r.u8()? {
                    0 => Reach::Process,
                    1 => Reach::Group,
                    2 => Reach::Tree,
                    _ => return Err(Malformed("unknown reach of a signal")),
                },
            },
            RESIZE => ToGuest::Resize { rows: r.u16()?, cols: r.u16()? },
            DIAL => ToGuest::Dial { port: r.u16()? },
            FILE => ToGuest::File(File {
                operation: r.u8()?,
                uid: r.u32()?,
                gid: r.u32()?,
                path: r.bytes()?,
                other: r.bytes()?,
                mode: r.u32()?,
                flags: r.u32()?,
                offset: r.u64()?,
                length: r.u64()?,
            }),
            DATA => ToGuest::Data { stream: r.u8()?, bytes: r.rest().to_vec() },
            CLOSE => ToGuest::Close { stream: r.u8()? },
            CREDIT => ToGuest::Credit { stream: r.u8()?, bytes: r.u32()? },
            PING => ToGuest::Ping,
            HOLD => ToGuest::Hold,
            PROCEED => ToGuest::Proceed,
            RENEW => ToGuest::Renew { renewal: r.u64()?, seed: r.bytes()?, name: r.bytes()? },
            ANSWER => ToGuest::Answer { bytes: r.rest().to_vec() },
            _ => return Err(Malformed("unknown kind of message")),
        };
        r.end()?;
        Ok(message)
    }

    /// Descriptors that travel with this message where descriptors can travel.
    pub fn descriptors(&self) -> usize {
        match self {
            ToGuest::Start(start) if start.pty.is_some() => 1,
            ToGuest::Start(start) => 2 + usize::from(start.stdin),
            ToGuest::Dial { .. } => 1,
            ToGuest::File(_) => 2,
            _ => 0,
        }
    }
}

impl ToHost {
    pub fn encode(&self, id: u32) -> Vec<u8> {
        let mut w = Writer::default();
        let kind = match self {
            ToHost::Hello { generation, facts } => {
                w.u8(*generation).bytes(facts);
                HELLO
            }
            ToHost::Started { pid } => {
                w.u32(*pid);
                STARTED
            }
            ToHost::Exited(e) => {
                w.u32(e.code).u8(e.signal).u8(e.flags).u64(e.user_us).u64(e.system_us);
                w.u64(e.peak_kib).u64(e.read_blocks).u64(e.written_blocks).u32(e.processes);
                EXITED
            }
            ToHost::Failed { errno, step, detail } => {
                w.u32(*errno).bytes(step).bytes(detail);
                FAILED
            }
            ToHost::Data { stream, bytes } => {
                w.u8(*stream);
                w.bytes.extend_from_slice(bytes);
                DATA
            }
            ToHost::Close { stream } => {
                w.u8(*stream);
                CLOSE
            }
            ToHost::Credit { stream, bytes } => {
                w.u8(*stream).u32(*bytes);
                CREDIT
            }
            ToHost::Pong => PONG,
            ToHost::Held => HELD,
            ToHost::Accepted { door, address, port } => {
                w.u8(*door).u32(*address).u16(*port);
                ACCEPTED
            }
            ToHost::Asked { bytes } => {
                w.bytes.extend_from_slice(bytes);
                ASKED
            }
            ToHost::Refused { bytes } => {
                w.bytes.extend_from_slice(bytes);
                REFUSED
            }
        };
        frame::encode(kind, id, &w.bytes)
    }
}

//! What the host tells the launcher: `u8 kind | u64 id | payload`, one message a packet.

use crate::wire::codec::{Malformed, Reader};

pub const CONFIGURE: u8 = 1;
pub const LAUNCH: u8 = 2;
pub const DESTROY: u8 = 3;
pub const FREEZE: u8 = 4;

/// The first words, before anything was asked: whatever was to start the launcher has started it.
pub const AWAKE: u8 = 32;
pub const READY: u8 = 33;
pub const LAUNCHED: u8 = 34;
pub const FAILED: u8 = 35;
pub const GONE: u8 = 36;
pub const FROZEN: u8 = 37;

pub struct SyntheticFile {
    pub path: Vec<u8>,
    pub mode: u32,
    pub content: Vec<u8>,
}

/// Which host ids the launcher may hand out.
pub enum Ids {
    /// It is root: any.
    Root,
    /// It has ranges of its own, given by the set-id helpers: (first, count).
    Ranges { uids: Vec<(u32, u32)>, gids: Vec<(u32, u32)>, uid_helper: Vec<u8>, gid_helper: Vec<u8> },
    /// Its own and no other.
    Single,
}

pub struct Configuration {
    pub directory: Vec<u8>,
    pub ids: Ids,
    /// Control groups are called `NAME.NUMBER`, so that a later start finds what is ours.
    pub name: Vec<u8>,
    /// (directory, whether it is of the unified hierarchy)
    pub groups: Vec<(Vec<u8>, bool)>,
    /// Names below the host's /etc that tell how programs work and nothing about the host.
    pub etc: Vec<Vec<u8>>,
    pub files: Vec<SyntheticFile>,
}

pub enum Request {
    Configure(Configuration),
    Launch { id: u64, plan: Vec<u8> },
    Destroy { id: u64 },
    Freeze { id: u64, frozen: bool },
}

pub fn decode(bytes: &[u8]) -> Result<Request, Malformed> {
    let mut r = Reader::new(bytes);
    let (kind, id) = (r.u8()?, r.u64()?);
    let request = match kind {
        CONFIGURE => Request::Configure(configuration(&mut r)?),
        LAUNCH => Request::Launch { id, plan: r.rest().to_vec() },
        DESTROY => Request::Destroy { id },
        FREEZE => Request::Freeze { id, frozen: r.flag()? },
        _ => return Err(Malformed("unknown request to the launcher")),
    };
    r.end()?;
    Ok(request)
}

fn configuration(r: &mut Reader<'_>) -> Result<Configuration, Malformed> {
    let directory = r.bytes()?;
    let range = |r: &mut Reader<'_>| Ok((r.u32()?, r.u32()?));
    let ids = match r.u8()? {
        0 => Ids::Root,
        1 => Ids::Ranges {
            uids: r.list(range)?,
            gids: r.list(range)?,
            uid_helper: r.bytes()?,
            gid_helper: r.bytes()?,
        },
        2 => Ids::Single,
        _ => return Err(Malformed("unknown kind of ids")),
    };
    Ok(Configuration {
        directory,
        ids,
        name: r.bytes()?,
        groups: r.list(|r| Ok((r.bytes()?, r.flag()?)))?,
        etc: r.list(Reader::bytes)?,
        files: r.list(|r| Ok(SyntheticFile { path: r.bytes()?, mode: r.u32()?, content: r.bytes()? }))?,
    })
}

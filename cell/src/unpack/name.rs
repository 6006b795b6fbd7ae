//! Names of entries: which are taken, and which of them mean something to an overlay.

use super::{refuse, shown, Outcome};

/// As long as the kernel takes a path and a name, and deeper than any image is.
pub const MOST_PATH_BYTES: usize = 4095;
const MOST_NAME_BYTES: usize = 255;
const MOST_DEPTH: usize = 256;

const MARK: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Bookkeeping of a filesystem that came before overlays; old images carry it.
const BOOKKEEPING: &[u8] = b".wh..wh.";

/// A path from the top of the layer, one name for each directory; empty for the top itself.
pub type Path = Vec<Vec<u8>>;

#[derive(Debug, PartialEq, Eq)]
pub enum Meaning {
    Plain,
    /// Hide what layers below call so.
    Whiteout(Vec<u8>),
    /// Hide everything that layers below have in this directory.
    Opaque,
    /// Nothing that counts.
    Bookkeeping,
}

/// Split a name. A leading slash is left out, as every unpacker does; climbing is refused.
pub fn parse(raw: &[u8]) -> Outcome<Path> {
    if raw.len() > MOST_PATH_BYTES {
        return refuse(format!("the name {} has {} bytes; {MOST_PATH_BYTES} may be", shown(raw), raw.len()));
    }
    if raw.contains(&0) {
        return refuse(format!("the name {} holds a zero byte", shown(raw)));
    }
    let mut path = Path::new();
    for part in raw.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return refuse(format!("the name {} climbs out of its directory", shown(raw))),
            _ if part.len() > MOST_NAME_BYTES => {
                return refuse(format!("{} has a name longer than {MOST_NAME_BYTES} bytes", shown(raw)))
            }
            _ if path.len() == MOST_DEPTH => {
                return refuse(format!("{} is deeper than {MOST_DEPTH} directories", shown(raw)))
            }
            _ => path.push(part.to_vec()),
        }
    }
    Ok(path)
}

pub fn meaning(path: &[Vec<u8>]) -> Outcome<Meaning> {
    let (last, parents) = match path.split_last() {
        Some(split) => split,
        None => return Ok(Meaning::Plain),
    };
    if path.iter().any(|part| part.starts_with(BOOKKEEPING) && part != OPAQUE) {
        return Ok(Meaning::Bookkeeping);
    }
    if let Some(part) = parents.iter().find(|part| part.starts_with(MARK)) {
        return refuse(format!("an entry is inside of {}, which marks something as removed", shown(part)));
    }
    match last.strip_prefix(MARK) {
        None => Ok(Meaning::Plain),
        Some(_) if last == OPAQUE => Ok(Meaning::Opaque),
        Some(b"" | b"." | b"..") => refuse(format!("{} removes a name that cannot be", shown(last))),
        Some(hidden) => Ok(Meaning::Whiteout(hidden.to_vec())),
    }
}

//! Entries of an archive, one after another, with what the headers before them say put in place.

use super::header::Header;
use super::input::Input;
use super::name::{self, Path, MOST_PATH_BYTES};
use super::pax::{self, Overrides};
use super::sparse::{self, Map};
use super::{refuse, shown, Outcome};

const MOST_EXTENDED_BYTES: u64 = 1 << 20;
/// Headers for each entry, its own among them, before the archive is taken for an attack.
const MOST_HEADERS: u64 = 4;

pub enum Kind {
    File,
    Sparse(Map),
    Directory,
    SymbolicLink(Vec<u8>),
    HardLink(Path),
    Pipe,
    Device,
}

pub struct Entry {
    pub path: Path,
    pub kind: Kind,
    pub mode: u32,
    pub uid: i64,
    pub gid: i64,
    pub mtime: (i64, i64),
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    pub dropped_attributes: u64,
    pub is_opaque: bool,
}

pub struct Reader {
    pub input: Input,
    pub entries: u64,
    most_entries: u64,
    headers: u64,
}

/// What stands before an entry and is about it.
#[derive(Default)]
struct Ahead {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    extended: Option<Overrides>,
}

impl Reader {
    pub fn new(input: Input, most_entries: u64) -> Reader {
        Reader { input, entries: 0, most_entries, headers: 0 }
    }

    /// The next entry; its content is then to be read from the input. None at the end.
    pub fn next(&mut self) -> Outcome<Option<Entry>> {
        let mut ahead = Ahead::default();
        loop {
            let block = match self.input.block()? {
                Some(block) => block,
                None => return self.end(&ahead),
            };
            let header = match Header::read(&block)? {
                Some(header) => header,
                None => return self.end(&ahead),
            };
            self.headers += 1;
            if self.headers > self.most_entries.saturating_mul(MOST_HEADERS) {
                return refuse("the archive has far more headers than it may have entries");
            }
            match header.kind {
                b'L' => once(&mut ahead.name, self.long_name(&header)?)?,
                b'K' => once(&mut ahead.target, self.long_name(&header)?)?,
                b'x' => once(&mut ahead.extended, pax::read(&self.extended(&header)?)?)?,
                b'g' => pax::read_global(&self.extended(&header)?)?,
                _ => {
                    self.entries += 1;
                    if self.entries > self.most_entries {
                        return refuse(format!("the archive has more than {} entries", self.most_entries));
                    }
                    return self.entry(&header, ahead).map(Some);
                }
            }
        }
    }

    fn end(&self, ahead: &Ahead) -> Outcome<Option<Entry>> {
        if ahead.name.is_some() || ahead.target.is_some() || ahead.extended.is_some() {
            return refuse("the archive ends where an entry was announced");
        }
        Ok(None)
    }

    fn long_name(&mut self, header: &Header) -> Outcome<Vec<u8>> {
        let size = header.size()?;
        if size > MOST_PATH_BYTES as u64 + 1 {
            return refuse(format!("a name has {size} bytes; {MOST_PATH_BYTES} may be"));
        }
        self.input.announce(size)?;
        let mut name = self.input.whole()?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    fn extended(&mut self, header: &Header) -> Outcome<Vec<u8>> {
        let size = header.size()?;
        if size > MOST_EXTENDED_BYTES {
            return refuse(format!("an extended header has {size} bytes; {MOST_EXTENDED_BYTES} may be"));
        }
        self.input.announce(size)?;
        self.input.whole()
    }

    fn entry(&mut self, header: &Header, ahead: Ahead) -> Outcome<Entry> {
        let mut extended = ahead.extended.unwrap_or_default();
        let pax_sparse = extended.sparse.take();
        let raw = match (ahead.name, extended.name) {
            (Some(_), Some(_)) => return refuse("an entry is named by two headers"),
            (Some(name), None) | (None, Some(name)) => name,
            (None, None) => header.name(),
        };
        let target = match (ahead.target, extended.target) {
            (Some(_), Some(_)) => return refuse("the target of a link is given by two headers"),
            (Some(target), None) | (None, Some(target)) => target,
            (None, None) => header.target(),
        };
        let raw = pax_sparse.as_ref().and_then(|sparse| sparse.name.clone()).unwrap_or(raw);
        let has_content = match header.kind {
            0 => !raw.ends_with(b"/"),
            kind => matches!(kind, b'0' | b'7' | b'S'),
        };
        // Links, directories and the like have no content whatever their size says: so read the
        // tools that make images.
        let size = if has_content { extended.size.map_or_else(|| header.size(), Ok)? } else { 0 };
        self.input.announce(size)?;
        let kind = match header.kind {
            b'S' => Kind::Sparse(sparse::read_gnu(header, &mut self.input)?),
            0 | b'0' | b'7' if has_content => match pax_sparse {
                Some(found) => Kind::Sparse(sparse::read_pax(&found, &mut self.input)?),
                None => Kind::File,
            },
            0 | b'5' => Kind::Directory,
            b'1' => Kind::HardLink(name::parse(&target)?),
            b'2' => Kind::SymbolicLink(target),
            b'3' | b'4' => Kind::Device,
            b'6' => Kind::Pipe,
            kind => {
                return refuse(format!("{} is of the unknown kind \"{}\"", shown(&raw), kind.escape_ascii()))
            }
        };
        let (uid, gid) = header.owner()?;
        Ok(Entry {
            path: name::parse(&raw)?,
            kind,
            mode: header.mode()?,
            uid: extended.uid.unwrap_or(uid),
            gid: extended.gid.unwrap_or(gid),
            mtime: extended.mtime.map_or_else(|| header.mtime_s().map(|seconds| (seconds, 0)), Ok)?,
            attributes: extended.attributes,
            dropped_attributes: extended.dropped_attributes,
            is_opaque: extended.is_opaque,
        })
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Outcome<()> {
    if place.is_some() {
        return refuse("two headers of the same kind are about one entry");
    }
    *place = Some(value);
    Ok(())
}

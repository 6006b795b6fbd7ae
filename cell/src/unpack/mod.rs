//! `cell unpack`: an image layer, an uncompressed tar on standard input, becomes an overlay layer.
//!
//! It runs inside a sandbox, and the archive is hostile all the same: every length is compared with
//! its limit before memory is taken, every name is walked one directory at a time from the open top
//! without following a link, and what readers of archives disagree about is refused. Names and
//! sizes are read as the tools read them that make images.

mod entry;
mod facts;
mod header;
mod input;
mod name;
mod pax;
mod place;
mod sparse;
mod stack;
mod tree;

use crate::sys::{fd, libc};
use facts::Facts;
use place::Place;
use std::fmt;
use std::io;

/// How many entries a layer may have, and how many bytes of content.
#[derive(Clone, Copy)]
pub struct Limits {
    pub entries: u64,
    pub bytes: u64,
}

/// Whose the files become.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// As the archive says.
    Kept,
    /// All this process's own: there is a single id, and no right to give files away.
    Single,
}

/// How an archive says that something below is hidden.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// By names that begin with `.wh.`, as images do.
    Names,
    /// By entries: devices, and directories with a mark; every name is a name. So does `cell machine`.
    Entries,
}

/// In an extended header, of a directory that hides all that layers below have in it.
pub const OPAQUE_MARK: &[u8] = b"CLOISTER.opaque";

/// Why an archive was not unpacked, in words for the person who asked.
#[derive(Debug)]
pub struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal(error.to_string())
    }
}

pub type Outcome<T> = Result<T, Refusal>;

fn refuse<T>(words: impl Into<String>) -> Outcome<T> {
    Err(Refusal(words.into()))
}

/// Name what it was about, printable and short whatever the archive calls it.
fn about(name: &[u8]) -> impl FnOnce(io::Error) -> Refusal + '_ {
    move |error| Refusal(format!("{}: {error}", shown(name)))
}

fn shown(name: &[u8]) -> String {
    const MOST: usize = 200;
    let cut = &name[..name.len().min(MOST)];
    format!("\"{}{}\"", cut.escape_ascii(), if name.len() > MOST { "…" } else { "" })
}

/// Read `DIRECTORY ENTRIES BYTES kept|single|upper` and do it. None is for arguments that mean nothing.
pub fn run(arguments: &[String]) -> Option<Outcome<()>> {
    let (directory, entries, bytes, owners) = match arguments {
        [directory, entries, bytes, owners] => (directory, entries, bytes, owners),
        _ => return None,
    };
    let limits = Limits { entries: entries.parse().ok()?, bytes: bytes.parse().ok()? };
    let (owners, marks) = match owners.as_str() {
        "kept" => (Owners::Kept, Marks::Names),
        "single" => (Owners::Single, Marks::Names),
        "upper" => (Owners::Kept, Marks::Entries),
        _ => return None,
    };
    Some(
        unpack(directory, libc::STDIN_FILENO, limits, owners, marks)
            .map(|facts| println!("{}", facts.json())),
    )
}

fn unpack(directory: &str, input: i32, limits: Limits, owners: Owners, marks: Marks) -> Outcome<Facts> {
    let top = fd::open(directory, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)
        .map_err(about(directory.as_bytes()))?;
    let mut reader = entry::Reader::new(input::Input::new(input, limits.bytes), limits.entries);
    let mut place = Place::new(top, owners, marks)?;
    while let Some(entry) = reader.next()? {
        place.put(&entry, &mut reader.input)?;
        reader.input.finish()?;
    }
    reader.input.drain()?;
    let mut facts = place.finish()?;
    facts.entries = reader.entries;
    facts.bytes = reader.input.content_bytes();
    Ok(facts)
}

#[cfg(test)]
mod tests;

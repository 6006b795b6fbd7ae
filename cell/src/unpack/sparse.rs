//! Sparse files: which pieces of the file the archive holds, in the GNU form and the PAX form 1.0.

use super::header::{number, Header};
use super::input::{Input, BLOCK};
use super::pax::{decimal, PaxSparse};
use super::{refuse, Outcome, Refusal};

const MOST_PIECES: usize = 65_536;
/// What a filesystem takes for the size of a file at most; holes cost nothing.
const MOST_REAL_BYTES: u64 = 1 << 43;
const PAIR: usize = 24;

/// Where the pieces of content belong, in order and without overlap, and how large the whole is.
#[derive(Debug)]
pub struct Map {
    pub pieces: Vec<(u64, u64)>,
    pub real_size: u64,
}

impl Map {
    fn new(real_size: u64) -> Outcome<Map> {
        if real_size > MOST_REAL_BYTES {
            return refuse(format!("a sparse file has {real_size} bytes; {MOST_REAL_BYTES} may be"));
        }
        Ok(Map { pieces: Vec::new(), real_size })
    }

    fn add(&mut self, offset: u64, length: u64) -> Outcome<()> {
        let after = self.pieces.last().map_or(0, |(offset, length)| offset + length);
        let end = offset.checked_add(length);
        if offset < after || end.map_or(true, |end| end > self.real_size) {
            return refuse("the pieces of a sparse file overlap, or leave it");
        }
        if self.pieces.len() == MOST_PIECES {
            return refuse(format!("a sparse file has more than {MOST_PIECES} pieces"));
        }
        if length > 0 {
            self.pieces.push((offset, length));
        }
        Ok(())
    }

    fn complete(self, content: u64) -> Outcome<Map> {
        let listed: u64 = self.pieces.iter().map(|(_, length)| length).sum();
        if listed != content {
            return refuse("the pieces of a sparse file are not what the archive holds of it");
        }
        Ok(self)
    }
}

/// The map is in the header and in blocks that follow it, which its size does not count.
pub fn read_gnu(header: &Header, input: &mut Input) -> Outcome<Map> {
    let (pairs, mut more, real_size) = header.sparse()?;
    let mut map = Map::new(real_size)?;
    add_pairs(&mut map, pairs)?;
    let mut blocks = 0;
    while more {
        blocks += 1;
        let block = match input.block()? {
            Some(block) => block,
            None => return refuse("the archive ends in the middle of a sparse file's map"),
        };
        add_pairs(&mut map, &block[..21 * PAIR])?;
        more = block[21 * PAIR] != 0;
        if blocks > MOST_PIECES / 21 {
            return refuse(format!("a sparse file has more than {MOST_PIECES} pieces"));
        }
    }
    map.complete(input.left())
}

fn add_pairs(map: &mut Map, pairs: &[u8]) -> Outcome<()> {
    for pair in pairs.chunks_exact(PAIR) {
        if pair[0] == 0 || pair[12] == 0 {
            return Ok(());
        }
        let positive = |field: &[u8]| {
            u64::try_from(number(field)?).map_err(|_| Refusal("a piece of a sparse file is negative".into()))
        };
        map.add(positive(&pair[..12])?, positive(&pair[12..])?)?;
    }
    Ok(())
}

/// The map is the beginning of the content: decimal lines, filled up to a block.
pub fn read_pax(found: &PaxSparse, input: &mut Input) -> Outcome<Map> {
    if (found.major, found.minor) != (Some(1), Some(0)) {
        return refuse("a sparse file is written in another form than 1.0; pack it with a newer tar");
    }
    let mut map = Map::new(found.real_size.ok_or_else(|| Refusal("a sparse file has no size".into()))?)?;
    let mut lines = Lines { input, block: [0; BLOCK], at: BLOCK };
    let count = lines.number()?;
    if count > MOST_PIECES as u64 {
        return refuse(format!("a sparse file has {count} pieces; {MOST_PIECES} may be"));
    }
    for _ in 0..count {
        let (offset, length) = (lines.number()?, lines.number()?);
        map.add(offset, length)?;
    }
    let content = lines.input.left();
    map.complete(content)
}

struct Lines<'a> {
    input: &'a mut Input,
    block: [u8; BLOCK],
    at: usize,
}

impl Lines<'_> {
    fn number(&mut self) -> Outcome<u64> {
        let mut digits = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => return decimal(&digits),
                byte if digits.len() < 20 => digits.push(byte),
                _ => return refuse("a number in a sparse file's map has no end"),
            }
        }
    }

    fn byte(&mut self) -> Outcome<u8> {
        if self.at == BLOCK {
            let mut filled = 0;
            while filled < BLOCK {
                let room = &mut self.block[filled..];
                let most = room.len() as u64;
                let ((), n) = self.input.content(most, |chunk| room[..chunk.len()].copy_from_slice(chunk))?;
                if n == 0 {
                    return refuse("the map of a sparse file ends early");
                }
                filled += n as usize;
            }
            self.at = 0;
        }
        self.at += 1;
        Ok(self.block[self.at - 1])
    }
}

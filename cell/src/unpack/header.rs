//! One block of a tar: the fields of the old, the POSIX and the GNU form.

use super::input::BLOCK;
use super::{refuse, Outcome, Refusal};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Old,
    Posix,
    Gnu,
}

pub struct Header<'a> {
    block: &'a [u8; BLOCK],
    pub form: Form,
    pub kind: u8,
}

impl<'a> Header<'a> {
    /// None for a block of zeros, which ends an archive.
    pub fn read(block: &'a [u8; BLOCK]) -> Outcome<Option<Header<'a>>> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let stated = number(&block[148..156]).unwrap_or(-1);
        if stated != checksum(block, u8::into) && stated != checksum(block, |byte| i64::from(byte as i8)) {
            return refuse("a header of the archive has a wrong checksum; this is no tar, or a damaged one");
        }
        let form = match &block[257..265] {
            b"ustar\x0000" => Form::Posix,
            b"ustar  \0" => Form::Gnu,
            _ => Form::Old,
        };
        Ok(Some(Header { block, form, kind: block[156] }))
    }

    pub fn name(&self) -> Vec<u8> {
        let name = text(&self.block[..100]);
        let prefix = if self.form == Form::Posix { text(&self.block[345..500]) } else { b"" };
        if prefix.is_empty() {
            name.to_vec()
        } else {
            [prefix, b"/", name].concat()
        }
    }

    pub fn target(&self) -> Vec<u8> {
        text(&self.block[157..257]).to_vec()
    }

    pub fn size(&self) -> Outcome<u64> {
        u64::try_from(number(&self.block[124..136])?).map_err(|_| Refusal("a size is negative".into()))
    }

    pub fn mode(&self) -> Outcome<u32> {
        Ok((number(&self.block[100..108])? & 0o7777) as u32)
    }

    pub fn owner(&self) -> Outcome<(i64, i64)> {
        Ok((number(&self.block[108..116])?, number(&self.block[116..124])?))
    }

    pub fn mtime_s(&self) -> Outcome<i64> {
        number(&self.block[136..148])
    }

    /// The part of a sparse file's map that is in the header: pairs, whether more follows, real size.
    pub fn sparse(&self) -> Outcome<(&'a [u8], bool, u64)> {
        if self.form != Form::Gnu {
            return refuse("a sparse file has a header that is not of the GNU form");
        }
        let real = u64::try_from(number(&self.block[483..495])?);
        let real = real.map_err(|_| Refusal("the size of a sparse file is negative".into()))?;
        Ok((&self.block[386..482], self.block[482] != 0, real))
    }
}

fn checksum(block: &[u8; BLOCK], value: impl Fn(u8) -> i64) -> i64 {
    let outside = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { 32 } else { value(*byte) };
    block.iter().enumerate().map(outside).sum()
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or(field)
}

/// Octal text, or the binary form that larger numbers have. One that does not fit is refused: cut
/// off, it would be another number to another reader.
pub fn number(field: &[u8]) -> Outcome<i64> {
    let wrong = || Refusal(format!("a number of a header is \"{}\"", field.escape_ascii()));
    if field[0] & 0x80 != 0 {
        let negative = field[0] & 0x40 != 0;
        let mut value: i128 = if negative { -1 } else { 0 };
        for (at, byte) in field.iter().enumerate() {
            let byte = if at == 0 && !negative { byte & 0x7F } else { *byte };
            value = (value << 8) | i128::from(byte);
        }
        return i64::try_from(value).map_err(|_| wrong());
    }
    let blank = |byte: &u8| matches!(byte, b' ' | 0);
    let mut digits = field;
    while digits.first().map_or(false, blank) {
        digits = &digits[1..];
    }
    let digits = digits.split(|byte| blank(byte)).next().unwrap_or(digits);
    digits.iter().try_fold(0i64, |value, byte| match byte {
        b'0'..=b'7' => Ok(value << 3 | i64::from(byte - b'0')),
        _ => Err(wrong()),
    })
}

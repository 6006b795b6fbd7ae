//! Extended headers: `length key=value` records that replace fields of the entry that follows.

use super::{refuse, shown, Outcome, Refusal, OPAQUE_MARK};

const MOST_ATTRIBUTES: usize = 64;
const MOST_ATTRIBUTE_BYTES: usize = 64 * 1024;
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
const OTHER_ATTRIBUTE: &[u8] = b"LIBARCHIVE.xattr.";

/// What an extended header says of one entry.
#[derive(Default)]
pub struct Overrides {
    pub name: Option<Vec<u8>>,
    pub target: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<i64>,
    pub gid: Option<i64>,
    pub mtime: Option<(i64, i64)>,
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    pub dropped_attributes: u64,
    pub sparse: Option<PaxSparse>,
    pub is_opaque: bool,
}

#[derive(Default)]
pub struct PaxSparse {
    pub major: Option<u64>,
    pub minor: Option<u64>,
    pub real_size: Option<u64>,
    pub name: Option<Vec<u8>>,
}

pub fn read(records: &[u8]) -> Outcome<Overrides> {
    let mut found = Overrides::default();
    each(records, |key, value| apply(&mut found, key, value))?;
    Ok(found)
}

/// A header for all entries that follow. The tools that make and read images leave them out of
/// account, others do not: one that would change an entry is refused.
pub fn read_global(records: &[u8]) -> Outcome<()> {
    each(records, |key, _| {
        let changes = matches!(key, b"path" | b"linkpath" | b"size" | b"uid" | b"gid")
            || key.starts_with(b"GNU.sparse.")
            || key.starts_with(ATTRIBUTE);
        if changes {
            return refuse(format!("a global header sets {}; write it on each entry", shown(key)));
        }
        Ok(())
    })
}

/// By their lengths, not by lines: a value may hold any byte.
fn each(mut rest: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> Outcome<()>) -> Outcome<()> {
    let wrong = || Refusal("an extended header is damaged".into());
    // Some writers fill up with zeros.
    while rest.first().map_or(false, |byte| *byte != 0) {
        let space = rest.iter().take(12).position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let length = usize::try_from(decimal(&rest[..space])?).map_err(|_| wrong())?;
        if length <= space + 1 || length > rest.len() || rest[length - 1] != b'\n' {
            return Err(wrong());
        }
        let record = &rest[space + 1..length - 1];
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        if key.is_empty() || key.contains(&0) {
            return Err(wrong());
        }
        visit(key, value)?;
        rest = &rest[length..];
    }
    Ok(())
}

fn apply(found: &mut Overrides, key: &[u8], value: &[u8]) -> Outcome<()> {
    if let Some(name) = key.strip_prefix(ATTRIBUTE) {
        return attribute(found, name, value);
    }
    if key.starts_with(OTHER_ATTRIBUTE) {
        found.dropped_attributes += 1;
        return Ok(());
    }
    if let Some(rest) = key.strip_prefix(b"GNU.sparse.") {
        return sparse(found.sparse.get_or_insert_with(PaxSparse::default), rest, value);
    }
    match key {
        OPAQUE_MARK => found.is_opaque = true,
        b"path" => found.name = named(value)?,
        b"linkpath" => found.target = named(value)?,
        b"size" => found.size = filled(value, decimal)?,
        b"uid" => found.uid = filled(value, signed)?,
        b"gid" => found.gid = filled(value, signed)?,
        b"mtime" => found.mtime = filled(value, time)?,
        _ => {}
    }
    Ok(())
}

/// Attributes of the user's space travel. The overlay's own would be marks, such as "hide what is
/// below"; those of other spaces give rights, or cannot be set.
fn attribute(found: &mut Overrides, name: &[u8], value: &[u8]) -> Outcome<()> {
    if !name.starts_with(b"user.") || name.starts_with(b"user.overlay.") {
        found.dropped_attributes += 1;
        return Ok(());
    }
    if found.attributes.len() >= MOST_ATTRIBUTES || name.len() > 255 || value.len() > MOST_ATTRIBUTE_BYTES {
        return refuse("an entry has more extended attributes, or larger ones, than a file can have");
    }
    found.attributes.push((name.to_vec(), value.to_vec()));
    Ok(())
}

fn sparse(found: &mut PaxSparse, key: &[u8], value: &[u8]) -> Outcome<()> {
    match key {
        b"major" => found.major = Some(decimal(value)?),
        b"minor" => found.minor = Some(decimal(value)?),
        b"realsize" => found.real_size = Some(decimal(value)?),
        b"name" => found.name = named(value)?,
        _ => return refuse("a sparse file is written in a form before 1.0; pack it with a newer tar"),
    }
    Ok(())
}

/// An empty value takes back what was said; the field of the entry's own header counts.
fn filled<T>(value: &[u8], parse: impl FnOnce(&[u8]) -> Outcome<T>) -> Outcome<Option<T>> {
    if value.is_empty() {
        Ok(None)
    } else {
        parse(value).map(Some)
    }
}

fn named(value: &[u8]) -> Outcome<Option<Vec<u8>>> {
    if value.contains(&0) {
        return refuse(format!("the name {} holds a zero byte", shown(value)));
    }
    filled(value, |value| Ok(value.to_vec()))
}

pub fn decimal(text: &[u8]) -> Outcome<u64> {
    let wrong = || Refusal(format!("{} is not a number", shown(text)));
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(wrong());
    }
    text.iter().try_fold(0u64, |value, digit| {
        value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0'))).ok_or_else(wrong)
    })
}

fn signed(text: &[u8]) -> Outcome<i64> {
    let (digits, sign) = match text.strip_prefix(b"-") {
        Some(digits) => (digits, -1),
        None => (text, 1),
    };
    i64::try_from(decimal(digits)?)
        .map(|value| sign * value)
        .map_err(|_| Refusal(format!("{} is too large a number", shown(text))))
}

/// Seconds and nanoseconds, of a decimal fraction with any number of places.
fn time(text: &[u8]) -> Outcome<(i64, i64)> {
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let whole = parts.next().unwrap_or(text);
    let fraction = parts.next().unwrap_or(b"");
    let seconds = signed(whole)?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return refuse(format!("{} is not a time", shown(text)));
    }
    let digit = |at: usize| fraction.get(at).map_or(0, |digit| i64::from(digit - b'0'));
    let nanoseconds = (0..9).fold(0, |value, at| value * 10 + digit(at));
    if text.first() == Some(&b'-') && nanoseconds > 0 {
        return Ok((seconds.saturating_sub(1), 1_000_000_000 - nanoseconds));
    }
    Ok((seconds, nanoseconds))
}

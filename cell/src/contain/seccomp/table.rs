//! Reads the table of system calls that is part of the binary.

const TEXT: &str = include_str!("../../../syscalls/x86_64.tsv");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Allow,
    Errno(u16),
    /// Decided by an argument.
    When(Rule),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Clone,
    Socket,
    SocketPair,
    Ioctl,
    Fcntl,
    Personality,
    Prctl,
    Mknod,
    Mode,
    Debug,
    Others,
    Core,
    Signal,
}

#[derive(Debug, Clone, Copy)]
pub struct Line {
    pub number: u32,
    pub name: &'static str,
    pub word: &'static str,
    pub action: Action,
    pub reason: &'static str,
}

/// The whole table, ordered by number. A line that does not parse is an error, not a gap.
pub fn lines() -> Result<Vec<Line>, String> {
    let mut lines: Vec<Line> = Vec::new();
    for text in TEXT.lines().filter(|text| !text.starts_with('#') && !text.is_empty()) {
        let line = parse(text).ok_or_else(|| format!("system call table: {text:?}"))?;
        if lines.last().map_or(false, |last| last.number >= line.number) {
            return Err(format!("system call table out of order at {}", line.name));
        }
        lines.push(line);
    }
    Ok(lines)
}

fn parse(text: &'static str) -> Option<Line> {
    let mut parts = text.split('\t');
    let number = parts.next()?.parse().ok()?;
    let (name, word, reason) = (parts.next()?, parts.next()?, parts.next()?);
    let action = match word {
        "allow" => Action::Allow,
        "eperm" => Action::Errno(libc::EPERM as u16),
        "enosys" => Action::Errno(libc::ENOSYS as u16),
        "pretend" => Action::Errno(0),
        "when:clone" => Action::When(Rule::Clone),
        "when:socket" => Action::When(Rule::Socket),
        "when:socketpair" => Action::When(Rule::SocketPair),
        "when:ioctl" => Action::When(Rule::Ioctl),
        "when:fcntl" => Action::When(Rule::Fcntl),
        "when:personality" => Action::When(Rule::Personality),
        "when:prctl" => Action::When(Rule::Prctl),
        "when:mknod" => Action::When(Rule::Mknod),
        "when:mode" => Action::When(Rule::Mode),
        "when:debug" => Action::When(Rule::Debug),
        "when:others" => Action::When(Rule::Others),
        "when:core" => Action::When(Rule::Core),
        "when:signal" => Action::When(Rule::Signal),
        _ => return None,
    };
    Some(Line { number, name, word, action, reason })
}

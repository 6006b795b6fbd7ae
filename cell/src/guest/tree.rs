//! Killing a whole tree of processes, however they were reparented or renamed.

use crate::sys::process::Pid;
use crate::sys::{fd, libc, mount, process};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::io::AsRawFd;

/// Kill every descendant of `root`; `others` and what is under them are left alone. The root itself
/// is killed too unless it is to be spared, as a keeper, which ends by itself.
///
/// A fork that was under way when its process was stopped is still carried out, one whose process
/// was killed is not: so there is a look afterwards, until it finds nobody who was not killed.
pub fn kill(root: Pid, spare_root: bool, others: &HashSet<Pid>) -> io::Result<()> {
    let mut killed: HashSet<Pid> = HashSet::new();
    loop {
        let stopped = stop(root, others, &killed)?;
        if stopped.is_empty() {
            break;
        }
        for pid in stopped {
            signal(pid, libc::SIGKILL)?;
            killed.insert(pid);
        }
    }
    if !spare_root {
        signal(root, libc::SIGKILL)?;
    }
    Ok(())
}

/// Kill everybody but ourselves: in one call, so that nobody gets away by forking.
pub fn kill_all() -> io::Result<()> {
    signal(-1, libc::SIGKILL)
}

/// Stop every descendant until no new one appears: a stopped process cannot begin to fork, so a
/// fork bomb runs out of members.
fn stop(root: Pid, others: &HashSet<Pid>, killed: &HashSet<Pid>) -> io::Result<HashSet<Pid>> {
    let mut stopped: HashSet<Pid> = HashSet::new();
    loop {
        let mut fresh = 0;
        for pid in descendants(root, others)? {
            if !killed.contains(&pid) && stopped.insert(pid) {
                fresh += 1;
                signal(pid, libc::SIGSTOP)?;
            }
        }
        if fresh == 0 {
            return Ok(stopped);
        }
    }
}

pub fn signal(pid: Pid, signal: i32) -> io::Result<()> {
    match process::kill(pid, signal) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

fn descendants(root: Pid, others: &HashSet<Pid>) -> io::Result<Vec<Pid>> {
    let mut children: HashMap<Pid, Vec<(Pid, bool)>> = HashMap::new();
    let proc = fd::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    for name in mount::names(proc, usize::MAX)? {
        let pid = std::str::from_utf8(&name).ok().and_then(|name| name.parse::<Pid>().ok());
        if let Some(pid) = pid {
            // None: it ended between the listing and the look.
            if let Some((parent, living)) = parent_of(pid).filter(|_| !others.contains(&pid)) {
                children.entry(parent).or_default().push((pid, living));
            }
        }
    }
    let mut found = Vec::new();
    let mut queue = vec![root];
    while let Some(pid) = queue.pop() {
        for (child, living) in children.remove(&pid).unwrap_or_default() {
            queue.push(child);
            if living {
                found.push(child);
            }
        }
    }
    Ok(found)
}

/// Whether there is such a process, and it is more than a zombie.
pub fn is_living(pid: Pid) -> bool {
    parent_of(pid).map_or(false, |(_, living)| living)
}

/// The parent of a process, and whether it is more than a zombie: one of those has no children, but
/// had some when they were looked at.
fn parent_of(pid: Pid) -> Option<(Pid, bool)> {
    let file = fd::open(format!("/proc/{pid}/stat"), libc::O_RDONLY, 0).ok()?;
    let mut buffer = [0u8; 512];
    let n = fd::read(file.as_raw_fd(), &mut buffer).ok()?;
    // The name is in brackets and may itself contain brackets and spaces: look from its end.
    let end = buffer[..n].iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&buffer[end + 1..n]).ok()?;
    let mut words = rest.split_whitespace();
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    Some((parent, state != "Z" && state != "X"))
}

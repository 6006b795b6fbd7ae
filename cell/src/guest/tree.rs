//! Killing a whole tree of processes, however they were reparented or renamed.

use crate::sys::process::Pid;
use crate::sys::{fd, libc, mount, process};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::io::AsRawFd;

/// Stop every descendant until no new one appears, then kill them all: a stopped process cannot
/// fork, so a fork bomb runs out of members. `others` and what is under them are left alone. The
/// root itself is killed too unless it is to be spared, as a keeper, which ends by itself.
pub fn kill(root: Pid, spare_root: bool, others: &HashSet<Pid>) -> io::Result<()> {
    let mut stopped: HashSet<Pid> = HashSet::new();
    loop {
        let mut fresh = 0;
        for pid in descendants(root, others)? {
            if stopped.insert(pid) {
                fresh += 1;
                signal(pid, libc::SIGSTOP)?;
            }
        }
        if fresh == 0 {
            break;
        }
    }
    for pid in &stopped {
        signal(*pid, libc::SIGKILL)?;
    }
    if !spare_root {
        signal(root, libc::SIGKILL)?;
    }
    Ok(())
}

fn signal(pid: Pid, signal: i32) -> io::Result<()> {
    match process::kill(pid, signal) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

fn descendants(root: Pid, others: &HashSet<Pid>) -> io::Result<Vec<Pid>> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    let proc = fd::open("/proc", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    for name in mount::names(proc, usize::MAX)? {
        let pid = std::str::from_utf8(&name).ok().and_then(|name| name.parse::<Pid>().ok());
        if let Some(pid) = pid {
            // None: it ended between the listing and the look.
            if let Some(parent) = parent_of_living(pid).filter(|_| !others.contains(&pid)) {
                children.entry(parent).or_default().push(pid);
            }
        }
    }
    let mut found = Vec::new();
    let mut queue = vec![root];
    while let Some(pid) = queue.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.push(child);
            queue.push(child);
        }
    }
    Ok(found)
}

/// The parent, if the process exists and is more than a zombie.
fn parent_of_living(pid: Pid) -> Option<Pid> {
    let file = fd::open(format!("/proc/{pid}/stat"), libc::O_RDONLY, 0).ok()?;
    let mut buffer = [0u8; 512];
    let n = fd::read(file.as_raw_fd(), &mut buffer).ok()?;
    // The name is in brackets and may itself contain brackets and spaces: look from its end.
    let end = buffer[..n].iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&buffer[end + 1..n]).ok()?;
    let mut words = rest.split_whitespace();
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    if state == "Z" || state == "X" {
        return None;
    }
    Some(parent)
}

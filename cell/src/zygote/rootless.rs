//! Without root: the launcher enters a user namespace that holds the caller's whole sub-id range,
//! once, and gives each sandbox a nested one with a slice of it.

use super::launch::{map_text, write_proc};
use super::message::{Configuration, Ids};
use crate::contain::step::{during, refuse};
use crate::plan::IdRange;
use crate::sys::process::{Forked, Pid};
use crate::sys::{cstring, fd, libc, process, wall};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

static NESTED: AtomicBool = AtomicBool::new(false);

/// Whether the launcher lives in a user namespace of its own, where 0 is the caller's own id.
pub fn is_nested() -> bool {
    NESTED.load(Ordering::Relaxed)
}

pub fn enter(configuration: &Configuration) -> io::Result<()> {
    match &configuration.ids {
        Ids::Root => {
            process::keep_capabilities_across_ids()?;
            wall::unshare(libc::CLONE_NEWNS).map_err(|e| during(e, "a mount namespace for the launcher"))
        }
        Ids::Single => {
            let (uid, gid) = (process::getuid(), process::getgid());
            enter_namespace()?;
            let own = |id: u32| map_text(&[IdRange { inside: 0, outside: id, count: 1 }]);
            write_proc(process::getpid(), "setgroups", "deny")?;
            write_proc(process::getpid(), "uid_map", &own(uid))?;
            write_proc(process::getpid(), "gid_map", &own(gid))?;
            wall::unshare(libc::CLONE_NEWNS)
        }
        Ids::Ranges { uids, gids, uid_helper, gid_helper } => {
            enter_ranges((uids, uid_helper), (gids, gid_helper))
        }
    }
}

/// Enter a user namespace in which 0 is the caller and its sub-ids follow, and a mount namespace with it.
pub fn enter_ranges(users: (&[(u32, u32)], &[u8]), groups: (&[(u32, u32)], &[u8])) -> io::Result<()> {
    let helper = Helper::start(&[
        (users.1, helper_arguments(process::getuid(), users.0)),
        (groups.1, helper_arguments(process::getgid(), groups.0)),
    ])?;
    enter_namespace()?;
    helper.map_parent()?;
    process::become_user(0, 0, true)?;
    wall::unshare(libc::CLONE_NEWNS)
}

fn enter_namespace() -> io::Result<()> {
    wall::unshare(libc::CLONE_NEWUSER)
        .map_err(|e| during(e, "this host lets ordinary users make no user namespaces"))?;
    NESTED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Inside, 0 is the caller; 1 and up are its sub-ids in order.
fn helper_arguments(own: u32, ranges: &[(u32, u32)]) -> Vec<String> {
    let mut arguments = vec!["0".into(), own.to_string(), "1".into()];
    let mut next = 1u32;
    for (first, count) in ranges {
        arguments.extend([next.to_string(), first.to_string(), count.to_string()]);
        next += count;
    }
    arguments
}

/// A child that stays outside and runs the set-id helpers on the launcher once it is ready.
struct Helper {
    pid: Pid,
    go: OwnedFd,
}

impl Helper {
    fn start(commands: &[(&[u8], Vec<String>)]) -> io::Result<Helper> {
        let target = process::getpid();
        let (wait, go) = fd::pipe()?;
        let pid = process::fork(libc::SIGCHLD)?;
        if pid != 0 {
            return Ok(Helper { pid, go });
        }
        drop(go);
        let mut byte = [0u8; 1];
        let ready = fd::read(wait.as_raw_fd(), &mut byte).map_or(false, |n| n == 1);
        let succeeded = ready
            && commands.iter().all(|(program, arguments)| run(program, target, arguments).unwrap_or(false));
        process::exit(if succeeded { 0 } else { 1 });
    }

    fn map_parent(self) -> io::Result<()> {
        fd::write_all(self.go.as_raw_fd(), &[1])?;
        match process::reap(self.pid, true)? {
            Some(ended) if ended.status == 0 => Ok(()),
            _ => Err(refuse(
                libc::EPERM,
                "newuidmap or newgidmap refused the ranges of /etc/subuid and /etc/subgid",
            )),
        }
    }
}

fn run(program: &[u8], target: Pid, arguments: &[String]) -> io::Result<bool> {
    let pid = process::fork(libc::SIGCHLD)?;
    if pid == 0 {
        let mut argv = vec![cstring(program)?, cstring(target.to_string())?];
        for argument in arguments {
            argv.push(cstring(argument)?);
        }
        drop(process::unblock_signals());
        drop(process::execve(&cstring(program)?, &argv, &[]));
        process::exit(127);
    }
    Ok(matches!(process::reap(pid, true)?, Some(ended) if ended.status == 0))
}

/// Clone as the user who is to own the new namespaces. The kernel charges what is used in a user
/// namespace to its owner too: were that root, one sandbox could use up what root may have of it
/// (inotify instances: 128). In the child nothing is undone: there that id is not mapped yet.
pub fn clone_owned_by(uid: u32, namespaces: i32, cgroup: Option<RawFd>) -> io::Result<Forked> {
    if is_nested() {
        return process::clone_into(namespaces, cgroup);
    }
    process::set_effective_user(uid).map_err(|e| {
        during(e, "root here is itself in a user namespace, without ids for further user namespaces")
    })?;
    let forked = process::clone_into(namespaces, cgroup);
    if !matches!(forked, Ok(Forked::Child)) {
        process::set_effective_user(0)?;
    }
    forked
}

/// A user namespace that exists only to describe a mapping of owners on a mount.
pub fn user_namespace(users: &[IdRange], groups: &[IdRange]) -> io::Result<OwnedFd> {
    let (wait, hold) = fd::pipe()?;
    match process::clone_into(libc::CLONE_NEWUSER, None)? {
        Forked::Child => {
            drop(hold);
            let mut byte = [0u8; 1];
            drop(fd::read(wait.as_raw_fd(), &mut byte));
            process::exit(0);
        }
        Forked::Parent { pid, pidfd: _ } => {
            let made = write_proc(pid, "uid_map", &map_text(users))
                .and_then(|()| write_proc(pid, "gid_map", &map_text(groups)))
                .and_then(|()| fd::open(format!("/proc/{pid}/ns/user"), libc::O_RDONLY, 0));
            drop(hold);
            process::reap(pid, true)?;
            made
        }
    }
}

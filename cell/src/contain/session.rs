//! Steps about the process itself: descriptors, session, identity, limits.

use super::step::{during, refuse};
use super::Inheritance;
use crate::plan::Plan;
use crate::sys::libc;
use crate::sys::{fd, process, socket, wall};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// Standard streams go too: the guest has no terminal of the host's.
pub fn close_inherited(held: &Inheritance) -> io::Result<()> {
    let mut kept = vec![held.control.as_raw_fd(), held.sync];
    kept.extend(held.log.as_ref().map(AsRawFd::as_raw_fd));
    kept.extend(held.doors.numbers());
    fd::close_all_but(&kept)
}

/// Signals are as the launcher has them: every action the default one, every signal blocked. So is
/// the session: the launcher's own, which has no terminal and cannot get one.
pub fn fresh() -> io::Result<()> {
    process::umask(0o022);
    wall::reset_priority()?;
    die_with_launcher()
}

/// Not before the launcher is done with us: it could no longer open our files in /proc.
fn not_dumpable() -> io::Result<()> {
    process::prctl(libc::PR_SET_DUMPABLE, 0).map(|_| ())
}

/// The kernel forgets this on every change of identity, so it is set again after the last one.
fn die_with_launcher() -> io::Result<()> {
    process::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).map(|_| ())
}

/// The saved id stays the launcher's until the control groups have been entered: where the
/// launcher is not root, the kernel lets it move only processes that are still its own.
pub fn become_guest_root(plan: &Plan) -> io::Result<()> {
    process::act_as(plan.init_uid, plan.init_gid, plan.allow_setgroups)?;
    not_dumpable()?;
    die_with_launcher()
}

pub fn set_limits(plan: &Plan) -> io::Result<()> {
    for (resource, soft, hard) in &plan.rlimits {
        wall::set_rlimit(*resource, *soft, *hard)?;
    }
    Ok(())
}

pub fn forbid_new_privileges() -> io::Result<()> {
    const PR_SET_NO_NEW_PRIVS: i32 = 38;
    process::prctl(PR_SET_NO_NEW_PRIVS, 1).map(|_| ())
}

/// The guest enters its groups itself and as a single thread: for that alone the kernel does not
/// stop every fork on the machine first, which can take it ten milliseconds.
///
/// Returns what it may read of them.
pub fn join_groups(plan: &Plan, held: &Inheritance) -> io::Result<Vec<OwnedFd>> {
    let mut counts = [0u8; 2];
    let mut doors = Vec::new();
    let wanted = |counts: [u8; 2]| counts.iter().map(|count| usize::from(*count)).sum::<usize>();
    if socket::receive(held.sync, &mut counts, &mut doors)? != counts.len() || doors.len() != wanted(counts) {
        return Err(refuse(libc::ECONNABORTED, "the launcher went away"));
    }
    let readable = doors.split_off(usize::from(counts[0]));
    for door in doors {
        fd::write_all(door.as_raw_fd(), b"0").map_err(|e| during(e, "entering a control group"))?;
    }
    process::become_user(plan.init_uid, plan.init_gid, false)?;
    not_dumpable()?;
    die_with_launcher()?;
    Ok(readable)
}

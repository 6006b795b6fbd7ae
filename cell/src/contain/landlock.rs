//! The second layer. It holds even where a mount flag or a capability was set wrongly.

use super::step::refuse;
use crate::plan::{Owner, Plan};
use crate::sys::libc;
use crate::sys::{fd, wall};
use std::io;

const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
/// From version 2; without it handled and granted, Landlock forbids moves between directories.
const REFER: u64 = 1 << 13;
/// From version 5: device controls, wanted only on the devices of our own /dev.
const IOCTL_DEV: u64 = 1 << 15;
/// From version 6.
const SCOPE_ABSTRACT_UNIX: u64 = 1;
const SCOPE_SIGNAL: u64 = 2;

/// Only rights that no ordinary file work needs are handled, so ordinary file work pays nothing.
pub fn restrict(plan: &Plan) -> io::Result<()> {
    if !plan.landlock {
        return Ok(());
    }
    let version = wall::landlock_version();
    if version < 2 {
        return Err(refuse(
            libc::EOPNOTSUPP,
            "this kernel has no Landlock (version 2 or later); say second_layer = \"none\" to go without",
        ));
    }
    let mut handled = MAKE_CHAR | MAKE_BLOCK | REFER;
    let mut scoped = 0;
    if version >= 5 {
        handled |= IOCTL_DEV;
    }
    if version >= 6 {
        scoped = SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL;
    }
    let ruleset = wall::landlock_ruleset(handled, scoped, version)?;
    wall::landlock_allow(&ruleset, REFER, &fd::open("/", libc::O_PATH, 0)?)?;
    if version >= 5 {
        wall::landlock_allow(&ruleset, IOCTL_DEV, &fd::open("/dev", libc::O_PATH, 0)?)?;
    }
    // A layer in the making has marks for removed names in it, which are devices without a number
    // and the only ones the filter of system calls lets through. Where owners cannot be mapped (no
    // root on the host), such a directory looks like any other that is shown as it is.
    for mount in plan.mounts.iter().filter(|mount| mount.write && !matches!(mount.owner, Owner::One(..))) {
        let target = [b"/", &mount.target[..]].concat();
        wall::landlock_allow(&ruleset, MAKE_CHAR, &fd::open(target, libc::O_PATH | libc::O_NOFOLLOW, 0)?)?;
    }
    wall::landlock_restrict(&ruleset)
}

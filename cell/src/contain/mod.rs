//! Turns a freshly cloned process into the sandbox's first process, step by step.

pub mod capabilities;
pub mod copy;
pub mod devices;
pub mod landlock;
pub mod masks;
pub mod posture;
pub mod root;
pub mod seccomp;
pub mod session;
pub mod step;

use crate::plan::{Drill, Plan};
use crate::sys::{process, wall};
use std::os::unix::io::{OwnedFd, RawFd};
use step::{refuse, At, LaunchError, Step};

/// What the child of the launcher's clone holds: nothing else was inherited on purpose.
pub struct Inheritance {
    pub control: OwnedFd,
    /// Owned by whoever reports the outcome over it.
    pub sync: RawFd,
}

/// Build the wall around this process.
///
/// The order is the design: every step uses only what the steps above it left.
pub fn contain(
    plan: &Plan,
    filter: &[wall::Instruction],
    held: &Inheritance,
) -> Result<Vec<u8>, LaunchError> {
    step(plan.drill, Step::Fds, || session::close_inherited(held))?;
    step(plan.drill, Step::Session, session::fresh)?;
    step(plan.drill, Step::Keyring, wall::join_new_keyring)?;
    let trees = step(plan.drill, Step::Handover, || root::wait_for_trees(plan, held.sync))?;
    step(plan.drill, Step::Identity, || session::become_guest_root(plan))?;
    step(plan.drill, Step::Hostname, || wall::set_hostname(&plan.hostname))?;
    let new_root = step(plan.drill, Step::Root, || root::build(plan, &trees))?;
    step(plan.drill, Step::Devices, || devices::attach(plan, &trees, &new_root))?;
    step(plan.drill, Step::Proc, || masks::mount_proc(plan, &trees, &new_root))?;
    step(plan.drill, Step::Mounts, || root::attach_mounts(plan, &trees, &new_root))?;
    step(plan.drill, Step::Pivot, || root::pivot(trees, new_root))?;
    step(plan.drill, Step::Join, || session::join_groups(plan, held))?;
    step(plan.drill, Step::CgroupView, || wall::unshare(crate::sys::libc::CLONE_NEWCGROUP))?;
    step(plan.drill, Step::Rlimits, || session::set_limits(plan))?;
    step(plan.drill, Step::Capabilities, || capabilities::keep_only(plan))?;
    step(plan.drill, Step::NoNewPrivileges, session::forbid_new_privileges)?;
    step(plan.drill, Step::Landlock, || landlock::restrict(plan))?;
    step(plan.drill, Step::Seccomp, || wall::load_filter(filter))?;
    step(plan.drill, Step::Posture, || posture::verify(plan))
}

/// Perform one step, or what a drill asks for in its place.
pub fn step<T>(drill: Drill, step: Step, act: impl FnOnce() -> std::io::Result<T>) -> Result<T, LaunchError> {
    match drill {
        Drill::Fail(at) if at == step => {
            Err(refuse(crate::sys::libc::EPERM, "a drill asked this step to fail")).at(step)
        }
        Drill::Pause(at) if at == step => process::pause_until_continued().and_then(|()| act()).at(step),
        _ => act().at(step),
    }
}

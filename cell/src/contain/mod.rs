//! Turns a freshly cloned process into the sandbox's first process, step by step.

pub mod capabilities;
pub mod copy;
pub mod devices;
pub mod kernel;
pub mod landlock;
pub mod masks;
pub mod posture;
pub mod root;
pub mod seccomp;
pub mod session;
pub mod step;

use crate::plan::{Drill, Kernel, Plan};
use crate::sys::{process, wall};
use crate::zygote::egress::Doors;
use std::os::unix::io::{OwnedFd, RawFd};
use step::{refuse, At, LaunchError, Step};

/// What the child of the launcher's clone holds: nothing else was inherited on purpose.
pub struct Inheritance {
    pub control: OwnedFd,
    /// Where a program that takes the guest's place says what went wrong.
    pub log: Option<OwnedFd>,
    /// The sockets of its way out, where it carries that itself.
    pub doors: Doors,
    /// Owned by whoever reports the outcome over it.
    pub sync: RawFd,
}

/// What this process knows once its wall stands: what it found to be true, and where its limits are counted.
pub struct Contained {
    pub facts: Vec<u8>,
    pub counts: Vec<OwnedFd>,
    /// Where it writes beside its own disk, if nobody outside can tell how full that is.
    pub volumes: Vec<OwnedFd>,
}

/// Build the wall around this process.
///
/// The order is the design: every step uses only what the steps above it left.
pub fn contain(
    plan: &Plan,
    filter: &[wall::Instruction],
    held: &Inheritance,
) -> Result<Contained, LaunchError> {
    step(plan.drill, Step::Fds, || session::close_inherited(held))?;
    step(plan.drill, Step::Session, session::fresh)?;
    step(plan.drill, Step::Keyring, wall::join_new_keyring)?;
    let trees = step(plan.drill, Step::Handover, || root::wait_for_trees(plan, held.sync))?;
    step(plan.drill, Step::Identity, || session::become_guest_root(plan))?;
    step(plan.drill, Step::Hostname, || wall::set_hostname(&plan.hostname))?;
    let new_root = step(plan.drill, Step::Root, || root::build(plan, &trees))?;
    if let Some(kernel) = &plan.kernel {
        return contain_kernel(plan, kernel, trees, new_root, held);
    }
    step(plan.drill, Step::Devices, || devices::attach(plan, &trees, &new_root))?;
    step(plan.drill, Step::Proc, || masks::mount_proc(plan, &trees, &new_root))?;
    let volumes = step(plan.drill, Step::Mounts, || {
        root::attach_mounts(plan, &trees, &new_root)?;
        root::hold_volumes(plan, &trees)
    })?;
    step(plan.drill, Step::Pivot, || root::pivot(trees, new_root))?;
    let counts = step(plan.drill, Step::Join, || session::join_groups(plan, held))?;
    step(plan.drill, Step::CgroupView, || wall::unshare(crate::sys::libc::CLONE_NEWCGROUP))?;
    step(plan.drill, Step::Rlimits, || session::set_limits(plan))?;
    step(plan.drill, Step::Capabilities, || capabilities::keep_only(plan))?;
    step(plan.drill, Step::NoNewPrivileges, session::forbid_new_privileges)?;
    step(plan.drill, Step::Landlock, || landlock::restrict(plan))?;
    step(plan.drill, Step::Seccomp, || wall::load_filter(filter))?;
    let facts = step(plan.drill, Step::Posture, || posture::verify(plan))?;
    Ok(Contained { facts, counts, volumes })
}

/// The same wall around another kernel: its program has the sandbox's ids, groups and namespaces and
/// a root with nothing of the host's but itself. What it needs more than a guest is named in the plan.
fn contain_kernel(
    plan: &Plan,
    kernel: &Kernel,
    trees: root::Trees,
    sandbox: root::NewRoot,
    held: &Inheritance,
) -> Result<Contained, LaunchError> {
    step(plan.drill, Step::Mounts, || {
        masks::cover(plan, &trees, &sandbox)?;
        root::attach_mounts(plan, &trees, &sandbox)
    })?;
    let own = step(plan.drill, Step::Devices, || kernel::lay_out(plan, kernel, &trees, &sandbox))?;
    step(plan.drill, Step::Proc, || kernel::mount_proc(&own))?;
    step(plan.drill, Step::Pivot, || {
        drop(sandbox);
        root::pivot(trees, own)
    })?;
    step(plan.drill, Step::Join, || session::join_groups(plan, held))?;
    step(plan.drill, Step::CgroupView, || wall::unshare(crate::sys::libc::CLONE_NEWCGROUP))?;
    step(plan.drill, Step::Rlimits, || session::set_limits(plan))?;
    step(plan.drill, Step::Capabilities, || kernel::keep_capabilities(kernel))?;
    step(plan.drill, Step::NoNewPrivileges, session::forbid_new_privileges)?;
    step(plan.drill, Step::Posture, || kernel::verify(plan, kernel))?;
    Err(kernel::execute(kernel, held)).at(Step::Posture)
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

//! The capability sets: what the guest keeps to start processes, what a process may ever have.

use crate::plan::Plan;
use crate::sys::wall;
use std::io;

/// The bounding set becomes the profile's. What the guest itself keeps it keeps as permitted
/// only: it never executes a program, and a program it starts gets no more than the bounding set.
pub fn keep_only(plan: &Plan) -> io::Result<()> {
    keep(plan.bounding, plan.guest_caps)
}

pub fn keep(bounding: u64, own: u64) -> io::Result<()> {
    wall::drop_bounding(bounding)?;
    wall::clear_ambient()?;
    wall::set_capabilities(own)
}

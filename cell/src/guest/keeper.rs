//! The keeper: stands between the guest and one program, so that whatever the program leaves
//! behind becomes the keeper's child and a timeout can find the whole tree.

use super::slots::Slots;
use crate::sys::process::Pid;
use crate::sys::{fd, libc, process, wall};

/// In the keeper: wait for the program, collecting orphans meanwhile; then end. What is still
/// running then becomes the guest's child and lives on.
pub fn keep(slots: &Slots, slot: usize, program: Pid) -> ! {
    slots.set_pid(slot, program);
    // Nothing to hold, nothing to be able to do: it only waits.
    if fd::close_all_but(&[]).is_err() || wall::set_capabilities(0).is_err() {
        process::exit(1);
    }
    loop {
        match process::reap(-1, true) {
            Ok(Some(ended)) if ended.pid == program => {
                slots.ended(slot, ended.status);
                process::exit(0);
            }
            Ok(Some(_)) => {}
            _ => process::exit(1),
        }
    }
}

pub fn adopt_orphans() -> std::io::Result<()> {
    process::prctl(libc::PR_SET_CHILD_SUBREAPER, 1).map(|_| ())
}

//! `/dev`: the launcher's template of six devices, pseudo-terminals of its own, shared memory.

use super::root::{mount_on, open_target, NewRoot, Trees};
use super::step::{during, refuse};
use crate::plan::Plan;
use crate::sys::{fd, libc, mount};
use std::io;
use std::os::unix::io::AsRawFd;

pub fn attach(plan: &Plan, trees: &Trees, root: &NewRoot) -> io::Result<()> {
    let dev = open_target(root, b"dev")?;
    let tree = mount::open_tree(trees.devices.as_raw_fd(), b"")?;
    mount::set_attributes(&tree, mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NOEXEC, None)?;
    mount::attach(&tree, &dev).map_err(|e| during(e, "attaching /dev"))?;
    verify_null(root)?;

    let pts = open_target(root, b"dev/pts")?;
    let options = "newinstance,ptmxmode=0666,mode=0620";
    mount_on(&pts, "devpts", libc::MS_NOSUID | libc::MS_NOEXEC, options)
        .map_err(|e| during(e, "mounting /dev/pts"))?;

    let shm = open_target(root, b"dev/shm")?;
    let options = format!("size={},nr_inodes={},mode=1777", plan.shm_bytes, plan.inodes);
    mount_on(&shm, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, &options)
        .map_err(|e| during(e, "mounting /dev/shm"))
}

/// Masks are made of this inode: it must be the null device and not something an image put there.
fn verify_null(root: &NewRoot) -> io::Result<()> {
    let null = mount::open_beneath(
        root.fd.as_raw_fd(),
        b"dev/null",
        libc::O_PATH | libc::O_NOFOLLOW,
        0,
        mount::Walk::NoLinks,
    )?;
    let stat = fd::fstat(&null)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFCHR || stat.st_rdev != libc::makedev(1, 3) {
        return Err(refuse(libc::EINVAL, "/dev/null is not the null device"));
    }
    Ok(())
}

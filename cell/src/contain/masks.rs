//! `/proc` of the sandbox's own processes, with what tells about the host covered.

use super::root::{mount_on, open_target, NewRoot, Trees};
use super::step::during;
use crate::plan::Plan;
use crate::sys::{libc, mount};
use std::io;
use std::os::unix::io::AsRawFd;

pub fn mount_proc(plan: &Plan, trees: &Trees, root: &NewRoot) -> io::Result<()> {
    let proc = open_target(root, b"proc")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount_on(&proc, "proc", flags, "").map_err(|e| during(e, "mounting /proc"))?;
    read_only(root, b"proc/sys")?;
    for path in &plan.masks {
        mask(trees, root, path)
            .map_err(|e| during(e, format!("masking /{}", String::from_utf8_lossy(path))))?;
    }
    Ok(())
}

fn read_only(root: &NewRoot, path: &[u8]) -> io::Result<()> {
    let target = mount::open_beneath(root.fd.as_raw_fd(), path, libc::O_PATH, 0, mount::Walk::NoLinks)?;
    let tree = mount::open_tree(target.as_raw_fd(), b"")?;
    let flags = mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NODEV | mount::ATTR_NOEXEC;
    mount::set_attributes(&tree, flags, None)?;
    mount::attach(&tree, &target)
}

/// Cover a file with the null device and a directory with an empty one; the launcher mounted both
/// read-only, and copies of a mount keep its flags.
fn mask(trees: &Trees, root: &NewRoot, path: &[u8]) -> io::Result<()> {
    let target = match mount::open_beneath(root.fd.as_raw_fd(), path, libc::O_PATH, 0, mount::Walk::NoLinks) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        other => other?,
    };
    let directory = crate::sys::fd::fstat(&target)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let cover = if directory { trees.empty.as_raw_fd() } else { trees.null.as_raw_fd() };
    let tree = mount::open_tree(cover, b"")?;
    mount::attach(&tree, &target)
}

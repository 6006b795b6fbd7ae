//! `/proc` of the sandbox's own processes, with what tells about the host covered.

use super::root::{mount_on, open_target, NewRoot, Trees};
use super::step::during;
use crate::plan::Plan;
use crate::sys::{fd, libc, mount};
use std::io;
use std::os::unix::io::AsRawFd;

pub fn mount_proc(plan: &Plan, trees: &Trees, root: &NewRoot) -> io::Result<()> {
    let proc = open_target(root, b"proc")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount_on(&proc, "proc", flags, "").map_err(|e| during(e, "mounting /proc"))?;
    read_only(root, b"proc/sys")?;
    own_boot_id(root).map_err(|e| during(e, "giving it a boot id of its own"))?;
    cover(plan, trees, root)
}

/// Cover what the plan names and is there: of `/proc`, and of the host's programs.
pub fn cover(plan: &Plan, trees: &Trees, root: &NewRoot) -> io::Result<()> {
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

/// The kernel has one id for all that run under it, by which sandboxes of one host would know each other.
fn own_boot_id(root: &NewRoot) -> io::Result<()> {
    let at = root.fd.as_raw_fd();
    let mut id = [0u8; 64];
    let uuid =
        mount::open_beneath(at, b"proc/sys/kernel/random/uuid", libc::O_RDONLY, 0, mount::Walk::NoLinks)?;
    let length = fd::read(uuid.as_raw_fd(), &mut id)?;
    // On a filesystem that is in memory and the sandbox's own; nobody inside finds it there.
    let shm = open_target(root, b"dev/shm")?;
    let name = b"boot_id";
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    let file = fd::openat(shm.as_raw_fd(), name, flags, 0o444)?;
    fd::write_all(file.as_raw_fd(), &id[..length])?;
    let tree = mount::open_tree(file.as_raw_fd(), b"")?;
    let flags = mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NODEV | mount::ATTR_NOEXEC;
    mount::set_attributes(&tree, flags, None)?;
    mount::attach(&tree, &open_target(root, b"proc/sys/kernel/random/boot_id")?)?;
    mount::unlinkat(shm.as_raw_fd(), name, false)
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
    if !path.starts_with(b"proc/") {
        // Where devices are none a null device cannot be opened: what is covered there is denied.
        let flags = mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NODEV | mount::ATTR_NOEXEC;
        mount::set_attributes(&tree, flags, None)?;
    }
    mount::attach(&tree, &target)
}

//! The root filesystem: a tmpfs of limited size, host directories below it as overlay layers.

use super::copy::copy_all;
use super::step::{during, refuse};
use crate::plan::{Dir, Layer, Plan};
use crate::sys::{fd, libc, mount, process, socket};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// What the root is built from. Everything is opened before the guest gives up the launcher's
/// identity: a sandbox's own users may not even walk to these places.
pub struct Trees {
    /// The launcher's private tmpfs, which is the root of its own view and so of ours up to here.
    template: OwnedFd,
    pub devices: OwnedFd,
    pub empty: OwnedFd,
    pub null: OwnedFd,
    /// Detached mounts, opened (and given other owners) by the launcher.
    layers: Vec<OwnedFd>,
    mounts: Vec<OwnedFd>,
    /// Which of the layers could not be given the sandbox's owners.
    foreign: Vec<usize>,
}

pub struct NewRoot {
    pub fd: OwnedFd,
}

/// The launcher sends one tree for each layer, then one for each mount.
pub fn wait_for_trees(plan: &Plan, sync: RawFd) -> io::Result<Trees> {
    let expected = plan.layers.len() + plan.mounts.len();
    let mut layers = Vec::with_capacity(expected);
    let mut foreign = Vec::new();
    let mut byte = [0u8; 1];
    loop {
        if socket::receive(sync, &mut byte, &mut layers)? == 0 {
            return Err(refuse(libc::ECONNABORTED, "the launcher went away"));
        }
        match byte[0] {
            GO => break,
            FOREIGN => foreign.push(layers.len().saturating_sub(1)),
            _ => {}
        }
    }
    if layers.len() != expected {
        return Err(refuse(libc::EPROTO, "a tree is missing"));
    }
    let mounts = layers.split_off(plan.layers.len());
    let template = fd::open("/", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let inside = |name: &str| fd::openat(template.as_raw_fd(), name, libc::O_PATH | libc::O_NOFOLLOW, 0);
    Ok(Trees {
        devices: inside("dev")?,
        empty: inside("empty")?,
        null: inside("null")?,
        template,
        layers,
        mounts,
        foreign,
    })
}

/// What the launcher says with a tree, and last of all without one.
pub const OWNED: u8 = 0;
pub const GO: u8 = 1;
pub const FOREIGN: u8 = 2;

/// Lay out the bench: `root` is what the guest will see, `lower`, `upper` and `work` it never does.
pub fn build(plan: &Plan, trees: &Trees) -> io::Result<NewRoot> {
    mount::make_private()?;
    let options = format!("size={},nr_inodes={},mode=0755", plan.disk_bytes, plan.inodes);
    let point = fd::openat(trees.template.as_raw_fd(), "cell", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    mount_on(&point, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, &options)
        .map_err(|e| during(e, "mounting the disk"))?;
    // Opened again: the first descriptor names the directory below the mount.
    let bench = fd::openat(trees.template.as_raw_fd(), "cell", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let at = bench.as_raw_fd();
    for name in ["root", "lower", "upper", "work"] {
        mount::mkdirat(at, name.as_bytes(), 0o755)?;
    }
    mount::fchdir(&bench)?;

    let whole = plan.layers.iter().position(|layer| layer.target.is_empty());
    match whole {
        Some(index) => overlay(index, &plan.layers[index], &trees.layers[index], None)?,
        None => {
            // pivot_root wants a mount point: the root is bound onto itself.
            let tree = mount::open_tree(at, b"root")?;
            let target = fd::open("root", libc::O_PATH | libc::O_DIRECTORY, 0)?;
            mount::attach(&tree, &target)?;
        }
    }
    let root = NewRoot { fd: fd::open("root", libc::O_PATH | libc::O_DIRECTORY, 0)? };
    populate(plan, &root, whole.is_none())?;
    for (index, layer) in plan.layers.iter().enumerate().filter(|(_, layer)| !layer.target.is_empty()) {
        if layer.writable && trees.foreign.contains(&index) && is_ours(trees, index)? {
            // Below an overlay its files would stay nobody's; as copies they are root's inside.
            let target = open_target(&root, &layer.target)?;
            copy_all(trees.layers[index].as_raw_fd(), target.as_raw_fd())
                .map_err(|e| during(e, format!("copying {}", String::from_utf8_lossy(&layer.source))))?;
        } else if layer.writable {
            overlay(index, layer, &trees.layers[index], Some(&root))?;
        } else {
            // Nobody inside may write here: the bare mount is the same, and its names are already
            // in the host's memory, where those of a fresh overlay are not.
            let target = open_target(&root, &layer.target)?;
            mount::attach(&trees.layers[index], &target)
                .map_err(|e| during(e, format!("attaching {}", String::from_utf8_lossy(&layer.source))))?;
        }
    }
    Ok(root)
}

/// Whether a layer lies on the launcher's own tmpfs: what is there is small.
fn is_ours(trees: &Trees, index: usize) -> io::Result<bool> {
    Ok(fd::fstat(&trees.layers[index])?.st_dev == fd::fstat(&trees.template)?.st_dev)
}

/// Mount one overlay: the host's directory below, a directory on the sandbox's own disk above.
fn overlay(index: usize, layer: &Layer, tree: &OwnedFd, root: Option<&NewRoot>) -> io::Result<()> {
    let words = || format!("layering {}", String::from_utf8_lossy(&layer.source));
    let (lower, upper, work) = (format!("lower/{index}"), format!("upper/{index}"), format!("work/{index}"));
    for path in [&lower, &upper, &work] {
        mount::mkdirat(libc::AT_FDCWD, path.as_bytes(), 0o755)?;
    }
    // Attached first: older kernels take no detached mount as a layer.
    let point = fd::open(&lower, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    mount::attach(tree, &point).map_err(|e| during(e, words()))?;
    let target = match root {
        Some(root) => open_target(root, &layer.target)?,
        None => fd::open("root", libc::O_PATH | libc::O_DIRECTORY, 0)?,
    };
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work},userxattr,volatile");
    mount_on(&target, "overlay", libc::MS_NOSUID | libc::MS_NODEV, &options).map_err(|e| during(e, words()))
}

/// Directories and links of the plan; `fresh` where nobody else has made anything there before.
fn populate(plan: &Plan, root: &NewRoot, fresh: bool) -> io::Result<()> {
    let at = root.fd.as_raw_fd();
    // The plan's modes as they are.
    process::umask(0);
    for (target, name) in &plan.links {
        match mount::symlinkat(target, at, name) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            other => other?,
        }
    }
    for dir in &plan.dirs {
        let made = if fresh { mount::mkdirat(at, &dir.path, dir.mode) } else { make_in_image(at, dir) };
        match made {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => continue,
            other => {
                other.map_err(|e| during(e, format!("making /{}", String::from_utf8_lossy(&dir.path))))?
            }
        }
        if fresh && (dir.uid != plan.init_uid || dir.gid != plan.init_gid) {
            mount::lchownat(at, &dir.path, dir.uid, dir.gid)?;
        }
    }
    process::umask(0o022);
    Ok(())
}

/// In the root of an image a parent may be a link: it is resolved inside that root.
fn make_in_image(at: RawFd, dir: &Dir) -> io::Result<()> {
    let (above, name) = match dir.path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&dir.path[..slash], &dir.path[slash + 1..]),
        None => (b".".as_ref(), dir.path.as_slice()),
    };
    let parent = mount::open_beneath(at, above, libc::O_PATH | libc::O_DIRECTORY, 0, mount::Walk::InRoot)?;
    mount::mkdirat(parent.as_raw_fd(), name, dir.mode)?;
    mount::lchownat(parent.as_raw_fd(), name, dir.uid, dir.gid)
}

/// Attach the granted host directories. Their parents are made if the plan did not.
pub fn attach_mounts(plan: &Plan, trees: &Trees, root: &NewRoot) -> io::Result<()> {
    for (mount, tree) in plan.mounts.iter().zip(&trees.mounts) {
        let words = || format!("mounting on /{}", String::from_utf8_lossy(&mount.target));
        let file = fd::fstat(tree)?.st_mode & libc::S_IFMT != libc::S_IFDIR;
        let target = make_target(root, &mount.target, file).map_err(|e| during(e, words()))?;
        mount::attach(tree, &target).map_err(|e| during(e, words()))?;
    }
    Ok(())
}

fn make_target(root: &NewRoot, path: &[u8], file: bool) -> io::Result<OwnedFd> {
    let at = root.fd.as_raw_fd();
    for end in path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(i, _)| i).chain([path.len()]) {
        let part = &path[..end];
        if file && end == path.len() {
            match mount::open_beneath(
                at,
                part,
                libc::O_CREAT | libc::O_RDWR | libc::O_NOFOLLOW,
                0o644,
                mount::Walk::NoLinks,
            ) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EACCES) => {}
                Err(error) => return Err(error),
            }
            continue;
        }
        let parent_end = part.iter().rposition(|b| *b == b'/').unwrap_or(0);
        let parent = if parent_end == 0 { b".".as_ref() } else { &part[..parent_end] };
        let parent =
            mount::open_beneath(at, parent, libc::O_PATH | libc::O_DIRECTORY, 0, mount::Walk::NoLinks)?;
        let name = part[parent_end..].strip_prefix(b"/").unwrap_or(&part[parent_end..]);
        match mount::mkdirat(parent.as_raw_fd(), name, 0o755) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            other => other?,
        }
    }
    open_target(root, path)
}

/// Leave the old root behind, and prove that `/` and the working directory are the new one.
pub fn pivot(trees: Trees, root: NewRoot) -> io::Result<()> {
    drop(trees);
    mount::fchdir(&root.fd)?;
    let before = fd::fstat(&root.fd)?;
    mount::pivot_here()?;
    let slash = fd::fstat(&fd::open("/", libc::O_PATH | libc::O_DIRECTORY, 0)?)?;
    let here = fd::fstat(&fd::open(".", libc::O_PATH | libc::O_DIRECTORY, 0)?)?;
    let above = fd::fstat(&fd::open("/..", libc::O_PATH | libc::O_DIRECTORY, 0)?)?;
    for seen in [&slash, &here, &above] {
        if (seen.st_dev, seen.st_ino) != (before.st_dev, before.st_ino) {
            return Err(refuse(libc::EXDEV, "the root is not the one that was built"));
        }
    }
    Ok(())
}

/// A place to mount on: a real directory inside the new root, no link on the way.
pub fn open_target(root: &NewRoot, path: &[u8]) -> io::Result<OwnedFd> {
    mount::open_beneath(root.fd.as_raw_fd(), path, libc::O_PATH, 0, mount::Walk::NoLinks)
        .map_err(|e| during(e, format!("opening /{} in the new root", String::from_utf8_lossy(path))))
}

pub fn mount_on(target: &OwnedFd, kind: &str, flags: u64, options: &str) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", target.as_raw_fd());
    mount::mount(kind, path.as_bytes(), kind, flags, options.as_bytes())
}

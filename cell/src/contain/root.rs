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
    pub template: OwnedFd,
    pub devices: OwnedFd,
    pub empty: OwnedFd,
    pub null: OwnedFd,
    /// The sandbox's own disk, where it is a directory of the host's.
    disk: Option<OwnedFd>,
    /// Detached mounts, opened (and given other owners) by the launcher: of each layer the
    /// uppermost first.
    layers: Vec<Vec<Tree>>,
    mounts: Vec<OwnedFd>,
    /// Files for the program that takes the guest's place.
    pub shown: Vec<OwnedFd>,
}

struct Tree {
    fd: OwnedFd,
    /// Whether it could not be given the sandbox's owners.
    foreign: bool,
}

pub struct NewRoot {
    pub fd: OwnedFd,
}

/// The launcher sends the trees one by one, each with what it is and which of its kind.
pub fn wait_for_trees(plan: &Plan, sync: RawFd) -> io::Result<Trees> {
    let mut disk = None;
    let mut layers: Vec<Vec<Tree>> = plan.layers.iter().map(|_| Vec::new()).collect();
    let mut mounts = Vec::with_capacity(plan.mounts.len());
    let mut shown = Vec::new();
    let mut message = [0u8; 2];
    let mut sent = Vec::new();
    loop {
        if socket::receive(sync, &mut message, &mut sent)? == 0 {
            return Err(refuse(libc::ECONNABORTED, "the launcher went away"));
        }
        let (kind, index) = (message[0], usize::from(message[1]));
        if kind == GO {
            break;
        }
        let fd = sent.pop().ok_or_else(|| refuse(libc::EPROTO, "a tree is missing"))?;
        match (kind, layers.get_mut(index)) {
            (DISK, _) => disk = Some(fd),
            (MOUNT, _) => mounts.push(fd),
            (SHOWN, _) => shown.push(fd),
            (OWNED, Some(layer)) => layer.push(Tree { fd, foreign: false }),
            (FOREIGN, Some(layer)) => layer.push(Tree { fd, foreign: true }),
            _ => return Err(refuse(libc::EPROTO, "a tree belongs to nothing")),
        }
    }
    if disk.is_some() != plan.disk.is_some()
        || mounts.len() != plan.mounts.len()
        || layers.iter().any(Vec::is_empty)
        || shown.len() != plan.kernel.as_ref().map_or(0, |kernel| kernel.shown.len() + kernel.written.len())
    {
        return Err(refuse(libc::EPROTO, "a tree is missing"));
    }
    let template = fd::open("/", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let inside = |name: &str| fd::openat(template.as_raw_fd(), name, libc::O_PATH | libc::O_NOFOLLOW, 0);
    Ok(Trees {
        devices: inside("dev")?,
        empty: inside("empty")?,
        null: inside("null")?,
        template,
        disk,
        layers,
        mounts,
        shown,
    })
}

/// What the launcher says with a tree, and last of all without one.
pub const OWNED: u8 = 0;
pub const GO: u8 = 1;
pub const FOREIGN: u8 = 2;
pub const DISK: u8 = 3;
pub const MOUNT: u8 = 4;
pub const SHOWN: u8 = 5;

/// Lay out the bench: `root` is what the guest will see, `lower`, `upper` and `work` it never does.
pub fn build(plan: &Plan, trees: &Trees) -> io::Result<NewRoot> {
    mount::make_private()?;
    let point = fd::openat(trees.template.as_raw_fd(), "cell", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    match &trees.disk {
        Some(disk) => mount::attach(disk, &point),
        None => {
            let options = format!("size={},nr_inodes={},mode=0755", plan.disk_bytes, plan.inodes);
            mount_on(&point, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, &options)
        }
    }
    .map_err(|e| during(e, "mounting the disk"))?;
    // Opened again: the first descriptor names the directory below the mount.
    let bench = fd::openat(trees.template.as_raw_fd(), "cell", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let at = bench.as_raw_fd();
    for name in ["root", "lower", "upper", "work"] {
        make_directory(at, name.as_bytes()).map_err(|e| during(e, "laying out the disk"))?;
    }
    mount::fchdir(&bench)?;

    let whole = plan.layers.iter().position(|layer| layer.target.is_empty());
    match whole {
        Some(index) => overlay(plan, index, &trees.layers[index], None)?,
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
        let (layered, first) = (&trees.layers[index], &trees.layers[index][0]);
        if layer.writable && first.foreign && is_ours(trees, first)? {
            // Below an overlay its files would stay nobody's; as copies they are root's inside.
            let target = open_target(&root, &layer.target)?;
            copy_once(first, &target).map_err(|e| during(e, format!("copying {}", name_of(layer))))?;
        } else if layer.writable {
            overlay(plan, index, layered, Some(&root))?;
        } else {
            // Nobody inside may write here: the bare mount is the same, and its names are already
            // in the host's memory, where those of a fresh overlay are not.
            let target = open_target(&root, &layer.target)?;
            mount::attach(&first.fd, &target)
                .map_err(|e| during(e, format!("attaching {}", name_of(layer))))?;
        }
    }
    Ok(root)
}

fn name_of(layer: &Layer) -> String {
    layer.sources.last().map(|source| String::from_utf8_lossy(source).into_owned()).unwrap_or_default()
}

/// Whether a layer lies on the launcher's own tmpfs: what is there is small.
fn is_ours(trees: &Trees, tree: &Tree) -> io::Result<bool> {
    Ok(fd::fstat(&tree.fd)?.st_dev == fd::fstat(&trees.template)?.st_dev)
}

/// On a disk that is used again the copies are there, and may have been changed since.
fn copy_once(tree: &Tree, target: &OwnedFd) -> io::Result<()> {
    let there = fd::openat(target.as_raw_fd(), ".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    if mount::names(there, 1)?.is_empty() {
        copy_all(tree.fd.as_raw_fd(), target.as_raw_fd())?;
    }
    Ok(())
}

fn make_directory(at: RawFd, path: &[u8]) -> io::Result<()> {
    match mount::mkdirat(at, path, 0o755) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}

/// Mount one overlay: the layer's directories below, a directory on the sandbox's own disk above.
fn overlay(plan: &Plan, index: usize, trees: &[Tree], root: Option<&NewRoot>) -> io::Result<()> {
    let layer = &plan.layers[index];
    let words = || format!("layering {}", name_of(layer));
    let key = String::from_utf8_lossy(&layer.key);
    let (below, upper, work) = (format!("lower/{index}"), format!("upper/{key}"), format!("work/{key}"));
    if plan.disk.is_some() {
        // The kernel refuses a work directory that a crash left in use, and rightly: its content
        // is of no use to anybody.
        remove_all(libc::AT_FDCWD, work.as_bytes(), WORK_DEPTH).map_err(|e| during(e, words()))?;
    }
    for path in [&below, &upper, &work] {
        make_directory(libc::AT_FDCWD, path.as_bytes())?;
    }
    let mut lower = String::new();
    for (number, tree) in trees.iter().enumerate() {
        // Attached first: older kernels take no detached mount as a layer.
        let place = format!("{below}/{number}");
        make_directory(libc::AT_FDCWD, place.as_bytes())?;
        let point = fd::open(&place, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        mount::attach(&tree.fd, &point).map_err(|e| during(e, words()))?;
        lower.push_str(if lower.is_empty() { "" } else { ":" });
        lower.push_str(&place);
    }
    let target = match root {
        Some(root) => open_target(root, &layer.target)?,
        None => fd::open("root", libc::O_PATH | libc::O_DIRECTORY, 0)?,
    };
    let durable = plan.disk.as_ref().map_or(false, |disk| disk.durable);
    let volatile = if durable { "" } else { ",volatile" };
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work},userxattr{volatile}");
    mount_on(&target, "overlay", libc::MS_NOSUID | libc::MS_NODEV, &options).map_err(|e| during(e, words()))
}

/// The kernel's own leftovers in a work directory are no deeper than this.
const WORK_DEPTH: u32 = 8;

fn remove_all(at: RawFd, name: &[u8], depth: u32) -> io::Result<()> {
    match mount::unlinkat(at, name, false) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        other => return other,
    }
    if depth > 0 {
        let open = || fd::openat(at, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0);
        let dir = open()?;
        for child in mount::names(open()?, usize::MAX)? {
            remove_all(dir.as_raw_fd(), &child, depth - 1)?;
        }
    }
    mount::unlinkat(at, name, true)
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

/// Keep those that are written to, where the host has no view of them: a machine's volumes.
pub fn hold_volumes(plan: &Plan, trees: &Trees) -> io::Result<Vec<OwnedFd>> {
    let written =
        plan.mounts.iter().zip(&trees.mounts).filter(|(mount, _)| mount.write && plan.stream_transport);
    written.map(|(_, tree)| fd::dup_above(tree.as_raw_fd(), 0)).collect()
}

fn make_target(root: &NewRoot, path: &[u8], file: bool) -> io::Result<OwnedFd> {
    let at = root.fd.as_raw_fd();
    for end in path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(i, _)| i).chain([path.len()]) {
        let part = &path[..end];
        if file && end == path.len() {
            // One that is there is not opened for writing: it may be on what cannot be written, and
            // an overlay would copy it up.
            let there =
                mount::open_beneath(at, part, libc::O_PATH | libc::O_NOFOLLOW, 0, mount::Walk::NoLinks)
                    .and_then(|there| fd::fstat(&there));
            if matches!(there, Ok(stat) if stat.st_mode & libc::S_IFMT == libc::S_IFREG) {
                continue;
            }
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

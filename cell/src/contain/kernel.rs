//! A program in the guest's place: the root it is given, what it may do, and its execution.

use super::capabilities;
use super::posture::{expect, field, hex, map_text, read_small, repeat4, squeeze};
use super::root::{mount_on, open_target, NewRoot, Trees};
use super::step::{during, refuse};
use super::Inheritance;
use crate::plan::{Kernel, Plan, KVM_DEVICE};
use crate::sys::{cstring, fd, libc, mount, process};
use std::io;
use std::os::unix::io::AsRawFd;

/// A file in an otherwise empty /tmp, which the guest removes before anything runs: the other
/// kernel takes an empty one for its own memory, where nothing is counted and nothing is found.
pub const PLACEHOLDER: &[u8] = b".cloister";
/// What the program itself writes: its state, and places to mount on.
const OWN_BYTES: &str = "size=16m,nr_inodes=1024,mode=0755";
/// A directory with a file that is made for it, which the sandbox's own root may write over.
const MADE_BYTES: &str = "size=16k,nr_inodes=8,mode=0755";
const DIRECTORIES: &[&str] = &["root", "proc", "dev", "tmp", "state"];

/// Build the root of the program: itself, its files, the sandbox's root, devices, and nothing else.
pub fn lay_out(plan: &Plan, kernel: &Kernel, trees: &Trees, sandbox: &NewRoot) -> io::Result<NewRoot> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // The other kernel has devices of its own; places to mount on are made here and not on the disk.
    let dev = open_target(sandbox, b"dev")?;
    mount_on(&dev, "tmpfs", flags, "size=64k,nr_inodes=64,mode=0755")
        .map_err(|e| during(e, "covering /dev"))?;
    hold_tmp(plan, sandbox).map_err(|e| during(e, "holding /tmp"))?;

    let place = || fd::openat(trees.template.as_raw_fd(), "kernel", libc::O_PATH | libc::O_DIRECTORY, 0);
    mount_on(&place()?, "tmpfs", flags, OWN_BYTES)
        .map_err(|e| during(e, "mounting the kernel's own root"))?;
    let own = NewRoot { fd: place()? };
    let at = own.fd.as_raw_fd();
    for name in DIRECTORIES {
        mount::mkdirat(at, name.as_bytes(), 0o755)?;
    }
    let tree = mount::open_tree(sandbox.fd.as_raw_fd(), b"")?;
    mount::attach(&tree, &open_target(&own, b"root")?).map_err(|e| during(e, "attaching the root"))?;
    if kernel.shown.iter().any(|(name, _)| name == KVM_DEVICE) {
        own_devices(trees, &own).map_err(|e| during(e, "making /dev"))?;
    } else {
        let devices = mount::open_tree(trees.devices.as_raw_fd(), b"")?;
        mount::set_attributes(&devices, mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NOEXEC, None)?;
        mount::attach(&devices, &open_target(&own, b"dev")?).map_err(|e| during(e, "attaching /dev"))?;
    }
    for ((name, _), tree) in kernel.shown.iter().zip(&trees.shown) {
        if fd::fstat(tree)?.st_mode & libc::S_IFMT == libc::S_IFDIR {
            mount::mkdirat(at, name, 0o755)?;
        } else {
            drop(fd::openat(at, name, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o555)?);
        }
        mount::attach(tree, &open_target(&own, name)?).map_err(|e| during(e, "attaching a program"))?;
    }
    for ((name, _), tree) in kernel.written.iter().zip(&trees.shown[kernel.shown.len()..]) {
        mount::mkdirat(at, name, 0o755)?;
        mount::attach(tree, &open_target(&own, name)?).map_err(|e| during(e, "attaching a directory"))?;
    }
    for (name, content) in &kernel.made {
        let end = name.iter().position(|byte| *byte == b'/');
        if let Some(end) = end {
            mount::mkdirat(at, &name[..end], 0o755)?;
            mount_on(&open_target(&own, &name[..end])?, "tmpfs", flags, MADE_BYTES)
                .map_err(|e| during(e, "mounting a directory that is made"))?;
        }
        let mode = if end.is_some() { 0o644 } else { 0o444 };
        let file = fd::openat(at, name, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, mode)?;
        fd::write_all(file.as_raw_fd(), content)?;
    }
    Ok(own)
}

/// Those of everybody that a program needs, in a directory in which it can be shown one more.
fn own_devices(trees: &Trees, own: &NewRoot) -> io::Result<()> {
    for name in ["null", "zero", "random", "urandom"] {
        let place = format!("dev/{name}");
        let point =
            fd::openat(own.fd.as_raw_fd(), &place, libc::O_CREAT | libc::O_EXCL | libc::O_RDONLY, 0o400)?;
        let device = fd::openat(trees.devices.as_raw_fd(), name, libc::O_PATH, 0)?;
        let tree = mount::open_tree(device.as_raw_fd(), b"")?;
        mount::set_attributes(&tree, mount::ATTR_NOSUID | mount::ATTR_NOEXEC, None)?;
        mount::attach(&tree, &point)?;
    }
    Ok(())
}

fn hold_tmp(plan: &Plan, sandbox: &NewRoot) -> io::Result<()> {
    // Where it is a link, or something is mounted there, it is not what is meant.
    if plan.mounts.iter().any(|mount| mount.target == b"tmp") {
        return Ok(());
    }
    let tmp = match open_target(sandbox, b"tmp") {
        Ok(tmp) if fd::fstat(&tmp)?.st_mode & libc::S_IFMT == libc::S_IFDIR => tmp,
        _ => return Ok(()),
    };
    let there = fd::openat(tmp.as_raw_fd(), ".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    if mount::names(there, 1)?.is_empty() {
        drop(fd::openat(tmp.as_raw_fd(), PLACEHOLDER, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o400)?);
    }
    Ok(())
}

/// Whole: the program mounts one of its own, which the kernel allows only where nothing is covered.
/// Nobody but the program sees it.
pub fn mount_proc(own: &NewRoot) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount_on(&open_target(own, b"proc")?, "proc", flags, "").map_err(|e| during(e, "mounting /proc"))
}

/// As the root of its user namespace the program has, once executed, what the bounding set leaves.
pub fn keep_capabilities(kernel: &Kernel) -> io::Result<()> {
    capabilities::keep(kernel.capabilities, kernel.capabilities)
}

/// Read back what holds for the program and everything it starts.
pub fn verify(plan: &Plan, kernel: &Kernel) -> io::Result<()> {
    let status = read_small("/proc/self/status")?;
    let field = |name: &str| field(&status, name);
    expect("pid", process::getpid().to_string(), "1")?;
    expect("Uid", field("Uid"), &repeat4(plan.init_uid))?;
    expect("Gid", field("Gid"), &repeat4(plan.init_gid))?;
    expect("NoNewPrivs", field("NoNewPrivs"), "1")?;
    expect("CapBnd", field("CapBnd"), &hex(kernel.capabilities))?;
    expect("CapAmb", field("CapAmb"), &hex(0))?;
    expect("uid_map", squeeze(&read_small("/proc/self/uid_map")?), &map_text(&plan.uid_map))?;
    expect("gid_map", squeeze(&read_small("/proc/self/gid_map")?), &map_text(&plan.gid_map))
}

/// Returns only the reason it could not. The connection becomes its standard input, and that of the
/// guest in it.
pub fn execute(kernel: &Kernel, held: &Inheritance) -> io::Error {
    match prepare(kernel, held) {
        Ok((argv, env)) => during(process::execve(&argv[0], &argv, &env), "executing the kernel"),
        Err(error) => error,
    }
}

type Words = Vec<std::ffi::CString>;

fn prepare(kernel: &Kernel, held: &Inheritance) -> io::Result<(Words, Words)> {
    let log =
        held.log.as_ref().ok_or_else(|| refuse(libc::EBADF, "a kernel of its own has nowhere to report"))?;
    // Lifted out of the way first: one may have the number of another's target.
    let lifted = [
        fd::dup_above(held.control.as_raw_fd(), 3)?,
        fd::open("/dev/null", libc::O_WRONLY, 0).and_then(|null| fd::dup_above(null.as_raw_fd(), 3))?,
        fd::dup_above(log.as_raw_fd(), 3)?,
    ];
    // The word to the launcher is close-on-exec, and must not be among those that are replaced.
    if held.sync < 3 {
        return Err(refuse(libc::EBADF, "the launcher's end has a number of a standard stream"));
    }
    for (number, stream) in lifted.iter().enumerate() {
        fd::dup_to(stream.as_raw_fd(), number as i32)?;
    }
    process::unblock_signals()?;
    let argv = kernel.argv.iter().map(cstring).collect::<io::Result<Vec<_>>>()?;
    Ok((argv, vec![cstring("PATH=/")?]))
}

//! What all sandboxes of this launcher share, read-only, on a tmpfs that only the launcher's own
//! mount namespace has: six devices, an empty directory, and the public part of /etc.

use super::message::{Configuration, Ids};
use crate::contain::copy::{copy, make_parents};
use crate::contain::step::during;
use crate::sys::{fd, libc, mount};
use std::io;
use std::os::unix::io::AsRawFd;

/// Name and minor number; null to urandom have major 1, the terminal of a process has 5.
const DEVICES: &[(&str, u32, u32)] =
    &[("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const LINKS: &[(&str, &str)] = &[
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
    ("pts/ptmx", "dev/ptmx"),
];

/// Any setting of the kernel's that root may write.
const A_SETTING: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// The one device that a kernel of its own may be shown.
pub const KVM: libc::dev_t = libc::makedev(10, 232);

pub fn build(configuration: &Configuration) -> io::Result<()> {
    mount::make_slave()?;
    if matches!(configuration.ids, Ids::Root) {
        uncover_proc().map_err(|e| during(e, "a /proc of the launcher's own"))?;
    }
    let options = b"size=64m,mode=0755";
    mount::mount("tmpfs", &configuration.directory, "tmpfs", libc::MS_NOSUID, options)
        .map_err(|e| during(e, "mounting the launcher's own tmpfs"))?;
    let base = fd::open(&configuration.directory, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let at = base.as_raw_fd();
    for name in ["dev", "dev/pts", "dev/shm", "empty", "cell", "kernel", "etc", "proc"] {
        mount::mkdirat(at, name.as_bytes(), 0o755)?;
    }
    for (name, major, minor) in DEVICES {
        device(at, name, *major, *minor).map_err(|e| during(e, format!("/dev/{name}")))?;
    }
    processor(at).map_err(|e| during(e, "/dev/kvm"))?;
    for (target, name) in LINKS {
        mount::symlinkat(target.as_bytes(), at, name.as_bytes())?;
    }
    cover(at, "empty", "empty")?;
    drop(fd::openat(at, "null", libc::O_CREAT | libc::O_RDONLY, 0o444)?);
    cover(at, "dev/null", "null")?;
    let etc = fd::openat(at, "etc", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let host = fd::open("/etc", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    for name in &configuration.etc {
        copy(host.as_raw_fd(), etc.as_raw_fd(), name)
            .map_err(|e| during(e, format!("copying /etc/{}", String::from_utf8_lossy(name))))?;
    }
    for file in &configuration.files {
        write(etc.as_raw_fd(), &file.path, file.mode, &file.content)?;
    }
    Ok(())
}

/// In a container parts of /proc are covered and its settings read-only, and then the kernel lets no
/// user namespace mount one. Root may have a whole one, in a mount namespace nobody else is in.
fn uncover_proc() -> io::Result<()> {
    match fd::open(A_SETTING, libc::O_WRONLY, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EROFS) => {
            mount::mount("proc", b"/proc", "proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, b"")
        }
        _ => Ok(()),
    }
}

/// A device of our own where we may make one; otherwise the host's, mounted over a file.
fn device(at: i32, name: &str, major: u32, minor: u32) -> io::Result<()> {
    let path = format!("dev/{name}");
    match mount::make_device(at, path.as_bytes(), 0o666, libc::makedev(major, minor)) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        other => return other,
    }
    let point = fd::openat(at, &path, libc::O_CREAT | libc::O_RDONLY, 0o666)?;
    mount::attach(&mount::open_tree(libc::AT_FDCWD, format!("/dev/{name}").as_bytes())?, &point)
}

/// Where machines find the processor's own help, beside the devices and not among them: no sandbox is
/// shown it, a machine only where its plan says so. A host without has an empty file there.
fn processor(at: i32) -> io::Result<()> {
    let number = match fd::open("/dev/kvm", libc::O_PATH, 0).and_then(|host| fd::fstat(&host)) {
        Ok(stat) if stat.st_mode & libc::S_IFMT == libc::S_IFCHR => stat.st_rdev,
        _ => 0,
    };
    if number == KVM {
        match mount::make_device(at, b"kvm", 0o666, number) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            other => return other,
        }
    }
    let point = fd::openat(at, "kvm", libc::O_CREAT | libc::O_RDONLY, 0o400)?;
    if number == KVM {
        // Where that is not allowed a machine finds a plain file, and is emulated.
        let host = mount::open_tree(libc::AT_FDCWD, b"/dev/kvm");
        drop(host.and_then(|host| mount::attach(&host, &point)));
    }
    Ok(())
}

/// Something to mask with: mounted read-only here, once, for all the copies made of it.
fn cover(at: i32, source: &str, target: &str) -> io::Result<()> {
    let place = fd::openat(at, source, libc::O_PATH, 0)?;
    let tree = mount::open_tree(place.as_raw_fd(), b"")?;
    mount::set_attributes(&tree, mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NOEXEC, None)?;
    mount::attach(&tree, &fd::openat(at, target, libc::O_PATH, 0)?)
}

fn write(to: i32, path: &[u8], mode: u32, content: &[u8]) -> io::Result<()> {
    make_parents(to, path)?;
    match mount::unlinkat(to, path, false) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        other => other?,
    }
    let file = fd::openat(to, path, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, mode)?;
    fd::write_all(file.as_raw_fd(), content)
}

//! Mounts and directory trees, by descriptor wherever the kernel allows it.

use super::fd::{self, from_raw};
use super::{check, cstring};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

pub const ATTR_RDONLY: u64 = 0x1;
pub const ATTR_NOSUID: u64 = 0x2;
pub const ATTR_NODEV: u64 = 0x4;
pub const ATTR_NOEXEC: u64 = 0x8;
const ATTR_IDMAP: u64 = 0x0010_0000;

const OPEN_TREE_CLONE: u32 = 1;
const AT_RECURSIVE: u32 = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 0x4;

const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
const RESOLVE_NO_SYMLINKS: u64 = 0x04;
const RESOLVE_IN_ROOT: u64 = 0x10;

/// How a path given by a plan may be walked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// Inside the new root: never above it, no magic links, symbolic links resolved inside.
    InRoot,
    /// The same, and a symbolic link anywhere is an error: what is mounted on must be real.
    NoLinks,
}

/// openat2 relative to `root`.
pub fn open_beneath(root: RawFd, path: &[u8], flags: i32, mode: u32, walk: Walk) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct OpenHow {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
    let mut resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    if walk == Walk::NoLinks {
        resolve |= RESOLVE_NO_SYMLINKS;
    }
    let how = OpenHow { flags: (flags | libc::O_CLOEXEC) as u32 as u64, mode: mode.into(), resolve };
    let path = cstring(path)?;
    // SAFETY: the kernel reads one NUL-terminated path and one open_how of the stated size.
    check(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root,
            path.as_ptr(),
            &how as *const OpenHow,
            std::mem::size_of::<OpenHow>(),
        )
    })
    .map(from_raw)
}

pub fn mount(source: &str, target: &[u8], kind: &str, flags: u64, options: &[u8]) -> io::Result<()> {
    let (source, target, kind, options) =
        (cstring(source)?, cstring(target)?, cstring(kind)?, cstring(options)?);
    // SAFETY: four NUL-terminated strings that outlive the call.
    check(unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    } as libc::c_long)?;
    Ok(())
}

/// Mounts made here stay here, and mounts made outside do not come in.
pub fn make_private() -> io::Result<()> {
    propagate(libc::MS_PRIVATE)
}

/// Mounts made here stay here; those that the host shares go on coming in, and going.
pub fn make_slave() -> io::Result<()> {
    propagate(libc::MS_SLAVE)
}

fn propagate(how: u64) -> io::Result<()> {
    let root = cstring("/")?;
    // SAFETY: changes propagation flags only.
    check(unsafe {
        libc::mount(std::ptr::null(), root.as_ptr(), std::ptr::null(), libc::MS_REC | how, std::ptr::null())
    } as libc::c_long)?;
    Ok(())
}

/// A detached copy of the mount tree at a path, with everything mounted below it.
pub fn open_tree(dir: RawFd, path: &[u8]) -> io::Result<OwnedFd> {
    let path = cstring(path)?;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | AT_RECURSIVE | libc::AT_EMPTY_PATH as u32;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    check(unsafe { libc::syscall(libc::SYS_open_tree, dir, path.as_ptr(), flags) }).map(from_raw)
}

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Set flags on a mount tree and everything below it, optionally mapping its owners.
///
/// From then on it is on its own: a copy of a shared mount is shared too, and what is mounted in
/// either would be in both.
pub fn set_attributes(tree: &impl AsRawFd, set: u64, idmap: Option<RawFd>) -> io::Result<()> {
    let mut attr = MountAttr { attr_set: set, propagation: libc::MS_PRIVATE, ..MountAttr::default() };
    if let Some(userns) = idmap {
        attr.attr_set |= ATTR_IDMAP;
        attr.userns_fd = userns as u64;
    }
    let empty = cstring("")?;
    // SAFETY: the kernel reads one mount_attr of the stated size.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            empty.as_ptr(),
            libc::AT_EMPTY_PATH as u32 | AT_RECURSIVE,
            &attr as *const MountAttr,
            std::mem::size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Attach a detached tree onto an open directory or file.
pub fn attach(tree: &impl AsRawFd, target: &impl AsRawFd) -> io::Result<()> {
    const MOVE_MOUNT_T_EMPTY_PATH: u32 = 0x40;
    let empty = cstring("")?;
    // SAFETY: two empty NUL-terminated paths; the descriptors name both ends.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            empty.as_ptr(),
            target.as_raw_fd(),
            empty.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// Make the current directory the root and detach the old one: after this no host path exists.
pub fn pivot_here() -> io::Result<()> {
    let here = cstring(".")?;
    // SAFETY: NUL-terminated paths. With both arguments ".", the old root is stacked on the new.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, here.as_ptr(), here.as_ptr()) })?;
    // SAFETY: detaches the stacked old root.
    check(unsafe { libc::umount2(here.as_ptr(), libc::MNT_DETACH) } as libc::c_long)?;
    Ok(())
}

pub fn fchdir(fd: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: an open directory.
    check(unsafe { libc::fchdir(fd.as_raw_fd()) } as libc::c_long)?;
    Ok(())
}

pub fn mkdirat(dir: RawFd, path: &[u8], mode: u32) -> io::Result<()> {
    let path = cstring(path)?;
    // SAFETY: NUL-terminated path.
    check(unsafe { libc::mkdirat(dir, path.as_ptr(), mode) } as libc::c_long)?;
    Ok(())
}

pub fn symlinkat(target: &[u8], dir: RawFd, path: &[u8]) -> io::Result<()> {
    let (target, path) = (cstring(target)?, cstring(path)?);
    // SAFETY: NUL-terminated paths.
    check(unsafe { libc::symlinkat(target.as_ptr(), dir, path.as_ptr()) } as libc::c_long)?;
    Ok(())
}

pub fn readlinkat(dir: RawFd, path: &[u8]) -> io::Result<Vec<u8>> {
    let path = cstring(path)?;
    let mut buffer = vec![0u8; 4096];
    // SAFETY: the kernel writes at most `buffer.len()` bytes.
    let n = check(unsafe { libc::readlinkat(dir, path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) }
        as libc::c_long)?;
    buffer.truncate(n as usize);
    Ok(buffer)
}

pub fn lchownat(dir: RawFd, path: &[u8], uid: u32, gid: u32) -> io::Result<()> {
    let path = cstring(path)?;
    // SAFETY: NUL-terminated path; a link is changed itself, not followed.
    check(unsafe { libc::fchownat(dir, path.as_ptr(), uid, gid, libc::AT_SYMLINK_NOFOLLOW) } as libc::c_long)?;
    Ok(())
}

pub fn fchown(fd: &impl AsRawFd, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain integers on an open descriptor.
    check(unsafe { libc::fchown(fd.as_raw_fd(), uid, gid) } as libc::c_long)?;
    Ok(())
}

pub fn fchmod(fd: &impl AsRawFd, mode: u32) -> io::Result<()> {
    // SAFETY: plain integers on an open descriptor.
    check(unsafe { libc::fchmod(fd.as_raw_fd(), mode) } as libc::c_long)?;
    Ok(())
}

pub fn lstatat(dir: RawFd, path: &[u8]) -> io::Result<libc::stat> {
    statat(dir, path, libc::AT_SYMLINK_NOFOLLOW)
}

/// Open the directory that has this name, and none that a link of this name leads to.
///
/// gVisor follows a link where a directory is asked for, whatever else is said (a release of 2022): so
/// what was opened is compared with what has the name.
pub fn open_directory(dir: RawFd, path: &[u8]) -> io::Result<OwnedFd> {
    let opened = fd::openat(dir, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)?;
    let (found, named) = (fd::fstat(&opened)?, lstatat(dir, path)?);
    if (found.st_dev, found.st_ino) != (named.st_dev, named.st_ino) {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    Ok(opened)
}

/// Whether there is anything of this name; a link counts, wherever it leads.
pub fn exists(path: &[u8]) -> io::Result<bool> {
    match lstatat(libc::AT_FDCWD, path) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

pub fn statat(dir: RawFd, path: &[u8], flags: i32) -> io::Result<libc::stat> {
    let path = cstring(path)?;
    // SAFETY: an all-zero stat is valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads a NUL-terminated path and writes one stat.
    check(unsafe { libc::fstatat(dir, path.as_ptr(), &mut stat, flags) } as libc::c_long)?;
    Ok(stat)
}

pub fn unlinkat(dir: RawFd, path: &[u8], directory: bool) -> io::Result<()> {
    let path = cstring(path)?;
    let flags = if directory { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: NUL-terminated path.
    check(unsafe { libc::unlinkat(dir, path.as_ptr(), flags) } as libc::c_long)?;
    Ok(())
}

pub fn renameat(from_dir: RawFd, from: &[u8], to_dir: RawFd, to: &[u8], replace: bool) -> io::Result<()> {
    const RENAME_NOREPLACE: u32 = 1;
    let (from, to) = (cstring(from)?, cstring(to)?);
    let flags = if replace { 0 } else { RENAME_NOREPLACE };
    // SAFETY: NUL-terminated paths.
    check(unsafe {
        libc::syscall(libc::SYS_renameat2, from_dir, from.as_ptr(), to_dir, to.as_ptr(), flags)
    })?;
    Ok(())
}

/// Free and total blocks and inodes: (block size, blocks, free blocks, inodes, free inodes).
pub fn space(path: &[u8]) -> io::Result<[u64; 5]> {
    let path = cstring(path)?;
    // SAFETY: an all-zero statfs is valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads a NUL-terminated path and writes one statfs.
    check(unsafe { libc::statfs(path.as_ptr(), &mut stat) } as libc::c_long)?;
    Ok([stat.f_bsize as u64, stat.f_blocks, stat.f_bfree, stat.f_files, stat.f_ffree])
}

/// The same of where a directory is, with the blocks that a program can still take.
pub fn space_in(dir: &OwnedFd) -> io::Result<[u64; 5]> {
    // SAFETY: an all-zero statfs is valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one statfs.
    check(unsafe { libc::fstatfs(dir.as_raw_fd(), &mut stat) } as libc::c_long)?;
    Ok([stat.f_bsize as u64, stat.f_blocks, stat.f_bavail, stat.f_files, stat.f_ffree])
}

/// How many blocks a program can still take: a filesystem may hold some back for itself.
pub fn available(path: &[u8]) -> io::Result<u64> {
    let path = cstring(path)?;
    // SAFETY: an all-zero statfs is valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads a NUL-terminated path and writes one statfs.
    check(unsafe { libc::statfs(path.as_ptr(), &mut stat) } as libc::c_long)?;
    Ok(stat.f_bavail)
}

/// Modification time, in nanoseconds, of the object itself (a link is not followed).
pub fn set_times(dir: RawFd, path: &[u8], mtime_ns: i64) -> io::Result<()> {
    let path = cstring(path)?;
    let time = libc::timespec {
        tv_sec: mtime_ns.div_euclid(1_000_000_000),
        tv_nsec: mtime_ns.rem_euclid(1_000_000_000),
    };
    let times = [time, time];
    // SAFETY: the kernel reads a NUL-terminated path and two timespecs.
    check(unsafe { libc::utimensat(dir, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) }
        as libc::c_long)?;
    Ok(())
}

/// The names in an open directory, raw bytes, without "." and "..", at most `limit` of them.
pub fn names(dir: OwnedFd, limit: usize) -> io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for_each_name(dir, |name| {
        found.push(name.to_vec());
        Ok(found.len() < limit)
    })?;
    Ok(found)
}

/// Call `visit` for each name until it answers false.
pub fn for_each_name(dir: OwnedFd, mut visit: impl FnMut(&[u8]) -> io::Result<bool>) -> io::Result<()> {
    let mut buffer = vec![0u8; 32 * 1024];
    loop {
        // SAFETY: the kernel writes at most `buffer.len()` bytes.
        let n = check(unsafe {
            libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), buffer.len())
        })? as usize;
        if n == 0 {
            return Ok(());
        }
        let mut at = 0;
        while at + 19 <= n {
            let length = usize::from(u16::from_ne_bytes([buffer[at + 16], buffer[at + 17]]));
            if length < 19 || at + length > n {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            let raw = &buffer[at + 19..at + length];
            let name = raw.split(|byte| *byte == 0).next().unwrap_or(raw);
            if name != b"." && name != b".." && !visit(name)? {
                return Ok(());
            }
            at += length;
        }
    }
}

pub fn inotify() -> io::Result<OwnedFd> {
    // SAFETY: creates a descriptor.
    check(unsafe { libc::inotify_init1(libc::IN_CLOEXEC) } as libc::c_long).map(from_raw)
}

pub fn inotify_add(fd: &impl AsRawFd, path: &[u8], mask: u32) -> io::Result<i32> {
    let path = cstring(path)?;
    // SAFETY: NUL-terminated path.
    check(unsafe { libc::inotify_add_watch(fd.as_raw_fd(), path.as_ptr(), mask) } as libc::c_long)
        .map(|wd| wd as i32)
}

pub fn chmodat(dir: RawFd, path: &[u8], mode: u32) -> io::Result<()> {
    let path = cstring(path)?;
    // SAFETY: NUL-terminated path.
    check(unsafe { libc::fchmodat(dir, path.as_ptr(), mode, 0) } as libc::c_long)?;
    Ok(())
}

/// A character device; the mode is as given, whatever the umask.
pub fn make_device(dir: RawFd, path: &[u8], mode: u32, device: u64) -> io::Result<()> {
    let name = cstring(path)?;
    // SAFETY: NUL-terminated path.
    check(unsafe { libc::mknodat(dir, name.as_ptr(), libc::S_IFCHR | mode, device) } as libc::c_long)?;
    chmodat(dir, path, mode)
}

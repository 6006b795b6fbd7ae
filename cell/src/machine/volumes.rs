//! Volumes: disks that outlive the machine, and that other machines had before.

use super::device;
use crate::sys::{libc, mount};
use std::io;

/// The part of a volume's disk that is shown, as the tree of a volume that is a directory has it.
pub const TREE: &[u8] = b"bench";

pub fn place(index: usize) -> String {
    format!("/volumes/{index}")
}

/// Mount each, with a journal that is replayed here and nowhere else. Whether a sandbox may write to one is
/// for its own plan: what is on it then is a copy.
pub fn mount_all(first: usize, count: usize) -> io::Result<()> {
    (0..count).try_for_each(|index| {
        mount_one(first + index, &place(index))
            .map_err(|error| io::Error::new(error.kind(), format!("a volume cannot be mounted: {error}")))
    })
}

fn mount_one(number: usize, place: &str) -> io::Result<()> {
    mount::mkdirat(libc::AT_FDCWD, place.as_bytes(), 0o755)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    mount::mount(&device(number), place.as_bytes(), "ext4", flags, b"noinit_itable,commit=1")?;
    let tree = [place.as_bytes(), b"/", TREE].concat();
    match mount::mkdirat(libc::AT_FDCWD, &tree, 0o755) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        Err(error) => Err(error),
        // A new one: whose it is to be is written at its top.
        Ok(()) => {
            let owner = mount::lstatat(libc::AT_FDCWD, place.as_bytes())?;
            mount::lchownat(libc::AT_FDCWD, &tree, owner.st_uid, owner.st_gid)
        }
    }
}

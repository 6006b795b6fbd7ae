//! The only place with `unsafe`: thin wrappers that turn a system call into a `Result`.
//!
//! Nothing here decides anything. A wrapper takes owned or borrowed descriptors and checked
//! strings, makes one call, and reports the kernel's answer.

pub mod fd;
pub mod kept;
pub mod layer;
pub mod machine;
pub mod mount;
pub mod netlink;
pub mod own_memory;
pub mod process;
mod raw;
pub mod shared;
pub mod socket;
pub mod wall;

use std::ffi::CString;
use std::io;

pub use libc;

/// Turn the kernel's -1 into the error it left in errno.
pub(crate) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A path or name for the kernel. Refuses an embedded NUL instead of cutting at it.
pub fn cstring(bytes: impl AsRef<[u8]>) -> io::Result<CString> {
    CString::new(bytes.as_ref()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

pub fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

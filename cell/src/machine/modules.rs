//! The kernel's modules that lie in the first root, loaded in the order of their names.

use crate::sys::{fd, libc, machine, mount};
use std::io;
use std::os::unix::io::AsRawFd;

/// Read them while the root that they came in is there.
pub fn read_all(directory: &str) -> io::Result<Vec<Vec<u8>>> {
    let dir = || fd::open(directory, libc::O_RDONLY | libc::O_DIRECTORY, 0);
    let at = dir()?;
    let mut names = mount::names(dir()?, MOST)?;
    names.sort();
    names.iter().map(|name| read(&fd::openat(at.as_raw_fd(), name, libc::O_RDONLY, 0)?)).collect()
}

fn read(file: &impl AsRawFd) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut part = vec![0u8; 256 * 1024];
    loop {
        match fd::read(file.as_raw_fd(), &mut part)? {
            0 => return Ok(content),
            n => content.extend_from_slice(&part[..n]),
        }
    }
}

pub fn load(modules: &[Vec<u8>]) -> io::Result<()> {
    for module in modules {
        match machine::load_module(module) {
            // Part of this kernel already.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            other => other?,
        }
    }
    Ok(())
}

const MOST: usize = 64;

//! The network of the next sandbox, made before it is asked for: a loopback and nothing else.
//!
//! The launcher lives in it until a sandbox is cloned from it there. It belongs to the launcher's
//! user namespace, not to the sandbox's: no capability inside reaches it.

use crate::contain::step::during;
use crate::sys::{fd, libc, socket, wall};
use std::io;
use std::os::unix::io::AsRawFd;

/// Ports below 1024 need a capability over the network namespace, which nobody inside has: here
/// they are as good as any other.
const ANY_PORT: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

pub fn enter_fresh() -> io::Result<()> {
    wall::unshare(libc::CLONE_NEWNET).map_err(|e| during(e, "a network namespace"))?;
    socket::raise_loopback().map_err(|e| during(e, "raising the loopback"))?;
    let port =
        fd::open(ANY_PORT, libc::O_WRONLY, 0).map_err(|e| during(e, "opening the lowest free port"))?;
    fd::write_all(port.as_raw_fd(), b"0")
}

//! Unix sockets that carry descriptors, and the loopback connections of `dial`.

use super::check;
use super::fd::from_raw;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

/// Descriptors accepted with one message; more than this is truncated by the kernel and refused.
pub const MAX_FDS: usize = 8;

pub fn pair(kind: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the kernel fills the two-element array.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) }
        as libc::c_long)?;
    Ok((from_raw(fds[0].into()), from_raw(fds[1].into())))
}

#[repr(C, align(8))]
struct Control([u8; 64]);

/// Send bytes, and descriptors with their first byte.
pub fn send(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    if fds.len() > MAX_FDS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is valid; every pointer set below outlives the call.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let payload = std::mem::size_of_val(fds) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE is arithmetic; 8 descriptors need 48 of the 64 bytes.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as _;
        // SAFETY: the control buffer is aligned and large enough for the one header and its data.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
            std::ptr::copy_nonoverlapping(
                fds.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                payload as usize,
            );
        }
    }
    loop {
        // SAFETY: `message` and all it points to are alive; MSG_NOSIGNAL keeps SIGPIPE away.
        let n = unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL) };
        match check(n as libc::c_long) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            other => return other.map(|n| n as usize),
        }
    }
}

/// Receive bytes and any descriptors that came with them. Truncation of either is an error.
pub fn receive(socket: RawFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: an all-zero msghdr is valid; every pointer set below outlives the call.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    let n = loop {
        // SAFETY: the kernel writes into `buffer` and `control` within the stated lengths.
        let n = unsafe { libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC) };
        match check(n as libc::c_long) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
            other => break other? as usize,
        }
    };
    // SAFETY: the kernel has written well-formed control messages of msg_controllen bytes.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / std::mem::size_of::<RawFd>() {
                    fds.push(from_raw(libc::c_long::from(data.add(index).read_unaligned())));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    if message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    Ok(n)
}

/// Begin a connection to a port of the loopback; finished or failed when writable.
pub fn connect_loopback(port: u16) -> io::Result<OwnedFd> {
    // SAFETY: creates a descriptor.
    let socket = check(unsafe {
        libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    } as libc::c_long)
    .map(from_raw)?;
    let address = loopback(port);
    // SAFETY: the kernel reads one sockaddr_in of the stated size.
    let result = check(unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&address as *const libc::sockaddr_in).cast(),
            std::mem::size_of::<libc::sockaddr_in>() as u32,
        )
    } as libc::c_long);
    match result {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// A listening socket on the loopback; port 0 is any that is free.
pub fn listen_loopback(port: u16) -> io::Result<OwnedFd> {
    let socket = bound_loopback(libc::SOCK_STREAM, port)?;
    // SAFETY: marks a bound socket as listening.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } as libc::c_long)?;
    Ok(socket)
}

pub fn datagram_loopback(port: u16) -> io::Result<OwnedFd> {
    bound_loopback(libc::SOCK_DGRAM, port)
}

/// A socket that is handed a copy of every datagram of IPv4 that this network delivers, header and all.
pub fn all_datagrams() -> io::Result<OwnedFd> {
    let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: creates a descriptor.
    check(unsafe { libc::socket(libc::AF_INET, flags, libc::IPPROTO_UDP) } as libc::c_long).map(from_raw)
}

/// Connections that wait to be taken; the kernel's own most is net.core.somaxconn.
const BACKLOG: i32 = 4096;

fn bound_loopback(kind: i32, port: u16) -> io::Result<OwnedFd> {
    let flags = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: creates a descriptor.
    let socket = check(unsafe { libc::socket(libc::AF_INET, flags, 0) } as libc::c_long).map(from_raw)?;
    let address = loopback(port);
    // SAFETY: the kernel reads one sockaddr_in of the stated size.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&address as *const libc::sockaddr_in).cast(),
            std::mem::size_of::<libc::sockaddr_in>() as u32,
        )
    } as libc::c_long)?;
    Ok(socket)
}

/// The port a socket is bound to.
pub fn port(socket: &impl AsRawFd) -> io::Result<u16> {
    let mut address = loopback(0);
    let mut length = std::mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: the kernel writes at most one sockaddr_in.
    check(unsafe {
        libc::getsockname(socket.as_raw_fd(), (&mut address as *mut libc::sockaddr_in).cast(), &mut length)
    } as libc::c_long)?;
    Ok(u16::from_be(address.sin_port))
}

fn loopback(port: u16) -> libc::sockaddr_in {
    // SAFETY: an all-zero sockaddr_in is valid.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as u16;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
    address
}

/// The outcome of a connection that was in progress.
pub fn connect_outcome(socket: &impl AsRawFd) -> io::Result<()> {
    let mut error: libc::c_int = 0;
    let mut length = std::mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes one int.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&mut error as *mut libc::c_int).cast(),
            &mut length,
        )
    } as libc::c_long)?;
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(())
}

pub fn shutdown_write(socket: RawFd) -> io::Result<()> {
    // SAFETY: half-closes a connected socket.
    check(unsafe { libc::shutdown(socket, libc::SHUT_WR) } as libc::c_long)?;
    Ok(())
}

/// Bring the loopback of a fresh network namespace up.
pub fn raise_loopback() -> io::Result<()> {
    // SAFETY: creates a descriptor.
    let socket = check(
        unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) } as libc::c_long
    )
    .map(from_raw)?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) } as libc::c_long)?;
    Ok(())
}

/// Who sent a datagram.
pub struct Peer(libc::sockaddr_in);

pub fn accept(listening: &impl AsRawFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: creates a descriptor; the address is not asked for.
    let taken =
        unsafe { libc::accept4(listening.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    check(taken as libc::c_long).map(from_raw)
}

/// Where a connection that was led here was meant to go.
pub fn original_destination(socket: &impl AsRawFd) -> io::Result<(u32, u16)> {
    const SO_ORIGINAL_DST: libc::c_int = 80;
    let mut address = loopback(0);
    let mut length = std::mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: the kernel writes at most one sockaddr_in.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_IP,
            SO_ORIGINAL_DST,
            (&mut address as *mut libc::sockaddr_in).cast(),
            &mut length,
        )
    } as libc::c_long)?;
    Ok((u32::from_be(address.sin_addr.s_addr), u16::from_be(address.sin_port)))
}

pub fn receive_from(socket: &impl AsRawFd, buffer: &mut [u8]) -> io::Result<(usize, Peer)> {
    let mut peer = Peer(loopback(0));
    let mut length = std::mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: the kernel writes into the buffer, and at most one sockaddr_in.
    let count = check(unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            0,
            (&mut peer.0 as *mut libc::sockaddr_in).cast(),
            &mut length,
        )
    } as libc::c_long)?;
    Ok((count as usize, peer))
}

pub fn send_to(socket: &impl AsRawFd, bytes: &[u8], peer: &Peer) -> io::Result<()> {
    // SAFETY: the kernel reads the bytes, and one sockaddr_in of the stated size.
    check(unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
            (&peer.0 as *const libc::sockaddr_in).cast(),
            std::mem::size_of::<libc::sockaddr_in>() as u32,
        )
    } as libc::c_long)?;
    Ok(())
}

/// Begin to connect; whoever has the socket waits for what comes of it.
pub fn connect_to(address: u32, port: u16) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: creates a descriptor.
    let socket = check(unsafe { libc::socket(libc::AF_INET, flags, 0) } as libc::c_long).map(from_raw)?;
    let mut target = loopback(port);
    target.sin_addr.s_addr = address.to_be();
    // SAFETY: the kernel reads one sockaddr_in of the stated size.
    let begun = check(unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&target as *const libc::sockaddr_in).cast(),
            std::mem::size_of::<libc::sockaddr_in>() as u32,
        )
    } as libc::c_long);
    match begun {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        other => other.map(|_| socket),
    }
}

/// Let closing a connection be a reset: it was cut, and has not ended.
pub fn reset_when_closed(socket: &impl AsRawFd) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the kernel reads one linger.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&linger as *const libc::linger).cast(),
            std::mem::size_of::<libc::linger>() as u32,
        )
    } as libc::c_long)?;
    Ok(())
}

/// Replace a table of iptables by the bytes that `make` returns for where `count` old counters go.
pub fn replace_table(make: impl FnOnce(u64) -> Vec<u8>, count: usize) -> io::Result<()> {
    const IPT_SO_SET_REPLACE: libc::c_int = 64;
    let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: creates a descriptor.
    let socket = check(unsafe { libc::socket(libc::AF_INET, flags, libc::IPPROTO_RAW) } as libc::c_long)
        .map(from_raw)?;
    let mut counters = vec![[0u64; 2]; count];
    let table = make(counters.as_mut_ptr() as u64);
    // SAFETY: the kernel reads the table, and writes no more counters than there are.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_IP,
            IPT_SO_SET_REPLACE,
            table.as_ptr().cast(),
            table.len() as u32,
        )
    } as libc::c_long)?;
    drop(counters);
    Ok(())
}

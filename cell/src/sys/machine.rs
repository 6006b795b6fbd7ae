//! What only the first process of a machine does: modules, the root, the clock, the source of chance.

use super::{check, cstring, fd};
use std::io;
use std::os::unix::io::AsRawFd;

pub fn load_module(image: &[u8]) -> io::Result<()> {
    let none = cstring("")?;
    // SAFETY: the kernel reads `image.len()` bytes and one empty string.
    check(unsafe { libc::syscall(libc::SYS_init_module, image.as_ptr(), image.len(), none.as_ptr()) })?;
    Ok(())
}

/// Make what is mounted at `path` the root. The root that the kernel made itself cannot be pivoted.
pub fn switch_root(path: &[u8]) -> io::Result<()> {
    let (path, here, slash) = (cstring(path)?, cstring(".")?, cstring("/")?);
    // SAFETY: four calls with NUL-terminated strings that outlive them.
    unsafe {
        check(libc::chdir(path.as_ptr()) as libc::c_long)?;
        check(libc::mount(here.as_ptr(), slash.as_ptr(), std::ptr::null(), libc::MS_MOVE, std::ptr::null())
            as libc::c_long)?;
        check(libc::chroot(here.as_ptr()) as libc::c_long)?;
        check(libc::chdir(slash.as_ptr()) as libc::c_long)?;
    }
    Ok(())
}

/// Give the machine up: where it may not start again, this is its end.
pub fn restart() -> io::Result<()> {
    // SAFETY: returns only if it was refused.
    check(unsafe { libc::reboot(libc::RB_AUTOBOOT) } as libc::c_long)?;
    Ok(())
}

/// Write everything to the disks that is not there yet.
pub fn sync() {
    // SAFETY: cannot fail.
    unsafe { libc::sync() };
}

/// Have a filesystem finish what it is at and stand still, or go on; twice the same is once.
pub fn freeze(path: &str, is_frozen: bool) -> io::Result<()> {
    const FIFREEZE: libc::c_ulong = 0xC004_5877;
    const FITHAW: libc::c_ulong = 0xC004_5878;
    let top = fd::open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let request = if is_frozen { FIFREEZE } else { FITHAW };
    // SAFETY: takes no argument.
    match check(unsafe { libc::ioctl(top.as_raw_fd(), request as _, 0) } as libc::c_long) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) && is_frozen => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !is_frozen => Ok(()),
        other => other.map(drop),
    }
}

pub fn set_clock(nanoseconds: u64) -> io::Result<()> {
    let time = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanoseconds % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the kernel reads one timespec.
    check(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &time) } as libc::c_long)?;
    Ok(())
}

/// Mix bytes into the kernel's pool, and have everything drawn from now on depend on them.
pub fn add_entropy(seed: &[u8]) -> io::Result<()> {
    const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
    const RNDRESEEDCRNG: libc::c_ulong = 0x5207;
    let mut pool = Vec::with_capacity(8 + seed.len());
    pool.extend_from_slice(&((seed.len() * 8) as i32).to_ne_bytes());
    pool.extend_from_slice(&(seed.len() as i32).to_ne_bytes());
    pool.extend_from_slice(seed);
    let device = fd::open("/dev/urandom", libc::O_RDWR, 0)?;
    // SAFETY: the kernel reads two integers and as many bytes as the second says.
    check(unsafe { libc::ioctl(device.as_raw_fd(), RNDADDENTROPY as _, pool.as_ptr()) } as libc::c_long)?;
    // SAFETY: takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), RNDRESEEDCRNG as _, 0) } as libc::c_long)?;
    Ok(())
}

/// How many thousand times a second the processor's counter ticks, measured over `for_ms`.
#[cfg(target_arch = "x86_64")]
pub fn ticks_khz(for_ms: u64) -> io::Result<u64> {
    let (first, from) = (now()?, ticks());
    // SAFETY: waits on no descriptor.
    unsafe { libc::poll(std::ptr::null_mut(), 0, for_ms as i32) };
    let (last, to) = (now()?, ticks());
    Ok((u128::from(to - from) * 1_000_000 / u128::from((last - first).max(1))) as u64)
}

#[cfg(not(target_arch = "x86_64"))]
pub fn ticks_khz(_: u64) -> io::Result<u64> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: reads a counter that every processor of this kind has.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
fn now() -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    check(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut time) } as libc::c_long)?;
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

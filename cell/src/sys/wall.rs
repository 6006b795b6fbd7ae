//! What takes power away from a process: capabilities, limits, filters, keyrings, namespaces.

use super::check;
use super::fd::from_raw;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

pub fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: detaches this process from shared kernel objects; no memory is touched.
    check(unsafe { libc::unshare(flags) } as libc::c_long)?;
    Ok(())
}

/// Enter the mount namespace that an open descriptor names.
pub fn enter_mounts(namespace: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: plain integers; this process is single-threaded and shares its root with nobody.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) } as libc::c_long)?;
    Ok(())
}

/// Enter the user namespace that an open descriptor names, with all rights in it.
pub fn join_users(namespace: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: plain integers; this process is single-threaded.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWUSER) } as libc::c_long)?;
    Ok(())
}

pub fn set_hostname(name: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `name.len()` bytes.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) } as libc::c_long)?;
    Ok(())
}

/// Leave the inherited session keyring for an empty one: keys are not in any namespace.
pub fn join_new_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: i32 = 1;
    // SAFETY: a null name asks for a new anonymous keyring.
    let joined = check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0usize) });
    match joined {
        // A kernel without keyrings has no key to leak.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        other => other.map(|_| ()),
    }
}

pub fn set_rlimit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the kernel reads one rlimit64 and is given nowhere to write the old one.
    check(unsafe {
        libc::syscall(libc::SYS_prlimit64, 0, resource, &limit as *const libc::rlimit64, 0usize)
    })?;
    Ok(())
}

pub fn get_rlimit(resource: u32) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit64.
    check(unsafe {
        libc::syscall(libc::SYS_prlimit64, 0, resource, 0usize, &mut limit as *mut libc::rlimit64)
    })?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// Ordinary priority. Who is nicer and may not change it stays so: that takes from nobody.
pub fn reset_priority() -> io::Result<()> {
    // SAFETY: plain integers.
    match check(unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 0) }) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(()),
        other => other.map(|_| ()),
    }
}

/// Remove from the bounding set every capability that is not in `keep`.
pub fn drop_bounding(keep: u64) -> io::Result<()> {
    for capability in (0..64u64).filter(|capability| keep & (1 << capability) == 0) {
        match super::process::prctl(libc::PR_CAPBSET_DROP, capability) {
            // Past the last one this kernel knows. What is left is read back later.
            Err(error) if capability > 30 && error.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
            other => other?,
        };
    }
    Ok(())
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Effective and permitted become exactly `set`; inheritable and ambient become empty.
pub fn set_capabilities(set: u64) -> io::Result<()> {
    capset(set, 0)
}

/// Effective and permitted become exactly `set`, and stay that when a program is executed by whoever is not root.
pub fn hand_down_capabilities(set: u64) -> io::Result<()> {
    const PR_CAP_AMBIENT: i32 = 47;
    const PR_CAP_AMBIENT_RAISE: u64 = 2;
    capset(set, set)?;
    for capability in (0..64u64).filter(|capability| set & (1 << capability) != 0) {
        // SAFETY: integers only.
        check(unsafe { libc::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0u64, 0u64) }
            as libc::c_long)?;
    }
    Ok(())
}

fn capset(set: u64, inheritable: u64) -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = CapHeader { version: VERSION_3, pid: 0 };
    let half = |bits: u64, inheritable: u64| CapData {
        effective: bits as u32,
        permitted: bits as u32,
        inheritable: inheritable as u32,
    };
    let data = [half(set, inheritable), half(set >> 32, inheritable >> 32)];
    // SAFETY: the kernel reads one header and two data blocks, as version 3 prescribes.
    check(unsafe { libc::syscall(libc::SYS_capset, &mut header as *mut CapHeader, data.as_ptr()) })?;
    Ok(())
}

pub fn clear_ambient() -> io::Result<()> {
    const PR_CAP_AMBIENT: i32 = 47;
    const PR_CAP_AMBIENT_CLEAR_ALL: u64 = 4;
    match super::process::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL) {
        // A kernel without them has none to clear.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other.map(|_| ()),
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub value: u32,
}

/// Load a filter for this (single-threaded) process and all its descendants.
pub fn load_filter(program: &[Instruction]) -> io::Result<()> {
    #[repr(C)]
    struct Program {
        length: u16,
        filter: *const Instruction,
    }
    const SECCOMP_SET_MODE_FILTER: u32 = 1;
    const SECCOMP_FILTER_FLAG_TSYNC: u32 = 1;
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let program = Program { length, filter: program.as_ptr() };
    // SAFETY: the kernel copies `length` instructions, laid out as struct sock_filter.
    let result = check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            SECCOMP_SET_MODE_FILTER,
            SECCOMP_FILTER_FLAG_TSYNC,
            &program as *const Program,
        )
    })?;
    // With TSYNC a positive result is the id of a thread that could not be brought along.
    if result != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Ok(())
}

#[repr(C)]
struct RulesetAttr {
    handled_fs: u64,
    handled_net: u64,
    scoped: u64,
}

/// The version of Landlock this kernel speaks; 0 when it has none.
pub fn landlock_version() -> u32 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call only reports a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0usize, 0usize, VERSION) };
    u32::try_from(version).unwrap_or(0)
}

pub fn landlock_ruleset(handled_fs: u64, scoped: u64, version: u32) -> io::Result<OwnedFd> {
    let attr = RulesetAttr { handled_fs, handled_net: 0, scoped };
    // Older kernels refuse fields they do not know: give them the size they expect.
    let size: usize = match version {
        0..=3 => 8,
        4..=5 => 16,
        _ => 24,
    };
    // SAFETY: the kernel reads `size` bytes, at most the whole struct.
    check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &attr as *const RulesetAttr, size, 0u32)
    })
    .map(from_raw)
}

pub fn landlock_allow(ruleset: &impl AsRawFd, access: u64, parent: &impl AsRawFd) -> io::Result<()> {
    #[repr(C, packed)]
    struct PathBeneath {
        access: u64,
        parent: i32,
    }
    const RULE_PATH_BENEATH: u32 = 1;
    let rule = PathBeneath { access, parent: parent.as_raw_fd() };
    // SAFETY: the kernel reads one packed struct.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            RULE_PATH_BENEATH,
            &rule as *const PathBeneath,
            0u32,
        )
    })?;
    Ok(())
}

pub fn landlock_restrict(ruleset: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) })?;
    Ok(())
}

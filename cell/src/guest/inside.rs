//! The guest as a program: the first process of another kernel, which has taken the place of most of
//! the wall. It takes its connection from standard input and gives up the rest before it serves.

use super::doors::Doors;
use super::groups::Groups;
use super::House;
use super::{held, redirect, Extra};
use crate::contain::capabilities;
use crate::contain::kernel::PLACEHOLDER;
use crate::contain::posture::{field, interfaces, read_small};
use crate::contain::seccomp::{self, rules::Options};
use crate::sys::{fd, libc, mount, process, wall};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// What the host says on the command line, in this order.
struct Words {
    open_files: u64,
    bounding: u64,
    guest_caps: u64,
    root_caps: u64,
    /// Processes and threads at once, this one included.
    pids: u64,
    /// Whether what connects anywhere is carried to the host.
    egress: bool,
    filter: Options,
}

/// Serve on standard input. Returns only if it could not begin, or the words are not understood.
pub fn run(arguments: &[String]) -> Option<io::Result<()>> {
    let numbers: Vec<u64> = arguments.iter().map_while(|word| word.parse().ok()).collect();
    match (arguments.len(), numbers.as_slice()) {
        (9, [open_files, bounding, guest_caps, root_caps, pids, egress, ptrace, set_id, core]) => {
            Some(begin(&Words {
                open_files: *open_files,
                bounding: *bounding,
                guest_caps: *guest_caps,
                root_caps: *root_caps,
                pids: *pids,
                egress: *egress != 0,
                filter: Options {
                    allow_ptrace: *ptrace != 0,
                    deny_set_id_bits: *set_id != 0,
                    keep_core_limit: *core != 0,
                    shield_first: true,
                },
            }))
        }
        _ => None,
    }
}

fn begin(words: &Words) -> io::Result<()> {
    let control = take_streams()?;
    // Open until here: whoever started this kernel reads there why it ended.
    let log = fd::adopt(2)?;
    process::default_signals();
    process::block_all_signals()?;
    process::umask(0o022);
    let placeholder = [b"/tmp/", PLACEHOLDER].concat();
    match mount::unlinkat(libc::AT_FDCWD, &placeholder, false) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {}
        other => other?,
    }
    let groups = Groups::new(make_groups(words.pids)?);
    held::tell(0, b"")?;
    let doors = if words.egress { Some(Doors::open(redirect::lead_everything)?) } else { None };
    capabilities::keep(words.bounding, words.guest_caps)?;
    process::prctl(libc::PR_SET_DUMPABLE, 0)?;
    let house = House {
        stream_transport: true,
        root_caps: words.root_caps,
        open_files: words.open_files,
        change_identity: true,
    };
    let lines = seccomp::table::lines().map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))?;
    wall::load_filter(&seccomp::compile(&lines, words.filter))?;
    let facts = facts()?;
    drop(log);
    super::run(
        control,
        house,
        facts,
        Extra { groups: Some(groups), again: Some(self::facts), doors, ..Extra::default() },
    )
}

/// Limit processes by a control group of this kernel's, since on the host each of them is several, and
/// return where groups for programs can be made: in another hierarchy, for the limit of a group does
/// not reach those below it here. Both are covered, so that nobody raises or leaves them; nobody has
/// the right to take the cover away.
fn make_groups(pids: u64) -> io::Result<OwnedFd> {
    let make = |path: &str| mount::mkdirat(libc::AT_FDCWD, path.as_bytes(), 0o700);
    let (limit, jobs) = (format!("{GROUPS}/limit"), format!("{GROUPS}/jobs"));
    make(GROUPS)?;
    for (path, controller) in [(&limit, "pids"), (&jobs, "cpuacct")] {
        make(path)?;
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        mount::mount(controller, path.as_bytes(), "cgroup", flags, controller.as_bytes())?;
    }
    make(&format!("{limit}/sandbox"))?;
    for (file, value) in [("pids.max", pids), ("cgroup.procs", process::getpid() as u64)] {
        let file = fd::open(format!("{limit}/sandbox/{file}"), libc::O_WRONLY, 0)?;
        fd::write_all(file.as_raw_fd(), value.to_string().as_bytes())?;
    }
    let top = fd::open(&jobs, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RDONLY;
    mount::mount("tmpfs", GROUPS.as_bytes(), "tmpfs", flags, b"mode=0555")?;
    fd::dup_above(top.as_raw_fd(), 3)
}

const GROUPS: &str = "/dev/groups";

/// The connection is on standard input; nothing else was handed in on purpose.
fn take_streams() -> io::Result<OwnedFd> {
    let streams = [fd::adopt(0)?, fd::adopt(1)?];
    fd::dup_above(streams[0].as_raw_fd(), 3)
}

/// What is true in here, as this kernel tells it, for the host to compare.
fn facts() -> io::Result<Vec<u8>> {
    let status = read_small("/proc/self/status")?;
    let table = read_small("/proc/self/net/dev")?;
    let version = read_small("/proc/version")?;
    let mounts = read_small("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| {
        let mut parts = line.split(' ').skip(4);
        let (point, options) = (parts.next()?, parts.next()?);
        Some(format!("{point}:{}", if options.split(',').any(|o| o == "ro") { "ro" } else { "rw" }))
    });
    let pairs = [
        ("pid", process::getpid().to_string()),
        ("uid", process::getuid().to_string()),
        ("gid", process::getgid().to_string()),
        ("groups", process::supplementary_groups()?.to_string()),
        ("no_new_privileges", process::prctl(PR_GET_NO_NEW_PRIVS, 0)?.to_string()),
        ("dumpable", process::prctl(libc::PR_GET_DUMPABLE, 0)?.to_string()),
        ("capabilities", field(&status, "CapEff")),
        ("bounding", field(&status, "CapBnd")),
        ("open_files", wall::get_rlimit(libc::RLIMIT_NOFILE)?.1.to_string()),
        ("seccomp", field(&status, "Seccomp")),
        ("interfaces", interfaces(&table)),
        ("kernel", version.trim().to_string()),
        ("mounts", points.collect::<Vec<_>>().join(" ")),
    ];
    Ok(pairs.iter().map(|(name, value)| format!("{name}={value}\n")).collect::<String>().into_bytes())
}

const PR_GET_NO_NEW_PRIVS: i32 = 39;

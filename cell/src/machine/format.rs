//! Runs the program that writes a tree onto a disk, where it finds nothing but itself, that tree and that disk.
//!
//! It is the host's (`mke2fs`), and strangers chose every name and byte of what it reads.

use crate::contain::capabilities;
use crate::contain::seccomp::{self, rules::Options};
use crate::contain::step::{during, refuse};
use crate::sys::process::{Forked, Pid};
use crate::sys::{cstring, fd, libc, mount, process, socket, wall};
use crate::zygote::launch::write_proc;
use crate::zygote::rootless;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;
const IDS: u32 = 65_536;
/// CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: whoever owns the files of the tree, they are read.
const CAPABILITIES: u64 = 0b110;
const MEMORY_BYTES: u64 = 2 << 30;
const OPEN_FILES: u64 = 64;
/// It starts nothing and speaks with nobody.
const REFUSED: &[&str] = &["clone", "clone3", "fork", "vfork", "socket", "socketpair", "ptrace", "kill"];
/// The last of what is inherited: whatever else is open stays outside.
const STANDARD: [i32; 3] = [0, 1, 2];

/// `range FIRST | own | slice FIRST UIDS GIDS UID_HELPER GID_HELPER`, then `FILES OUT TREE|- COUNT HIDDEN... ARGUMENT...`:
/// execute the program that FILES names itself for under these ids; of the tree it finds so many paths empty. None is
/// for arguments that mean nothing.
pub fn run(arguments: &[String]) -> Option<io::Result<i32>> {
    let (ids, rest) = match arguments {
        [word, first, rest @ ..] if word == "range" => (Ids::Range(first.parse().ok()?), rest),
        [word, rest @ ..] if word == "own" => (Ids::Own, rest),
        [word, first, uids, gids, uid_helper, gid_helper, rest @ ..] if word == "slice" => {
            let users = (ranges(uids)?, uid_helper.clone().into_bytes());
            let groups = (ranges(gids)?, gid_helper.clone().into_bytes());
            (Ids::Slice { first: first.parse().ok()?, users, groups }, rest)
        }
        _ => return None,
    };
    let [files, out, tree, count, rest @ ..] = rest else { return None };
    let count: usize = count.parse().ok().filter(|count| *count <= rest.len())?;
    let (hidden, words) = rest.split_at(count);
    let tree = (tree != "-").then_some(tree.as_str());
    Some(begin(&ids, &Given { files, out, tree, hidden, words }))
}

/// What the program is given, by the names that it has outside.
struct Given<'a> {
    files: &'a str,
    out: &'a str,
    tree: Option<&'a str>,
    /// Paths below the tree.
    hidden: &'a [String],
    words: &'a [String],
}

/// Whose ids the program has.
enum Ids {
    /// As many as a sandbox has, from here on; the caller is root.
    Range(u32),
    /// The caller's own, which has no other to give away.
    Own,
    /// One of the caller's sub-ids, which are counted from 1 on.
    Slice { first: u32, users: (Vec<(u32, u32)>, Vec<u8>), groups: (Vec<(u32, u32)>, Vec<u8>) },
}

/// `FIRST+COUNT,...`
fn ranges(text: &str) -> Option<Vec<(u32, u32)>> {
    let pair = |each: &str| each.split_once('+').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    text.split(',').map(pair).collect()
}

/// The ids of the program, as the namespace that it gets maps them.
struct Identity {
    map: String,
    /// Who it is in there. Root is who the owner of the tree's files is shown as.
    user: u32,
    /// Whom the tree is shown as belonging to, and whom the disk is given.
    owner: Option<u32>,
    has_groups: bool,
}

fn begin(ids: &Ids, given: &Given) -> io::Result<i32> {
    die_with_caller()?;
    let whole = |first: u32| Identity {
        map: format!("0 {first} {IDS}\n"),
        user: 0,
        owner: (first != 0).then_some(first),
        has_groups: true,
    };
    match ids {
        Ids::Range(first) => match enclose(&whole(*first), given) {
            // The tree is on a filesystem that shows no other owners than its own.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => enclose(&whole(0), given),
            other => other,
        },
        Ids::Own => {
            let (uid, gid) = (process::getuid(), process::getgid());
            wall::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
            write_maps(process::getpid(), &format!("0 {uid} 1\n"), &format!("0 {gid} 1\n"), false)?;
            die_with_caller()?;
            let own = Identity { map: "0 0 1\n".into(), user: 0, owner: None, has_groups: false };
            enclose(&own, given)
        }
        Ids::Slice { first, users, groups } => {
            rootless::enter_ranges((&users.0, &users.1), (&groups.0, &groups.1))?;
            die_with_caller()?;
            // It reads and writes by its capabilities, for which the owner has to have an id in there, and is
            // somebody else.
            let map = format!("0 0 1\n1 {first} 1\n");
            enclose(&Identity { map, user: 1, owner: None, has_groups: true }, given)
        }
    }
}

/// Asked for again whenever our own ids have changed: the kernel forgets it.
fn die_with_caller() -> io::Result<()> {
    process::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).map(|_| ())
}

struct Shown {
    files: OwnedFd,
    out: OwnedFd,
    tree: Option<OwnedFd>,
}

fn enclose(identity: &Identity, given: &Given) -> io::Result<i32> {
    let quiet = mount::ATTR_NOSUID | mount::ATTR_NODEV;
    let open = |path: &str| mount::open_tree(libc::AT_FDCWD, path.as_bytes()).map_err(|e| during(e, path));
    let shown =
        Shown { files: open(given.files)?, out: open(given.out)?, tree: given.tree.map(open).transpose()? };
    mount::set_attributes(&shown.files, quiet | mount::ATTR_RDONLY, None)?;
    mount::set_attributes(&shown.out, quiet | mount::ATTR_NOEXEC, None)?;
    let size = fd::fstat(&shown.out)?.st_size as u64;
    let (ours, theirs) = socket::pair(libc::SOCK_SEQPACKET)?;
    let (pid, pidfd) = match process::clone_into(NAMESPACES, None)? {
        Forked::Child => {
            let error = enter(&theirs, &shown, identity, size, given);
            eprintln!("cell: {error}");
            process::exit(1)
        }
        Forked::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop(theirs);
    let told = tell(pid, identity, &shown, quiet).and_then(|()| socket::send(ours.as_raw_fd(), b"g", &[]));
    if let Err(error) = told {
        process::pidfd_kill(&pidfd, libc::SIGKILL)?;
        process::reap(pid, true)?;
        return Err(error);
    }
    match process::reap(pid, true)? {
        Some(ended) if ended.status & 0x7f == 0 => Ok(ended.status >> 8 & 0xff),
        Some(ended) => Err(refuse(libc::ECHILD, format!("ended by signal {}", ended.status & 0x7f))),
        None => Err(io::Error::from_raw_os_error(libc::ECHILD)),
    }
}

/// What only we may do for it: give it its ids, and have the tree shown as if it were theirs.
fn tell(pid: Pid, identity: &Identity, shown: &Shown, quiet: u64) -> io::Result<()> {
    write_maps(pid, &identity.map, &identity.map, identity.has_groups)?;
    if let Some(tree) = &shown.tree {
        let users = fd::open(format!("/proc/{pid}/ns/user"), libc::O_RDONLY, 0)?;
        let flags = quiet | mount::ATTR_RDONLY | mount::ATTR_NOEXEC;
        mount::set_attributes(tree, flags, identity.owner.map(|_| users.as_raw_fd()))?;
    }
    // Written to by name, and owned by an id that has nothing else.
    if let Some(first) = identity.owner {
        let path = format!("/proc/self/fd/{}", shown.out.as_raw_fd());
        let file = fd::open(path, libc::O_RDWR, 0)?;
        mount::fchown(&file, first, first)?;
    }
    Ok(())
}

fn write_maps(pid: Pid, users: &str, groups: &str, has_groups: bool) -> io::Result<()> {
    if !has_groups {
        // The kernel's condition; whoever has more ids leaves all groups instead.
        write_proc(pid, "setgroups", "deny")?;
    }
    write_proc(pid, "uid_map", users)?;
    write_proc(pid, "gid_map", groups)
}

/// In the child. Returns only the reason it could not.
fn enter(theirs: &OwnedFd, shown: &Shown, identity: &Identity, size: u64, given: &Given) -> io::Error {
    let prepared = wait_for_ids(theirs)
        .and_then(|()| process::keep_capabilities_across_ids())
        .and_then(|()| process::become_user(identity.user, identity.user, identity.has_groups))
        .and_then(|()| die_with(theirs))
        .and_then(|()| build(shown, given.hidden))
        .and_then(|()| lock(size))
        .and_then(|()| given.words.iter().map(cstring).collect::<io::Result<Vec<_>>>());
    match (prepared, cstring(CONFIGURATION)) {
        (Ok(argv), Ok(configuration)) if !argv.is_empty() => {
            process::execve(&argv[0], &argv, &[configuration])
        }
        (Ok(_), _) => io::Error::from_raw_os_error(libc::EINVAL),
        (Err(error), _) => error,
    }
}

fn wait_for_ids(theirs: &OwnedFd) -> io::Result<()> {
    match socket::receive(theirs.as_raw_fd(), &mut [0u8; 1], &mut Vec::new())? {
        0 => Err(io::Error::from_raw_os_error(libc::ECONNABORTED)),
        _ => Ok(()),
    }
}

/// Asked for once the ids are final, for the kernel forgets it when they change; who has died before that
/// has closed the other end.
fn die_with(theirs: &OwnedFd) -> io::Result<()> {
    process::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64)?;
    let mut waits = [fd::wait_for(theirs.as_raw_fd(), 0)];
    fd::poll(&mut waits, 0)?;
    match waits[0].revents {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ECONNABORTED)),
    }
}

const CONFIGURATION: &str = "MKE2FS_CONFIG=/files/mke2fs.conf";

/// Where its root is mounted, for nobody but itself: a directory that every host has.
const POINT: &[u8] = b"/usr";

fn build(shown: &Shown, hidden: &[String]) -> io::Result<()> {
    mount::make_private()?;
    let options = b"size=64k,nr_inodes=16,mode=0755";
    mount::mount("tmpfs", POINT, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, options)
        .map_err(|e| during(e, "mounting a root"))?;
    let root = fd::open(POINT, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let at = root.as_raw_fd();
    for name in ["files", "tree"] {
        mount::mkdirat(at, name.as_bytes(), 0o755)?;
    }
    let out = fd::openat(at, "out", libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o600)?;
    mount::attach(&shown.out, &out).map_err(|e| during(e, "attaching the disk"))?;
    let place = |name: &str| fd::openat(at, name, libc::O_PATH | libc::O_DIRECTORY, 0);
    mount::attach(&shown.files, &place("files")?).map_err(|e| during(e, "attaching the program"))?;
    if let Some(tree) = &shown.tree {
        mount::attach(tree, &place("tree")?).map_err(|e| during(e, "attaching the tree"))?;
        if !hidden.is_empty() {
            cover(&root, hidden)?;
        }
    }
    mount::fchdir(&root)?;
    mount::pivot_here()
}

/// Have it find nothing where the tree has what is not to be on the disk. What is gone meanwhile is not.
fn cover(root: &OwnedFd, hidden: &[String]) -> io::Result<()> {
    let at = root.as_raw_fd();
    mount::mkdirat(at, EMPTY, 0)?;
    let directory = fd::openat(at, EMPTY, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let file = fd::openat(at, NOTHING, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0)?;
    let tree = fd::openat(at, "tree", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let flags = mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NODEV | mount::ATTR_NOEXEC;
    for path in hidden {
        let (place, walk) = (tree.as_raw_fd(), mount::Walk::NoLinks);
        let target = match mount::open_beneath(place, path.as_bytes(), libc::O_PATH, 0, walk) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            other => other.map_err(|e| during(e, format!("hiding {path}")))?,
        };
        let is_directory = fd::fstat(&target)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let empty = mount::open_tree(if is_directory { &directory } else { &file }.as_raw_fd(), b"")?;
        mount::set_attributes(&empty, flags, None)?;
        mount::attach(&empty, &target).map_err(|e| during(e, format!("hiding {path}")))?;
    }
    Ok(())
}

const EMPTY: &[u8] = b"empty";
const NOTHING: &[u8] = b"nothing";

fn lock(size: u64) -> io::Result<()> {
    fd::close_all_but(&STANDARD)?;
    for (resource, most) in [
        (libc::RLIMIT_FSIZE, size),
        (libc::RLIMIT_AS, MEMORY_BYTES),
        (libc::RLIMIT_NOFILE, OPEN_FILES),
        (libc::RLIMIT_NPROC, 1),
        (libc::RLIMIT_CORE, 0),
    ] {
        wall::set_rlimit(resource, most, most)?;
    }
    capabilities::keep(CAPABILITIES, CAPABILITIES)?;
    wall::hand_down_capabilities(CAPABILITIES)?;
    process::prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    let lines = seccomp::table::lines().map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))?;
    let lines: Vec<_> = lines.into_iter().filter(|line| !REFUSED.contains(&line.name)).collect();
    let options =
        Options { allow_ptrace: false, deny_set_id_bits: true, keep_core_limit: true, shield_first: false };
    wall::load_filter(&seccomp::compile(&lines, options))
}

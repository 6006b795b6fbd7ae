//! One launch: a spare guest, begun in advance, is given a plan and taken through the steps that
//! need the launcher's rights.

use super::cgroup::{Groups, Parent};
use super::rootless;
use crate::contain::root::GO;
use crate::contain::seccomp::rules::Options;
use crate::contain::step::{during, errno, refuse, LaunchError, Step};
use crate::contain::{contain, step, Inheritance};
use crate::plan::{Drill, IdRange, Mount, Plan};
use crate::sys::process::{Forked, Pid};
use crate::sys::wall::Instruction;
use crate::sys::{fd, libc, mount, process, socket};
use crate::wire::codec::{Malformed, Reader, Writer};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

const NAMESPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
const MAX_REPORT: usize = 256 * 1024;
pub const MAX_PLAN: usize = 128 * 1024;

/// What every guest is begun with, whatever its plan will say.
pub struct Nursery {
    pub template: Vec<u8>,
    pub name: String,
    pub parents: Vec<Parent>,
    pub filters: Vec<(Options, Vec<Instruction>)>,
}

/// A sandbox as the launcher knows it; before it has a plan, a spare.
pub struct Cell {
    /// The number in the names of its control groups.
    pub group: u64,
    pub pid: Pid,
    pub pidfd: OwnedFd,
    pub sync: OwnedFd,
    pub groups: Groups,
    pub reaped: bool,
    pub status: i32,
}

pub enum Report {
    Ready(Vec<u8>),
    Failed { step: Vec<u8>, errno: i32, detail: String },
    Silent,
}

impl Nursery {
    /// Begin a guest: its control groups and its namespaces, which are what takes longest. It
    /// enters the groups itself, because the kernel can let whoever writes there wait.
    pub fn begin(&self, group: u64, drill: Drill) -> Result<Cell, LaunchError> {
        let mut groups = Groups::default();
        match self.clone_guest(group, drill, &mut groups) {
            Ok((pid, pidfd, sync)) => {
                groups.close_doors();
                Ok(Cell { group, pid, pidfd, sync, groups, reaped: false, status: 0 })
            }
            Err(error) => {
                abandon(&mut groups, None);
                Err(error)
            }
        }
    }

    fn clone_guest(&self, group: u64, drill: Drill, groups: &mut Groups) -> Result<(Pid, OwnedFd, OwnedFd), LaunchError> {
        step(drill, Step::Cgroup, || groups.make(&self.parents, &format!("{}.{group}", self.name)))?;
        step(drill, Step::Clone, || {
            let (ours, theirs) = socket::pair(libc::SOCK_SEQPACKET)?;
            match process::clone_into(NAMESPACES, groups.clone_target())? {
                Forked::Parent { pid, pidfd } => Ok((pid, pidfd, ours)),
                Forked::Child => self.become_guest(theirs, groups, drill),
            }
        })
    }

    /// In the child: from here on nothing returns to the launcher.
    fn become_guest(&self, sync: OwnedFd, groups: &Groups, drill: Drill) -> ! {
        let number = sync.as_raw_fd();
        let outcome = step(drill, Step::Join, || join(groups))
            .and_then(|()| step(drill, Step::Gate, || wait_for_plan(number)))
            .and_then(|(plan, control)| {
                let options = Options { allow_ptrace: plan.allow_ptrace, deny_set_id_bits: plan.deny_set_id_bits };
                let filter = self.filters.iter().find(|(known, _)| *known == options).map(|(_, filter)| filter.as_slice());
                let held = Inheritance { control, sync: number, template: self.template.clone() };
                contain(&plan, filter.unwrap_or(&[]), &held).map(|facts| (facts, plan, held.control))
            });
        let mut report = Writer::default();
        match &outcome {
            Ok((facts, _, _)) => report.u8(1).bytes(facts),
            Err(error) => report.u8(2).bytes(error.step.name().as_bytes()).u32(errno(&error.source) as u32).bytes(error.detail.as_bytes()),
        };
        let told = socket::send(number, &report.bytes, &[]);
        drop(sync);
        match outcome {
            Ok((_, plan, control)) if told.is_ok() => crate::guest::serve(control, &plan),
            _ => process::exit(1),
        }
    }
}

/// Zero means whoever writes it.
fn join(groups: &Groups) -> io::Result<()> {
    for door in groups.doors() {
        fd::write_all(door.as_raw_fd(), b"0").map_err(|e| during(e, "entering a control group"))?;
    }
    Ok(())
}

fn wait_for_plan(sync: RawFd) -> io::Result<(Plan, OwnedFd)> {
    let mut buffer = vec![0u8; MAX_PLAN];
    let mut fds = Vec::new();
    let n = socket::receive(sync, &mut buffer, &mut fds)?;
    if n == 0 {
        // The launcher ended: so does what it had begun.
        process::exit(0);
    }
    let plan = Plan::decode(&buffer[..n]).map_err(|malformed| refuse(libc::EINVAL, malformed.0))?;
    match fds.pop() {
        Some(control) => Ok((plan, control)),
        None => Err(refuse(libc::EPROTO, "a plan without a control socket")),
    }
}

impl Cell {
    /// Give a spare its plan.
    pub fn furnish(&self, plan: &Plan, bytes: &[u8], control: &OwnedFd) -> Result<(), LaunchError> {
        let drill = plan.drill;
        step(drill, Step::Limits, || self.groups.limit(&plan.limits))?;
        step(drill, Step::Ids, || write_maps(plan, self.pid))?;
        step(drill, Step::Trees, || {
            socket::send(self.sync.as_raw_fd(), bytes, &[control.as_raw_fd()])?;
            send_trees(plan, self.pid, self.sync.as_raw_fd())
        })
    }

    /// End a cell that never became a sandbox, and leave nothing of it.
    pub fn discard(mut self) {
        abandon(&mut self.groups, Some((self.pid, &self.pidfd)));
    }

    /// Kill by descriptor: a number could name an innocent process by now. The first process of
    /// a process namespace takes all others with it.
    pub fn kill(&self) -> io::Result<()> {
        if self.reaped {
            return Ok(());
        }
        match process::pidfd_kill(&self.pidfd, libc::SIGKILL) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }

    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        self.groups.freeze(frozen)
    }

    pub fn read_report(&mut self) -> io::Result<Report> {
        let mut buffer = vec![0u8; MAX_REPORT];
        let mut none = Vec::new();
        let n = socket::receive(self.sync.as_raw_fd(), &mut buffer, &mut none)?;
        if n == 0 {
            return Ok(Report::Silent);
        }
        Ok(parse_report(&buffer[..n]).unwrap_or(Report::Silent))
    }
}

fn write_maps(plan: &Plan, pid: Pid) -> io::Result<()> {
    if !plan.allow_setgroups {
        write_proc(pid, "setgroups", "deny")?;
    }
    write_proc(pid, "uid_map", &map_text(&plan.uid_map))?;
    write_proc(pid, "gid_map", &map_text(&plan.gid_map))
}

pub fn map_text(ranges: &[IdRange]) -> String {
    ranges.iter().map(|r| format!("{} {} {}\n", r.inside, r.outside, r.count)).collect()
}

pub fn write_proc(pid: Pid, name: &str, text: &str) -> io::Result<()> {
    let path = format!("/proc/{pid}/{name}");
    let file = fd::open(&path, libc::O_WRONLY, 0).map_err(|e| during(e, format!("opening {name}")))?;
    fd::write_all(file.as_raw_fd(), text.as_bytes()).map_err(|e| during(e, format!("writing {name}")))
}

/// Open what the root is made of with the launcher's rights, and hand it over.
fn send_trees(plan: &Plan, pid: Pid, sync: RawFd) -> io::Result<()> {
    let users = fd::open(format!("/proc/{pid}/ns/user"), libc::O_RDONLY, 0)?;
    for layer in &plan.layers {
        let words = || format!("opening {}", String::from_utf8_lossy(&layer.source));
        let tree = open_host_tree(&layer.source).map_err(|e| during(e, words()))?;
        let owners = if layer.idmap { Some(users.as_raw_fd()) } else { None };
        let flags = mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NODEV;
        mount::set_attributes(&tree, flags, owners).map_err(|e| during(e, words()))?;
        hand_over(sync, &tree)?;
    }
    for granted in &plan.mounts {
        let words = || format!("mounting {}", String::from_utf8_lossy(&granted.source));
        let tree = granted_tree(granted).map_err(|e| during(e, words()))?;
        hand_over(sync, &tree)?;
    }
    socket::send(sync, &[GO], &[]).map(|_| ())
}

fn hand_over(sync: RawFd, tree: &OwnedFd) -> io::Result<()> {
    socket::send(sync, &[0], &[tree.as_raw_fd()]).map(|_| ())
}

fn granted_tree(granted: &Mount) -> io::Result<OwnedFd> {
    let tree = open_host_tree(&granted.source)?;
    let flags = mount::ATTR_NOSUID | mount::ATTR_NODEV | if granted.write { 0 } else { mount::ATTR_RDONLY };
    match granted.owner {
        Some((users, groups)) => {
            let map = |pair: [u32; 2]| vec![IdRange { inside: pair[0], outside: pair[1], count: 1 }];
            let owners = rootless::user_namespace(&map(users), &map(groups))?;
            mount::set_attributes(&tree, flags, Some(owners.as_raw_fd()))?;
        }
        None => mount::set_attributes(&tree, flags, None)?,
    }
    Ok(tree)
}

/// The path was resolved by the host; a link that appeared since is refused, not followed.
fn open_host_tree(path: &[u8]) -> io::Result<OwnedFd> {
    let place = fd::open(path, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
    if fd::fstat(&place)?.st_mode & libc::S_IFMT == libc::S_IFLNK {
        return Err(refuse(libc::ELOOP, "it is a symbolic link; name the place it points to"));
    }
    mount::open_tree(place.as_raw_fd(), b"")
}

/// A launch that failed leaves nothing: the child is waited for, then its groups are removed.
fn abandon(groups: &mut Groups, child: Option<(Pid, &OwnedFd)>) {
    if let Some((pid, pidfd)) = child {
        if process::pidfd_kill(pidfd, libc::SIGKILL).is_ok() {
            // An error here means there is no such child any more, which is what is wanted.
            drop(process::reap(pid, true));
        }
    }
    // What stays busy longer than this is found by the sweep of a later start.
    for _ in 0..1000 {
        match groups.remove() {
            Ok(false) => std::thread::yield_now(),
            _ => break,
        }
    }
}

fn parse_report(bytes: &[u8]) -> Result<Report, Malformed> {
    let mut r = Reader::new(bytes);
    let report = match r.u8()? {
        1 => Report::Ready(r.bytes()?),
        2 => Report::Failed { step: r.bytes()?, errno: r.u32()? as i32, detail: String::from_utf8_lossy(&r.bytes()?).into_owned() },
        _ => return Err(Malformed("unknown report")),
    };
    r.end()?;
    Ok(report)
}

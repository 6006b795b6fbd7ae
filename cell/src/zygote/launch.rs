//! One launch: the launcher's half of the steps, and the cell it leaves behind.

use super::cgroup::{Groups, Parent};
use super::egress::Doors;
use super::rootless;
use super::template::KVM;
use super::views::Views;
use crate::contain::root::{DISK, FOREIGN, GO, MOUNT, OWNED, SHOWN};
use crate::contain::seccomp::rules::Options;
use crate::contain::step::{during, errno, refuse, LaunchError, Step};
use crate::contain::{contain, step, Inheritance};
use crate::plan::{Disk, IdRange, Layer, Mount, Owner, Plan};
use crate::sys::process::{Forked, Pid};
use crate::sys::wall::Instruction;
use crate::sys::{fd, libc, mount, process, socket};
use crate::wire::codec::{Malformed, Reader, Writer};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// The network namespace is not among them: the launcher made it beforehand and lives in it, so
/// that the guest inherits it without the right to change it.
const NAMESPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
const MAX_REPORT: usize = 4 * 1024;

/// What every sandbox of this launcher is begun with, whatever its plan says.
pub struct Nursery {
    pub views: Views,
    pub name: String,
    pub parents: Vec<Rc<Parent>>,
    pub filters: Vec<(Options, Vec<Instruction>)>,
    pub keep_core_limit: bool,
}

/// What came with a launch: the guest's end of its connection and, where another program takes its
/// place, somewhere for that to say what went wrong. `doors` are those that the guest keeps.
pub struct Ends {
    pub control: OwnedFd,
    pub log: Option<OwnedFd>,
    pub doors: Doors,
}

/// A sandbox as the launcher knows it.
pub struct Cell {
    /// The number in the names of its control groups.
    pub group: u64,
    pub pid: Pid,
    pub pidfd: OwnedFd,
    pub sync: OwnedFd,
    pub groups: Groups,
    /// Whether its groups stay until the host has asked for its end: when it ends by itself, they say why.
    pub held: bool,
    pub reported: bool,
    pub reaped: bool,
    pub status: i32,
}

/// A step that the guest could not perform. Without one, the guest closed its end: it serves, or
/// it was ended.
pub struct Complaint {
    pub step: Vec<u8>,
    pub errno: i32,
    pub detail: String,
}

impl Nursery {
    /// Clone a guest and take it through the steps that need the launcher's rights.
    pub fn launch(&self, group: u64, plan: &Plan, ends: Ends) -> Result<Cell, LaunchError> {
        let mut groups = Groups::default();
        let name = format!("{}.{group}", self.name);
        // Where descriptors do not travel nobody outside sees these groups either.
        let tells = plan.stream_transport && plan.kernel.is_none();
        let begun = step(plan.drill, Step::Cgroup, || {
            groups.make(&self.parents, true, &name, &plan.limits)?;
            if tells {
                groups.tell_counts()
            } else {
                Ok(())
            }
        })
        .and_then(|()| step(plan.drill, Step::Clone, || self.clone_guest(plan, ends, &groups)));
        let (pid, pidfd, sync) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                abandon(&mut groups, None);
                return Err(error);
            }
        };
        let number = sync.as_raw_fd();
        let finished = step(plan.drill, Step::Ids, || write_maps(plan, pid))
            .and_then(|()| step(plan.drill, Step::Trees, || self.send_trees(plan, pid, number)))
            .and_then(|()| {
                step(plan.drill, Step::Limits, || groups.make(&self.parents, false, &name, &plan.limits))
            })
            .and_then(|()| step(plan.drill, Step::Doors, || groups.hand_doors(number)));
        match finished {
            // One that gave up while we were still at work says itself at which of its steps.
            Err(error) if !has_left(&error) => {
                abandon(&mut groups, Some((pid, &pidfd)));
                Err(error)
            }
            _ => Ok(Cell {
                group,
                pid,
                pidfd,
                sync,
                groups,
                held: true,
                reported: false,
                reaped: false,
                status: 0,
            }),
        }
    }

    fn clone_guest(&self, plan: &Plan, ends: Ends, groups: &Groups) -> io::Result<(Pid, OwnedFd, OwnedFd)> {
        let (ours, theirs) = socket::pair(libc::SOCK_SEQPACKET)?;
        let owner = plan.uid_map.first().map_or(0, |range| range.outside);
        match rootless::clone_owned_by(owner, NAMESPACES, groups.clone_target())? {
            Forked::Parent { pid, pidfd } => Ok((pid, pidfd, ours)),
            Forked::Child => self.become_guest(plan, ends, theirs),
        }
    }

    /// In the child: from here on nothing returns to the launcher.
    fn become_guest(&self, plan: &Plan, ends: Ends, sync: OwnedFd) -> ! {
        let options = Options {
            allow_ptrace: plan.allow_ptrace,
            deny_set_id_bits: plan.deny_set_id_bits,
            keep_core_limit: self.keep_core_limit,
            shield_first: false,
        };
        let filter =
            self.filters.iter().find(|(known, _)| *known == options).map(|(_, filter)| filter.as_slice());
        let Ends { control, log, doors } = ends;
        let held = Inheritance { control, log, doors, sync: sync.as_raw_fd() };
        match contain(plan, filter.unwrap_or(&[]), &held) {
            // What it found to be true goes to the host with its first words.
            Ok(contained) => {
                drop(sync);
                crate::guest::serve(held.control, plan, contained, held.doors)
            }
            Err(error) => {
                let mut report = Writer::default();
                let detail = &error.detail.as_bytes()[..error.detail.len().min(MAX_REPORT / 2)];
                report.bytes(error.step.name().as_bytes()).u32(errno(&error.source) as u32).bytes(detail);
                // If this fails the launcher is gone, and so is whoever could have been told.
                drop(socket::send(sync.as_raw_fd(), &report.bytes, &[]));
                process::exit(1)
            }
        }
    }

    /// Open what the root is made of with the launcher's rights, and hand it over.
    fn send_trees(&self, plan: &Plan, pid: Pid, sync: RawFd) -> io::Result<()> {
        let users = fd::open(format!("/proc/{pid}/ns/user"), libc::O_RDONLY, 0)?;
        for (tree, about) in self.views.in_host(|| open_trees(plan, &users, &self.views))? {
            socket::send(sync, &about, &[tree.as_raw_fd()])?;
        }
        socket::send(sync, &[GO, 0], &[]).map(|_| ())
    }
}

/// Whether the guest closed its end, so that the failed step is not the one that did not apply.
fn has_left(error: &LaunchError) -> bool {
    matches!(errno(&error.source), libc::EPIPE | libc::ECONNRESET)
}

/// Every tree of the plan, with what it is and which of its kind.
fn open_trees(plan: &Plan, users: &OwnedFd, views: &Views) -> io::Result<Vec<(OwnedFd, [u8; 2])>> {
    let mut trees = Vec::new();
    if let Some(disk) = &plan.disk {
        let words = || format!("opening the disk {}", String::from_utf8_lossy(&disk.path));
        let tree = views.open_tree(&disk.path).map_err(|e| during(e, words()))?;
        let flags = mount::ATTR_NOSUID | mount::ATTR_NODEV;
        mount::set_attributes(&tree, flags, disk.idmap.then(|| users.as_raw_fd()))
            .map_err(|e| during(explain_owners(e), words()))?;
        trees.push((tree, [DISK, 0]));
    }
    for (index, layer) in plan.layers.iter().enumerate() {
        let index = u8::try_from(index).map_err(|_| refuse(libc::E2BIG, "more than 256 layers"))?;
        for (source, idmap) in sources(layer, plan.disk.as_ref())? {
            let words = || format!("opening {}", String::from_utf8_lossy(&source));
            let tree = views.open_tree(&source).map_err(|e| during(e, words()))?;
            let owners = idmap.then(|| users.as_raw_fd());
            let kind = own_layer(&tree, owners).map_err(|e| during(e, words()))?;
            trees.push((tree, [kind, index]));
        }
    }
    for granted in &plan.mounts {
        let words = || format!("mounting {}", String::from_utf8_lossy(&granted.source));
        trees.push((granted_tree(plan, granted, users, views).map_err(|e| during(e, words()))?, [MOUNT, 0]));
    }
    for (_, source) in plan.kernel.iter().flat_map(|kernel| &kernel.shown) {
        let words = || format!("opening {}", String::from_utf8_lossy(source));
        let tree = views.open_tree(source).map_err(|e| during(e, words()))?;
        shown_tree(&tree).map_err(|e| during(e, words()))?;
        trees.push((tree, [SHOWN, 0]));
    }
    for (_, source) in plan.kernel.iter().flat_map(|kernel| &kernel.written) {
        let words = || format!("opening {}", String::from_utf8_lossy(source));
        let tree = views.open_tree(source).map_err(|e| during(e, words()))?;
        let flags = mount::ATTR_NOSUID | mount::ATTR_NODEV | mount::ATTR_NOEXEC;
        mount::set_attributes(&tree, flags, None).map_err(|e| during(e, words()))?;
        trees.push((tree, [SHOWN, 0]));
    }
    Ok(trees)
}

/// A program or its files; or the one device, which is of no use where devices are not.
fn shown_tree(tree: &OwnedFd) -> io::Result<()> {
    let stat = fd::fstat(tree)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFCHR {
        return own_layer(tree, None).map(drop);
    }
    if stat.st_rdev != KVM {
        return Err(refuse(libc::EPERM, "a device other than /dev/kvm is shown to nobody"));
    }
    mount::set_attributes(tree, mount::ATTR_NOSUID | mount::ATTR_NOEXEC, None)
}

/// What lies below an overlay: what earlier disks hold of it, then the layer's own directories.
fn sources(layer: &Layer, disk: Option<&Disk>) -> io::Result<Vec<(Vec<u8>, bool)>> {
    let mut found = Vec::new();
    for sealed in disk.iter().filter(|_| layer.writable).flat_map(|disk| &disk.sealed) {
        let path = [sealed, b"/upper/".as_ref(), &layer.key].concat();
        // One that was made under another profile has nothing here.
        if mount::exists(&path)? {
            found.push((path, disk.map_or(false, |disk| disk.idmap)));
        }
    }
    found.extend(layer.sources.iter().map(|source| (source.clone(), layer.idmap)));
    Ok(found)
}

/// Make a layer read-only and show its files as the sandbox's own. Not every filesystem can show
/// other owners (tmpfs from Linux 6.3 on, overlay not at all): without, they belong to nobody
/// inside, who may do less with them, not more.
fn own_layer(tree: &OwnedFd, owners: Option<RawFd>) -> io::Result<u8> {
    let flags = mount::ATTR_RDONLY | mount::ATTR_NOSUID | mount::ATTR_NODEV;
    match mount::set_attributes(tree, flags, owners) {
        Err(error) if owners.is_some() && error.raw_os_error() == Some(libc::EINVAL) => {
            mount::set_attributes(tree, flags, None).map(|()| FOREIGN)
        }
        other => other.map(|()| OWNED),
    }
}

impl Cell {
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

    /// Whether nothing of it is of use to anybody.
    pub fn is_over(&self) -> bool {
        self.reaped && !self.held
    }

    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        self.groups.freeze(frozen)
    }

    pub fn read_complaint(&mut self) -> io::Result<Option<Complaint>> {
        let mut buffer = [0u8; MAX_REPORT];
        let mut none = Vec::new();
        let n = loop {
            match socket::receive(self.sync.as_raw_fd(), &mut buffer, &mut none) {
                // It left without reading all we sent. The kernel says so before it hands over
                // what it had sent itself.
                Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => continue,
                other => break other?,
            }
        };
        if n == 0 {
            return Ok(None);
        }
        parse_complaint(&buffer[..n]).map(Some).map_err(|malformed| refuse(libc::EPROTO, malformed.0))
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

fn granted_tree(plan: &Plan, granted: &Mount, sandbox: &OwnedFd, views: &Views) -> io::Result<OwnedFd> {
    let tree = views.open_tree(&granted.source)?;
    let flags = mount::ATTR_NOSUID | mount::ATTR_NODEV | if granted.write { 0 } else { mount::ATTR_RDONLY };
    match granted.owner {
        Owner::One(users, groups) => {
            let owners = rootless::user_namespace(
                &owners(plan, users, &plan.uid_map),
                &owners(plan, groups, &plan.gid_map),
            )?;
            mount::set_attributes(&tree, flags, Some(owners.as_raw_fd())).map_err(explain_owners)?;
        }
        Owner::Whole => {
            mount::set_attributes(&tree, flags, Some(sandbox.as_raw_fd())).map_err(explain_owners)?;
        }
        Owner::AsTheyAre => mount::set_attributes(&tree, flags, None)?,
    }
    Ok(tree)
}

/// Who is shown as whom. A kernel of its own makes files as its own root before it gives them away, and has to
/// be somebody there for that moment: an id of the sandbox's own, which owns nothing on the host.
fn owners(plan: &Plan, pair: [u32; 2], ids: &[IdRange]) -> Vec<IdRange> {
    let mut map = vec![IdRange { inside: pair[0], outside: pair[1], count: 1 }];
    let root = ids.iter().find(|range| range.inside == 0).map(|range| range.outside);
    if let (Some(_), Some(root)) = (&plan.kernel, root) {
        if !pair.contains(&root) {
            map.push(IdRange { inside: root, outside: root, count: 1 });
        }
    }
    map
}

/// Without other owners the sandbox's user could not do with the files what was granted.
fn explain_owners(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EINVAL) => refuse(
            libc::EINVAL,
            "this filesystem cannot show its files under other owners (tmpfs can from Linux 6.3 on); \
             mount a directory on a disk, or use the mode \"copy\"",
        ),
        _ => error,
    }
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

fn parse_complaint(bytes: &[u8]) -> Result<Complaint, Malformed> {
    let mut r = Reader::new(bytes);
    let complaint = Complaint {
        step: r.bytes()?,
        errno: r.u32()? as i32,
        detail: String::from_utf8_lossy(&r.bytes()?).into_owned(),
    };
    r.end()?;
    Ok(complaint)
}

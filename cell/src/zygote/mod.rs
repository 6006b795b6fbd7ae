//! The launcher: one small process per node, from which every sandbox is cloned.
//!
//! It holds no policy. It is told a plan, performs it, watches the result, and cleans up after
//! it; when its host goes away it ends every sandbox and then itself.

pub mod cgroup;
pub mod egress;
pub mod launch;
pub mod message;
pub mod network;
pub mod nftables;
pub mod rootless;
pub mod template;
pub mod views;
pub mod weight;

use crate::contain::seccomp::{self, rules::Options};
use crate::contain::step;
use crate::contain::step::{errno, LaunchError, Step};
use crate::plan::Plan;
use crate::sys::fd::Epoll;
use crate::sys::{libc, own_memory, process, socket, wall};
use crate::wire::codec::Writer;
use cgroup::Parent;
use launch::{Cell, Ends, Nursery};
use message::{Configuration, Request, AWAKE, FAILED, FROZEN, GONE, LAUNCHED, READY};
use std::collections::HashMap;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use views::Views;

const HOST: u64 = 0;
const MAX_REQUEST: usize = 512 * 1024;
/// How often a control group that is still emptying is tried again.
const RETRY_MS: i32 = 2;

pub struct Zygote {
    host: OwnedFd,
    /// Made once and never cleared: every page the launcher touches is one more to copy for each
    /// sandbox that is cloned from it.
    inbox: Vec<u8>,
    epoll: Epoll,
    syscalls: Vec<seccomp::table::Line>,
    /// None until the host has said where everything is.
    nursery: Option<Nursery>,
    /// Whether the network namespace the launcher lives in has not been given to a sandbox yet.
    fresh_network: bool,
    way_out: WayOut,
    /// One could not be made; the next is made when it is asked for.
    no_network_ahead: bool,
    next_group: u64,
    cells: HashMap<u64, Cell>,
}

/// Who has the sockets of a sandbox's one way out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WayOut {
    /// The host, which they are handed to.
    Host,
    /// The guest, in a machine that no descriptor leaves: it carries what connects over the wire.
    Guest,
}

/// Serve the host on an inherited socket until it closes.
pub fn serve(control: RawFd, way_out: WayOut) -> io::Result<()> {
    let host = crate::sys::fd::adopt(control)?;
    own_memory::keep_heap_still();
    // Where the kernel does not let us, every clone finds its code anew: slower, and nothing else.
    drop(own_memory::hand_down_code());
    process::setsid()?;
    // It was executed from a number; this is what `ps` and `top` show.
    process::set_name("cloister-launch")?;
    // Here, while we may: a guest has no right to.
    wall::reset_priority()?;
    process::default_signals();
    process::umask(0o022);
    // Signals of a terminal are for the program that started us; we end when it closes the socket.
    process::block_all_signals()?;
    let syscalls =
        seccomp::table::lines().map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))?;
    let epoll = Epoll::new()?;
    epoll.add(host.as_raw_fd(), HOST, libc::EPOLLIN)?;
    let mut zygote = Zygote {
        host,
        inbox: vec![0; MAX_REQUEST],
        epoll,
        syscalls,
        nursery: None,
        fresh_network: false,
        way_out,
        no_network_ahead: false,
        next_group: 0,
        cells: HashMap::new(),
    };
    zygote.tell(AWAKE, 0, |_| {})?;
    zygote.run()
}

impl Zygote {
    fn run(&mut self) -> io::Result<()> {
        let mut ready: Vec<u64> = Vec::new();
        let mut open = true;
        while open || !self.cells.is_empty() {
            let lingering = self.cells.values().any(Cell::is_over);
            // Made while nobody waits for anything, a launch under way least of all.
            let make_network = open
                && self.nursery.is_some()
                && !self.fresh_network
                && !self.no_network_ahead
                && self.cells.values().all(|cell| cell.reported);
            self.epoll.wait(
                &mut ready,
                if make_network {
                    0
                } else if lingering {
                    RETRY_MS
                } else {
                    -1
                },
            )?;
            if ready.is_empty() && make_network {
                // What is wrong is said by the launch that needs one, which tries it again.
                match network::enter_fresh() {
                    Ok(()) => self.fresh_network = true,
                    Err(_) => self.no_network_ahead = true,
                }
            }
            for token in &ready {
                if *token == HOST {
                    if open && !self.serve_host()? {
                        open = false;
                        self.epoll.remove(self.host.as_raw_fd())?;
                        self.end_all()?;
                    }
                } else {
                    self.serve_cell(*token)?;
                }
            }
            self.sweep_lingering()?;
        }
        Ok(())
    }

    /// One request. False when the host is gone.
    fn serve_host(&mut self) -> io::Result<bool> {
        let mut fds = Vec::new();
        let n = match socket::receive(self.host.as_raw_fd(), &mut self.inbox, &mut fds) {
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => 0,
            other => other?,
        };
        if n == 0 {
            return Ok(false);
        }
        let request = match message::decode(&self.inbox[..n]) {
            Ok(request) => request,
            Err(malformed) => return Err(io::Error::new(io::ErrorKind::InvalidData, malformed.0)),
        };
        match request {
            Request::Configure(configuration) => match self.configure(&configuration) {
                Ok(()) => self.tell(READY, 0, |w| {
                    w.u32(wall::landlock_version());
                })?,
                Err(error) => self.tell_failed(0, b"configure", errno(&error), &error.to_string())?,
            },
            Request::Launch { id, plan } => self.launch(id, &plan, fds)?,
            Request::Destroy { id } => match self.cells.get_mut(&id) {
                Some(cell) => {
                    cell.held = false;
                    cell.kill()?
                }
                None => self.tell(GONE, id, |w| {
                    w.u32(0).u8(0);
                })?,
            },
            Request::Freeze { id, frozen } => {
                let outcome = match self.cells.get(&id) {
                    Some(cell) => cell.freeze(frozen),
                    None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
                };
                self.tell(FROZEN, id, |w| {
                    w.u32(outcome.err().map_or(0, |error| errno(&error)) as u32);
                })?;
            }
        }
        Ok(true)
    }

    fn configure(&mut self, configuration: &Configuration) -> io::Result<()> {
        let host = views::of_the_host()?;
        rootless::enter(configuration)?;
        template::build(configuration)?;
        let is_root = matches!(configuration.ids, message::Ids::Root);
        let parents = configuration
            .groups
            .iter()
            .map(|(path, unified)| Parent::open(path, *unified, is_root).map(Rc::new))
            .collect::<io::Result<Vec<_>>>()?;
        let keep_core_limit = core_dumps_have_a_handler()?;
        let variants = [(false, false), (false, true), (true, false), (true, true)];
        let filters = variants
            .map(|(allow_ptrace, deny_set_id_bits)| Options {
                allow_ptrace,
                deny_set_id_bits,
                keep_core_limit,
                shield_first: false,
            })
            .map(|options| (options, seccomp::compile(&self.syscalls, options)))
            .to_vec();
        let name = String::from_utf8_lossy(&configuration.name).into_owned();
        self.nursery = Some(Nursery {
            views: Views::part(host, &configuration.directory)?,
            name,
            parents,
            filters,
            keep_core_limit,
        });
        Ok(())
    }

    fn launch(&mut self, id: u64, bytes: &[u8], mut fds: Vec<OwnedFd>) -> io::Result<()> {
        let plan = match Plan::decode(bytes) {
            Ok(plan) => plan,
            Err(malformed) => return self.tell_failed(id, b"plan", libc::EINVAL, malformed.0),
        };
        // In the order in which they were sent.
        let log = if plan.kernel.is_some() { fds.pop() } else { None };
        let ends = match (fds.pop(), fds.is_empty()) {
            (Some(control), true) => Ends { control, log, doors: egress::Doors::default() },
            _ => {
                return self.tell_failed(
                    id,
                    b"plan",
                    libc::EINVAL,
                    "a launch carries one descriptor, with a kernel of its own two",
                )
            }
        };
        if self.cells.contains_key(&id) {
            return self.tell_failed(id, b"plan", libc::EEXIST, "this sandbox number is in use");
        }
        let network =
            step(
                plan.drill,
                Step::Network,
                || if self.fresh_network { Ok(()) } else { network::enter_fresh() },
            );
        self.fresh_network = false;
        let doors = network.and_then(|()| match plan.egress {
            true => step(plan.drill, Step::Egress, egress::open_doors),
            false => Ok(egress::Doors::default()),
        });
        self.next_group += 1;
        let nursery = match &self.nursery {
            Some(nursery) => nursery,
            None => return self.tell_failed(id, b"plan", libc::EINVAL, "a launch before the configuration"),
        };
        let begun = doors.and_then(|doors| {
            let (handed, doors) = match self.way_out {
                WayOut::Host => (egress::Doors::default(), doors),
                WayOut::Guest => (doors, egress::Doors::default()),
            };
            let ends = Ends { doors: handed, ..ends };
            Ok((nursery.launch(self.next_group, &plan, ends)?, doors))
        });
        let (cell, doors) = match begun {
            Ok(begun) => begun,
            Err(error) => return self.tell_launch_error(id, &error),
        };
        self.epoll.add(cell.sync.as_raw_fd(), token(id, true), libc::EPOLLIN)?;
        self.epoll.add(cell.pidfd.as_raw_fd(), token(id, false), libc::EPOLLIN)?;
        let (pid, group) = (cell.pid, cell.group);
        self.cells.insert(id, cell);
        self.hand(LAUNCHED, id, &doors.numbers(), |w| {
            w.u32(pid as u32).u64(group);
        })
    }

    /// The child complained, began to serve, or ended.
    fn serve_cell(&mut self, token: u64) -> io::Result<()> {
        let (id, report) = (token >> 1, token & 1 == 1);
        let cell = match self.cells.get_mut(&id) {
            Some(cell) => cell,
            None => return Ok(()),
        };
        if report {
            let complaint = cell.read_complaint()?;
            cell.reported = true;
            self.epoll.remove(cell.sync.as_raw_fd())?;
            // One that never stood has nothing to say beyond this.
            cell.held &= complaint.is_none();
            return match complaint {
                Some(complaint) => self.tell_failed(id, &complaint.step, complaint.errno, &complaint.detail),
                None => Ok(()),
            };
        }
        if let Some(ended) = process::reap(cell.pid, false)? {
            cell.reaped = true;
            cell.status = ended.status;
            self.epoll.remove(cell.pidfd.as_raw_fd())?;
        }
        Ok(())
    }

    /// Remove the control groups of what has ended; they can stay busy for a moment.
    fn sweep_lingering(&mut self) -> io::Result<()> {
        let ended: Vec<u64> =
            self.cells.iter().filter(|(_, cell)| cell.is_over()).map(|(id, _)| *id).collect();
        for id in ended {
            let finished = match self.cells.get_mut(&id) {
                Some(cell) => cell.groups.remove()?,
                None => continue,
            };
            if finished {
                if let Some(cell) = self.cells.remove(&id) {
                    self.tell(GONE, id, |w| {
                        w.u32(cell.status as u32).u8(0);
                    })?;
                }
            }
        }
        Ok(())
    }

    fn end_all(&mut self) -> io::Result<()> {
        for cell in self.cells.values_mut() {
            cell.held = false;
            cell.kill()?;
        }
        Ok(())
    }

    fn tell_launch_error(&self, id: u64, error: &LaunchError) -> io::Result<()> {
        self.tell_failed(id, error.step.name().as_bytes(), errno(&error.source), &error.detail)
    }

    fn tell_failed(&self, id: u64, step: &[u8], errno: i32, detail: &str) -> io::Result<()> {
        self.tell(FAILED, id, |w| {
            w.u32(errno as u32).bytes(step).bytes(detail.as_bytes());
        })
    }

    fn tell(&self, kind: u8, id: u64, payload: impl FnOnce(&mut Writer)) -> io::Result<()> {
        self.hand(kind, id, &[], payload)
    }

    /// Tell the host something, with descriptors.
    fn hand(&self, kind: u8, id: u64, fds: &[RawFd], payload: impl FnOnce(&mut Writer)) -> io::Result<()> {
        let mut w = Writer::default();
        w.u8(kind).u64(id);
        payload(&mut w);
        match socket::send(self.host.as_raw_fd(), &w.bytes, fds) {
            // The host went away while we were answering; the next receive says so.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

fn core_dumps_have_a_handler() -> io::Result<bool> {
    let pattern = crate::sys::fd::open("/proc/sys/kernel/core_pattern", libc::O_RDONLY, 0)?;
    let mut first = [0u8; 1];
    Ok(crate::sys::fd::read(pattern.as_raw_fd(), &mut first)? == 1 && first[0] == b'|')
}

fn token(id: u64, report: bool) -> u64 {
    id << 1 | u64::from(report)
}

/// The launch steps, one a line: what the documents and their test read.
pub fn print_steps() {
    for step in Step::ALL {
        println!("{}\t{}\t{}", step.name(), step.side(), step.what());
    }
}

//! The guest: the sandbox's first process. It reaps, runs processes, serves files, dials ports.
//!
//! One thread, one loop. It never executes a program itself: a process that was executed inside
//! its user namespace could be traced by a guest root, one that was only cloned cannot. (In another
//! kernel, where it is executed as `cell guest`, nobody inside may trace another user's process.)

mod account;
mod clerk;
mod datagrams;
mod doors;
mod duct;
mod groups;
mod held;
pub mod inside;
mod jobs;
mod link;
mod redirect;
mod slots;
mod spawn;
mod tree;
mod unsaved;

use crate::contain::Contained;
use crate::plan::Plan;
use crate::sys::fd::{self, Wait};
use crate::sys::kept::KEEPER_SIGNAL;
use crate::sys::{libc, process};
use crate::wire::message::{ToGuest, ToHost};
use crate::wire::GENERATION;
use crate::zygote::egress::Doors as HandedDoors;
use account::Hits;
use doors::Doors;
use duct::Duct;
use groups::Groups;
use jobs::Jobs;
use link::Link;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// What every process inside is started with, whatever the request says.
pub struct House {
    pub stream_transport: bool,
    pub root_caps: u64,
    pub open_files: u64,
    pub change_identity: bool,
}

impl House {
    /// The user to become, or None where the sandbox has one id and this is it.
    pub fn identity(&self, uid: u32, gid: u32) -> io::Result<Option<(u32, u32)>> {
        if self.change_identity {
            return Ok(Some((uid, gid)));
        }
        if (uid, gid) != (process::getuid(), process::getgid()) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Ok(None)
    }

    /// No capabilities but the profile's, and those only for the sandbox's root.
    pub fn capabilities(&self, uid: u32) -> u64 {
        if uid == 0 {
            self.root_caps
        } else {
            0
        }
    }
}

struct Guest {
    house: House,
    /// How to say anew what is true, where the memory of this kernel can be saved.
    again: Option<Facts>,
    /// Begun ahead of whoever comes: nobody asked for its memory.
    is_nobody: bool,
    /// What was said at first, which stays true of a sandbox in a machine that is saved as a whole.
    facts: Vec<u8>,
    link: Link,
    jobs: Jobs,
    ducts: Vec<Duct>,
    /// Its way out, where the host has none of its own in here.
    doors: Option<Doors>,
}

/// Serve until the host closes the connection. The end of this process is the end of the sandbox.
pub fn serve(control: OwnedFd, plan: &Plan, contained: Contained, doors: HandedDoors) -> ! {
    let house = House {
        stream_transport: plan.stream_transport,
        root_caps: plan.root_caps,
        open_files: plan.open_files,
        change_identity: plan.uid_map.iter().map(|range| range.count).sum::<u32>() > 1,
    };
    let Contained { facts, counts, volumes } = contained;
    let code = match Doors::handed(doors).and_then(|doors| {
        run(control, house, facts, Extra { doors, hits: Hits::new(counts, volumes), ..Extra::default() })
    }) {
        Ok(()) => 0,
        Err(_) => 1,
    };
    process::exit(code)
}

type Facts = fn() -> io::Result<Vec<u8>>;

/// What a guest has that is not the host's kernel's.
#[derive(Default)]
struct Extra {
    groups: Option<Groups>,
    again: Option<Facts>,
    doors: Option<Doors>,
    hits: Hits,
}

fn run(control: OwnedFd, house: House, facts: Vec<u8>, extra: Extra) -> io::Result<()> {
    process::set_name("cloister-guest")?;
    let mut link = Link::new(control, !house.stream_transport)?;
    link.say(0, &ToHost::Hello { generation: GENERATION, facts: facts.clone() })?;
    // Everything for the first program is made ready while the host reads that.
    let null = fd::open("/dev/null", libc::O_RDONLY, 0)?;
    // Taken, so that no stream is given a number that another has to have in the program.
    let _low = [fd::dup_above(null.as_raw_fd(), 0)?, fd::dup_above(null.as_raw_fd(), 0)?];
    let signals = process::signal_descriptor(&[libc::SIGCHLD, KEEPER_SIGNAL])?;
    let Extra { groups, again, doors, hits } = extra;
    let jobs = Jobs::new(null, groups, hits)?;
    let mut guest = Guest { house, again, is_nobody: false, facts, link, jobs, ducts: Vec::new(), doors };
    let mut waits: Vec<Wait> = Vec::new();
    loop {
        waits.clear();
        waits.push(fd::wait_for(guest.link.number(), guest.link.wants()));
        waits.push(fd::wait_for(signals.as_raw_fd(), libc::POLLIN));
        guest.jobs.add_waits(&mut waits);
        let first_door = waits.len();
        let room = guest.link.has_room();
        if let Some(doors) = &guest.doors {
            doors.add_waits(&mut waits, room);
        }
        let first_duct = waits.len();
        for duct in &guest.ducts {
            duct.add_waits(&mut waits, room);
        }
        let hurry = guest.ducts.iter().any(|duct| duct.in_hurry(room));
        fd::poll(&mut waits, if hurry { 0 } else { -1 })?;

        guest.jobs.serve_starting(&waits[2..first_door], &mut guest.link)?;
        // Before the end of a program that was refused something: who hears of that asks what it was.
        if let Some(doors) = &mut guest.doors {
            doors.report_refused(&waits[first_door..first_duct], &mut guest.link)?;
        }
        // What has ended comes before what is to begin, which may then be started directly.
        if waits[1].revents != 0 {
            drain(&signals)?;
            guest.jobs.reap(&mut guest.link, &mut guest.ducts)?;
        }
        if waits[0].revents != 0 && !guest.serve_link(waits[0].revents)? {
            return Ok(());
        }
        guest.serve_ducts(&waits[first_duct..])?;
        if let Some(doors) = &mut guest.doors {
            doors.serve(&waits[first_door..first_duct], &mut guest.link, &mut guest.ducts)?;
        }
        guest.end_ducts()?;
    }
}

fn drain(signals: &OwnedFd) -> io::Result<()> {
    let mut buffer = [0u8; 128 * 8];
    match fd::read(signals.as_raw_fd(), &mut buffer) {
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
        other => other.map(|_| ()),
    }
}

impl Guest {
    /// Take what has arrived. False when the host has closed.
    fn serve_link(&mut self, happened: i16) -> io::Result<bool> {
        if happened & libc::POLLOUT != 0 {
            self.link.flush()?;
        }
        if happened & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) == 0 {
            return Ok(true);
        }
        if !self.link.fill()? {
            return Ok(false);
        }
        while let Some((id, message)) = self.link.next()? {
            self.obey(id, message)?;
        }
        Ok(true)
    }

    fn obey(&mut self, id: u32, message: ToGuest) -> io::Result<()> {
        let wanted = if self.house.stream_transport { 0 } else { message.descriptors() };
        let fds = self.link.take_fds(wanted)?;
        match message {
            ToGuest::Ping => self.link.say(id, &ToHost::Pong),
            ToGuest::Hold => self.hold(id),
            ToGuest::Proceed | ToGuest::Renew { .. } => Err(io::Error::from_raw_os_error(libc::EPROTO)),
            ToGuest::Answer { bytes } => {
                if let Some(doors) = &mut self.doors {
                    doors.answer(id, &bytes);
                }
                Ok(())
            }
            ToGuest::Close { stream: u8::MAX } => self.cut(id),
            ToGuest::Start(start) => {
                let outcome = spawn::start(&self.house, &mut self.jobs, &mut self.ducts, id, &start, fds);
                self.answer(id, outcome)
            }
            ToGuest::File(file) => {
                let outcome = clerk::start(&self.house, &mut self.jobs, &mut self.ducts, id, &file, fds);
                self.answer(id, outcome)
            }
            ToGuest::Dial { port } => {
                let outcome = spawn::dial(&self.house, &mut self.ducts, id, port, fds);
                if outcome.is_ok() {
                    self.link.say(id, &ToHost::Started { pid: 0 })?;
                }
                self.answer(id, outcome)
            }
            ToGuest::Signal { signal, reach } => {
                self.jobs.signal(id, i32::from(signal), reach);
                Ok(())
            }
            ToGuest::Resize { rows, cols } => {
                self.jobs.resize(id, rows, cols);
                Ok(())
            }
            ToGuest::Data { stream, bytes } => {
                for duct in self.ducts.iter_mut().filter(|duct| duct.takes(id, stream)) {
                    duct.accept(&bytes)?;
                }
                Ok(())
            }
            ToGuest::Close { stream } => {
                for duct in self.ducts.iter_mut().filter(|duct| duct.takes(id, stream)) {
                    duct.finish();
                }
                Ok(())
            }
            ToGuest::Credit { stream, bytes } => {
                for duct in self.ducts.iter_mut().filter(|duct| duct.gives(id, stream)) {
                    duct.credit(bytes);
                }
                Ok(())
            }
        }
    }

    /// Cut a connection that was accepted here; one that is over already cannot be.
    fn cut(&mut self, id: u32) -> io::Result<()> {
        let (cut, others) = self.ducts.drain(..).partition::<Vec<_>, _>(|duct| duct.job == id);
        self.ducts = others;
        if let (Some(doors), false) = (&mut self.doors, cut.is_empty()) {
            doors.ended();
        }
        // One that the program has let go of meanwhile takes no more settings.
        cut.into_iter().for_each(|duct| drop(duct.cut()));
        Ok(())
    }

    fn answer(&mut self, id: u32, outcome: Result<(), Refused>) -> io::Result<()> {
        match outcome {
            Ok(()) => Ok(()),
            Err(refused) => self.link.say(
                id,
                &ToHost::Failed {
                    errno: refused.errno as u32,
                    step: refused.step.as_bytes().to_vec(),
                    detail: Vec::new(),
                },
            ),
        }
    }

    fn serve_ducts(&mut self, waits: &[Wait]) -> io::Result<()> {
        for (duct, pair) in self.ducts.iter_mut().zip(waits.chunks(2)) {
            duct.serve(pair, &mut self.link)?;
        }
        Ok(())
    }

    fn end_ducts(&mut self) -> io::Result<()> {
        let mut ended = Vec::new();
        self.ducts.retain(|duct| {
            if duct.done() {
                ended.push(duct.job);
            }
            !duct.done()
        });
        for id in ended {
            let last = !self.ducts.iter().any(|duct| duct.job == id);
            if let (Some(doors), true) = (&mut self.doors, last && doors::is_ours(id)) {
                doors.ended();
            }
            self.jobs.duct_ended(id, last, &mut self.link)?;
        }
        Ok(())
    }
}

/// A request the guest could not begin.
pub struct Refused {
    pub step: &'static str,
    pub errno: i32,
}

impl Refused {
    pub fn at(step: &'static str) -> impl Fn(io::Error) -> Refused {
        move |error| Refused { step, errno: crate::sys::errno_of(&error) }
    }
}

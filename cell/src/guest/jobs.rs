//! What is running on the host's request: who it is, whether it has started, how it ended.

use super::account::{exited, Hits, Used};
use super::duct::Duct;
use super::groups::Groups;
use super::link::Link;
use super::slots::{Said, Slots};
use super::spawn::STEPS;
use super::tree;
use crate::sys::fd::{self, Wait};
use crate::sys::kept::{Launch, Stack};
use crate::sys::process::{Ended, Pid};
use crate::sys::{libc, process};
use crate::wire::message::{Reach, ToHost};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// Kept for the next start.
const SPARE_STACKS: usize = 4;

pub struct Terminal {
    pub master: OwnedFd,
}

/// Whose child a job is, and so how its tree is found.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// A program that is our own child. There is at most one, and it was started when we had no
    /// plain child: whatever has been adopted since is what it orphaned.
    Direct,
    /// A program under a keeper, which adopts what it orphans.
    Kept,
    /// A file operation, which starts nothing.
    Clerk,
}

pub struct Job {
    pub kind: Kind,
    /// The program's process, its keeper's, or the clerk's.
    pub pid: Pid,
    pub slot: usize,
    /// What a program was started with, in use until `pid` has been reaped. None: a clerk.
    pub launch: Option<Box<Launch>>,
    pub terminal: Option<Terminal>,
    /// Its control group, where trees are told by those.
    pub group: Option<u64>,
    /// Ends when the program has been executed.
    pub starting: Option<OwnedFd>,
    /// The program itself, once its keeper has been killed under it.
    orphan: Option<Pid>,
    /// What was used by the orphans of a direct one that we have reaped.
    used: Used,
}

impl Job {
    pub fn new(kind: Kind, pid: Pid, slot: usize) -> Job {
        Job {
            kind,
            pid,
            slot,
            launch: None,
            terminal: None,
            group: None,
            starting: None,
            orphan: None,
            used: Used::default(),
        }
    }
}

pub struct Jobs {
    pub slots: Slots,
    pub groups: Option<Groups>,
    hits: Hits,
    by_id: HashMap<u32, Job>,
    /// Keepers whose program has ended and left something running, and what they stand on.
    staying: HashMap<Pid, Option<Stack>>,
    load: OwnedFd,
    null: OwnedFd,
    stacks: Vec<Stack>,
}

impl Jobs {
    pub fn new(null: OwnedFd, groups: Option<Groups>, hits: Hits) -> io::Result<Jobs> {
        let stack = Stack::new()?;
        stack.touch();
        let mut slots = Slots::new()?;
        if let Some(slot) = slots.take() {
            slots.give_back(slot);
        }
        Ok(Jobs {
            slots,
            groups,
            hits,
            by_id: HashMap::new(),
            staying: HashMap::new(),
            load: fd::open("/proc/loadavg", libc::O_RDONLY, 0)?,
            null,
            stacks: vec![stack],
        })
    }

    /// What a program without input reads. Opened once: the way there takes longer than a clone.
    pub fn no_input(&self) -> io::Result<OwnedFd> {
        fd::dup_above(self.null.as_raw_fd(), 3)
    }

    /// Stacks for a start: used before if there are any, which spares the kernel the mapping.
    pub fn stack(&mut self) -> io::Result<Stack> {
        self.stacks.pop().map_or_else(Stack::new, Ok)
    }

    /// Whether a program may be our own child: nobody else's orphans are, nor ever will be.
    pub fn may_start_directly(&self) -> bool {
        !process::has_plain_children()
    }

    pub fn has(&self, id: u32) -> bool {
        self.by_id.contains_key(&id)
    }

    pub fn insert(&mut self, id: u32, job: Job) {
        self.by_id.insert(id, job);
    }

    /// The last process number given out in this namespace.
    fn last_number(&self) -> u32 {
        let mut buffer = [0u8; 128];
        let n = fd::pread(self.load.as_raw_fd(), &mut buffer, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..n]);
        text.split_whitespace().last().and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    pub fn add_waits(&self, waits: &mut Vec<Wait>) {
        for job in self.by_id.values() {
            if let Some(starting) = &job.starting {
                waits.push(fd::wait_for(starting.as_raw_fd(), libc::POLLIN));
            }
        }
    }

    /// The pipe of a starting program has closed: it was executed, or it failed and says so later.
    pub fn serve_starting(&mut self, waits: &[Wait], link: &mut Link) -> io::Result<()> {
        for wait in waits.iter().filter(|wait| wait.revents != 0) {
            let found = self
                .by_id
                .iter_mut()
                .find(|(_, job)| job.starting.as_ref().map_or(false, |fd| fd.as_raw_fd() == wait.fd));
            if let Some((id, job)) = found {
                job.starting = None;
                if !matches!(self.slots.said(job.slot), Said::Failed { .. }) {
                    link.say(*id, &ToHost::Started { pid: program_of(job, &self.slots) as u32 })?;
                }
            }
        }
        Ok(())
    }

    pub fn signal(&self, id: u32, signal: i32, reach: Reach) {
        let job = match self.by_id.get(&id) {
            Some(job) => job,
            // It ended while the request was on its way.
            None => return,
        };
        let program = program_of(job, &self.slots);
        let outcome = match reach {
            Reach::Tree => {
                self.slots.doom(job.slot);
                let spared = if program == job.pid { 0 } else { job.pid };
                match (&self.groups, job.group) {
                    (Some(groups), Some(group)) => groups.kill(group, spared),
                    _ => self.kill_tree(job, program),
                }
            }
            Reach::Group if program > 1 => process::kill(-program, signal),
            Reach::Process if program > 1 => process::kill(program, signal),
            _ => Ok(()),
        };
        // The only failure is that nobody was left to receive it.
        drop(outcome);
    }

    /// Kill the program and its descendants, found by who is whose parent.
    fn kill_tree(&self, job: &Job, program: Pid) -> io::Result<()> {
        match job.kind {
            Kind::Direct => {
                let others = self.others(job);
                if others.is_empty() {
                    tree::kill_all()
                } else {
                    tree::kill(process::getpid(), true, &others)
                }
            }
            Kind::Kept => tree::kill(job.pid, program != job.pid, &HashSet::new()),
            Kind::Clerk => tree::kill(job.pid, false, &HashSet::new()),
        }
    }

    /// Our children that are not this job's.
    fn others(&self, job: &Job) -> HashSet<Pid> {
        let others = self.by_id.values().filter(|other| other.pid != job.pid);
        let theirs = others.flat_map(|other| Some(other.pid).into_iter().chain(other.orphan));
        theirs.chain(self.staying.keys().copied()).collect()
    }

    pub fn resize(&self, id: u32, rows: u16, cols: u16) {
        let found = self.by_id.get(&id).and_then(|job| Some((job, job.terminal.as_ref()?)));
        if let Some((job, terminal)) = found {
            // A terminal that has just been hung up has no size to change.
            drop(fd::set_window(&terminal.master, rows, cols));
            // Another kernel may keep it to itself. Nobody is left to be told: nothing to do.
            if self.groups.is_some() {
                let group = program_of(job, &self.slots);
                drop(if group > 1 { process::kill(-group, libc::SIGWINCH) } else { Ok(()) });
            }
        }
    }

    /// Collect everything that has ended: our own children, and orphans that became ours.
    pub fn reap(&mut self, link: &mut Link, ducts: &mut [Duct]) -> io::Result<()> {
        while let Some(ended) = process::reap(-1, false)? {
            let found = self
                .by_id
                .iter()
                .find(|(_, job)| job.pid == ended.pid || job.orphan == Some(ended.pid))
                .map(|(id, _)| *id);
            if let Some(id) = found {
                self.ended(id, &ended, link, ducts)?;
            } else if let Some(stack) = self.staying.remove(&ended.pid) {
                self.put_away(stack);
            } else if let Some(job) = self.by_id.values_mut().find(|job| job.kind == Kind::Direct) {
                job.used.add(&ended.usage);
            }
        }
        self.part(link, ducts)
    }

    /// Part with the programs that have ended while their keeper stays.
    fn part(&mut self, link: &mut Link, ducts: &mut [Duct]) -> io::Result<()> {
        let kept = self.by_id.iter().filter(|(_, job)| job.kind == Kind::Kept);
        let left = kept.filter_map(|(id, job)| match self.slots.said(job.slot) {
            Said::Left(status, usage) => Some((*id, Ended { pid: job.pid, status, usage })),
            _ => None,
        });
        for (id, ended) in left.collect::<Vec<_>>() {
            if let Some(job) = self.by_id.get_mut(&id) {
                self.staying.insert(job.pid, job.launch.take().map(|launch| launch.into_stack()));
                self.ended(id, &ended, link, ducts)?;
            }
        }
        Ok(())
    }

    fn put_away(&mut self, stack: Option<Stack>) {
        if self.stacks.len() < SPARE_STACKS {
            self.stacks.extend(stack);
        }
    }

    fn ended(&mut self, id: u32, ended: &Ended, link: &mut Link, ducts: &mut [Duct]) -> io::Result<()> {
        let last_number = self.last_number();
        let job = match self.by_id.get_mut(&id) {
            None => return Ok(()),
            Some(job) => job,
        };
        job.used.add(&ended.usage);
        let program = program_of(job, &self.slots);
        let killed_keeper = program != job.pid && matches!(self.slots.said(job.slot), Said::Nothing);
        let message = match self.slots.said(job.slot) {
            Said::Failed { errno, step, detail } => {
                let step = STEPS.get(usize::from(step)).copied().unwrap_or("");
                ToHost::Failed { errno: errno as u32, step: step.as_bytes().to_vec(), detail }
            }
            Said::Ended(status) | Said::Left(status, _) => {
                exited(&job.used, status, processes(job, program, last_number), &mut self.hits)
            }
            Said::Nothing if killed_keeper && job.orphan.is_none() && program > 0 => {
                // The keeper was killed; the program is now our own child.
                job.orphan = Some(program);
                return Ok(());
            }
            Said::Nothing => {
                exited(&job.used, ended.status, processes(job, program, last_number), &mut self.hits)
            }
        };
        for duct in ducts.iter_mut().filter(|duct| duct.job == id) {
            duct.last_words();
        }
        if let Some(mut job) = self.by_id.remove(&id) {
            self.slots.give_back(job.slot);
            if let (Some(groups), Some(group)) = (&mut self.groups, job.group) {
                groups.part_with(group);
            }
            match job.launch.take() {
                // Its program may still be between clone and execute, in our memory.
                Some(launch) if killed_keeper => std::mem::forget(launch),
                launch => self.put_away(launch.map(|launch| launch.into_stack())),
            }
        }
        link.say(id, &message)
    }

    /// A connection made by `dial` is over when both directions are.
    pub fn duct_ended(&mut self, id: u32, last: bool, link: &mut Link) -> io::Result<()> {
        if last && !self.by_id.contains_key(&id) {
            return link.say(id, &ToHost::Close { stream: u8::MAX });
        }
        Ok(())
    }
}

/// The program's own process; 0 while its keeper has not said. It is the keeper's own where there
/// was no room for two.
fn program_of(job: &Job, slots: &Slots) -> Pid {
    match job.kind {
        Kind::Kept => slots.pid(job.slot),
        Kind::Direct | Kind::Clerk => job.pid,
    }
}

/// How many processes there have been since the program began, itself included. Numbers rise, so
/// that differences count; a keeper is ours, not the program's. A kernel that does not tell the last
/// number leaves the program alone to be counted.
fn processes(job: &Job, program: Pid, last_number: u32) -> u32 {
    last_number.saturating_sub(job.pid as u32 - u32::from(program == job.pid)).max(1)
}

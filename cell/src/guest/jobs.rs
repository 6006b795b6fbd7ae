//! What is running on the host's request: who it is, whether it has started, how it ended.

use super::duct::Duct;
use super::link::Link;
use super::slots::{Said, Slots};
use super::spawn::STEPS;
use super::tree;
use crate::sys::fd::{self, Wait};
use crate::sys::kept::{Launch, Stack};
use crate::sys::process::{Ended, Pid};
use crate::sys::{libc, mount, process};
use crate::wire::message::{Exited, Reach, ToHost};
use std::collections::HashMap;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// Kept for the next start.
const SPARE_STACKS: usize = 4;

pub struct Terminal {
    pub master: OwnedFd,
}

pub struct Job {
    /// The keeper's process, or the clerk's own.
    pub pid: Pid,
    pub slot: usize,
    /// Processes the sandbox had ever started when this one began.
    pub before: u32,
    /// What a program was started with, in use until its keeper has been reaped. None: a clerk.
    pub launch: Option<Box<Launch>>,
    pub terminal: Option<Terminal>,
    /// Ends when the program has been executed.
    pub starting: Option<OwnedFd>,
    /// The program itself, once its keeper has been killed under it.
    pub orphan: Option<Pid>,
}

pub struct Jobs {
    pub slots: Slots,
    by_id: HashMap<u32, Job>,
    load: OwnedFd,
    stacks: Vec<Stack>,
}

impl Jobs {
    pub fn new() -> io::Result<Jobs> {
        Ok(Jobs {
            slots: Slots::new()?,
            by_id: HashMap::new(),
            load: fd::open("/proc/loadavg", libc::O_RDONLY, 0)?,
            stacks: Vec::new(),
        })
    }

    /// Get ready for the first start while nobody waits for it.
    pub fn warm(&mut self) -> io::Result<()> {
        let stack = Stack::new()?;
        stack.touch();
        self.stacks.push(stack);
        if let Some(slot) = self.slots.take() {
            self.slots.give_back(slot);
        }
        Ok(())
    }

    /// Stacks for a start: used before if there are any, which spares the kernel the mapping.
    pub fn stack(&mut self) -> io::Result<Stack> {
        self.stacks.pop().map_or_else(Stack::new, Ok)
    }

    pub fn insert(&mut self, id: u32, job: Job) {
        self.by_id.insert(id, job);
    }

    /// The last process number given out in this namespace: numbers rise, so differences count.
    pub fn processes_so_far(&self) -> u32 {
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
                    link.say(*id, &ToHost::Started { pid: self.slots.pid(job.slot) as u32 })?;
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
        let program = if job.launch.is_some() { self.slots.pid(job.slot) } else { job.pid };
        let outcome = match reach {
            Reach::Tree => {
                self.slots.doom(job.slot);
                tree::kill(job.pid, job.launch.is_some())
            }
            Reach::Group if program > 1 => process::kill(-program, signal),
            Reach::Process if program > 1 => process::kill(program, signal),
            _ => Ok(()),
        };
        // The only failure is that nobody was left to receive it.
        drop(outcome);
    }

    pub fn resize(&self, id: u32, rows: u16, cols: u16) {
        if let Some(terminal) = self.by_id.get(&id).and_then(|job| job.terminal.as_ref()) {
            // A terminal that has just been hung up has no size to change.
            drop(fd::set_window(&terminal.master, rows, cols));
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
            }
        }
        Ok(())
    }

    fn ended(&mut self, id: u32, ended: &Ended, link: &mut Link, ducts: &mut [Duct]) -> io::Result<()> {
        let job = match self.by_id.get_mut(&id) {
            None => return Ok(()),
            Some(job) => job,
        };
        let before = job.before;
        let killed_keeper = matches!(self.slots.said(job.slot), Said::Nothing);
        let message = match self.slots.said(job.slot) {
            Said::Failed { errno, step, detail } => {
                let step = STEPS.get(usize::from(step)).copied().unwrap_or("");
                ToHost::Failed { errno: errno as u32, step: step.as_bytes().to_vec(), detail }
            }
            Said::Ended(status) => self.exited(before, status, ended),
            Said::Nothing if job.launch.is_some() && job.orphan.is_none() && self.slots.pid(job.slot) > 0 => {
                // The keeper was killed; the program is now our own child.
                job.orphan = Some(self.slots.pid(job.slot));
                return Ok(());
            }
            Said::Nothing => self.exited(before, ended.status, ended),
        };
        for duct in ducts.iter_mut().filter(|duct| duct.job == id) {
            duct.last_words();
        }
        if let Some(mut job) = self.by_id.remove(&id) {
            self.slots.give_back(job.slot);
            match job.launch.take() {
                // Its program may still be between clone and execute, in our memory.
                Some(launch) if killed_keeper => std::mem::forget(launch),
                Some(launch) if self.stacks.len() < SPARE_STACKS => self.stacks.push(launch.into_stack()),
                _ => {}
            }
        }
        link.say(id, &message)
    }

    fn exited(&self, before: u32, status: i32, ended: &Ended) -> ToHost {
        let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        let signal = status & 0x7F;
        let code = if signal == 0 { (status >> 8 & 0xFF) as u32 } else { 0 };
        ToHost::Exited(Exited {
            code,
            signal: signal as u8,
            flags: if status == 0 { 0 } else { fullness() },
            user_us: micros(ended.usage.ru_utime),
            system_us: micros(ended.usage.ru_stime),
            peak_kib: ended.usage.ru_maxrss as u64,
            read_blocks: ended.usage.ru_inblock as u64,
            written_blocks: ended.usage.ru_oublock as u64,
            // The keeper is ours, not the program's.
            processes: self.processes_so_far().saturating_sub(before + 1),
        })
    }

    /// A connection made by `dial` is over when both directions are.
    pub fn duct_ended(&mut self, id: u32, last: bool, link: &mut Link) -> io::Result<()> {
        if last && !self.by_id.contains_key(&id) {
            return link.say(id, &ToHost::Close { stream: u8::MAX });
        }
        Ok(())
    }
}

/// Whether the disk was full when something failed: bit 0 for bytes, bit 1 for inodes.
fn fullness() -> u8 {
    match mount::space(b"/") {
        Ok([size, blocks, free, _, free_inodes]) => {
            let nearly = free * size < 64 * 1024 || free < blocks / 2048;
            u8::from(nearly) | u8::from(free_inodes == 0) << 1
        }
        Err(_) => 0,
    }
}

//! Where a forked child writes what became of it, in memory shared until it executes.

use crate::sys::kept::{Mailbox, ENDED, FAILED, LEFT, NOTHING};
use crate::sys::shared::SharedBytes;
use crate::sys::{libc, process};
use std::io;

const SLOT: usize = 256;
const COUNT: usize = 512;
const DETAIL: usize = SLOT - 16;

const STATE: usize = 0;
const NUMBER: usize = 4;
const PID: usize = 8;
const LENGTH: usize = 12;
const STEP: usize = 13;
const DOOMED: usize = 14;
const TEXT: usize = 16;

/// What a child said before it ended.
pub enum Said {
    Nothing,
    /// The program ran, and its keeper ends with it; its wait status.
    Ended(i32),
    /// The program ran, and its keeper stays for what it left; its wait status, and what it used.
    Left(i32, libc::rusage),
    Failed {
        errno: i32,
        step: u8,
        detail: Vec<u8>,
    },
}

pub struct Slots {
    bytes: &'static SharedBytes,
    mailbox: &'static Mailbox<'static>,
    used: Vec<bool>,
}

impl Slots {
    pub fn new() -> io::Result<Slots> {
        // There is one guest in a process and it never ends before the process does: what children
        // write into may as well live for ever.
        let bytes: &'static SharedBytes = Box::leak(Box::new(SharedBytes::new(SLOT * COUNT)?));
        let mailbox = Box::leak(Box::new(Mailbox {
            bytes,
            program: PID,
            status: NUMBER,
            failure: LENGTH,
            doomed: DOOMED,
            usage: TEXT,
        }));
        Ok(Slots { bytes, mailbox, used: vec![false; COUNT] })
    }

    pub fn take(&mut self) -> Option<usize> {
        let index = self.used.iter().position(|used| !used)?;
        self.used[index] = true;
        self.bytes.write(index * SLOT, &[0; 16]);
        Some(index)
    }

    pub fn give_back(&mut self, index: usize) {
        self.used[index] = false;
    }

    /// Where the keeper of a program writes, and the place of this slot in it.
    pub fn mailbox(&self, index: usize) -> (&'static Mailbox<'static>, usize) {
        (self.mailbox, index * SLOT)
    }

    pub fn failed(&self, index: usize, step: u8, errno: i32, detail: &[u8]) {
        let detail = &detail[..detail.len().min(DETAIL)];
        self.number(index, NUMBER, errno);
        self.bytes.write(index * SLOT + LENGTH, &[detail.len() as u8, step]);
        self.bytes.write(index * SLOT + TEXT, detail);
        self.bytes.write(index * SLOT + STATE, &[FAILED]);
    }

    /// The program is to be killed, also if it does not exist yet.
    pub fn doom(&self, index: usize) {
        self.bytes.write(index * SLOT + DOOMED, &[1]);
    }

    /// The program's own process, as its keeper knows it.
    pub fn pid(&self, index: usize) -> i32 {
        self.get(index, PID)
    }

    pub fn said(&self, index: usize) -> Said {
        let mut state = [0u8; 1];
        self.bytes.read(index * SLOT + STATE, &mut state);
        match state[0] {
            NOTHING => Said::Nothing,
            ENDED => Said::Ended(self.get(index, NUMBER)),
            LEFT => Said::Left(self.get(index, NUMBER), self.usage(index)),
            _ => {
                let mut head = [0u8; 2];
                self.bytes.read(index * SLOT + LENGTH, &mut head);
                debug_assert_eq!(LENGTH + 1, STEP);
                let mut detail = vec![0u8; usize::from(head[0]).min(DETAIL)];
                self.bytes.read(index * SLOT + TEXT, &mut detail);
                Said::Failed { errno: self.get(index, NUMBER), step: head[1], detail }
            }
        }
    }

    fn usage(&self, index: usize) -> libc::rusage {
        let mut bytes = [0u8; std::mem::size_of::<libc::rusage>()];
        self.bytes.read(index * SLOT + TEXT, &mut bytes);
        process::usage_of(bytes)
    }

    fn number(&self, index: usize, offset: usize, value: i32) {
        self.bytes.write(index * SLOT + offset, &value.to_le_bytes());
    }

    fn get(&self, index: usize, offset: usize) -> i32 {
        let mut bytes = [0u8; 4];
        self.bytes.read(index * SLOT + offset, &mut bytes);
        i32::from_le_bytes(bytes)
    }
}

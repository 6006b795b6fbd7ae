//! Turns the table into the kernel's filter program.

use super::rules::{self, Options};
use super::table::{Action, Line};
use crate::sys::wall::Instruction;

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

const KILL: u32 = 0x8000_0000;
const ALLOW: u32 = 0x7FFF_0000;
const ERRNO: u32 = 0x0005_0000;

const ARCH_X86_64: u32 = 0xC000_003E;
const X32: u32 = 0x4000_0000;
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

/// A run of instructions for one call; jumps inside it are relative, so blocks can be nested.
#[derive(Default)]
pub struct Block {
    code: Vec<Instruction>,
}

impl Block {
    fn push(&mut self, code: u16, jump_true: u8, jump_false: u8, value: u32) {
        self.code.push(Instruction { code, jump_true, jump_false, value });
    }

    pub fn argument(&mut self, index: u32) {
        self.push(LOAD, 0, 0, OFFSET_ARGUMENTS + 8 * index);
    }

    pub fn mask(&mut self, bits: u32) {
        self.push(AND, 0, 0, bits);
    }

    pub fn allow(&mut self) {
        self.push(RETURN, 0, 0, ALLOW);
    }

    pub fn errno(&mut self, errno: i32) {
        self.push(RETURN, 0, 0, ERRNO | (errno as u32 & 0xFFFF));
    }

    pub fn if_equal(&mut self, value: u32, inner: impl FnOnce(&mut Block)) {
        self.conditional(JUMP_EQUAL, value, inner);
    }

    pub fn if_any_bit(&mut self, bits: u32, inner: impl FnOnce(&mut Block)) {
        self.conditional(JUMP_ANY_BIT, bits, inner);
    }

    fn conditional(&mut self, code: u16, value: u32, inner: impl FnOnce(&mut Block)) {
        let mut block = Block::default();
        inner(&mut block);
        // No block is near 255 instructions; a longer one would wrap into another verdict, so it
        // becomes a filter the kernel refuses to load.
        let skip = u8::try_from(block.code.len()).unwrap_or(u8::MAX);
        self.push(code, 0, skip, value);
        self.code.append(&mut block.code);
    }
}

/// The whole program. Another architecture ends the process before anything else is looked at.
pub fn compile(lines: &[Line], options: Options) -> Vec<Instruction> {
    let mut program = Block::default();
    program.push(LOAD, 0, 0, OFFSET_ARCH);
    program.push(JUMP_EQUAL, 1, 0, ARCH_X86_64);
    program.push(RETURN, 0, 0, KILL);
    program.push(LOAD, 0, 0, OFFSET_NUMBER);
    program.push(JUMP_GREATER_EQUAL, 0, 1, X32);
    program.push(RETURN, 0, 0, KILL);

    // Calls decided by an argument come first and end in a verdict on every path.
    let mut plain = Vec::new();
    for line in lines {
        let create = rules::CREATE_MODE.iter().find(|(name, _)| options.deny_set_id_bits && *name == line.name);
        match (line.action, create) {
            (Action::When(rule), _) => program.if_equal(line.number, |b| rules::write(b, rule, line.name, options)),
            (_, Some((_, argument))) => program.if_equal(line.number, |b| rules::write_create(b, *argument)),
            (Action::Allow, None) => plain.push((line.number, ALLOW)),
            (Action::Errno(errno), None) => plain.push((line.number, ERRNO | u32::from(errno))),
        }
    }
    // The rest in rising order, as runs of numbers with the same verdict.
    for (last, verdict) in runs(&plain) {
        program.push(JUMP_GREATER, 1, 0, last);
        program.push(RETURN, 0, 0, verdict);
    }
    program.errno(libc::ENOSYS);
    program.code
}

fn runs(plain: &[(u32, u32)]) -> Vec<(u32, u32)> {
    const UNKNOWN: u32 = ERRNO | libc::ENOSYS as u32;
    let mut runs: Vec<(u32, u32)> = Vec::new();
    let mut extend = |last: u32, verdict: u32| match runs.last_mut() {
        Some(run) if run.1 == verdict => run.0 = last,
        _ => runs.push((last, verdict)),
    };
    let mut next = 0;
    for (number, verdict) in plain {
        if *number > next {
            extend(number - 1, UNKNOWN);
        }
        extend(*number, *verdict);
        next = number + 1;
    }
    runs
}

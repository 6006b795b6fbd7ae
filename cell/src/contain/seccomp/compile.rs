//! Turns the table into the kernel's filter program.

use super::rules::{self, Options};
use super::table::{Action, Line};
use crate::sys::wall::Instruction;

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP: u16 = 0x05;
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

    /// The upper half, for the one thing that has two: a pointer.
    pub fn argument_high(&mut self, index: u32) {
        self.push(LOAD, 0, 0, OFFSET_ARGUMENTS + 8 * index + 4);
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

    program.code.append(&mut tree(&leaves(lines, options)));
    program.code
}

/// What to do from one number on, up to the next leaf.
struct Leaf {
    first: u32,
    code: Vec<Instruction>,
}

/// Runs of numbers with the same verdict are one leaf; a number without a line answers ENOSYS.
fn leaves(lines: &[Line], options: Options) -> Vec<Leaf> {
    let mut leaves: Vec<Leaf> = Vec::new();
    let mut add = |first: u32, code: Vec<Instruction>| match leaves.last() {
        Some(last) if last.code == code => {}
        _ => leaves.push(Leaf { first, code }),
    };
    let verdict = |write: &dyn Fn(&mut Block)| {
        let mut block = Block::default();
        write(&mut block);
        block.code
    };
    let unknown = verdict(&|block| block.errno(libc::ENOSYS));
    let mut next = 0;
    for line in lines {
        if line.number > next {
            add(next, unknown.clone());
        }
        let create =
            rules::CREATE_MODE.iter().find(|(name, _)| options.deny_set_id_bits && *name == line.name);
        let code = match (line.action, create) {
            (Action::When(rule), _) => verdict(&|block| rules::write(block, rule, line.name, options)),
            (_, Some((_, argument))) => verdict(&|block| rules::write_create(block, *argument)),
            (Action::Allow, None) => verdict(&|block| block.allow()),
            (Action::Errno(errno), None) => verdict(&|block| block.errno(i32::from(errno))),
        };
        add(line.number, code);
        next = line.number + 1;
    }
    add(next, unknown);
    leaves
}

/// A balanced tree of comparisons: the kernel runs the filter once for every call it knows when
/// the filter is loaded, so its depth is part of the time a sandbox takes to start.
fn tree(leaves: &[Leaf]) -> Vec<Instruction> {
    if leaves.len() < 2 {
        return leaves.first().map(|leaf| leaf.code.clone()).unwrap_or_default();
    }
    let (low, high) = leaves.split_at(leaves.len() / 2);
    let (mut low_code, mut high_code) = (tree(low), tree(high));
    let mut node = Block::default();
    match u8::try_from(low_code.len()) {
        Ok(skip) => node.push(JUMP_GREATER_EQUAL, skip, 0, high[0].first),
        // Further than a conditional jump reaches.
        Err(_) => {
            node.push(JUMP_GREATER_EQUAL, 0, 1, high[0].first);
            node.push(JUMP, 0, 0, low_code.len() as u32);
        }
    }
    node.code.append(&mut low_code);
    node.code.append(&mut high_code);
    node.code
}

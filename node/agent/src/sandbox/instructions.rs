//! The instructions of which programs for control groups are made.
//!
//! What must stay true: no loop and no memory but the structure that the kernel gives, so the kernel always accepts them.

use super::sys::bpf::Instruction;

/// Opcodes: load a word from memory; shift right, bitwise and, and move, all by an immediate, 32 bits wide; a jump if not equal, if equal, if greater, or if less,
/// 32 bits wide; to the network's order of bytes; the end.
pub(super) const LOAD: u8 = 0x61;
pub(super) const SHIFT_RIGHT: u8 = 0x74;
pub(super) const AND: u8 = 0x54;
pub(super) const COPY: u8 = 0xbc;
pub(super) const SET: u8 = 0xb4;
pub(super) const JUMP_UNLESS: u8 = 0x56;
pub(super) const JUMP_IF: u8 = 0x16;
pub(super) const JUMP_IF_GREATER: u8 = 0x26;
pub(super) const JUMP_IF_LESS: u8 = 0xa6;
pub(super) const TO_NETWORK_ORDER: u8 = 0xdc;
pub(super) const EXIT: u8 = 0x95;

/// The answer, and the structure.
pub(super) const ANSWER: u8 = 0;
pub(super) const CONTEXT: u8 = 1;

pub(super) const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, immediate }
}

/// Allowed, or not.
pub(super) const fn answer(allowed: bool) -> [Instruction; 2] {
    [instruction(SET, ANSWER, 0, 0, allowed as i32), instruction(EXIT, 0, 0, 0, 0)]
}

/// Runs a program as the kernel would on a structure of words.
#[cfg(test)]
pub(super) fn allows(program: &[Instruction], context: &[u32]) -> bool {
    let (mut registers, mut at) = ([0_u32; 11], 0);
    loop {
        let Instruction { code, registers: named, offset, immediate } = program[at];
        let (to, from) = (usize::from(named & 15), usize::from(named >> 4));
        at += 1;
        let value = immediate as u32;
        match code {
            LOAD => registers[to] = context[offset as usize / 4],
            COPY => registers[to] = registers[from],
            SET => registers[to] = value,
            SHIFT_RIGHT => registers[to] >>= immediate,
            AND => registers[to] &= value,
            TO_NETWORK_ORDER => registers[to] = u32::from((registers[to] as u16).to_be()),
            JUMP_UNLESS if registers[to] != value => at += offset as usize,
            JUMP_IF if registers[to] == value => at += offset as usize,
            JUMP_IF_GREATER if registers[to] > value => at += offset as usize,
            JUMP_IF_LESS if registers[to] < value => at += offset as usize,
            JUMP_UNLESS | JUMP_IF | JUMP_IF_GREATER | JUMP_IF_LESS => {}
            EXIT => return registers[0] == 1,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}

//! Which ports a task may use of those that jobs have for themselves, as a program of the kernel (BPF).
//!
//! The kernel calls it with `struct bpf_sock_addr` of linux/bpf.h before a socket is bound, connected, or sends to an address. What must stay true: ports outside of
//! the range are no business of it; in the range, a task reaches those of its own job and no others, on whatever address.

use super::instructions::{CONTEXT, JUMP_IF_GREATER, JUMP_IF_LESS, LOAD, TO_NETWORK_ORDER, answer, instruction};
use super::sys::bpf::{Hook, Instruction};
use crate::task_folder::record::PortFence;
use muster_model::PortBlock;
use muster_model::ports::{PORT_BLOCKS, PORTS_BASE};

/// Where the port stands, in the network's order of bytes.
const PORT_AT: i16 = 24;
/// Bits of a port.
const PORT_BITS: i32 = 16;
const PORT: u8 = 2;

/// The program for this hook: a task listens on its own ports, and connects to those of its gang too.
pub(super) fn program(hook: Hook, fence: &PortFence) -> Vec<Instruction> {
    let of_gang = match hook {
        Hook::Bind4 | Hook::Bind6 => None,
        _ => fence.gang,
    };
    let first = i32::from(PORTS_BASE);
    let last = i32::from(PortBlock(PORT_BLOCKS - 1).last());
    let mut program = vec![
        instruction(LOAD, PORT, CONTEXT, PORT_AT, 0),
        instruction(TO_NETWORK_ORDER, PORT, 0, 0, PORT_BITS),
        // Below the range: over the next jump, to the answer. Inside: over the answer.
        instruction(JUMP_IF_LESS, PORT, 0, 1, first),
        instruction(JUMP_IF_LESS, PORT, 0, 2, last + 1),
    ];
    program.extend(answer(true));
    for block in fence.own.into_iter().chain(of_gang) {
        program.push(instruction(JUMP_IF_LESS, PORT, 0, 3, i32::from(block.first())));
        program.push(instruction(JUMP_IF_GREATER, PORT, 0, 2, i32::from(block.last())));
        program.extend(answer(true));
    }
    program.extend(answer(false));
    program
}

#[cfg(test)]
mod tests {
    use super::super::instructions::allows;
    use super::*;

    fn reaches(hook: Hook, fence: &PortFence, port: u16) -> bool {
        let mut context = [0; 16];
        context[PORT_AT as usize / 4] = u32::from(port.to_be());
        allows(&program(hook, fence), &context)
    }

    #[test]
    fn a_task_listens_on_its_own_ports_and_reaches_those_of_its_gang() {
        let (own, gang) = (PortBlock(3), PortBlock(500));
        let fence = PortFence { own: Some(own), gang: Some(gang) };
        let last = PortBlock(PORT_BLOCKS - 1).last();
        for port in [0, 22, 7_400, 18_000, PORTS_BASE - 1, last + 1, 29_500, 40_000, u16::MAX] {
            for hook in Hook::OF_SOCKETS {
                assert!(reaches(hook, &fence, port), "{hook:?} {port} is nobody's");
            }
        }
        for port in own.first()..=own.last() {
            assert!(reaches(Hook::Bind4, &fence, port) && reaches(Hook::Connect6, &fence, port), "{port}");
        }
        for port in gang.first()..=gang.last() {
            assert!(!reaches(Hook::Bind6, &fence, port) && reaches(Hook::Connect4, &fence, port), "{port}");
        }
        for port in [PORTS_BASE, own.first() - 1, own.last() + 1, gang.first() - 1, gang.last() + 1, last] {
            for hook in Hook::OF_SOCKETS {
                assert!(!reaches(hook, &fence, port), "{hook:?} {port} is another's");
            }
        }
        let none = PortFence { own: None, gang: None };
        assert!(!reaches(Hook::Connect4, &none, own.first()) && reaches(Hook::Connect4, &none, 443));
    }
}

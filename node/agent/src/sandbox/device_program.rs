//! Which devices a task may open, as a program of the kernel (BPF), for control groups of version 2, which have no files for that.
//!
//! The kernel calls the program with a structure of three numbers: the kind of access and of device, the major and the minor number
//! (`struct bpf_cgroup_dev_ctx` in linux/bpf.h). It answers 1: allowed, or 0. What must stay true: what is not in the list is refused; nobody makes
//! a device node; the program has no loop and no memory, so the kernel always accepts it.

use super::instructions::{AND, CONTEXT, COPY, JUMP_IF, JUMP_UNLESS, LOAD, SHIFT_RIGHT, answer, instruction};
use super::sys::bpf::Instruction;

/// A character device that may be opened for reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) major: u32,
    /// Any, when absent.
    pub(super) minor: Option<u32>,
}

/// Devices that every program expects in `/dev`: name, major and minor number.
pub(super) const NAMED: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Those, and what makes pseudo-terminals with its terminals.
pub(super) fn usual() -> Vec<Device> {
    let named = NAMED.map(|(_, major, minor)| Device { major, minor: Some(minor) });
    let terminals = [Device { major: 5, minor: Some(2) }, Device { major: 136, minor: None }];
    named.into_iter().chain(terminals).collect()
}

impl Device {
    /// As a line of version 1's `devices.allow`.
    pub(super) fn line(self) -> String {
        let minor = self.minor.map_or("*".to_owned(), |minor| minor.to_string());
        format!("c {}:{minor} rw", self.major)
    }
}

/// `access << 16 | kind`: of linux/bpf.h.
const KIND_CHARACTER: i32 = 2;
const ACCESS_MAKE: i32 = 1;
/// Where the three numbers stand.
const KIND_AT: i16 = 0;
const MAJOR_AT: i16 = 4;
const MINOR_AT: i16 = 8;

/// Registers to work with.
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

/// The program that allows `devices` and nothing else.
pub(super) fn program(devices: &[Device]) -> Vec<Instruction> {
    let mut program = vec![
        instruction(LOAD, KIND, CONTEXT, KIND_AT, 0),
        instruction(COPY, ACCESS, KIND, 0, 0),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(AND, KIND, 0, 0, 0xffff),
        instruction(LOAD, MAJOR, CONTEXT, MAJOR_AT, 0),
        instruction(LOAD, MINOR, CONTEXT, MINOR_AT, 0),
        // Nobody makes a device, and only character devices are opened: either jumps to the refusal or over it.
        instruction(AND, ACCESS, 0, 0, ACCESS_MAKE),
        instruction(JUMP_UNLESS, ACCESS, 0, 1, 0),
        instruction(JUMP_IF, KIND, 0, 2, KIND_CHARACTER),
    ];
    program.extend(answer(false));
    for device in devices {
        let skipped = if device.minor.is_some() { 3 } else { 2 };
        program.push(instruction(JUMP_UNLESS, MAJOR, 0, skipped, device.major as i32));
        program.extend(device.minor.map(|minor| instruction(JUMP_UNLESS, MINOR, 0, 2, minor as i32)));
        program.extend(answer(true));
    }
    program.extend(answer(false));
    program
}

#[cfg(test)]
mod tests {
    use super::super::instructions;
    use super::*;

    fn allows(program: &[Instruction], access: u32, kind: u32, major: u32, minor: u32) -> bool {
        instructions::allows(program, &[access << 16 | kind, major, minor])
    }

    #[test]
    fn what_is_listed_is_allowed_and_nothing_else() {
        let (read, write, block, character) = (2, 4, 1, 2);
        let program = program(&usual());
        for (major, minor) in [(1, 3), (1, 9), (5, 2), (136, 0), (136, 77)] {
            assert!(allows(&program, read | write, character, major, minor), "{major}:{minor}");
            assert!(!allows(&program, read | 1, character, major, minor), "{major}:{minor} is not made");
            assert!(!allows(&program, read, block, major, minor), "{major}:{minor} is no block device");
        }
        for (major, minor) in [(1, 1), (1, 11), (195, 0), (195, 255), (5, 1), (8, 0)] {
            assert!(!allows(&program, read, character, major, minor), "{major}:{minor}");
        }
        let lines: Vec<String> = usual().into_iter().map(Device::line).collect();
        assert_eq!(lines[0], "c 1:3 rw");
        assert_eq!(lines[7], "c 136:* rw");
    }
}

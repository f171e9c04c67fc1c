//! Programs of the kernel (BPF) on control groups of version 2: loading, attaching, and reading back what is attached.
//!
//! What must stay true: nothing here decides anything; a program stays when the process that attached it ends, and goes with its group.

use super::check;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// One instruction, as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Instruction {
    pub(in super::super) code: u8,
    /// The destination register in the lower half, the source in the upper.
    pub(in super::super) registers: u8,
    pub(in super::super) offset: i16,
    pub(in super::super) immediate: i32,
}

/// When a program on a control group is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Hook {
    /// A device is opened or made.
    Device,
    /// A socket is bound to an address of IPv4.
    Bind4,
    /// Of IPv6.
    Bind6,
    /// A socket is connected to an address of IPv4.
    Connect4,
    /// Of IPv6.
    Connect6,
    /// A message goes to an address of IPv4 without a connection.
    Send4,
    /// Of IPv6.
    Send6,
}

impl Hook {
    /// Those of sockets.
    pub(in super::super) const OF_SOCKETS: [Hook; 6] =
        [Hook::Bind4, Hook::Bind6, Hook::Connect4, Hook::Connect6, Hook::Send4, Hook::Send6];

    /// `enum bpf_attach_type` of linux/bpf.h.
    const fn attach_type(self) -> u32 {
        match self {
            Hook::Device => 6,
            Hook::Bind4 => 8,
            Hook::Bind6 => 9,
            Hook::Connect4 => 10,
            Hook::Connect6 => 11,
            Hook::Send4 => 14,
            Hook::Send6 => 15,
        }
    }

    /// `enum bpf_prog_type`: of devices, or of the addresses of sockets.
    const fn program_type(self) -> u32 {
        match self {
            Hook::Device => 15,
            _ => 18,
        }
    }

    /// Programs for devices take no such type at their loading.
    const fn expected_attach_type(self) -> u32 {
        match self {
            Hook::Device => 0,
            other => other.attach_type(),
        }
    }
}

/// The part of `union bpf_attr` (linux/bpf.h) that loading a program takes.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// The part that attaching one takes.
#[repr(C)]
struct Attach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

/// The part that asking for what is attached takes.
#[repr(C)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
    prog_attach_flags: u64,
}

/// The part that opening a program by its number takes.
#[repr(C)]
struct ById {
    prog_id: u32,
    next_id: u32,
    open_flags: u32,
}

/// The part that asking about a program takes.
#[repr(C)]
struct About {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    tag: [u8; 8],
}

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
/// Programs of one kind on one group: this one attaches one; more are somebody else's.
const ATTACHED_MAX: usize = 64;

/// # Safety
/// `attributes` is what the command takes, and whatever it points to lives until the call returns.
unsafe fn bpf<T>(command: libc::c_int, attributes: *const T) -> io::Result<libc::c_long> {
    // SAFETY: by the condition above; the size is the structure's.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) })
}

/// # Safety
/// As above, and the command gives a descriptor.
unsafe fn open<T>(command: libc::c_int, attributes: *const T) -> io::Result<OwnedFd> {
    // SAFETY: by the condition above.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn load(hook: Hook, program: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let attributes = Load {
        prog_type: hook.program_type(),
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: [0; 16],
        prog_ifindex: 0,
        expected_attach_type: hook.expected_attach_type(),
    };
    // SAFETY: the instructions and the licence live until the call returns.
    unsafe { open(PROG_LOAD, &raw const attributes) }
}

/// Loads a program and attaches it to a control group, in the place of one that this did before.
pub(in super::super) fn attach(cgroup: &File, hook: Hook, program: &[Instruction]) -> io::Result<()> {
    let loaded = load(hook, program)?;
    let attributes = Attach {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_bpf_fd: loaded.as_raw_fd() as u32,
        attach_type: hook.attach_type(),
        attach_flags: 0,
    };
    // SAFETY: it points to nothing.
    unsafe { bpf(PROG_ATTACH, &raw const attributes) }.map(drop)
}

/// The numbers of the programs that are attached.
pub(in super::super) fn attached(cgroup: &File, hook: Hook) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; ATTACHED_MAX];
    let attributes = Query {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_type: hook.attach_type(),
        query_flags: 0,
        attach_flags: 0,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: ids.len() as u32,
        padding: 0,
        prog_attach_flags: 0,
    };
    // The kernel writes the count back.
    let mut attributes = attributes;
    // SAFETY: the numbers live until the call returns, and there is room for as many as are said.
    unsafe { bpf(PROG_QUERY, &raw mut attributes) }?;
    Ok(ids.into_iter().take(attributes.prog_cnt as usize).collect())
}

/// Whether the program of this number is this very one.
pub(in super::super) fn is(id: u32, hook: Hook, program: &[Instruction]) -> io::Result<bool> {
    let by_id = ById { prog_id: id, next_id: 0, open_flags: 0 };
    // SAFETY: it points to nothing.
    let there = unsafe { open(PROG_GET_FD_BY_ID, &raw const by_id) }?;
    Ok(tag(&there)? == tag(&load(hook, program)?)?)
}

/// The kernel's digest of a program's instructions.
fn tag(program: &OwnedFd) -> io::Result<[u8; 8]> {
    let mut info = Info::default();
    let about =
        About { bpf_fd: program.as_raw_fd() as u32, info_len: size_of::<Info>() as u32, info: (&raw mut info) as u64 };
    // SAFETY: the structure lives until the call returns, and is as long as is said.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &raw const about) }?;
    Ok(info.tag)
}

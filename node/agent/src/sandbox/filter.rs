//! What a task may not ask of the kernel.
//!
//! A list of what is forbidden, since CUDA and NCCL outgrow lists of what is allowed. What must stay true: nothing that makes a namespace, mounts,
//! loads code into the kernel, reads keys, opens files by handle or changes the clock; what new programs try first and can do
//! without (`clone3`, `io_uring`) is "not implemented", not "forbidden", so that they fall back.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

const FORBIDDEN: &[libc::c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
];

const NOT_IMPLEMENTED: &[libc::c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// The bit of those second numbers, and the one call here that has a number of its own among them.
const X32: libc::c_long = 0x4000_0000;
const X32_IOCTL: libc::c_long = 514;

/// `IPPROTO_MPTCP`.
const MULTIPATH_TCP: u64 = 262;

/// Flags of `clone` that make a namespace.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;

/// The programs for the kernel, one for each answer.
#[derive(Clone, Debug)]
pub(super) struct Filter(Vec<BpfProgram>);

impl Filter {
    /// Compiles them.
    pub(super) fn new() -> Result<Self, seccompiler::Error> {
        let always = |calls: &[libc::c_long]| calls.iter().map(|call| (*call, Vec::new())).collect::<BTreeMap<_, _>>();
        let mut forbidden = always(FORBIDDEN);
        let bits = NEW_NAMESPACES;
        let one_of = (0..64).filter(|bit| bits & (1 << bit) != 0).map(|bit| {
            let flag = 1_u64 << bit;
            let has = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
            SeccompRule::new(vec![has])
        });
        forbidden.insert(libc::SYS_clone, one_of.collect::<Result<_, _>>()?);
        // A character put into the input of the terminal that the agent was started from.
        let tiocsti = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::TIOCSTI)?;
        forbidden.insert(libc::SYS_ioctl, vec![SeccompRule::new(vec![tiocsti])?]);
        // It falls back to TCP without asking the program that keeps tasks from ports of others.
        let multipath = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, MULTIPATH_TCP)?;
        forbidden.insert(libc::SYS_socket, vec![SeccompRule::new(vec![multipath])?]);
        let answers = [(forbidden, libc::EPERM), (always(NOT_IMPLEMENTED), libc::ENOSYS)];
        let answers = answers.map(|(calls, errno)| (with_other_numbers(calls), errno));
        let program = |(calls, errno): (BTreeMap<_, _>, i32)| -> Result<BpfProgram, seccompiler::Error> {
            let arch = std::env::consts::ARCH.try_into().map_err(seccompiler::Error::Backend)?;
            let filter = SeccompFilter::new(calls, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch)?;
            Ok(filter.try_into()?)
        };
        Ok(Filter(answers.into_iter().map(program).collect::<Result<_, _>>()?))
    }

    /// Puts this process and all that it starts under them. It can gain no privilege any more.
    pub(super) fn apply(&self) -> Result<(), seccompiler::Error> {
        self.0.iter().try_for_each(|program| seccompiler::apply_filter(program))
    }
}

/// The kernel of x86_64 may know each call by a second number, for programs with 32-bit pointers.
fn with_other_numbers(calls: BTreeMap<libc::c_long, Vec<SeccompRule>>) -> BTreeMap<libc::c_long, Vec<SeccompRule>> {
    if !cfg!(target_arch = "x86_64") {
        return calls;
    }
    let other = |call: libc::c_long| if call == libc::SYS_ioctl { X32 | X32_IOCTL } else { X32 | call };
    let others: Vec<_> = calls.iter().map(|(call, rules)| (other(*call), rules.clone())).collect();
    calls.into_iter().chain(others).collect()
}

//! The sandbox of an allocation on this node: what its tasks can see, reach and use.
//!
//! Its ranks share one sandbox, since they share memory and signals. The sandbox has an *init*, process 1 of its own process namespace
//! ([`init`]); shims stand outside it and start their ranks inside ([`enter`]). What must stay true:
//! - a task cannot see its shim, so it cannot stop or signal it;
//! - when the init ends, the kernel kills every process of the sandbox, whatever it has done to its session, parent or environment;
//! - the init ends when the last shim has ended, in whatever way: it reads a pipe that only shims hold open ([`member`]);
//! - a task is over only when its processes are gone by the kernel's account: its control group is empty, and with the last task the init has
//!   ended;
//! - a task never runs as root, nor can it become root, unless the operator has said so;
//! - nothing here knows a clock of the cluster, the network, or what a GPU is.
//!
//! An agent of root gives all of that. One of an ordinary user gives namespaces inside a user namespace, and no other user. [`probe`] finds
//! out what a host has.

pub(crate) mod beneath;
mod binds;
pub(crate) mod cgroup;
mod confine;
mod device_nodes;
mod device_program;
mod driver_params;
pub(crate) mod enter;
mod fences;
mod filter;
mod image_root;
pub(crate) mod init;
mod instructions;
pub(crate) mod member;
mod memory;
mod mounts;
pub(crate) mod own_folders;
pub mod probe;
mod socket_program;
mod sys;

pub(crate) use fences::Seen;

use crate::task_folder::record::Isolation;
use muster_node_core::TaskKey;
use nix::errno::Errno;
use nix::sched::CloneFlags;
use std::io;
use std::path::{Path, PathBuf};

/// Where a task of an agent of root finds its own folders.
pub(crate) const INSIDE: &str = "/run/muster";

/// What a sandbox has of its own from its beginning; its mounts follow in the init.
const NAMESPACES: CloneFlags = CloneFlags::CLONE_NEWPID
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWUTS)
    .union(CloneFlags::CLONE_NEWCGROUP);

/// The same for one sandbox.
fn namespaces(isolation: &Isolation) -> CloneFlags {
    let network = if isolation.private_network { CloneFlags::CLONE_NEWNET } else { CloneFlags::empty() };
    NAMESPACES | network
}

/// Why a sandbox cannot be made or entered.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A file or a system call.
    #[error("{doing}: {source}")]
    Os {
        /// What was being done.
        doing: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// What the job asked for, or what its image holds, cannot be shown inside. Says nothing against the node.
    #[error("{doing}: {why}")]
    NotAsAsked {
        /// What was being done.
        doing: String,
        /// What is wrong with it, for the job's owner.
        why: String,
    },
    /// The init did not come up.
    #[error("the sandbox did not start: {said}")]
    NoInit {
        /// What it said.
        said: String,
    },
}

/// Names what was being done.
pub(crate) fn doing<E: Into<std::io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> SandboxError {
    let doing = doing.into();
    move |source| SandboxError::Os { doing, source: source.into() }
}

/// The same for a path that the job or its image has named: what is wrong with the path itself is not the node's fault, or tenants could have nodes
/// quarantined.
pub(crate) fn doing_as_asked(doing: impl Into<String>) -> impl FnOnce(io::Error) -> SandboxError {
    const OF_THE_PATH: [Errno; 6] =
        [Errno::ENOENT, Errno::ENOTDIR, Errno::EISDIR, Errno::ELOOP, Errno::EACCES, Errno::ENAMETOOLONG];
    let doing = doing.into();
    move |source| match source.raw_os_error().map(Errno::from_raw) {
        Some(errno) if !OF_THE_PATH.contains(&errno) => SandboxError::Os { doing, source },
        _ => SandboxError::NotAsAsked { doing, why: source.to_string() },
    }
}

impl Isolation {
    /// Whether the host's files, devices and users are shut out, which takes root.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.user.is_some()
    }

    /// What the task itself calls `path` of its folder `of`.
    pub(crate) fn seen_as(&self, key: TaskKey, of: &Path, path: &Path) -> PathBuf {
        match path.strip_prefix(of) {
            Ok(rest) if self.is_full() => Path::new(INSIDE).join(key.to_string()).join(rest),
            _ => path.to_owned(),
        }
    }
}

//! What the tasks of a pool are kept from, and what a node has proved of that.
//!
//! An agent tries to get past each protection at its start and once a day. What must stay true: a node gets no work of a pool that needs what the node has not
//! proved (law SL11); the answer depends on the pool's rules and the node's proofs alone; of the network, a pool says the same to every node.

use crate::bounds::{PROOF_BYTES_MAX, TEXT_BYTES_MAX};
use crate::clip::clipped;
use crate::words::words;
use serde::{Deserialize, Serialize};

/// How far the tasks of a pool are isolated at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IsolationLevel {
    /// Nothing is asked of a node.
    #[default]
    None,
    /// Processes of their own, which end together, and limits of CPU, memory and processes that hold.
    Limits,
    /// All protections.
    Full,
}

words!(IsolationLevel, "isolation level",
    IsolationLevel::None => "none", IsolationLevel::Limits => "limits", IsolationLevel::Full => "full");

/// What tasks of a pool see of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NetworkPolicy {
    /// The node's network.
    Host,
    /// A loopback of their own and nothing else: for jobs on one node.
    Private,
}

words!(NetworkPolicy, "network policy", NetworkPolicy::Host => "host", NetworkPolicy::Private => "private");

/// One thing that a node tries to get past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protection {
    /// A task sees no processes but those of its sandbox.
    Processes,
    /// A user of its own, never root.
    User,
    /// The system is read-only.
    Files,
    /// No device of the host is in sight.
    Devices,
    /// Namespaces, mounts, BPF and keys are refused.
    Kernel,
    /// What uses more memory than its limit ends.
    Memory,
    /// There are no more processes than the limit.
    Pids,
    /// Processors are used up to the limit.
    Cpu,
    /// A device that a task finds does not open.
    ForeignDevices,
    /// Abstract sockets of others are out of reach.
    Sockets,
    /// Writing outside of its own folders is refused by a second rule beside the mounts.
    Landlock,
    /// A network of its own.
    Network,
    /// Ports of other jobs are out of reach.
    Ports,
    /// When the first process of a sandbox ends, all others do.
    End,
}

words!(Protection, "protection",
    Protection::Processes => "processes", Protection::User => "user", Protection::Files => "files",
    Protection::Devices => "devices", Protection::Kernel => "kernel", Protection::Memory => "memory",
    Protection::Pids => "pids", Protection::Cpu => "cpu", Protection::ForeignDevices => "foreign-devices",
    Protection::Sockets => "sockets", Protection::Landlock => "landlock", Protection::Network => "network",
    Protection::Ports => "ports", Protection::End => "end");

impl Protection {
    /// All of them, in order.
    pub const ALL: [Protection; 14] = [
        Protection::Processes,
        Protection::User,
        Protection::Files,
        Protection::Devices,
        Protection::Kernel,
        Protection::Memory,
        Protection::Pids,
        Protection::Cpu,
        Protection::ForeignDevices,
        Protection::Sockets,
        Protection::Landlock,
        Protection::Network,
        Protection::Ports,
        Protection::End,
    ];
}

/// What came of trying to get past one protection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Which.
    pub protection: Protection,
    /// Why it does not hold; absent: the attempt to get past it failed.
    pub fault: Option<String>,
}

/// Bytes of what a node lacks: each protection with its fault.
pub const LACK_BYTES_MAX: usize = Protection::ALL.len() * (TEXT_BYTES_MAX + 20);

impl Proof {
    /// A fault that says something, and no more than may be sent.
    #[must_use]
    pub fn new(protection: Protection, fault: Option<String>) -> Self {
        let said = |fault: String| if fault.is_empty() { "it does not hold".to_owned() } else { fault };
        Proof { protection, fault: fault.map(|fault| clipped(said(fault), PROOF_BYTES_MAX)) }
    }
}

impl Proof {
    /// A host that gives everything: for nodes that are made up.
    #[must_use]
    pub fn all_hold() -> Vec<Self> {
        Protection::ALL.into_iter().map(|protection| Proof { protection, fault: None }).collect()
    }
}

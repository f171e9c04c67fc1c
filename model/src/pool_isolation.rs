//! What a pool needs of its nodes, and what its tasks get that asked for no memory. What must stay true: a node gets no work of a pool that needs what the
//! node has not proved (law SL11); the answer depends on the pool's rules and the node's proofs alone.

use crate::clip::clipped;
use crate::isolation::{IsolationLevel, LACK_BYTES_MAX, NetworkPolicy, Proof, Protection};
use crate::node::{NodeSpec, Pool};
use crate::resources::GpuUnits;

/// The protections that a level needs, in the order in which they are told.
const LIMITS: [Protection; 5] =
    [Protection::Processes, Protection::Memory, Protection::Pids, Protection::Cpu, Protection::End];
const FULL: [Protection; 5] =
    [Protection::User, Protection::Files, Protection::Devices, Protection::Kernel, Protection::ForeignDevices];
/// What keeps jobs from each other where they share the node's network.
const SHARED_NETWORK: [Protection; 2] = [Protection::Sockets, Protection::Ports];

impl Pool {
    /// What tasks see of the network: what the pool says, else nothing where isolation is full.
    #[must_use]
    pub fn network(&self) -> NetworkPolicy {
        self.network.unwrap_or(match self.isolation {
            IsolationLevel::Full => NetworkPolicy::Private,
            IsolationLevel::None | IsolationLevel::Limits => NetworkPolicy::Host,
        })
    }

    /// What a node has to prove before it gets work of the pool.
    pub fn needed_proofs(&self) -> impl Iterator<Item = Protection> {
        let limits = if self.isolation >= IsolationLevel::Limits { &LIMITS[..] } else { &[] };
        let full = if self.isolation >= IsolationLevel::Full { &FULL[..] } else { &[] };
        let network: &[Protection] = match (self.network(), self.isolation) {
            (NetworkPolicy::Private, _) => &[Protection::Network],
            (NetworkPolicy::Host, IsolationLevel::Full) => &SHARED_NETWORK,
            (NetworkPolicy::Host, _) => &[],
        };
        limits.iter().chain(full).chain(network).copied()
    }

    /// Why a node that has proved this gets no work of the pool, for people; nothing where it does.
    #[must_use]
    pub fn lacks(&self, proofs: &[Proof]) -> Option<String> {
        let of = |protection: Protection| proofs.iter().find(|proof| proof.protection == protection);
        let missing = self.needed_proofs().filter_map(|needed| match of(needed) {
            None => Some(format!("{needed} (not tried)")),
            Some(Proof { fault: Some(fault), .. }) => Some(format!("{needed} ({fault})")),
            Some(Proof { fault: None, .. }) => None,
        });
        let missing: Vec<String> = missing.collect();
        if missing.is_empty() {
            return None;
        }
        let needs = match (self.isolation, self.network()) {
            (IsolationLevel::None, network) => format!("network {network}"),
            (level, network) => format!("isolation {level} with network {network}"),
        };
        Some(clipped(
            format!(
                "pool {} needs {needs}, and the node has not proved: {}; run `muster node doctor` on it",
                self.name,
                missing.join(", ")
            ),
            LACK_BYTES_MAX,
        ))
    }
}

/// The least that a task gets which asked for no memory, where it gets its share of a node: enough for an interpreter and its libraries.
const MEMORY_SHARE_MIB_MIN: u64 = 1_024;

impl Pool {
    /// MiB that a task may use on `node` which asked for none, and holds these GPU units and milli-CPUs; 0: no bound. A share of the node is the larger of its
    /// shares of GPUs and CPUs, so that the tasks of a full node together may use about what it has.
    #[must_use]
    pub fn memory_limit_mib(&self, node: &NodeSpec, units: GpuUnits, cpu_milli: u64) -> u64 {
        if let Some(limit) = self.memory_limit_mib {
            return limit;
        }
        if self.isolation != IsolationLevel::Full {
            return 0;
        }
        let share = |part: u64, whole: u64| {
            let mib = u128::from(node.memory_mib) * u128::from(part.min(whole)) / u128::from(whole.max(1));
            mib as u64
        };
        let all_units = GpuUnits::cards(node.gpus.len() as u64);
        let share = share(units.0, all_units.0).max(share(cpu_milli, node.cpu_milli));
        share.max(MEMORY_SHARE_MIB_MIN).min(node.memory_mib)
    }
}

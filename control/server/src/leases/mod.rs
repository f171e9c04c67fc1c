//! Leases of nodes and of cells. They live on the leader alone, in memory, on tokio's monotonic clock.
//!
//! [`table`] decides (time is an argument), [`leader`] asks it every tick and proposes what is due, [`renewals`] carries renewals
//! from any control node to the leader, many in one call. What must stay true:
//! - a table counts from its own leader's election and is thrown away with the leadership: nothing of an earlier leader is
//!   believed, so a fence is never earlier than the last acknowledged renewal plus the grace;
//! - a renewal is written down before a quorum confirms the leader, and acknowledged only after;
//! - what a table finds due is proposed only in the term it was counted in, never passed on to another leader (law 6).

pub(crate) mod leader;
pub(crate) mod renewal;
pub(crate) mod renewals;
pub(crate) mod table;

#[cfg(test)]
mod tests;

use std::time::Duration;

/// How long leases last. The defaults are for production; tests and simulation use shorter ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Agents are told to send a heartbeat this often.
    pub heartbeat_ms: u64,
    /// A node that is not heard of for so long is silent: nothing new is bound on it.
    pub node_silent_ms: u64,
    /// Added to the longest disconnect grace on a silent node before it is fenced: more than the time to kill a task's group and
    /// the drift between two clocks over the longest grace.
    pub fence_margin_ms: u64,
    /// A shard that does not renew for so long loses its cell.
    pub cell_lease_ms: u64,
    /// How often the leader looks for what is due.
    pub tick_ms: u64,
    /// How often old request ids and usage records are swept away.
    pub sweep_ms: u64,
    /// When more than this share of a cell is silent at once, that is a network failure and not so many dead nodes: fencing is
    /// held back.
    pub mass_silence_percent: u64,
    /// Fewer silent nodes than this are never a mass: a cell of one node may lose it.
    pub mass_silence_nodes_min: usize,
    /// Fencing is held back no longer than this: a cell that has lost its power for good must not keep its jobs for ever.
    pub mass_silence_hold_ms: u64,
    /// Renewals are collected for so long before they travel to the leader together.
    pub batch_ms: u64,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        LeaseConfig {
            heartbeat_ms: 1_000,
            node_silent_ms: 5_000,
            fence_margin_ms: 10_000,
            cell_lease_ms: 2_000,
            tick_ms: 100,
            sweep_ms: 10_000,
            mass_silence_percent: 50,
            mass_silence_nodes_min: 4,
            mass_silence_hold_ms: 30 * 60 * 1_000,
            batch_ms: 100,
        }
    }
}

impl LeaseConfig {
    /// Short leases for tests on one machine: a fence within about two seconds.
    #[must_use]
    pub fn short() -> Self {
        LeaseConfig {
            heartbeat_ms: 100,
            node_silent_ms: 400,
            fence_margin_ms: 500,
            cell_lease_ms: 500,
            tick_ms: 50,
            sweep_ms: 1_000,
            batch_ms: 20,
            ..LeaseConfig::default()
        }
    }

    pub(crate) fn cell_lease(&self) -> Duration {
        Duration::from_millis(self.cell_lease_ms)
    }

    pub(crate) fn node_silent(&self) -> Duration {
        Duration::from_millis(self.node_silent_ms)
    }
}

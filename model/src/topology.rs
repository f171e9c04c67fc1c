//! How close together, and how far apart, the tasks of a gang and the cards of a task stand.
//!
//! What must stay true: levels are ordered, tightest first; a domain of a level lies inside one domain of each wider level, but for NVLink
//! islands that span nodes.

use crate::words::words;
use serde::{Deserialize, Serialize};

/// Levels of the network, tightest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TopologyLevel {
    /// GPUs joined by NVLink: of one host, or of the hosts of one NVLink domain.
    Island,
    /// One host.
    Node,
    /// One leaf switch.
    Leaf,
    /// One spine group.
    Block,
    /// One region.
    Region,
}

impl TopologyLevel {
    /// All levels, tightest first.
    pub const ALL: [TopologyLevel; 5] =
        [TopologyLevel::Island, TopologyLevel::Node, TopologyLevel::Leaf, TopologyLevel::Block, TopologyLevel::Region];
}

/// How the cards of one task must lie with regard to the host's NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NumaPolicy {
    /// Anyhow.
    #[default]
    None,
    /// On as few NUMA nodes as possible where possible.
    BestEffort,
    /// On as few NUMA nodes as an empty host of that make would need, or the task waits.
    Restricted,
    /// On one NUMA node, or the task waits.
    SingleNumaNode,
}

impl NumaPolicy {
    /// All policies, the loosest first.
    pub const ALL: [NumaPolicy; 4] =
        [NumaPolicy::None, NumaPolicy::BestEffort, NumaPolicy::Restricted, NumaPolicy::SingleNumaNode];
}

words!(TopologyLevel, "topology level",
    TopologyLevel::Island => "island", TopologyLevel::Node => "node", TopologyLevel::Leaf => "leaf",
    TopologyLevel::Block => "block", TopologyLevel::Region => "region");
words!(NumaPolicy, "NUMA policy",
    NumaPolicy::None => "none", NumaPolicy::BestEffort => "best-effort",
    NumaPolicy::Restricted => "restricted", NumaPolicy::SingleNumaNode => "single-numa-node");

/// How far apart the tasks of a gang stand: no domain of a level has more than so many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Spread {
    /// Over the domains of which level: node, leaf, block or region.
    pub level: TopologyLevel,
    /// Tasks in one such domain at most.
    pub tasks_max: u32,
    /// Or the gang waits. Otherwise as few in one domain as any place allows now, but not fewer than `tasks_max`.
    pub required: bool,
}

/// How close together the tasks of a gang must and should stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Topology {
    /// The whole gang inside one of these, or it waits.
    pub required: Option<TopologyLevel>,
    /// The whole gang inside one of these where possible.
    pub preferred: Option<TopologyLevel>,
    /// So many consecutive ranks form a segment, which stands on one island (on one node, where no island of it is large enough);
    /// it divides the number of tasks.
    pub segment_tasks: Option<u32>,
    /// How far apart its tasks stand inside that.
    pub spread: Option<Spread>,
}

/// How close together the tasks of a gang must stand: the part of its topology that it may have to pay for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequiredTopology {
    /// The whole gang inside one of these.
    pub level: Option<TopologyLevel>,
    /// So many consecutive ranks each on one island.
    pub segment_tasks: Option<u32>,
}

impl RequiredTopology {
    /// The tightest level that any group of its tasks needs: an island where it has segments.
    #[must_use]
    pub fn tightest(&self) -> Option<TopologyLevel> {
        self.segment_tasks.map(|_| TopologyLevel::Island).into_iter().chain(self.level).min()
    }
}

impl Topology {
    /// What of it is required.
    #[must_use]
    pub const fn to_require(&self) -> RequiredTopology {
        RequiredTopology { level: self.required, segment_tasks: self.segment_tasks }
    }

    /// The spread that a placement must keep, or it is none.
    #[must_use]
    pub fn required_spread(&self) -> Option<Spread> {
        self.spread.filter(|spread| spread.required)
    }
}

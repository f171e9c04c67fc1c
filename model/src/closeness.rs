//! Whether a placement stands as close together, and as far apart, as its job asks: level, segments, spread, NUMA.
//!
//! The scheduler asks this of what it found by something else than levels, the control plane of everything it is told: what a shard's search by
//! levels finds is proved here once, at the binding. What must stay true: it depends on the placement and on what the nodes *are*, never on what is free, so a proof cannot turn while it waits.

use crate::gpu::GpuModel;
use crate::ids::{NodeId, Rank};
use crate::node::Node;
use crate::task::{DeviceHold, TaskPlacement};
use crate::topology::{NumaPolicy, Spread, Topology, TopologyLevel};
use std::collections::{BTreeMap, BTreeSet};

/// What stands too far apart, or too close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooFar {
    /// The gang.
    #[error("all tasks must be inside one {level}")]
    Gang {
        /// The level it requires.
        level: TopologyLevel,
    },
    /// A segment.
    #[error("ranks {first} to {last} are one segment and must be on one {level}")]
    Segment {
        /// Its first rank.
        first: Rank,
        /// Its last rank.
        last: Rank,
        /// The tightest level that could hold it there: an island, or the node where no island is large enough.
        level: TopologyLevel,
    },
    /// Too many tasks in one domain.
    #[error("{got} tasks are on one {level}, but spread allows {most}")]
    Crowded {
        /// The level that they are spread over.
        level: TopologyLevel,
        /// Tasks on one of its domains.
        got: u32,
        /// Tasks that may be.
        most: u32,
    },
    /// The cards of one task.
    #[error("GPUs of rank {rank} are on {got} NUMA nodes, but {policy} allows {most}")]
    Numa {
        /// Which task.
        rank: Rank,
        /// The policy.
        policy: NumaPolicy,
        /// NUMA nodes its cards lie on.
        got: usize,
        /// NUMA nodes they may lie on.
        most: usize,
    },
}

/// Checks a placement; `ground[r]` is the node of rank `r`, as long as `tasks`.
///
/// # Errors
/// The first thing that stands too far apart, or too close.
pub fn check(topology: &Topology, numa: NumaPolicy, tasks: &[TaskPlacement], ground: &[&Node]) -> Result<(), TooFar> {
    if let Some(level) = topology.required
        && !together(level, tasks, ground)
    {
        return Err(TooFar::Gang { level });
    }
    if let Some(each) = topology.segment_tasks {
        check_segments(each as usize, tasks, ground)?;
    }
    if let Some(spread) = topology.required_spread() {
        check_spread(spread, ground)?;
    }
    if matches!(numa, NumaPolicy::None | NumaPolicy::BestEffort) {
        return Ok(());
    }
    tasks.iter().zip(ground).enumerate().try_for_each(|(rank, (task, node))| check_numa(rank, numa, task, node))
}

/// Whether all of `tasks` lie inside one domain of `level`.
fn together(level: TopologyLevel, tasks: &[TaskPlacement], ground: &[&Node]) -> bool {
    let Some(first) = ground.first() else { return true };
    match level {
        TopologyLevel::Island => {
            let on_one_node = || ground.iter().all(|node| node.id == first.id) && islands(tasks, first).len() <= 1;
            ground.iter().all(|node| node.spec.place.shares_nvlink(&first.spec.place)) || on_one_node()
        }
        TopologyLevel::Node => ground.iter().all(|node| node.id == first.id),
        _ => ground.iter().all(|node| node.spec.place.together(&first.spec.place, level)),
    }
}

fn check_spread(spread: Spread, ground: &[&Node]) -> Result<(), TooFar> {
    let Spread { level, tasks_max, .. } = spread;
    let most = ground.iter().fold(BTreeMap::<String, u32>::new(), |mut tasks, node| {
        *tasks.entry(spread_domain(node, level)).or_default() += 1;
        tasks
    });
    match most.into_values().max() {
        Some(got) if got > tasks_max => Err(TooFar::Crowded { level, got, most: tasks_max }),
        _ => Ok(()),
    }
}

/// The domain of `level` that a node lies in, as tasks are spread over them.
#[must_use]
pub fn spread_domain(node: &Node, level: TopologyLevel) -> String {
    match level {
        TopologyLevel::Island | TopologyLevel::Node => node.id.to_string(),
        _ => node.spec.place.domain(level),
    }
}

fn check_segments(each: usize, tasks: &[TaskPlacement], ground: &[&Node]) -> Result<(), TooFar> {
    let segments = tasks.chunks(each.max(1)).zip(ground.chunks(each.max(1)));
    for (index, (tasks, ground)) in segments.enumerate() {
        let first = index * each;
        let breach =
            |level| TooFar::Segment { first: Rank(first as u32), last: Rank((first + tasks.len()) as u32 - 1), level };
        let Some(node) = ground.first() else { continue };
        // Of a node in an NVLink domain every card is on one island, and so are those of its neighbours there.
        let spans = !node.spec.place.nvlink_domain.is_empty();
        let level = if spans || an_island_could(tasks, node) { TopologyLevel::Island } else { TopologyLevel::Node };
        if !together(level, tasks, ground) {
            return Err(breach(level));
        }
    }
    Ok(())
}

/// The islands of `node` that the tasks' cards lie on.
fn islands(tasks: &[TaskPlacement], node: &Node) -> BTreeSet<u8> {
    let cards = tasks.iter().flat_map(|task| &task.devices);
    cards.filter_map(|hold| node.spec.gpus.get(usize::from(hold.gpu))).map(|gpu| gpu.island).collect()
}

/// Whether some island of `node` has as many cards of their model as the tasks hold.
fn an_island_could(tasks: &[TaskPlacement], node: &Node) -> bool {
    let of = |task: &TaskPlacement| task.devices.iter().map(|hold| hold.gpu).collect::<Vec<_>>();
    let held: BTreeSet<(NodeId, u16)> =
        tasks.iter().flat_map(|task| of(task).into_iter().map(|gpu| (task.node, gpu))).collect();
    let first = tasks.iter().flat_map(|task| &task.devices).next();
    let Some(model) = first.and_then(|hold| node.spec.gpus.get(usize::from(hold.gpu))).map(|gpu| gpu.model) else {
        return false;
    };
    let mut sizes: BTreeMap<u8, usize> = BTreeMap::new();
    for gpu in node.spec.gpus.iter().filter(|gpu| gpu.model == model) {
        *sizes.entry(gpu.island).or_default() += 1;
    }
    sizes.into_values().any(|size| size >= held.len())
}

fn check_numa(rank: usize, policy: NumaPolicy, task: &TaskPlacement, node: &Node) -> Result<(), TooFar> {
    let numa_of = |hold: &DeviceHold| node.spec.gpus.get(usize::from(hold.gpu)).map(|gpu| gpu.numa);
    let got = task.devices.iter().filter_map(numa_of).collect::<BTreeSet<u8>>().len();
    let model = task.devices.first().and_then(|hold| node.spec.gpus.get(usize::from(hold.gpu))).map(|gpu| gpu.model);
    let most = match (policy, model) {
        (NumaPolicy::Restricted, Some(model)) => numa_nodes_needed(node, model, task.devices.len()),
        _ => 1,
    };
    if got <= most { Ok(()) } else { Err(TooFar::Numa { rank: Rank(rank as u32), policy, got, most }) }
}

/// The fewest NUMA nodes that hold `count` cards of `model` on a node of this make, if nothing ran there.
#[must_use]
pub fn numa_nodes_needed(node: &Node, model: GpuModel, count: usize) -> usize {
    let mut sizes: BTreeMap<u8, usize> = BTreeMap::new();
    for gpu in node.spec.gpus.iter().filter(|gpu| gpu.model == model) {
        *sizes.entry(gpu.numa).or_default() += 1;
    }
    let mut sizes: Vec<usize> = sizes.into_values().collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut held = 0;
    for (index, size) in sizes.iter().enumerate() {
        held += size;
        if held >= count {
            return index + 1;
        }
    }
    sizes.len().max(1)
}

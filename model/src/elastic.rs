//! Elastic gangs: a job that starts with its minimum of tasks and takes more while devices are idle.
//!
//! The *minimum* is the job's attempt as of any other job: one allocation, bound and ended whole. What it has beyond that, its *growth*, is made of
//! *parts*: allocations of the same job and attempt, each of one task (or of one segment, where consecutive ranks share an island). What must
//! stay true:
//! - a part is always burst: no floor account ever pays for it, and it has no cool-down;
//! - a part comes and goes whole, and the attempt runs on without it; the attempt never runs on without its minimum;
//! - when the attempt is stopped, so are its parts; the attempt is over when the last of them is;
//! - the workers of a gang are numbered from 0 without gaps, those of the minimum first, whatever parts have come and gone.

use crate::ids::{AllocationId, NodeId, Rank};
use crate::preemption::StopSignal;
use crate::task::TaskPlacement;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Parts that may end by themselves in one attempt before it grows no more: workers that fail, or have nothing to do, would be started for ever.
pub const GROWTH_ENDS_MAX: u32 = 3;
/// A gang that has started or grown keeps its size for so long before it grows again: a new size costs the job a rendezvous.
pub const GROW_AFTER_MS: u64 = 5_000;
/// After something was taken from its growth it grows no sooner than this: who needed the devices has usually started by then, and nobody thrashes.
pub const GROW_AFTER_SHRINK_MS: u64 = 30_000;
/// Bytes that are kept of why a part ended.
pub const GROWTH_REASON_BYTES_MAX: usize = 256;

/// Names the file in which a worker finds the size of its gang and its own place, as JSON; it is replaced at each change.
pub const WORLD_VARIABLE: &str = "MUSTER_WORLD_FILE";

/// How far a gang may grow. Its minimum is the job's `tasks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Elastic {
    /// Tasks that it can use at most.
    pub tasks_max: u32,
    /// What running workers are sent when the number of workers has changed; none: they look at their world file, or find each other by themselves
    /// as those of torchrun do.
    pub signal: Option<StopSignal>,
}

/// How far a job has grown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Allocations beyond its minimum, those that are being stopped included.
    pub parts: BTreeSet<AllocationId>,
    /// Tasks of those that are to run.
    pub tasks: u32,
    /// Counts the sizes that it has had; it only grows.
    pub generation: u64,
    /// When it last grew, in milliseconds since the Unix epoch; 0: not in this attempt.
    pub grown_ms: u64,
    /// When it last lost a part; 0: not in this attempt.
    pub shrunk_ms: u64,
    /// Parts that ended by themselves in this attempt.
    pub ends: u32,
    /// The last of them.
    pub last_end: Option<GrowthEnd>,
}

/// How a part ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthEnd {
    /// Which.
    pub allocation: AllocationId,
    /// What was wrong, for people; empty when its tasks exited with 0.
    pub reason: String,
}

impl Growth {
    /// When it may grow next, if its attempt started at `started_ms`.
    #[must_use]
    pub fn next_ms(&self, started_ms: u64) -> u64 {
        let grown_ms = self.grown_ms.max(started_ms).saturating_add(GROW_AFTER_MS);
        let shrunk_ms = if self.shrunk_ms == 0 { 0 } else { self.shrunk_ms.saturating_add(GROW_AFTER_SHRINK_MS) };
        grown_ms.max(shrunk_ms)
    }

    /// A new attempt begins with its minimum.
    pub fn begin_attempt(&mut self) {
        let generation = if *self == Growth::default() { 0 } else { self.generation + 1 };
        *self = Growth { generation, ..Growth::default() };
    }
}

/// What one worker knows of its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct World {
    /// Which of the gang's sizes this is; a later one has a higher number.
    pub generation: u64,
    /// Workers now.
    pub workers: u32,
    /// Its place among them, from 0.
    pub rank: u32,
    /// Its place among those on its node.
    pub local_rank: u32,
    /// Those on its node.
    pub local_workers: u32,
    /// The place of its node among the gang's nodes, in the order of their first worker.
    pub node_rank: u32,
    /// Workers at least.
    pub workers_min: u32,
    /// Workers at most.
    pub workers_max: u32,
    /// What it is sent when this changes.
    pub signal: Option<StopSignal>,
}

/// The workers of a gang in their order: the minimum's tasks, then those of each part.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    all: Vec<(AllocationId, Rank, NodeId)>,
}

impl Workers {
    /// Adds the tasks of an allocation behind those that are there.
    pub fn add(&mut self, allocation: AllocationId, tasks: &[TaskPlacement]) {
        let ranked = tasks.iter().enumerate();
        self.all.extend(ranked.map(|(rank, task)| (allocation, Rank(rank as u32), task.node)));
    }

    /// What the worker with this allocation and rank knows; none when it is not among them.
    #[must_use]
    pub fn world_of(
        &self,
        (allocation, rank): (AllocationId, Rank),
        generation: u64,
        (workers_min, elastic): (u32, Elastic),
    ) -> Option<World> {
        let place = self.all.iter().position(|worker| (worker.0, worker.1) == (allocation, rank))?;
        let node = self.all[place].2;
        let here = |worker: &&(AllocationId, Rank, NodeId)| worker.2 == node;
        let before: BTreeSet<NodeId> =
            self.all.iter().map(|worker| worker.2).take_while(|other| *other != node).collect();
        Some(World {
            generation,
            workers: self.all.len() as u32,
            rank: place as u32,
            local_rank: self.all[..place].iter().filter(here).count() as u32,
            local_workers: self.all.iter().filter(here).count() as u32,
            node_rank: before.len() as u32,
            workers_min,
            workers_max: elastic.tasks_max,
            signal: elastic.signal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_numbered_without_gaps_and_the_minimum_comes_first() {
        let on = |nodes: &[u32]| -> Vec<TaskPlacement> {
            nodes.iter().map(|node| TaskPlacement { node: NodeId(*node), devices: Vec::new() }).collect()
        };
        let gang = (2, Elastic { tasks_max: 8, signal: None });
        let mut workers = Workers::default();
        workers.add(AllocationId(7), &on(&[2, 1]));
        workers.add(AllocationId(9), &on(&[1]));
        workers.add(AllocationId(12), &on(&[2]));
        let of = |allocation: u64, rank: u32| {
            let world = workers.world_of((AllocationId(allocation), Rank(rank)), 3, gang).expect("a worker");
            assert_eq!((world.generation, world.workers, world.workers_min, world.workers_max), (3, 4, 2, 8));
            (world.rank, world.local_rank, world.local_workers, world.node_rank)
        };
        assert_eq!([of(7, 0), of(7, 1), of(9, 0), of(12, 0)], [(0, 0, 2, 0), (1, 0, 2, 1), (2, 1, 2, 1), (3, 1, 2, 0)]);
        assert_eq!(workers.world_of((AllocationId(8), Rank(0)), 3, gang), None);
    }

    #[test]
    fn a_gang_keeps_its_size_for_a_while_and_longer_after_it_lost_something() {
        let mut growth = Growth::default();
        assert_eq!(growth.next_ms(1_000), 1_000 + GROW_AFTER_MS);
        growth.grown_ms = 10_000;
        assert_eq!(growth.next_ms(1_000), 10_000 + GROW_AFTER_MS);
        growth.shrunk_ms = 11_000;
        assert_eq!(growth.next_ms(1_000), 11_000 + GROW_AFTER_SHRINK_MS);
        growth.generation = 4;
        growth.begin_attempt();
        assert_eq!(growth, Growth { generation: 5, ..Growth::default() });
    }
}

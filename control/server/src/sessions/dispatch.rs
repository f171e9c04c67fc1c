//! Tells sessions that what their node is to run has changed.
//!
//! One task follows the applied changes. What must stay true: the work for a change is proportional to the change, whatever the number of
//! nodes and sessions; a node is touched when a task of it appears, ends, is to stop or gets another time limit, when a gang of which its tasks are over ends
//! elsewhere, and when the node itself or its pool changes, and not when other nodes of its gangs report anything else.

use super::Hub;
use crate::consensus::Lagged;
use muster_control_core::State;
use muster_model::{Allocation, AllocationId, AllocationState, Change, Job, Key, NodeId, Object, Revision};
use muster_runtime::timeline;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What of an allocation decides what its nodes are to run.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    stopping: bool,
    /// None of its tasks is left.
    ended: bool,
    /// Tasks that are not over, by node. A task that is over stays so, hence the count says it all.
    live: BTreeMap<NodeId, u32>,
}

impl Held {
    fn of(allocation: &Allocation) -> Self {
        let mut live: BTreeMap<NodeId, u32> = BTreeMap::new();
        for (task, state) in allocation.tasks.iter().zip(&allocation.task_states) {
            *live.entry(task.node).or_default() += u32::from(!state.is_over());
        }
        let ended = live.values().all(|live| *live == 0);
        Held { stopping: matches!(allocation.state, AllocationState::Stopping(_)), ended, live }
    }
}

/// What of a job its running tasks are told when it changes: its time limit, and the generation of an elastic gang's size.
type Told = (Option<u64>, u64);

/// The allocations as last seen, and what their jobs' tasks were told.
#[derive(Debug, Default)]
pub(super) struct Index {
    held: BTreeMap<AllocationId, Held>,
    limits: BTreeMap<AllocationId, Told>,
}

impl Index {
    pub(super) fn of(state: &State) -> Self {
        let limit = |job: &Job| Some((job.phase.allocation()?, (job.spec.time_limit_s, job.growth.generation)));
        Index {
            held: state.allocations.values().map(|allocation| (allocation.id, Held::of(allocation))).collect(),
            limits: state.jobs.values().filter_map(|job| limit(job)).collect(),
        }
    }

    /// Takes a change over and collects the nodes it touches. Says whether every node may be one: which nodes a pool has is not kept here, and
    /// pools rarely change.
    pub(super) fn take(&mut self, change: &Change, touched: &mut BTreeSet<NodeId>) -> bool {
        match change {
            Change::Put(object) => match &**object {
                Object::Node(node) => {
                    touched.insert(node.id);
                }
                Object::Allocation(allocation) => self.put(allocation, touched),
                Object::Job(job) => self.limit(job, touched),
                Object::Pool(_) => return true,
                _ => {}
            },
            Change::Delete(Key::Pool(_)) => return true,
            Change::Delete(Key::Node(node)) => {
                touched.insert(*node);
            }
            Change::Delete(Key::Allocation(id)) => {
                self.limits.remove(id);
                if let Some(held) = self.held.remove(id) {
                    touched.extend(held.live.into_keys());
                }
            }
            Change::Delete(_) | Change::Retire(_) | Change::Audit(_) => {}
        }
        false
    }

    fn put(&mut self, allocation: &Allocation, touched: &mut BTreeSet<NodeId>) {
        let new = Held::of(allocation);
        match self.held.get(&allocation.id) {
            Some(old) if (old.stopping, old.ended) == (new.stopping, new.ended) => {
                let changed = new.live.iter().filter(|(node, live)| old.live.get(node) != Some(live));
                touched.extend(changed.map(|(node, _)| *node));
            }
            _ => touched.extend(new.live.keys()),
        }
        self.held.insert(allocation.id, new);
    }

    /// A time limit may change while the job runs, and so may the size of its gang, which every worker is told.
    fn limit(&mut self, job: &Job, touched: &mut BTreeSet<NodeId>) {
        let Some(id) = job.phase.allocation() else { return };
        let told = (job.spec.time_limit_s, job.growth.generation);
        let before = self.limits.insert(id, told);
        if before.is_some_and(|before| before != told) {
            let all = job.growth.parts.iter().chain([&id]).filter_map(|id| self.held.get(id));
            touched.extend(all.flat_map(|held| held.live.keys()));
        }
    }
}

/// Follows the changes until this node stops.
pub(crate) async fn run(hub: Arc<Hub>) {
    loop {
        let (mut index, revision): (Index, Revision) =
            hub.consensus.read(|state, revision| (Index::of(state), revision));
        let Ok(mut follower) = hub.consensus.follow(revision) else {
            tokio::task::yield_now().await;
            continue;
        };
        // Whatever was missed before `revision` is seen by whoever looks now.
        hub.touch_all();
        loop {
            match follower.next().await {
                Ok(applied) => {
                    let mut touched = BTreeSet::new();
                    let mut all = false;
                    for change in applied.changes.iter() {
                        all |= index.take(change, &mut touched);
                    }
                    tracing::trace!(target: timeline::TARGET, step = "dispatched", revision = applied.revision.0);
                    if all { hub.touch_all() } else { hub.touch(touched) }
                }
                Err(Lagged::Behind { after }) => {
                    tracing::info!(revision = %after, "changes were missed: every session reads the state again");
                    break;
                }
                Err(Lagged::Stopped { .. }) => return,
            }
        }
    }
}

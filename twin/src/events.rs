//! What is to happen, in order of virtual time; of equal times in the order in which it was decided.

use muster_model::{AllocationId, JobId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A job is submitted (again): its index in the replay.
    Submit(usize),
    /// All tasks of an allocation have started.
    Started(AllocationId),
    /// The tasks of an allocation reach the end of their work, or their limit.
    Worked(AllocationId),
    /// The tasks of an allocation that is to stop are gone.
    Stopped(AllocationId),
    /// A job is asked to end by its owner.
    Cancel(AllocationId),
    /// It is asked when a waiting job will start.
    Estimate(JobId),
    /// The hourly housekeeping.
    Sweep,
    /// A shard wants to look again.
    Look,
    /// Every law is checked.
    Check,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Events<E = Event> {
    heap: BinaryHeap<Reverse<(u64, u64, E)>>,
    sequence: u64,
}

impl<E: Ord> Default for Events<E> {
    fn default() -> Self {
        Events { heap: BinaryHeap::new(), sequence: 0 }
    }
}

impl<E: Ord> Events<E> {
    /// `event` happens at `at_ms`.
    pub(crate) fn push(&mut self, at_ms: u64, event: E) {
        self.sequence += 1;
        self.heap.push(Reverse((at_ms, self.sequence, event)));
    }

    /// When the next thing happens.
    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_ms, _, _))| *at_ms)
    }

    /// The next thing that happens at `at_ms`.
    pub(crate) fn pop_at(&mut self, at_ms: u64) -> Option<E> {
        if self.next_ms() != Some(at_ms) {
            return None;
        }
        self.heap.pop().map(|Reverse((_, _, event))| event)
    }
}

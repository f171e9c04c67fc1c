//! The usage meter: what allocations held on this node, cut into numbered intervals.
//!
//! What must stay true (law 9): an interval, once numbered, keeps its number and content until the control plane's mark has passed
//! it, so the agent must have the meter on disk before it sends a number; time is CLOCK_BOOTTIME, so a wall clock that jumps
//! charges nobody; a task that has ended is remembered until its record is forgotten, so an agent that crashes at any moment finds in
//! the meter on disk and in the records of its tasks exactly what it knew. What waits for the control plane is bounded:
//! beyond the bound nothing more is cut, intervals only grow longer. Three kinds of use are told apart: tasks run; what they left is cleaned
//! up; their devices are held on for the rest of their gang ([`held_on`]).

mod held_on;

use crate::task::TaskKey;
use held_on::{HeldOn, Time};
use muster_model::ids::AllocationId;
use muster_model::task::CleanUp;
use muster_model::usage::{UsageInterval, UseKind};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Intervals that wait to be counted: with ten allocations of one kind of use and a cut every ten seconds, almost three hours without a control
/// plane, in less than 400 KiB.
pub const PENDING_MAX: usize = 10_000;
/// Intervals per message.
pub const BATCH_MAX: usize = 256;

const NS_PER_MS: u128 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    gpu_units: u64,
    since_ns: u64,
}

/// Held and ended, but not yet cut into an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sum {
    gpu_unit_ns: u128,
    longest_ns: u64,
}

impl Sum {
    fn add(&mut self, open: Open, until_ns: u64) {
        let held_ns = until_ns.saturating_sub(open.since_ns);
        self.gpu_unit_ns += u128::from(open.gpu_units) * u128::from(held_ns);
        self.longest_ns = self.longest_ns.max(held_ns);
    }
}

/// A usage stream and what runs into it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    incarnation: Option<u64>,
    /// Number of the last interval cut.
    last_seq: u64,
    #[serde(with = "pairs")]
    open: BTreeMap<TaskKey, Open>,
    closed: BTreeMap<AllocationId, Sum>,
    /// Of tasks that are over: whose devices are being cleaned up, or may be held on.
    #[serde(default)]
    held_on: HeldOn,
    #[serde(default)]
    idle: BTreeMap<AllocationId, Sum>,
    #[serde(default)]
    clean: BTreeMap<AllocationId, Sum>,
    /// Tasks that have ended and are in the sums or intervals, until their records are forgotten: they are not metered again.
    settled: BTreeSet<TaskKey>,
    pending: VecDeque<UsageInterval>,
}

impl Meter {
    /// The stream that this is a record of, once the control plane has given one out.
    #[must_use]
    pub const fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// The number of the last interval cut.
    #[must_use]
    pub const fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// The control plane says which stream counts and how far it has counted. Gives how many intervals were dropped: under a
    /// new stream it cannot be known which of the old ones were counted, and counting twice would be worse; their time is
    /// then derived from the allocation's record.
    pub fn adopt(&mut self, incarnation: u64, mark: u64) -> usize {
        if self.incarnation == Some(incarnation) {
            self.counted(incarnation, mark);
            // The control plane has counted more than this record knows of: go on after it.
            self.last_seq = self.last_seq.max(mark);
            return 0;
        }
        // Before the first stream nothing was ever sent: what was cut meanwhile is new to everybody.
        let never_sent = self.incarnation.is_none();
        let dropped = if never_sent { 0 } else { self.pending.len() };
        if !never_sent {
            self.pending.clear();
        }
        self.incarnation = Some(incarnation);
        self.last_seq = mark;
        for interval in &mut self.pending {
            self.last_seq += 1;
            interval.seq = self.last_seq;
        }
        dropped
    }

    /// A task holds its devices from `at_ns` on. A task that is known already goes on or stays ended; one without GPUs is not
    /// metered.
    pub fn started(&mut self, key: TaskKey, gpu_units: u64, at_ns: u64) {
        if gpu_units > 0 && !self.settled.contains(&key) {
            self.open.entry(key).or_insert(Open { gpu_units, since_ns: at_ns });
        }
    }

    /// A task runs no more since `at_ns`, which is seen at `now_ns`: from then on its devices are cleaned up. Says whether it was being metered.
    pub fn ended(&mut self, key: TaskKey, at_ns: u64, now_ns: u64) -> bool {
        let Some(open) = self.open.remove(&key) else { return false };
        self.closed.entry(key.allocation).or_default().add(open, at_ns);
        // What was cut before is counted up to there, though it had ended.
        self.held_on.over(key, open.gpu_units, now_ns.max(open.since_ns));
        self.settled.insert(key);
        true
    }

    /// What is known at `now_ns` of the devices of a task that has ended. Says whether they have become clean, or are withheld, since the last time.
    pub fn cleaned_up(&mut self, key: TaskKey, clean_up: &CleanUp, now_ns: u64) -> bool {
        let was_cleaning = self.held_on.is_cleaning(key);
        let time = match clean_up {
            CleanUp::UnderWay => self.held_on.cleaning(key, now_ns),
            CleanUp::Done { took_ms } => self.held_on.cleaned(key, (*took_ms > 0).then_some(now_ns)),
            CleanUp::Failed { .. } => {
                let time = self.held_on.cleaning(key, now_ns);
                self.held_on.withheld(key);
                time
            }
        };
        self.count(time);
        was_cleaning && !self.held_on.is_cleaning(key)
    }

    /// The control plane has confirmed at `until_ns` that it holds devices on for these tasks that have ended.
    pub fn held_on(&mut self, tasks: &BTreeSet<TaskKey>, until_ns: u64) {
        for key in tasks {
            let time = self.held_on.held(*key, until_ns);
            self.count(time);
        }
    }

    /// Takes over for which tasks the control plane holds devices at all, now. Those of the others are given back, once they are clean.
    pub fn given_back(&mut self, is_held: impl Fn(TaskKey) -> bool) {
        self.held_on.keep_held(is_held);
    }

    fn count(&mut self, time: Option<Time>) {
        let Some(Time { key, kind, gpu_units, from_ns, to_ns }) = time else { return };
        let sums = match kind {
            UseKind::Run => &mut self.closed,
            UseKind::Idle => &mut self.idle,
            UseKind::Clean => &mut self.clean,
        };
        sums.entry(key.allocation).or_default().add(Open { gpu_units, since_ns: from_ns }, to_ns);
    }

    /// Tasks that have ended and are in the sums.
    #[must_use]
    pub fn settled(&self) -> &BTreeSet<TaskKey> {
        &self.settled
    }

    /// Those of them whose devices are clean or withheld. Once that is on disk their records may be forgotten.
    #[must_use]
    pub fn forgettable(&self) -> BTreeSet<TaskKey> {
        self.settled.iter().copied().filter(|key| !self.held_on.is_cleaning(*key)).collect()
    }

    /// The record of a task is forgotten: it cannot be seen again.
    pub fn forget(&mut self, key: TaskKey) {
        self.settled.remove(&key);
        self.held_on.keep(|other| other != key);
    }

    /// Whether anything is being metered.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        !self.open.is_empty() || !self.held_on.is_empty()
    }

    /// Cuts everything held so far into one interval per allocation and kind. Says whether there was any: then the meter goes to disk
    /// before [`Meter::batch`] may be sent.
    pub fn cut(&mut self, now_ns: u64) -> bool {
        if self.pending.len() >= PENDING_MAX {
            return false;
        }
        let mut sums = std::mem::take(&mut self.closed);
        for (key, open) in &mut self.open {
            sums.entry(key.allocation).or_default().add(*open, now_ns);
            open.since_ns = open.since_ns.max(now_ns);
        }
        let (idle, clean) = (std::mem::take(&mut self.idle), std::mem::take(&mut self.clean));
        let before = self.pending.len();
        self.number(UseKind::Run, sums);
        self.number(UseKind::Idle, idle);
        self.number(UseKind::Clean, clean);
        self.pending.len() > before
    }

    fn number(&mut self, kind: UseKind, sums: BTreeMap<AllocationId, Sum>) {
        for (allocation, sum) in sums {
            let duration_ms = sum.longest_ns.div_ceil(NS_PER_MS as u64);
            if duration_ms == 0 {
                continue;
            }
            self.last_seq += 1;
            self.pending.push_back(UsageInterval {
                seq: self.last_seq,
                allocation,
                duration_ms,
                gpu_unit_ms: u64::try_from(sum.gpu_unit_ns / NS_PER_MS).unwrap_or(u64::MAX),
                kind,
            });
        }
    }

    /// Whether something has ended that is not cut yet.
    #[must_use]
    pub fn has_closed(&self) -> bool {
        !(self.closed.is_empty() && self.idle.is_empty() && self.clean.is_empty())
    }

    /// Drops what it holds of tasks that `keep` does not know. Used by an agent that has just started: its time since the last cut is left
    /// to be derived from its allocation. What is held on for a gang needs no record any more. Time in which there was no agent is no clean-up.
    pub fn keep(&mut self, now_ns: u64, keep: impl Fn(TaskKey) -> bool) {
        self.open.retain(|key, _| keep(*key));
        self.settled.retain(|key| keep(*key));
        self.held_on.keep(keep);
        self.held_on.clean_from(now_ns);
    }

    /// Drops what it holds of all tasks: the host was booted again, and its clock began anew.
    pub fn boot(&mut self) {
        self.open.clear();
        self.settled.clear();
        self.held_on = HeldOn::default();
    }

    /// Up to [`BATCH_MAX`] intervals after number `after` and up to `stored`, the last number on disk, with the stream they belong
    /// to; none before there is a stream.
    #[must_use]
    pub fn batch(&self, after: u64, stored: u64) -> Option<(u64, Vec<UsageInterval>)> {
        let incarnation = self.incarnation?;
        let to_send = self.pending.iter().filter(|interval| interval.seq > after && interval.seq <= stored);
        let intervals: Vec<UsageInterval> = to_send.take(BATCH_MAX).cloned().collect();
        (!intervals.is_empty()).then_some((incarnation, intervals))
    }

    /// The control plane has counted up to `mark`. Says whether anything was dropped for it.
    pub fn counted(&mut self, incarnation: u64, mark: u64) -> bool {
        if self.incarnation != Some(incarnation) {
            return false;
        }
        let before = self.pending.len();
        while self.pending.front().is_some_and(|interval| interval.seq <= mark) {
            self.pending.pop_front();
        }
        self.pending.len() < before
    }

    /// Whether the control plane, which has counted up to `mark`, waits for an interval that is gone here: then this record is of another stream
    /// that had the same number, such as that of a data folder that was deleted and came back.
    #[must_use]
    pub fn lacks_what_follows(&self, mark: u64) -> bool {
        self.pending.front().is_some_and(|interval| interval.seq > mark.saturating_add(1))
    }

    /// Leaves the stream for a number that nobody has given out: the control plane answers with a new one, and what waits is dropped then.
    pub fn leave(&mut self) {
        self.incarnation = self.incarnation.map(|incarnation| incarnation.saturating_add(1));
    }

    /// How many intervals wait to be counted.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}

/// JSON has only text as keys, so a map by task is stored as a list of pairs.
mod pairs {
    use super::TaskKey;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        map: &BTreeMap<TaskKey, T>,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(out)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        input: D,
    ) -> Result<BTreeMap<TaskKey, T>, D::Error> {
        Ok(Vec::<(TaskKey, T)>::deserialize(input)?.into_iter().collect())
    }
}

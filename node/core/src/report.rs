//! Which task states the control plane has not acknowledged yet.
//!
//! What must stay true: every state a task reaches and stays in is sent at least once and again until it is acknowledged, across
//! sessions; a state that was replaced by a newer one before it was sent need not be; an acknowledgement counts only for the
//! state that was sent under its number. What is in flight is bounded.

use crate::fence::NS_PER_S;
use crate::task::TaskKey;
use muster_model::Checkpoint;
use muster_model::checkpoint::CHECKPOINT_EVERY_MS;
use muster_model::task::{CleanUp, TaskState};
use std::collections::BTreeMap;

/// States per message: a node has tens of tasks, a message of this many stays small.
pub const BATCH_MAX: usize = 256;
/// Unacknowledged messages: beyond this, new states wait for an acknowledgement or for the time-out.
const IN_FLIGHT_MAX: usize = 64;
/// A message that is not acknowledged for this long is sent again: longer than a leader change usually takes.
const AGAIN_AFTER_NS: u64 = 5 * NS_PER_S;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    state: TaskState,
    clean_up: CleanUp,
    /// When it was over, on CLOCK_BOOTTIME.
    ended_ns: Option<u64>,
    checkpoint: Option<Checkpoint>,
    /// When that was last taken over.
    checkpoint_ns: Option<u64>,
    acknowledged: bool,
    /// The message that carries this state, if one is under way.
    carried_by: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct InFlight {
    sent_ns: u64,
    keys: Vec<TaskKey>,
}

/// One state to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of which task.
    pub key: TaskKey,
    /// The state.
    pub state: TaskState,
    /// What is known of its devices, if it is over.
    pub clean_up: CleanUp,
    /// When it was over, on CLOCK_BOOTTIME, if it is.
    pub ended_ns: Option<u64>,
    /// The newest checkpoint that it says it has made.
    pub checkpoint: Option<Checkpoint>,
}

/// The states to report and what is known of their arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    tasks: BTreeMap<TaskKey, Known>,
    next_seq: u64,
    in_flight: BTreeMap<u64, InFlight>,
}

impl Reports {
    /// A task is seen in `state`, over since `ended_ns` if it is over, and then its devices as `clean_up` says. Says whether the state is news.
    pub fn observe(&mut self, key: TaskKey, state: TaskState, ended_ns: Option<u64>, clean_up: CleanUp) -> bool {
        let same_state = self.tasks.get(&key).is_some_and(|known| known.state == state);
        if same_state && self.tasks.get(&key).is_some_and(|known| known.clean_up == clean_up) {
            return false;
        }
        let before = self.tasks.remove(&key);
        let (checkpoint, checkpoint_ns) =
            before.map(|known| (known.checkpoint, known.checkpoint_ns)).unwrap_or_default();
        let known =
            Known { state, clean_up, ended_ns, checkpoint, checkpoint_ns, acknowledged: false, carried_by: None };
        self.tasks.insert(key, known);
        !same_state
    }

    /// A task whose state was observed says that it has made a checkpoint. One is told at most every ten seconds, the newest at the next
    /// look after that; and at once when the task is being stopped or is over: nothing comes after it. Says whether that is news.
    pub fn checkpoint(&mut self, key: TaskKey, made: &Checkpoint, is_last: bool, now_ns: u64) -> bool {
        let Some(known) = self.tasks.get_mut(&key) else { return false };
        let told = |at_ns: u64| now_ns.saturating_sub(at_ns) < CHECKPOINT_EVERY_MS * 1_000_000;
        if known.checkpoint.as_ref() == Some(made) || !is_last && known.checkpoint_ns.is_some_and(told) {
            return false;
        }
        known.checkpoint = Some(made.clone());
        known.checkpoint_ns = Some(now_ns);
        (known.acknowledged, known.carried_by) = (false, None);
        true
    }

    /// Everything unacknowledged is to be sent again: the last session's messages may be lost.
    pub fn new_session(&mut self) {
        self.in_flight.clear();
        for known in self.tasks.values_mut() {
            known.carried_by = None;
        }
    }

    /// Everything is to be told again: whom it is told now does not know what was acknowledged before.
    pub fn new_history(&mut self) {
        self.new_session();
        for known in self.tasks.values_mut() {
            known.acknowledged = false;
        }
    }

    /// The next message to send, if there is news and room; call again until it gives none.
    pub fn next_batch(&mut self, now_ns: u64) -> Option<(u64, Vec<Report>)> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let seq = self.next_seq + 1;
        let mut batch = Vec::new();
        for (key, known) in &mut self.tasks {
            if batch.len() == BATCH_MAX {
                break;
            }
            if !known.acknowledged && known.carried_by.is_none() {
                known.carried_by = Some(seq);
                batch.push(Report {
                    key: *key,
                    state: known.state.clone(),
                    clean_up: known.clean_up.clone(),
                    ended_ns: known.ended_ns,
                    checkpoint: known.checkpoint.clone(),
                });
            }
        }
        if batch.is_empty() {
            return None;
        }
        self.next_seq = seq;
        self.in_flight.insert(seq, InFlight { sent_ns: now_ns, keys: batch.iter().map(|report| report.key).collect() });
        Some((seq, batch))
    }

    /// Message `seq` has been taken. Says whether anything became acknowledged by it.
    pub fn acknowledged(&mut self, seq: u64) -> bool {
        let Some(message) = self.in_flight.remove(&seq) else { return false };
        let mut any = false;
        for key in message.keys {
            // A state that has changed since is carried by another message, or by none yet.
            if let Some(known) = self.tasks.get_mut(&key)
                && known.carried_by == Some(seq)
            {
                known.acknowledged = true;
                known.carried_by = None;
                any = true;
            }
        }
        any
    }

    /// Messages that waited too long are given up, so that what they carried is sent again. Says whether there were any.
    pub fn expire(&mut self, now_ns: u64) -> bool {
        let late: Vec<u64> = self
            .in_flight
            .iter()
            .filter(|(_, message)| now_ns.saturating_sub(message.sent_ns) >= AGAIN_AFTER_NS)
            .map(|(seq, _)| *seq)
            .collect();
        for seq in &late {
            for key in self.in_flight.remove(seq).map(|message| message.keys).unwrap_or_default() {
                if let Some(known) = self.tasks.get_mut(&key)
                    && known.carried_by == Some(*seq)
                {
                    known.carried_by = None;
                }
            }
        }
        !late.is_empty()
    }

    /// Whether the present state of `key` has been acknowledged.
    #[must_use]
    pub fn is_acknowledged(&self, key: TaskKey) -> bool {
        self.tasks.get(&key).is_some_and(|known| known.acknowledged)
    }

    /// The task is forgotten.
    pub fn forget(&mut self, key: TaskKey) {
        self.tasks.remove(&key);
    }
}

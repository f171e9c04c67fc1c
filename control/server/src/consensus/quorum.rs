//! What a quorum is, and what the leader knows of its voters by their answers to its heartbeats.
//!
//! What must stay true: nothing of an earlier term counts; a quorum is known to follow from the moment at which the heartbeats were sent, not
//! from that of their answers.

use crate::consensus::clock::Clocks;
use crate::consensus::forms::Levels;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::watch;
use tokio::time::Instant;

/// Whether these nodes are a majority of each of the configurations (two while the voters are being changed).
pub(crate) fn is_quorum(configs: &[BTreeSet<u64>], nodes: &BTreeSet<u64>) -> bool {
    configs.iter().all(|voters| voters.intersection(nodes).count() > voters.len() / 2)
}

/// The voters; two sets while they are being changed.
pub(crate) type Configs = Vec<BTreeSet<u64>>;

/// What the leader knows from its heartbeats.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    /// What the voters say of their wall clocks.
    pub(crate) clocks: Mutex<Clocks>,
    /// What feature levels the voters know.
    pub(crate) levels: Levels,
    /// By voter, when the last heartbeat was sent that it accepted in this term.
    accepted: Mutex<BTreeMap<u64, Instant>>,
    /// Since when a quorum is known to have followed this leader.
    quorum_heard: Mutex<Option<Instant>>,
    /// Counts the readings of clocks, for those who wait for some.
    pub(crate) read: watch::Sender<u64>,
    /// When a wrong clock was last named in the log.
    pub(crate) warned: Mutex<Option<Instant>>,
}

impl Heartbeats {
    /// On the leader: when the last heartbeat was sent that a quorum, itself among them, accepted.
    pub(crate) fn quorum_heard(&self) -> Option<Instant> {
        *self.quorum_heard.lock()
    }

    /// By how much a voter's clock is ahead of this node's.
    pub(crate) fn clock_offset_ms(&self, voter: u64, own_wall_ms: u64) -> Option<i64> {
        self.clocks.lock().offset_ms(voter, own_wall_ms, Instant::now())
    }

    /// A new term of this node: what was known before does not count.
    pub(crate) fn begin(&self) {
        self.clocks.lock().clear();
        self.levels.clear();
        self.accepted.lock().clear();
        // A quorum has just elected it.
        *self.quorum_heard.lock() = Some(Instant::now());
    }

    pub(crate) fn note_accepted(&self, me: u64, voter: u64, sent: Instant, configs: &Configs) {
        let mut accepted = self.accepted.lock();
        let last = accepted.entry(voter).or_insert(sent);
        *last = sent.max(*last);
        // The latest moment from which on a quorum has accepted something.
        let mut moments: Vec<Instant> = accepted.values().copied().collect();
        moments.sort_unstable_by(|a, b| b.cmp(a));
        let reached = moments.into_iter().find(|moment| {
            let since = accepted.iter().filter(|(_, at)| *at >= moment).map(|(voter, _)| *voter);
            is_quorum(configs, &since.chain([me]).collect())
        });
        let mut heard = self.quorum_heard.lock();
        *heard = (*heard).max(reached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_quorum_is_heard_as_of_the_latest_moment_that_a_majority_accepted() {
        let heartbeats = Heartbeats::default();
        let configs = vec![BTreeSet::from([1, 2, 3, 4, 5])];
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let heard = |voter, ms| {
            heartbeats.note_accepted(1, voter, at(ms), &configs);
            heartbeats.quorum_heard()
        };
        assert_eq!(heard(2, 10), None, "two of five");
        assert_eq!(heard(3, 20), Some(at(10)));
        assert_eq!(heard(2, 30), Some(at(20)));
        assert_eq!(heard(4, 25), Some(at(25)));
        assert_eq!(heard(3, 5), Some(at(25)), "an answer that comes late takes nothing back");
    }

    #[test]
    fn a_quorum_is_a_majority_of_both_configurations() {
        let config = |voters: &[u64]| voters.iter().copied().collect::<BTreeSet<u64>>();
        let joint = [config(&[1, 2, 3]), config(&[3, 4, 5])];
        assert!(!is_quorum(&joint, &config(&[1, 2, 3])));
        assert!(is_quorum(&joint, &config(&[2, 3, 4])));
        assert!(is_quorum(&[config(&[1])], &config(&[1])));
        assert!(!is_quorum(&[config(&[1, 2])], &config(&[1])));
    }
}

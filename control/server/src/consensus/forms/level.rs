//! The feature level: what each voter says that it knows, and the leader's raising of it.
//!
//! What must stay true: the level is raised only to what every voter has said, in this term, that it knows, and only while there is nobody in
//! the membership who has not been asked (a learner).

use crate::consensus::core::Core;
use crate::consensus::proposer::Proposer;
use muster_control_core::Command;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often the leader looks whether the level can be raised: upgrades take minutes.
const LOOK: Duration = Duration::from_secs(1);

/// By voter, the newest level it knows, as its heartbeats said in this term.
#[derive(Debug, Default)]
pub(crate) struct Levels(Mutex<BTreeMap<u64, u32>>);

impl Levels {
    pub(crate) fn note(&self, voter: u64, knows: u32) {
        self.0.lock().insert(voter, knows);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// What all of them know; nothing while one has not said so.
    fn common(&self, voters: &BTreeSet<u64>) -> Option<u32> {
        let known = self.0.lock();
        voters.iter().map(|voter| known.get(voter).copied()).collect::<Option<Vec<u32>>>()?.into_iter().min()
    }
}

/// On the leader: raises the level whenever every voter knows a higher one. Runs for as long as the node does.
pub(crate) async fn raise(core: Arc<Core>, proposer: Proposer) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _why = core.stop.stopped() => return,
        }
        if core.is_leader()
            && let Some(level) = core.level_to_raise()
        {
            let (from, propose) = (core.feature_level(), Command::RaiseFeatureLevel { level });
            let term = core.leadership.borrow().term;
            match proposer.propose(vec![propose], Some(term), false).await {
                Ok(_raised) => tracing::info!(from, level, "all voters know the feature level: it was raised"),
                Err(error) => tracing::debug!(%error, "the feature level was not raised; the leader tries again"),
            }
        }
    }
}

impl Core {
    /// The level that the state has.
    pub(crate) fn feature_level(&self) -> u32 {
        self.replica.read(|state, _| state.meta.feature_level)
    }

    fn level_to_raise(&self) -> Option<u32> {
        let metrics = self.raft.metrics();
        let membership = metrics.borrow().membership_config.clone();
        let mut voters: BTreeSet<u64> = membership.membership().voter_ids().collect();
        let asked = membership.nodes().all(|(id, _)| voters.contains(id));
        voters.remove(&self.id);
        let common = if voters.is_empty() { Some(u32::MAX) } else { self.heartbeats.levels.common(&voters) };
        let level = common?.min(self.config.knows_level);
        (asked && level > self.feature_level()).then_some(level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_know_is_known_once_all_have_said_so() {
        let levels = Levels::default();
        let voters = BTreeSet::from([1, 2]);
        levels.note(1, 3);
        assert_eq!(levels.common(&voters), None, "2 has not said anything");
        levels.note(2, 2);
        levels.note(9, 1);
        assert_eq!(levels.common(&voters), Some(2), "9 does not vote");
        levels.note(2, 4);
        assert_eq!(levels.common(&voters), Some(3), "2 was started in a newer version");
        levels.clear();
        assert_eq!(levels.common(&voters), None, "what was said in an earlier term does not count");
    }
}

//! The leader's raising of the feature level.
//!
//! What must stay true: the level is raised only to what every voter has said, in this term, that it knows, and only while there is nobody in
//! the membership who has not been asked (a learner).

use crate::consensus::core::Core;
use crate::consensus::proposer::Proposer;
use muster_control_core::Command;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How often the leader looks whether the level can be raised: upgrades take minutes.
const LOOK: Duration = Duration::from_secs(1);

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

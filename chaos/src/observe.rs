//! Watches one replica from outside, without its knowledge: what it publishes and what its state is.
//!
//! What must stay true: a change that a replica has published is in the record before the replica is crashed, and nothing of the
//! run's course depends on being observed.

use crate::history::{History, ReplicaRecord, Sample, digest};
use futures::FutureExt;
use muster_control_server::Consensus;
use muster_control_server::consensus::Follower;
use muster_model::ids::Revision;

/// The observer of one life of one replica.
pub struct Observer {
    consensus: Consensus,
    follower: Option<Follower>,
    /// Index of its record in the history.
    record: usize,
}

impl Observer {
    /// Begins to observe. The first observer of a run also takes down the state that the history starts from.
    pub fn attach(history: &mut History, (name, life): (String, u64), consensus: Consensus) -> Self {
        let applied = consensus.read(|state, revision| {
            if history.base.is_empty() {
                history.base = state.objects().collect();
                history.base_revision = revision;
            }
            revision
        });
        // From what the history has, where the replica still knows it, so that nothing between two lives is missed.
        let known = history.log.keys().next_back().copied().unwrap_or(history.base_revision).min(applied);
        let (after, follower) = match consensus.follow(known) {
            Ok(follower) => (known, Some(follower)),
            Err(_) => (applied, consensus.follow(applied).ok()),
        };
        history.replicas.push(ReplicaRecord { name, life, after, ..ReplicaRecord::default() });
        Observer { consensus, follower, record: history.replicas.len() - 1 }
    }

    /// Takes down everything the replica has published since.
    pub fn drain(&mut self, history: &mut History) {
        loop {
            let Some(follower) = &mut self.follower else { return };
            let after = follower.after();
            match follower.next().now_or_never() {
                None => return,
                Some(Ok(applied)) => {
                    history.published(self.record, applied.revision, applied.now_ms, &applied.changes);
                }
                Some(Err(_)) => {
                    // It installed a snapshot, or has stopped.
                    let now = self.consensus.read(|_, revision| revision);
                    self.follower = if now > after { self.consensus.follow(now).ok() } else { None };
                    history.replicas[self.record].skipped.push((after, now));
                }
            }
        }
    }

    /// Takes down its whole state, as a hash, and what its own check says.
    pub fn sample(&mut self, history: &mut History) {
        self.drain(history);
        let (revision, digest, broken) = self.consensus.read(|state, revision| {
            (revision, digest(state.objects()), state.check().err().map(|broken| broken.to_string()))
        });
        let replica = history.replicas[self.record].name.clone();
        history.samples.push(Sample { replica, revision, digest, broken });
    }

    /// What it has applied.
    #[must_use]
    pub fn applied(&self) -> Revision {
        self.consensus.read(|_, revision| revision)
    }

    /// The replica.
    #[must_use]
    pub fn consensus(&self) -> &Consensus {
        &self.consensus
    }
}

//! What one member has confirmed, and how it learns what is committed.
//!
//! openraft sends an empty append with the new index after every commit. While entries follow each other the next of them says the same, so
//! this one waits a moment. What must stay true: a member that is reached learns of every commit that may be shown, also when no entry follows;
//! nothing counts as confirmed under a vote but what the member answered to that vote; a leader that nobody writes to still learns that a
//! member has gone on to a newer vote.

use super::{Peers, Raftward};
use crate::consensus::types::{LogId, Member, Types, Vote};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a commit index waits for entries to go with.
const PAUSE: Duration = Duration::from_millis(1);
/// How long an announcement may take; the next empty append of openraft begins another.
const WITHIN: Duration = Duration::from_millis(500);
/// What a member said so long ago is asked for again: it may have voted for somebody else since, and the leader has to learn of it.
const ANSWER_AGE_MAX: Duration = Duration::from_millis(100);

/// What one member was told, and said, over one link.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Known>);

/// An answer to entries.
#[derive(Clone, Copy, Debug)]
struct Confirmed {
    vote: Vote,
    last: LogId,
    at: Instant,
}

#[derive(Debug, Default)]
struct Known {
    /// What it confirmed last.
    confirmed: Option<Confirmed>,
    /// The commit index that it has.
    commit: Option<LogId>,
    /// The commit index that it should have.
    wanted: Option<LogId>,
    /// Somebody sees to it.
    announcing: bool,
}

impl Told {
    /// The last entry that the member has confirmed under this vote.
    pub(super) fn confirmed(&self, vote: Vote) -> Option<LogId> {
        self.under(vote).map(|confirmed| confirmed.last)
    }

    /// Whether the member has just confirmed, under this vote, that its log agrees up to `prev`.
    pub(super) fn confirms(&self, vote: Vote, prev: Option<LogId>) -> bool {
        let lately = self.under(vote).filter(|confirmed| confirmed.at.elapsed() < ANSWER_AGE_MAX);
        lately.zip(prev).is_some_and(|(confirmed, prev)| confirmed.last >= prev)
    }

    fn under(&self, vote: Vote) -> Option<Confirmed> {
        self.0.lock().confirmed.filter(|confirmed| confirmed.vote == vote)
    }

    /// The member has confirmed entries up to `last`, and learned the commit index `commit` with them.
    pub(super) fn note(&self, vote: Vote, last: LogId, commit: Option<LogId>) {
        let mut known = self.0.lock();
        known.confirmed = Some(Confirmed { vote, last, at: Instant::now() });
        known.commit = known.commit.max(commit);
    }

    /// The member should learn `commit`. Whether the caller has to see to it.
    pub(super) fn wants(&self, commit: Option<LogId>) -> bool {
        let mut known = self.0.lock();
        known.wanted = known.wanted.max(commit);
        let begin = known.wanted > known.commit && !known.announcing;
        known.announcing |= begin;
        begin
    }

    /// Waits until the member has learned it with entries, or tells it.
    pub(super) async fn announce(self: Arc<Self>, peers: Arc<Peers>, target: u64, member: Member) {
        loop {
            let before = self.0.lock().commit;
            tokio::time::sleep(PAUSE).await;
            let rpc = {
                let mut known = self.0.lock();
                let (wanted, commit) = (known.wanted, known.commit);
                let outstanding = wanted > commit && peers.stop.reason().is_none();
                let Some(Confirmed { vote, last, .. }) = known.confirmed.filter(|_| outstanding) else {
                    known.announcing = false;
                    return;
                };
                let leader_commit = peers.log.may_show(wanted);
                // Entries follow each other, or this disk does not have it yet.
                if commit > before || leader_commit <= commit {
                    continue;
                }
                AppendEntriesRequest::<Types> { vote, prev_log_id: Some(last), entries: Vec::new(), leader_commit }
            };
            let answer =
                peers.call::<_, AppendEntriesResponse<u64>>(target, &member, Raftward::Probe, &rpc, WITHIN).await;
            let mut known = self.0.lock();
            if let Ok(AppendEntriesResponse::Success) = answer {
                known.commit = known.commit.max(rpc.leader_commit);
            } else {
                known.announcing = false;
                return;
            }
        }
    }
}

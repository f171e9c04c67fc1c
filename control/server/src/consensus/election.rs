//! Who stands for election, and when: a voter that has heard no leader for a while first asks the others whether they would elect it.
//!
//! openraft 0.9 lets a voter whose timer has run out take a new term at once, and a leader that meets the new term steps down, although a
//! majority still hears it: on a link that loses packets one voter after another does so. Its own timer is therefore off, and this
//! module decides instead. What must stay true:
//! - nobody takes a new term while a majority hears a leader (pre-vote, Ongaro's thesis 9.6); asking changes nobody's vote;
//! - any word of the leader counts from the moment it arrives, also while the node is busy with something it was sent before;
//! - a voter that was removed learns it by asking, and ends.

use crate::consensus::config::PlantedBug;
use crate::consensus::core::Core;
use crate::consensus::error::PeerRefusal;
use crate::consensus::peer::{CallError, PreVote, PreVoteAnswer, Raftward};
use crate::consensus::types::{LogId, Member, Vote};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use openraft::{RaftMetrics, ServerState};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Between a word of the leader and its arrival in the books of consensus, which will refuse a vote for as long as its own lease runs.
const LEASE_MARGIN: Duration = Duration::from_millis(20);
/// After a round that elected nobody, before the next; the longest of a random pause.
const PAUSE_MS_MAX: u64 = 60;
/// Whoever is behind leaves others time to stand.
const BEHIND_PAUSE: Duration = Duration::from_millis(250);
/// Why a removed node ends.
const REMOVED: &str = "this node was removed from the cluster; stop it, and wipe its data folder before the host is used as a control node \
                       again, under a new id";

/// When this node last heard of a leader.
#[derive(Debug)]
pub(crate) struct Contact(Mutex<Heard>);

#[derive(Clone, Copy, Debug)]
struct Heard {
    /// Starting counts: whoever leads has a while to make itself heard.
    at: Instant,
    /// The highest committed vote that was heard.
    vote: Option<Vote>,
    /// A leader was heard since this node started.
    leader: bool,
}

impl Contact {
    pub(crate) fn new(now: Instant) -> Self {
        Contact(Mutex::new(Heard { at: now, vote: None, leader: false }))
    }

    /// A leader with this vote was heard. A leader that has been replaced does not count.
    pub(crate) fn note(&self, vote: &Vote, now: Instant) {
        let mut heard = self.0.lock();
        if vote.is_committed() && heard.vote.is_none_or(|known| *vote >= known) {
            *heard = Heard { at: heard.at.max(now), vote: Some(*vote), leader: true };
        }
    }

    fn last(&self) -> Instant {
        self.0.lock().at
    }

    /// When a leader was heard, if one was since this node started.
    fn leader_heard(&self) -> Option<Instant> {
        let heard = self.0.lock();
        heard.leader.then_some(heard.at)
    }
}

/// Would this voter elect a candidate whose log ends at `asked`? `leader_heard` is when it last heard of a leader, or of the quorum that
/// it leads itself.
pub(crate) fn answer(
    asked: PreVote,
    own_last_log: Option<LogId>,
    leader_heard: Option<Instant>,
    lease: Duration,
    now: Instant,
) -> PreVoteAnswer {
    let free_at = leader_heard.map(|heard| heard + lease + LEASE_MARGIN);
    if let Some(free_at) = free_at.filter(|free_at| now < *free_at) {
        return PreVoteAnswer::LeaderHeard { again_in_ms: (free_at - now).as_millis() as u64 + 1 };
    }
    if asked.last_log < own_last_log { PreVoteAnswer::LogBehind } else { PreVoteAnswer::Granted }
}

/// What came of asking.
enum Canvass {
    Granted,
    /// Not now; again after so long.
    Refused(Duration),
    Removed,
}

/// Stands for election whenever it is due, for as long as the node runs.
pub(crate) async fn run(core: Arc<Core>) {
    let mut metrics = core.raft.metrics();
    let mut timeout = core.election_timeout();
    loop {
        let (waits, voters) = {
            let now = metrics.borrow_and_update();
            (!may_stand(&now), now.membership_config.membership().voter_ids().collect::<BTreeSet<u64>>())
        };
        if waits {
            if core.was_removed() {
                core.end_as_removed();
                return;
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { return },
                _why = core.stop.stopped() => return,
            }
            timeout = core.election_timeout();
            continue;
        }
        let due = if voters.len() == 1 { Instant::now() } else { core.contact.last() + timeout };
        if Instant::now() < due {
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                _why = core.stop.stopped() => return,
            }
            continue;
        }
        let pause = match core.canvass(&voters).await {
            Canvass::Granted => {
                tracing::info!(
                    id = core.id,
                    "no leader is heard and a majority would elect this node: it stands for election"
                );
                metrics::counter!("muster_raft_elections_begun_total").increment(1);
                if core.raft.trigger().elect().await.is_err() {
                    return;
                }
                core.elected_within(core.config.lease()).await
            }
            Canvass::Refused(pause) => pause,
            Canvass::Removed => {
                core.end_as_removed();
                return;
            }
        };
        timeout = core.election_timeout();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _why = core.stop.stopped() => return,
        }
    }
}

/// Whether this node votes and does not lead.
fn may_stand(now: &RaftMetrics<u64, Member>) -> bool {
    now.state != ServerState::Leader
        && now.running_state.is_ok()
        && now.membership_config.membership().voter_ids().any(|id| id == now.id)
}

impl Core {
    /// How long this node waits for a word of the leader; random, so that rarely two stand at once.
    fn election_timeout(&self) -> Duration {
        let (min, max) = self.config.election_ms;
        Duration::from_millis(self.host.chance.between(min, max + 1)) + LEASE_MARGIN
    }

    /// Whether the membership that is applied here was once with this node and is without it now.
    fn was_removed(&self) -> bool {
        let id = self.id;
        self.replica.with_membership(|membership, used| {
            used.contains_key(&id) && membership.membership().get_node(&id).is_none()
        })
    }

    fn end_as_removed(&self) {
        tracing::error!(id = self.id, "{REMOVED}");
        self.stop.because(REMOVED);
    }

    /// Waits until somebody leads, but not longer than `limit`; then how long to pause.
    async fn elected_within(&self, limit: Duration) -> Duration {
        let mut leadership = self.leadership.clone();
        let elected = tokio::time::timeout(limit, leadership.wait_for(|now| now.leader.is_some())).await;
        if elected.is_ok() { Duration::ZERO } else { self.pause() }
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(self.host.chance.between(1, PAUSE_MS_MAX))
    }

    /// Asks the other voters whether they would elect this node.
    async fn canvass(&self, voters: &BTreeSet<u64>) -> Canvass {
        if self.config.planted == Some(PlantedBug::PreVoteSkipped) {
            return Canvass::Granted;
        }
        let asked = PreVote { last_log: self.log.last() };
        let configs = self.raft.metrics().borrow().membership_config.membership().get_joint_config().clone();
        let mut granted = BTreeSet::from([self.id]);
        let mut asking: FuturesUnordered<_> =
            voters.iter().filter(|voter| **voter != self.id).map(|voter| self.ask(*voter, asked)).collect();
        let mut pause = self.pause();
        loop {
            if is_quorum(&configs, &granted) {
                return Canvass::Granted;
            }
            match asking.next().await {
                None => return Canvass::Refused(pause),
                Some((voter, Ok(PreVoteAnswer::Granted))) => {
                    granted.insert(voter);
                }
                Some((_, Ok(PreVoteAnswer::LeaderHeard { again_in_ms }))) => {
                    pause = pause.max(Duration::from_millis(again_in_ms).min(self.config.lease() * 2));
                }
                Some((_, Ok(PreVoteAnswer::LogBehind))) => pause = pause.max(BEHIND_PAUSE),
                Some((_, Err(CallError::Refused(PeerRefusal::Removed { id })))) if id == self.id => {
                    return Canvass::Removed;
                }
                Some((voter, Err(error))) => tracing::debug!(voter, %error, "no answer to a pre-vote"),
            }
        }
    }

    async fn ask(&self, voter: u64, asked: PreVote) -> (u64, Result<PreVoteAnswer, CallError>) {
        let Some(member) = self.member(voter) else {
            return (voter, Ok(PreVoteAnswer::LogBehind));
        };
        (voter, self.peers.call(voter, &member, Raftward::PreVote, &asked, self.config.lease()).await)
    }

    /// Answers a pre-vote.
    pub(crate) fn pre_vote(&self, asked: PreVote) -> PreVoteAnswer {
        let leader_heard = if self.is_leader() { self.heartbeats.quorum_heard() } else { self.contact.leader_heard() };
        answer(asked, self.log.last(), leader_heard, self.config.lease(), Instant::now())
    }
}

/// Whether these nodes are a majority of each of the configurations (two while the voters are being changed).
pub(crate) fn is_quorum(configs: &[BTreeSet<u64>], nodes: &BTreeSet<u64>) -> bool {
    configs.iter().all(|voters| voters.intersection(nodes).count() > voters.len() / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::CommittedLeaderId;

    fn log(term: u64, index: u64) -> Option<LogId> {
        Some(LogId::new(CommittedLeaderId::new(term, 1), index))
    }

    const LEASE: Duration = Duration::from_millis(350);

    #[test]
    fn nobody_is_elected_while_a_leader_is_heard() {
        let heard = Instant::now();
        let asked = PreVote { last_log: log(3, 7) };
        let at = |after_ms| answer(asked, log(3, 7), Some(heard), LEASE, heard + Duration::from_millis(after_ms));
        assert_eq!(at(0), PreVoteAnswer::LeaderHeard { again_in_ms: 371 });
        assert_eq!(at(369), PreVoteAnswer::LeaderHeard { again_in_ms: 2 });
        assert_eq!(at(370), PreVoteAnswer::Granted);
        assert_eq!(answer(asked, log(3, 7), None, LEASE, heard), PreVoteAnswer::Granted, "after a start");
    }

    #[test]
    fn a_log_that_lacks_entries_is_not_elected() {
        let now = Instant::now();
        let ask = |last_log| answer(PreVote { last_log }, log(3, 7), None, LEASE, now);
        assert_eq!(ask(log(3, 6)), PreVoteAnswer::LogBehind);
        assert_eq!(ask(log(2, 9)), PreVoteAnswer::LogBehind);
        assert_eq!(ask(None), PreVoteAnswer::LogBehind);
        assert_eq!(ask(log(3, 7)), PreVoteAnswer::Granted);
        assert_eq!(ask(log(4, 1)), PreVoteAnswer::Granted);
    }

    #[test]
    fn a_leader_that_was_replaced_is_not_heard() {
        let start = Instant::now();
        let contact = Contact::new(start);
        assert_eq!(contact.leader_heard(), None);
        contact.note(&Vote::new_committed(5, 2), start + Duration::from_millis(10));
        contact.note(&Vote::new_committed(4, 1), start + Duration::from_millis(90));
        contact.note(&Vote::new(6, 3), start + Duration::from_millis(95));
        assert_eq!(contact.leader_heard(), Some(start + Duration::from_millis(10)));
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

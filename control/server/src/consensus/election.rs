//! Who stands for election, and when: a voter that has heard no leader for a while first asks the others whether they would elect it.
//!
//! openraft 0.9 lets a voter whose timer has run out take a new term at once, and a leader that meets the new term steps down, although a
//! majority still hears it: on a link that loses packets one voter after another does so. Its own timer is therefore off, and this
//! module decides instead. What must stay true:
//! - nobody takes a new term while a majority hears a leader (pre-vote, Ongaro's thesis 9.6); asking changes nobody's vote;
//! - any word of the leader counts from the moment it arrives, also while the node is busy with something it was sent before;
//! - of two that ask at the same time one gives way, so that votes are not split: see [`crate::consensus::turn`];
//! - a leader whose host says that its process has ended is not waited for;
//! - a voter that was removed learns it by asking, and ends.

use crate::consensus::config::PlantedBug;
use crate::consensus::core::Core;
use crate::consensus::error::PeerRefusal;
use crate::consensus::peer::{CallError, PreVote, PreVoteAnswer, Raftward};
use crate::consensus::quorum::is_quorum;
use crate::consensus::turn::Candidate;
use crate::consensus::types::{LogId, Member};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use openraft::{RaftMetrics, ServerState};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Between a word of the leader and its arrival at consensus.
const LEASE_MARGIN: Duration = Duration::from_millis(20);
/// After a round that elected nobody, before the next; the longest of a random pause.
const PAUSE_MS_MAX: u64 = 60;
/// Why a removed node ends.
const REMOVED: &str = "this node was removed from the cluster; stop it, and delete its data folder before you use the machine as a control node \
                       again, under a new id";

/// What came of asking.
enum Canvass {
    Granted,
    /// Not now; again at this moment.
    Refused(Instant),
    Removed,
}

/// Stands for election whenever it is due, for as long as the node runs.
pub(crate) async fn run(core: Arc<Core>) {
    let mut metrics = core.raft.metrics();
    let mut spread = core.host.chance.between(0, SPREAD_STEPS);
    let mut not_before = Instant::now();
    // When the leader's host is asked whether its process has ended.
    let mut look = Instant::now();
    let mut ask_about_removal = Instant::now();
    loop {
        let (waits, voters) = {
            let now = metrics.borrow_and_update();
            (!may_stand(&now), now.membership_config.membership().voter_ids().collect::<BTreeSet<u64>>())
        };
        if waits {
            let (listed, due) = (core.is_listed(&voters), Instant::now() >= ask_about_removal);
            if core.was_removed() || (!listed && due && core.hears_of_removal(&voters).await) {
                core.end_as_removed();
                return;
            }
            if listed || due {
                ask_about_removal = Instant::now() + core.config.lease() * 2;
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { return },
                () = sleep_until(ask_about_removal) => {}
                _why = core.stop.stopped() => return,
            }
            continue;
        }
        let now = Instant::now();
        let due = core.due(&voters, spread, now).max(not_before);
        if now < due {
            look = look.max(core.contact.last() + core.silence_max());
            if now >= look {
                tokio::select! {
                    _gone = core.leader_has_ended(due) => {}
                    _why = core.stop.stopped() => return,
                }
                look = Instant::now() + core.silence_max();
            } else {
                tokio::select! {
                    () = sleep_until(due.min(look)) => {}
                    () = core.turns.changed() => {}
                    _why = core.stop.stopped() => return,
                }
            }
            continue;
        }
        not_before = match core.canvass(&voters).await {
            Canvass::Granted => {
                tracing::info!(
                    id = core.id,
                    "there is no leader and a majority would elect this node: it starts an election"
                );
                metrics::counter!("muster_raft_elections_begun_total").increment(1);
                let term = core.leadership.borrow().term;
                if core.raft.trigger().elect().await.is_err() {
                    return;
                }
                core.elected_after(term, core.config.lease()).await
            }
            Canvass::Refused(again) => again,
            Canvass::Removed => {
                core.end_as_removed();
                return;
            }
        };
        core.turns.release(core.id);
        spread = core.host.chance.between(0, SPREAD_STEPS);
    }
}

/// Whether this node votes and does not lead.
fn may_stand(now: &RaftMetrics<u64, Member>) -> bool {
    now.state != ServerState::Leader
        && now.running_state.is_ok()
        && now.membership_config.membership().voter_ids().any(|id| id == now.id)
}

/// Into so many parts the time between two voters' turns is divided, of which each voter draws one.
const SPREAD_STEPS: u64 = 16;

impl Core {
    /// When this node is to ask the others; `now` if it should have by now. The shortest timeout is that of the voter with the lowest id
    /// beside the leader, then follows the next, so that rarely two ask at once.
    fn due(&self, voters: &BTreeSet<u64>, spread: u64, now: Instant) -> Instant {
        if voters.len() == 1 {
            return now;
        }
        let due = if self.contact.leader_has_ended() || self.turns.is_wanted_since(self.contact.last()) {
            now
        } else {
            let (min, max) = self.config.election_ms;
            let leader = self.contact.leader();
            let others = voters.iter().filter(|voter| Some(**voter) != leader);
            let before = others.clone().take_while(|voter| **voter < self.id).count() as u64;
            // With three voters two are left, and the second may stand in the middle; with more they share the same time.
            let step_ms = (max - min) / (others.count() as u64).max(2);
            let own_ms = min + step_ms * before + step_ms * spread / SPREAD_STEPS;
            self.contact.last() + Duration::from_millis(own_ms) + LEASE_MARGIN
        };
        due.max(self.turns.given_until(self.id).unwrap_or(now))
    }

    /// A leader is silent when it has missed one heartbeat and a half.
    fn silence_max(&self) -> Duration {
        Duration::from_millis(self.config.heartbeat_ms * 3 / 2)
    }

    /// Asks the host of the leader that was heard last whether anybody listens there, until `until` at the latest. A process that was
    /// killed need not be waited for; a host that is gone, or a leader that is stopped, says nothing.
    async fn leader_has_ended(&self, until: Instant) -> bool {
        let Some((leader, heard)) = self.contact.leader().zip(self.contact.leader_heard()) else { return false };
        let Some(member) = self.member(leader).filter(|_| leader != self.id) else { return false };
        let refused = self.host.net.is_refused(&member.address);
        let ended = tokio::time::timeout_at(until, refused).await == Ok(true);
        ended && self.contact.note_end(leader, heard)
    }

    /// Until when this node elects nobody, since it heard of a leader lately, or of the quorum that it leads itself.
    fn bound_until(&self) -> Option<Instant> {
        let heard = if self.is_leader() { self.heartbeats.quorum_heard() } else { self.contact.leader_heard() };
        heard.map(|heard| heard + self.config.lease() + LEASE_MARGIN)
    }

    /// Whether this node heard of a leader so lately that it gives nobody else its vote.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound_until().is_some_and(|until| Instant::now() + LEASE_MARGIN < until)
    }

    /// Whether the membership that is applied here was once with this node and is without it now.
    fn was_removed(&self) -> bool {
        let id = self.id;
        self.replica.with_membership(|membership, used| {
            used.contains_key(&id) && membership.membership().get_node(&id).is_none()
        })
    }

    /// Whether the membership in this node's log, which may not be committed, names this node. It does as long as none is known.
    fn is_listed(&self, voters: &BTreeSet<u64>) -> bool {
        voters.is_empty() || self.member(self.id).is_some()
    }

    /// Asks the voters whether this node was removed. The leader stops writing to a node with the entry that removes it, so the node may
    /// have that entry and never learn that it is committed.
    async fn hears_of_removal(&self, voters: &BTreeSet<u64>) -> bool {
        let mut asking: FuturesUnordered<_> =
            voters.iter().map(|voter| self.ask(*voter, PreVote { last_log: None })).collect();
        while let Some((_, answer)) = asking.next().await {
            if self.says_removed(&answer) {
                return true;
            }
        }
        false
    }

    fn says_removed(&self, answer: &Result<PreVoteAnswer, CallError>) -> bool {
        matches!(answer, Err(CallError::Refused(PeerRefusal::Removed { id })) if *id == self.id)
    }

    fn end_as_removed(&self) {
        tracing::error!(id = self.id, "{REMOVED}");
        self.stop.because(REMOVED);
    }

    /// Waits until somebody leads in a later term, but not longer than `limit`; then says when to ask again.
    async fn elected_after(&self, term: u64, limit: Duration) -> Instant {
        let mut leadership = self.leadership.clone();
        let elected = leadership.wait_for(|now| now.term > term && now.leader.is_some());
        let elected = tokio::time::timeout(limit, elected).await;
        if elected.is_ok() { Instant::now() } else { self.pause() }
    }

    fn pause(&self) -> Instant {
        let longest_ms = PAUSE_MS_MAX + self.config.round_trip_ms;
        Instant::now() + Duration::from_millis(self.host.chance.between(1, longest_ms))
    }

    /// Asks the other voters whether they would elect this node.
    async fn canvass(&self, voters: &BTreeSet<u64>) -> Canvass {
        if self.config.planted == Some(PlantedBug::PreVoteSkipped) {
            return Canvass::Granted;
        }
        let asked = PreVote { last_log: self.log.last() };
        let me = Candidate::new(asked.last_log, self.id);
        if let Err(until) = self.turns.take(me, Instant::now() + self.config.lease() / 2) {
            return Canvass::Refused(until);
        }
        let configs = self.raft.metrics().borrow().membership_config.membership().get_joint_config().clone();
        let mut granted = BTreeSet::from([self.id]);
        let mut asking: FuturesUnordered<_> =
            voters.iter().filter(|voter| **voter != self.id).map(|voter| self.ask(*voter, asked)).collect();
        // Whoever is refused asks again as soon as that may have changed. It does not wait for those who do not answer.
        let mut again: Option<Instant> = None;
        loop {
            if is_quorum(&configs, &granted) {
                return match self.turns.stand(me, Instant::now() + self.config.lease()) {
                    Ok(()) => Canvass::Granted,
                    Err(until) => Canvass::Refused(until),
                };
            }
            let answered = tokio::select! {
                biased;
                answered = asking.next() => answered,
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => None,
            };
            let refused_for = match answered {
                None => return Canvass::Refused(again.unwrap_or_else(|| self.pause())),
                Some((voter, Ok(PreVoteAnswer::Granted))) => {
                    granted.insert(voter);
                    continue;
                }
                Some((_, Ok(PreVoteAnswer::LeaderHeard { again_in_ms }))) => {
                    Duration::from_millis(again_in_ms).min(self.config.lease() * 2)
                }
                // It stands itself, now that it has been asked.
                Some((_, Ok(PreVoteAnswer::LogBehind))) => self.config.lease() / 2,
                Some((_, refused)) if self.says_removed(&refused) => return Canvass::Removed,
                Some((voter, Err(error))) => {
                    tracing::debug!(voter, %error, "no answer to a pre-vote");
                    continue;
                }
            };
            let at = Instant::now() + refused_for;
            again = Some(again.map_or(at, |sooner| sooner.min(at)));
        }
    }

    async fn ask(&self, voter: u64, asked: PreVote) -> (u64, Result<PreVoteAnswer, CallError>) {
        let Some(member) = self.member(voter) else {
            return (voter, Ok(PreVoteAnswer::LogBehind));
        };
        (voter, self.peers.call(voter, &member, Raftward::PreVote, &asked, self.config.lease()).await)
    }

    /// Answers a pre-vote of `from`. Where a leader was heard lately that is silent now, its host is asked first.
    pub(crate) async fn pre_vote(&self, from: u64, asked: PreVote) -> PreVoteAnswer {
        if let Some(until) = self.bound_until()
            && !self.is_leader()
            && self.contact.last() + self.silence_max() <= Instant::now()
        {
            self.leader_has_ended(until).await;
        }
        let now = Instant::now();
        let answer = answer(asked.last_log, self.log.last(), self.bound_until(), now);
        match answer {
            PreVoteAnswer::Granted => {
                match self.turns.give(Candidate::new(asked.last_log, from), now + self.config.lease() / 2) {
                    Ok(()) => PreVoteAnswer::Granted,
                    Err(until) => PreVoteAnswer::LeaderHeard { again_in_ms: millis_until(until, now) },
                }
            }
            PreVoteAnswer::LogBehind => {
                self.turns.want();
                answer
            }
            PreVoteAnswer::LeaderHeard { .. } => answer,
        }
    }
}

fn millis_until(until: Instant, now: Instant) -> u64 {
    until.saturating_duration_since(now).as_millis() as u64 + 1
}

/// Would this voter elect a candidate whose log ends at `asked`, if nobody else wants to lead? Until `bound_until` it follows a leader.
fn answer(
    asked: Option<LogId>,
    own_last_log: Option<LogId>,
    bound_until: Option<Instant>,
    now: Instant,
) -> PreVoteAnswer {
    if let Some(until) = bound_until.filter(|until| now < *until) {
        return PreVoteAnswer::LeaderHeard { again_in_ms: millis_until(until, now) };
    }
    if asked < own_last_log { PreVoteAnswer::LogBehind } else { PreVoteAnswer::Granted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::CommittedLeaderId;

    fn log(term: u64, index: u64) -> Option<LogId> {
        Some(LogId::new(CommittedLeaderId::new(term, 1), index))
    }

    #[test]
    fn who_follows_a_leader_elects_nobody() {
        let heard = Instant::now();
        let until = Some(heard + Duration::from_millis(370));
        let at = |after_ms| answer(log(3, 7), log(3, 7), until, heard + Duration::from_millis(after_ms));
        assert_eq!(at(0), PreVoteAnswer::LeaderHeard { again_in_ms: 371 });
        assert_eq!(at(369), PreVoteAnswer::LeaderHeard { again_in_ms: 2 });
        assert_eq!(at(370), PreVoteAnswer::Granted);
        assert_eq!(answer(log(3, 7), log(3, 7), None, heard), PreVoteAnswer::Granted, "after a start");
    }

    #[test]
    fn a_log_that_lacks_entries_is_not_elected() {
        let now = Instant::now();
        let ask = |last_log| answer(last_log, log(3, 7), None, now);
        assert_eq!(ask(log(3, 6)), PreVoteAnswer::LogBehind);
        assert_eq!(ask(log(2, 9)), PreVoteAnswer::LogBehind);
        assert_eq!(ask(None), PreVoteAnswer::LogBehind);
        assert_eq!(ask(log(3, 7)), PreVoteAnswer::Granted);
        assert_eq!(ask(log(4, 1)), PreVoteAnswer::Granted);
    }
}

//! Heartbeats of the leader, on a connection of their own: they keep followers from standing for election, confirm the leadership for
//! reads and leases, and read the voters' clocks.
//!
//! openraft sends its own heartbeats on the same stream as entries and ends each after a fixed time, so an entry that takes longer to
//! arrive than that would cost the leadership. These do not wait for entries. What must stay true:
//! - a heartbeat carries the leader's committed vote and is answered by the other node's consensus, so an answer proves that no quorum
//!   had elected anybody else when it was given;
//! - a confirmation counts only heartbeats that were sent after it was asked for;
//! - a leader whose own consensus does not move any more falls silent, so that another takes its place.

use crate::consensus::clock::Stamp;
use crate::consensus::core::Core;
use crate::consensus::error::ProposeError;
use crate::consensus::peer::{Heartbeat, HeartbeatAnswer, Raftward};
use crate::consensus::quorum::{Configs, is_quorum};
use crate::consensus::types::{Member, Vote};
use futures::stream::{FuturesUnordered, StreamExt};
use muster_control_core::bounds::CLOCK_AHEAD_MS_MIN;
use openraft::RaftMetrics;
use openraft::raft::AppendEntriesResponse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// Heartbeats to one voter that wait for their answers; later ones say the same.
const IN_FLIGHT_MAX: usize = 4;
/// A leader whose consensus has answered nothing for so long is as good as dead: longer than a sync should ever take, and short enough that
/// nobody waits long for a disk that hangs.
const CORE_SILENCE_MAX: Duration = Duration::from_secs(1);
/// A confirmation without a quorum within this, and some round trips, has none.
pub(crate) const CONFIRM_WITHIN: Duration = Duration::from_secs(2);
/// Within a confirmation, a voter that has not answered is asked again so often, and after a round trip at the soonest.
const CONFIRM_AGAIN: Duration = Duration::from_millis(100);
/// A new leader first commits an entry, which takes two; the heartbeats take one, and one that is lost another.
pub(crate) const CONFIRM_ROUND_TRIPS: u32 = 4;
/// How long an entry waits until the clocks of a majority are known: they are with the first heartbeat that is answered.
const CLOCKS_WITHIN: Duration = Duration::from_secs(5);
/// A clock that is wrong is named in the log so often.
const REPEAT_WARNING: Duration = Duration::from_secs(60);

/// The leadership of this node as of one moment.
struct Leading {
    vote: Vote,
    configs: Configs,
}

/// Beats while this node leads, for as long as it runs.
pub(crate) async fn run(core: Arc<Core>) {
    let mut leadership = core.leadership.clone();
    loop {
        let now = leadership.borrow_and_update().clone();
        let goes_on = if now.here {
            core.heartbeats.begin();
            tokio::select! {
                () = lead(&core) => true,
                changed = leadership.wait_for(|other| !other.here || other.term != now.term) => changed.is_ok(),
            }
        } else {
            leadership.changed().await.is_ok()
        };
        if !goes_on {
            return;
        }
    }
}

/// Beats until it is dropped.
async fn lead(core: &Core) {
    let every = Duration::from_millis(core.config.heartbeat_ms);
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Consensus is asked now and then whether it still moves.
    let ask = || async {
        let answered = core.raft.with_raft_state(|_| ()).await;
        tokio::time::sleep(every).await;
        answered.is_ok()
    };
    // And tells whoever missed it how far entries are committed.
    let mut appends = tokio::time::interval(core.config.lease() / 2);
    appends.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut asking, mut answered) = (Box::pin(ask()), Instant::now());
    let mut under_way = FuturesUnordered::new();
    let mut in_flight: BTreeMap<u64, usize> = BTreeMap::new();
    loop {
        tokio::select! {
            biased;
            Some(voter) = under_way.next(), if !under_way.is_empty() => {
                in_flight.entry(voter).and_modify(|count| *count -= 1);
            }
            lives = &mut asking => {
                if lives {
                    answered = Instant::now();
                }
                asking = Box::pin(ask());
            }
            _ = appends.tick() => {
                // A consensus that has ended is noticed elsewhere.
                let _ = core.raft.trigger().heartbeat().await;
            }
            _ = ticks.tick() => {
                let Some(leading) = core.leading_by_metrics().filter(|_| answered.elapsed() <= CORE_SILENCE_MAX) else {
                    continue;
                };
                let leading = Arc::new(leading);
                for voter in core.others(&leading.configs) {
                    let count = in_flight.entry(voter).or_default();
                    if *count < IN_FLIGHT_MAX {
                        *count += 1;
                        let leading = leading.clone();
                        under_way.push(async move {
                            core.beat(voter, &leading, core.config.lease()).await;
                            voter
                        });
                    }
                }
            }
        }
    }
}

impl Core {
    fn leading_by_metrics(&self) -> Option<Leading> {
        let metrics = self.raft.metrics();
        let now = metrics.borrow();
        let leads = now.vote.is_committed() && now.vote.leader_id().voted_for() == Some(self.id);
        let configs = || now.membership_config.membership().get_joint_config().clone();
        leads.then(|| Leading { vote: now.vote, configs: configs() })
    }

    /// The other voters.
    fn others(&self, configs: &Configs) -> BTreeSet<u64> {
        configs.iter().flatten().copied().filter(|voter| *voter != self.id).collect()
    }

    /// Sends one heartbeat. Whether the voter follows this leadership, if it answered.
    async fn beat(&self, voter: u64, leading: &Leading, within: Duration) -> Option<bool> {
        let member = self.member(voter)?;
        let sent = Instant::now();
        let heartbeat = Heartbeat { vote: leading.vote };
        let called = self.peers.call(voter, &member, Raftward::Heartbeat, &heartbeat, within).await;
        let HeartbeatAnswer { answer, wall_ms, knows_level } = match called {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(voter, %error, "no answer to a heartbeat");
                metrics::counter!("muster_raft_heartbeats_lost_total").increment(1);
                return None;
            }
        };
        let answered = Instant::now();
        metrics::histogram!("muster_raft_heartbeat_seconds").record((answered - sent).as_secs_f64());
        self.heartbeats.clocks.lock().note(voter, sent, answered, wall_ms);
        self.heartbeats.levels.note(voter, knows_level);
        self.heartbeats.read.send_modify(|count| *count += 1);
        let follows = matches!(answer, AppendEntriesResponse::Success);
        if follows {
            self.heartbeats.note_accepted(self.id, voter, sent, &leading.configs);
        }
        Some(follows)
    }

    /// On the leader: a quorum has followed it after this call began. The index that a read has to wait for.
    pub(crate) async fn confirm(&self) -> Result<u64, ProposeError> {
        let within = self.config.and_round_trips(CONFIRM_WITHIN, CONFIRM_ROUND_TRIPS);
        let confirmed = tokio::time::timeout(within, async {
            let (index, leading) = self.read_index_here().await?;
            self.confirm_quorum(&leading, within).await?;
            Ok(index)
        });
        confirmed.await.unwrap_or(Err(ProposeError::NoLeader))
    }

    /// The commit index of this leadership. Before an entry of its own is committed a leader does not know how far its predecessors
    /// had come: what they acknowledged is in its log, but perhaps behind the commit index it knows. It is waited for.
    async fn read_index_here(&self) -> Result<(u64, Leading), ProposeError> {
        let mut metrics = self.raft.metrics();
        loop {
            let state = self.raft.with_raft_state(|state| {
                let configs = state.membership_state.effective().membership().get_joint_config().clone();
                (*state.vote_ref(), state.committed, configs)
            });
            let (vote, committed, configs) = state.await.map_err(|fatal| self.stopped(&fatal))?;
            if !vote.is_committed() || vote.leader_id().voted_for() != Some(self.id) {
                return Err(ProposeError::NoLeader);
            }
            match committed {
                Some(committed) if committed.leader_id == *vote.leader_id() => {
                    return Ok((committed.index, Leading { vote, configs }));
                }
                _ => {
                    let own = |now: &RaftMetrics<u64, Member>| {
                        now.vote != vote
                            || now.last_applied.is_some_and(|applied| applied.leader_id == *vote.leader_id())
                    };
                    metrics.wait_for(own).await.map_err(|_| ProposeError::NoLeader)?;
                }
            }
        }
    }

    async fn confirm_quorum(&self, leading: &Leading, within: Duration) -> Result<(), ProposeError> {
        let mut follow = BTreeSet::from([self.id]);
        let mut asking = FuturesUnordered::new();
        let mut again = tokio::time::interval(self.config.and_round_trips(CONFIRM_AGAIN, 1));
        loop {
            if is_quorum(&leading.configs, &follow) {
                return Ok(());
            }
            tokio::select! {
                biased;
                Some((voter, follows)) = asking.next(), if !asking.is_empty() => match follows {
                    Some(true) => {
                        follow.insert(voter);
                    }
                    Some(false) => return Err(ProposeError::NoLeader),
                    None => {}
                },
                _ = again.tick() => {
                    for voter in self.others(&leading.configs).into_iter().filter(|voter| !follow.contains(voter)) {
                        asking.push(async move { (voter, self.beat(voter, leading, within).await) });
                    }
                }
            }
        }
    }

    /// The time of an entry that this leader writes now: its own clock's, unless a majority of the voters' clocks say otherwise.
    pub(crate) async fn entry_time(&self) -> Result<u64, ProposeError> {
        let mut read = self.heartbeats.read.subscribe();
        let stamped = async {
            loop {
                read.borrow_and_update();
                if let Some(stamp) = self.stamp() {
                    return stamp;
                }
                if read.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let stamp = tokio::time::timeout(CLOCKS_WITHIN, stamped).await.map_err(|_late| ProposeError::NoLeader)?;
        metrics::gauge!("muster_clock_offset_ms").set(stamp.own_offset_ms as f64);
        self.warn_of_clocks(stamp);
        Ok(stamp.now_ms)
    }

    fn warn_of_clocks(&self, stamp: Stamp) {
        let ahead_ms = self.time_ahead_ms(stamp);
        let is_ahead = ahead_ms >= CLOCK_AHEAD_MS_MIN as i64;
        if stamp.believed && !is_ahead {
            return;
        }
        let mut warned = self.heartbeats.warned.lock();
        if warned.is_some_and(|at| at.elapsed() < REPEAT_WARNING) {
            return;
        }
        *warned = Some(Instant::now());
        if !stamp.believed {
            tracing::error!(
                offset_ms = stamp.own_offset_ms,
                "the clock of this node, the leader, differs from the clocks of a majority of the voters: entries get the time of the majority; \
                 correct the clock of this machine (is NTP running?)"
            );
        }
        if is_ahead {
            tracing::error!(
                ahead_ms,
                "the cluster's time is ahead of the clocks of a majority of the voters, so submissions are refused as too old; check the voters' \
                 clocks, then run `muster raft reset-clock`"
            );
        }
    }
}

//! Proposals: gathered into entries, a few entries in flight while the next gathers, no delay added.
//!
//! openraft appends and syncs once per write, so the entry is the unit that shares a sync: where voters share a machine room one is in flight
//! at a time, and at a distance as many as let a proposal wait for milliseconds and not for round trips. What must stay true: a proposal's
//! commands stay together in one entry; waiting proposals are bounded in count and bytes, and beyond that refused at once; an answer
//! that was lost is `Unknown`, never silence and never a second try.

use crate::consensus::Proposed;
use crate::consensus::core::Core;
use crate::consensus::error::ProposeError;
use crate::consensus::forms::level_of;
use crate::consensus::peer::{CallError, Raftward};
use crate::consensus::stored;
use crate::consensus::types::{Batch, Member, Types};
use muster_control_core::{Command, Decided, Entry};
use muster_model::Revision;
use muster_runtime::timeline;
use openraft::RaftTypeConfig;
use openraft::error::ClientWriteError;
use openraft::raft::responder::Responder;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

/// Commands of one entry: with single submissions the cost of a sync is shared a thousandfold, and applying takes some milliseconds.
pub(crate) const ENTRY_COMMANDS: usize = 1_024;
/// Bytes of one entry: what a follower receives and syncs well within a heartbeat.
pub(crate) const ENTRY_BYTES: usize = 4 << 20;
/// Commands waiting or in flight on one node: what two followers pass on at the most, and some of its own.
const QUEUE_COMMANDS: usize = 32_768;
/// Beyond so many of them clients' submissions are refused: some tenths of a second of the highest rate, so a client that is told to come later waits
/// no longer than one that is served. The other places are for what the cluster itself has to say: bindings, reports of nodes, fences.
pub(crate) const CLIENT_COMMANDS: usize = 4_096;
/// And their size in units of [`BYTES_UNIT`]: 256 MiB.
const QUEUE_UNITS: usize = 1 << 18;
const BYTES_UNIT: usize = 1 << 10;
/// At a distance one entry more may be in flight for each so many milliseconds of the longest round trip: so long a proposal waits at most for
/// its entry, and much longer than a sync takes.
const ENTRY_EVERY_MS: u64 = 4;
/// Entries in flight at most, however far the voters are.
const ENTRIES_MAX: u64 = 64;
/// Batches that a follower has under way to the leader.
const FORWARDS: usize = 16;
/// An answer that takes longer is given up as unknown: many times a failover.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// Takes proposals. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Proposer {
    core: Arc<Core>,
    queue: mpsc::Sender<Pending>,
    commands: Arc<Semaphore>,
    units: Arc<Semaphore>,
}

struct Pending {
    only_in_term: Option<u64>,
    may_forward: bool,
    commands: Vec<Command>,
    /// How many they are, also after they have been taken out.
    count: usize,
    bytes: usize,
    since: Instant,
    answer: oneshot::Sender<Result<Proposed, ProposeError>>,
    /// Given back when the proposal is answered or given up.
    _place: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

impl Proposer {
    /// Starts the task that gathers.
    pub(crate) fn start(core: Arc<Core>) -> Self {
        let (queue, pending) = mpsc::channel(QUEUE_COMMANDS);
        core.host.spawn(run(core.clone(), pending));
        Proposer {
            core,
            queue,
            commands: Arc::new(Semaphore::new(QUEUE_COMMANDS)),
            units: Arc::new(Semaphore::new(QUEUE_UNITS)),
        }
    }

    /// Whether a client's submission may join those that wait. Asked before the submission is looked at: under overload most calls end here, and what
    /// that costs decides how much is left for the others.
    pub(crate) fn room_for_clients(&self) -> Result<(), ProposeError> {
        if QUEUE_COMMANDS - self.commands.available_permits() < CLIENT_COMMANDS {
            return Ok(());
        }
        metrics::counter!("muster_raft_proposals_refused_total").increment(1);
        Err(ProposeError::Busy { limit: CLIENT_COMMANDS })
    }

    /// Proposes commands as one part of an entry and waits for what becomes of them.
    pub(crate) async fn propose(
        &self,
        commands: Vec<Command>,
        only_in_term: Option<u64>,
        may_forward: bool,
    ) -> Result<Proposed, ProposeError> {
        self.core.stop.check()?;
        let form = self.core.log.form().get();
        stored::fits(form, &commands).map_err(|lacking| {
            // Before the first entries are applied here nobody knows at which level the cluster begins.
            if self.core.replica.read(|state, _| state.meta.cluster == 0) {
                return ProposeError::NoLeader;
            }
            ProposeError::Level {
                what: format!("{}.{}", lacking.of, lacking.name),
                needed: level_of(lacking.form),
                level: level_of(form),
            }
        })?;
        let bytes = stored::size(&commands);
        too_large("commands", ENTRY_COMMANDS, commands.len())?;
        too_large("bytes", ENTRY_BYTES, bytes)?;
        // No more than the entry's bounds, so the conversions hold.
        let units = (bytes / BYTES_UNIT) as u32 + 1;
        let count = commands.len();
        let busy = || {
            metrics::counter!("muster_raft_proposals_refused_total").increment(1);
            ProposeError::Busy { limit: QUEUE_COMMANDS }
        };
        let place = (
            self.commands.clone().try_acquire_many_owned((count as u32).max(1)).map_err(|_| busy())?,
            self.units.clone().try_acquire_many_owned(units).map_err(|_| busy())?,
        );
        let (answer, answered) = oneshot::channel();
        let pending =
            Pending { only_in_term, may_forward, commands, count, bytes, since: Instant::now(), answer, _place: place };
        self.queue.try_send(pending).map_err(|_| match self.core.stop.reason() {
            Some(why) => ProposeError::Stopped { why },
            None => busy(),
        })?;
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or_else(|_| {
                Err(ProposeError::Unknown { why: "this node stopped before the answer came".to_owned() })
            }),
            why = self.core.stop.stopped() => Err(ProposeError::Unknown { why }),
        }
    }
}

fn too_large(what: &str, limit: usize, got: usize) -> Result<(), ProposeError> {
    if got > limit {
        return Err(ProposeError::TooLarge { what: what.to_owned(), limit, got });
    }
    Ok(())
}

/// Gathers what waits, brings it to the leader, and gathers on meanwhile.
async fn run(core: Arc<Core>, mut queue: mpsc::Receiver<Pending>) {
    let forwards = Arc::new(Semaphore::new(FORWARDS));
    let entries = (1 + core.config.round_trip_ms / ENTRY_EVERY_MS).min(ENTRIES_MAX);
    // No more than the bound, so the conversion holds.
    let in_flight = Arc::new(Semaphore::new(entries as usize));
    let mut carried = None;
    loop {
        let first = match carried.take() {
            Some(first) => first,
            None => tokio::select! {
                biased;
                _why = core.stop.stopped() => return,
                first = queue.recv() => match first {
                    Some(first) => first,
                    None => return,
                },
            },
        };
        if first.since.elapsed() >= ANSWER_DEADLINE {
            // It has waited behind entries that no quorum took. It was never sent, so its caller may try elsewhere.
            answer(vec![first], Err(ProposeError::NoLeader));
            continue;
        }
        // What comes while it waits for its turn shares its entry.
        let Ok(turn) = in_flight.clone().acquire_owned().await else { return };
        let mut batch;
        (batch, carried) = gather(first, &mut queue);
        let commands: usize = batch.iter().map(|pending| pending.count).sum();
        metrics::histogram!("muster_raft_proposal_commands").record(commands as f64);
        if core.is_leader() {
            let written = write(&core, &mut batch).await;
            if entries == 1 {
                let answers = decided(written).await;
                answer(batch, answers);
            } else {
                core.host.spawn(async move {
                    let answers = decided(written).await;
                    answer(batch, answers);
                    drop(turn);
                });
            }
            continue;
        }
        // What was passed on to this node already is not passed on again: its sender looks for the leader anew.
        let here = batch.extract_if(.., |pending| !pending.may_forward).collect();
        answer(here, Err(ProposeError::NoLeader));
        if batch.is_empty() {
            continue;
        }
        if let Some((leader, member)) = core.other_leader() {
            let Ok(place) = forwards.clone().acquire_owned().await else { return };
            let core = core.clone();
            core.host.clone().spawn(async move {
                let answers = forward(&core, leader, &member, &mut batch).await;
                answer(batch, answers);
                drop(place);
            });
        } else {
            answer(batch, Err(ProposeError::NoLeader));
        }
    }
}

/// What fits into one entry with `first`, and the one that did not fit. Proposals of this node's clients and those that other nodes pass on share
/// entries: where they arrive in turns, as the steps of jobs do, an entry for each would make all of them wait for a sync each.
fn gather(first: Pending, queue: &mut mpsc::Receiver<Pending>) -> (Vec<Pending>, Option<Pending>) {
    let (mut commands, mut bytes) = (first.count, first.bytes);
    let only_in_term = first.only_in_term;
    let mut batch = vec![first];
    while let Ok(next) = queue.try_recv() {
        commands += next.count;
        bytes += next.bytes;
        if commands > ENTRY_COMMANDS || bytes > ENTRY_BYTES || next.only_in_term != only_in_term {
            return (batch, Some(next));
        }
        batch.push(next);
    }
    (batch, None)
}

type Answers = Result<(u64, Decided), ProposeError>;

fn take_commands(batch: &mut [Pending]) -> Vec<Command> {
    batch.iter_mut().flat_map(|pending| std::mem::take(&mut pending.commands)).collect()
}

/// An entry that openraft has been given.
struct Written {
    answer: <<Types as RaftTypeConfig>::Responder as Responder<Types>>::Receiver,
    gathered: timeline::Begun,
}

/// Hands the batch to openraft as one entry, on the leader. Entries are appended in the order of these calls.
async fn write(core: &Core, batch: &mut [Pending]) -> Result<Written, ProposeError> {
    let only_in_term = batch.first().and_then(|pending| pending.only_in_term);
    if only_in_term.is_some_and(|term| core.leadership.borrow().term != term) {
        return Err(ProposeError::NoLeader);
    }
    let gathered = timeline::Begun::now();
    let now_ms = core.entry_time().await?;
    let entry = Arc::new(Entry { now_ms, commands: take_commands(batch) });
    let answer =
        core.raft.client_write_ff(Batch { only_in_term, entry }).await.map_err(|fatal| core.stopped(&fatal))?;
    Ok(Written { answer, gathered })
}

/// Waits until the entry is applied, or is known not to be.
async fn decided(written: Result<Written, ProposeError>) -> Answers {
    let Written { answer, gathered } = written?;
    match tokio::time::timeout(ANSWER_DEADLINE, answer).await {
        Ok(Ok(Ok(response))) => {
            let (revision, ago_ns) = (response.log_id.index, gathered.ns_ago());
            tracing::trace!(target: timeline::TARGET, step = "gathered", revision, ago_ns);
            match response.data {
                Some(decided) => Ok((revision, decided)),
                // Appended under another term than it was meant for: void.
                None => Err(ProposeError::NoLeader),
            }
        }
        // It may have been appended before leadership was lost, and whoever leads next may still commit it.
        Ok(Ok(Err(ClientWriteError::ForwardToLeader(now)))) => {
            let leader =
                now.leader_id.map_or("there is no leader now".to_owned(), |id| format!("node {id} is the leader now"));
            Err(ProposeError::Unknown { why: format!("this node lost the leadership during the call; {leader}") })
        }
        Ok(Ok(Err(error))) => Err(ProposeError::Unknown { why: error.to_string() }),
        Ok(Err(_dropped)) => Err(ProposeError::Unknown { why: "the core stopped before the answer came".to_owned() }),
        Err(_late) => Err(ProposeError::Unknown { why: format!("no quorum within {} s", ANSWER_DEADLINE.as_secs()) }),
    }
}

/// Brings the batch to the leader, from a follower. When somebody else begins to lead meanwhile, the old leader's answer is not
/// waited for any longer.
async fn forward(core: &Core, leader: u64, member: &Member, batch: &mut [Pending]) -> Answers {
    let commands = take_commands(batch);
    let mut leadership = core.leadership.clone();
    let call = core.peers.call::<_, Answers>(leader, member, Raftward::Forward, &commands, ANSWER_DEADLINE);
    let answered = tokio::select! {
        biased;
        answered = call => answered,
        _ = leadership.wait_for(|now| now.leader.is_some_and(|other| other != leader)) => {
            return Err(ProposeError::Unknown { why: format!("node {leader} is no longer the leader") });
        }
    };
    match answered {
        Ok(answers) => answers,
        Err(CallError::Refused(refusal)) => {
            tracing::debug!(%refusal, "the leader refused commands");
            Err(ProposeError::NoLeader)
        }
        Err(lost @ CallError::Lost { .. }) => Err(ProposeError::Unknown { why: lost.to_string() }),
    }
}

/// Gives each proposal its own part.
fn answer(batch: Vec<Pending>, answers: Answers) {
    match answers {
        Ok((revision, decided)) => {
            let mut decided = decided.into_iter();
            for pending in batch {
                let own: Decided = decided.by_ref().take(pending.count).collect();
                debug_assert_eq!(own.len(), pending.count, "one answer per command");
                // Who does not wait any more does not need the answer.
                let _ = pending.answer.send(Ok(Proposed { revision: Revision(revision), decided: own }));
            }
        }
        Err(error) => {
            for pending in batch {
                let _ = pending.answer.send(Err(error.clone()));
            }
        }
    }
}

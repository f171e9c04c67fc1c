//! One session, from Hello to its end.
//!
//! What must stay true: nothing here waits for the agent to read or for the log to answer. What is sent is tried, and a full queue ends
//! the session; what is proposed runs beside, bounded, and while too much of it is unanswered nothing more is read.

use super::logs::{OpenTap, Taps};
use super::stream::{Inbound, Out, Over, send};
use super::welcome::{Joined, NotJoined, PROOFS_LEVEL, admit};
use super::wire::fingerprint;
use super::{Entry, Hub, LOG_STREAMS_WAITING_MAX, wire};
use crate::api::{auth, refusal};
use crate::consensus::ProposeError;
use crate::leases::renewal::{Renewal, Verdict};
use crate::secrets;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use muster_control_core::authz::{About, Ask, Shown};
use muster_control_core::{Command, DesiredTask, Done, Reject, TaskReport};
use muster_model::identity::Author;
use muster_model::node::Withheld;
use muster_model::node_links::NodeLinks;
use muster_model::task::CleanUp;
use muster_model::{NodeHealth, Rpc, TaskState};
use muster_proto::convert::{checkpoint_from_wire, clean_up_from_wire, proofs_from_wire, report_from_wire};
use muster_proto::v1;
use muster_runtime::timeline;
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use v1::agent_message::Message as FromAgent;
use v1::control_message::Message as ToAgent;

/// Reports and usage of one session that wait for their commit.
const IN_FLIGHT_MAX: usize = 32;
/// Heartbeats of one session that wait for their confirmation; later ones say the same.
const BEATS_MAX: usize = 4;
/// Task reports, or usage intervals, of one message: as many as one command takes.
const ITEMS_MAX: usize = 4_096;

/// The feature level from which on checkpoints are recorded.
const CHECKPOINTS_LEVEL: u32 = 3;
/// The level from which on it is recorded that a task ran out of memory.
const OUT_OF_MEMORY_LEVEL: u32 = 4;
/// A task that a fault of its card or the kernel has ended is told so below those levels.
const SIGKILL: i32 = 9;
/// The same for card reports.
const CARDS_LEVEL: u32 = 3;

/// What came of something that ran beside.
enum Finished {
    Beat { seq: u64, verdict: Verdict },
    Reports { seq: u64, result: Result<(), Over> },
    Usage { incarnation: u64, result: Result<u64, Over> },
    Links(Result<(), Over>),
    Cards(Result<(), Over>),
    Proofs(Result<(), Over>),
}

/// Card reports that are being decided.
#[derive(Default)]
enum CardsUnderWay {
    #[default]
    None,
    One,
    /// The newest that came meanwhile; it replaces those before it.
    OneAndNext(Vec<Withheld>),
}

/// Serves a session until its end.
pub(super) async fn serve(
    hub: Arc<Hub>,
    id: u64,
    (author, shown): (Author, Option<Shown>),
    mut inbound: Inbound,
    out: Out,
) {
    let joined = match admit(&hub, (&author, shown.as_ref()), &mut inbound, &out).await {
        Ok(joined) => joined,
        Err(NotJoined::Gone) => return,
        Err(NotJoined::Bad(status)) => {
            tracing::warn!(session = id, %status, "an agent was refused");
            if matches!(status.code(), tonic::Code::PermissionDenied | tonic::Code::Unauthenticated) {
                hub.denials.note(&author, Rpc::AgentsSession.name(), format!("denied: {}", status.message()));
            }
            let _ = out.try_send(Err(status));
            return;
        }
        Err(NotJoined::Refused(reason)) => return refuse(&out, reason, hub.config.retry_ms),
        Err(NotJoined::TurnedAway(why)) => return refuse(&out, why, hub.config.turned_away_ms),
    };
    let (dirty, replaced) = (Arc::new(Notify::new()), CancellationToken::new());
    let (log_streams, taps_opened) = mpsc::channel(LOG_STREAMS_WAITING_MAX);
    hub.register(
        joined.node,
        Entry { session: id, dirty: Arc::clone(&dirty), log_streams, replaced: replaced.clone() },
    );
    tracing::info!(session = id, node = %joined.node, name = joined.name, epoch = %joined.epoch, "an agent has joined");
    let mut session = Session {
        hub: Arc::clone(&hub),
        author,
        shown,
        joined,
        out,
        sent: None,
        misses_secrets: false,
        log_streams: Taps::default(),
        running: FuturesUnordered::new(),
        beats: 0,
        cards: CardsUnderWay::None,
        links_decided: false,
        proofs_under_way: false,
    };
    let over = session.attend(inbound, &dirty, &replaced, taps_opened).await;
    hub.leave(session.joined.node, id);
    tracing::info!(session = id, node = %session.joined.node, ?over, "a session has ended");
    match over {
        Over::Refused(reason) => refuse(&session.out, reason, hub.config.retry_ms),
        Over::Replaced => {
            refuse(&session.out, "another session of this node has started".to_owned(), hub.config.retry_ms);
        }
        Over::Bad(status) => {
            let _ = session.out.try_send(Err(status));
        }
        Over::Gone | Over::Slow | Over::Idle => {}
    }
}

fn refuse(out: &Out, reason: String, retry_ms: u64) {
    metrics::counter!("muster_agent_refusals_total").increment(1);
    let _ = send(out, ToAgent::Refused(v1::Refused { reason, retry_ms }));
}

struct Session {
    hub: Arc<Hub>,
    author: Author,
    /// What the agent has shown when it connected.
    shown: Option<Shown>,
    joined: Joined,
    out: Out,
    /// Fingerprint of the tasks that were sent last.
    sent: Option<u64>,
    /// Some of them wait for secrets that could not be opened: it is tried again.
    misses_secrets: bool,
    log_streams: Taps,
    running: FuturesUnordered<BoxFuture<'static, Finished>>,
    beats: usize,
    cards: CardsUnderWay,
    /// The links of the node were decided in this session: once is enough.
    links_decided: bool,
    /// What was said last of isolation is being decided.
    proofs_under_way: bool,
}

impl Session {
    async fn attend(
        &mut self,
        mut inbound: Inbound,
        dirty: &Notify,
        replaced: &CancellationToken,
        mut taps_opened: mpsc::Receiver<OpenTap>,
    ) -> Over {
        let idle = Duration::from_millis(self.hub.config.idle_ms);
        let mut ticks = tokio::time::interval((idle / 4).max(Duration::from_millis(10)));
        let mut heard = Instant::now();
        if let Err(over) = self.refresh() {
            return over;
        }
        loop {
            let step = tokio::select! {
                biased;
                () = replaced.cancelled() => Err(Over::Replaced),
                () = self.out.closed() => Err(Over::Gone),
                () = dirty.notified() => self.refresh(),
                Some(finished) = self.running.next(), if !self.running.is_empty() => self.finish(finished),
                Some(log_stream) = taps_opened.recv() => self.open_tap(log_stream),
                message = inbound.message(), if self.running.len() < IN_FLIGHT_MAX => {
                    heard = Instant::now();
                    match message {
                        Ok(Some(v1::AgentMessage { message: Some(message) })) => self.take(message),
                        Ok(Some(_)) => Ok(()),
                        // It sent what passes a bound or is no message: it is told so.
                        Err(status) if status.code() == tonic::Code::InvalidArgument => Err(Over::Bad(status)),
                        Ok(None) | Err(_) => Err(Over::Gone),
                    }
                }
                _ = ticks.tick() => self.tick(heard, idle),
            };
            if let Err(over) = step {
                return over;
            }
        }
    }

    /// Sends the whole desired state, if it is another than the agent has.
    fn refresh(&mut self) -> Result<(), Over> {
        let (node, epoch) = (self.joined.node, self.joined.epoch);
        let read = self
            .hub
            .consensus
            .read(|state, revision| {
                let there = state.nodes.get(&node).ok_or("the node was removed from the fleet")?;
                if there.epoch != epoch || there.health == NodeHealth::Down {
                    return Err("the node was fenced, or has joined again with another session");
                }
                // What it runs goes on, and it starts nothing, until all is clear.
                if there.notes.restored.as_ref().is_some_and(|restored| !restored.settled) {
                    return Ok(None);
                }
                let (incarnation, revision, node_epoch) = (state.meta.incarnation, revision.0, epoch.0);
                let stamp = Some(v1::Stamp { incarnation, revision, node_epoch });
                Ok(Some((v1::Desired { stamp, ..wire::of_node(state, there) }, state.desired_for(node))))
            })
            .map_err(|why| Over::Refused(why.to_owned()))?;
        let Some((mut desired, tasks)) = read else { return Ok(()) };
        let cluster = self.hub.cluster().unwrap_or_default();
        // Read once, and only where a task has secrets.
        let keys = OnceCell::new();
        let to_wire = |mut task: DesiredTask| {
            let secrets = std::mem::take(&mut task.secrets);
            let mut task = wire::desired_task(task);
            if !secrets.is_empty() {
                let keys = keys.get_or_init(|| secrets::Keys::of(&self.hub.host));
                secrets::deliver(keys, cluster, secrets, &mut task);
            }
            task
        };
        desired.tasks = tasks.into_iter().map(to_wire).collect();
        self.misses_secrets = desired.tasks.iter().any(|task| !task.secrets_missing.is_empty());
        let fingerprint = fingerprint(&desired);
        if self.sent == Some(fingerprint) {
            return Ok(());
        }
        let revision = desired.stamp.as_ref().map_or(0, |stamp| stamp.revision);
        tracing::debug!(%node, revision, tasks = desired.tasks.len(), "desired state sent");
        for task in &desired.tasks {
            let (job, allocation) = (task.job, task.allocation);
            tracing::trace!(target: timeline::TARGET, step = "desired_sent", job, allocation);
        }
        send(&self.out, ToAgent::Desired(desired))?;
        self.sent = Some(fingerprint);
        Ok(())
    }

    fn take(&mut self, message: FromAgent) -> Result<(), Over> {
        match message {
            FromAgent::Heartbeat(beat) => self.beat(beat.seq),
            FromAgent::Reports(reports) => self.report(reports)?,
            FromAgent::Usage(usage) => self.usage(usage)?,
            FromAgent::Cards(report) => self.cards(report)?,
            FromAgent::Links(links) => self.links(links)?,
            FromAgent::Proofs(said) => {
                self.joined.proofs = proofs_from_wire(said.proofs);
                self.proofs();
            }
            FromAgent::Log(data) => {
                if let Some(request) = self.log_streams.data(data) {
                    send(&self.out, ToAgent::Log(request))?;
                }
            }
            FromAgent::Hello(_) => {
                return Err(Over::Bad(refusal::field("hello", "is sent twice", "open a new session to join again")));
            }
        }
        Ok(())
    }

    fn beat(&mut self, seq: u64) {
        if self.beats >= BEATS_MAX {
            return;
        }
        self.beats += 1;
        let renewals = self.hub.renewals.clone();
        let renewal = Renewal::Node(self.joined.node, self.joined.epoch);
        self.running.push(async move { Finished::Beat { seq, verdict: renewals.renew(renewal).await } }.boxed());
    }

    fn report(&mut self, message: v1::TaskReports) -> Result<(), Over> {
        check_count("reports", message.reports.len())?;
        let mut reports = Vec::with_capacity(message.reports.len());
        // Below that level the log has no place for checkpoints and faults of cards; the tasks' states must not wait for it.
        let level = self.hub.consensus.read(|state, _| state.meta.feature_level);
        let keeps = level >= CHECKPOINTS_LEVEL;
        for (index, report) in message.reports.into_iter().enumerate() {
            let checkpoint = checkpoint_from_wire(&report).filter(|_| keeps);
            let clean_up = clean_up_from_wire(&report);
            // Then the end of a task is what releases its GPUs: it is told with the last report.
            if !keeps && clean_up == CleanUp::UnderWay {
                continue;
            }
            let clean_up = if keeps { clean_up } else { CleanUp::default() };
            let (allocation, rank, state, ended_ms) = report_from_wire(report)
                .map_err(|error| Over::Bad(refusal::fields(&[error.under(&format!("reports[{index}]"))])))?;
            let state = match state {
                TaskState::DeviceFault { .. } | TaskState::OverShare { .. } if !keeps => {
                    TaskState::Signaled { signal: SIGKILL }
                }
                TaskState::OutOfMemory { .. } if level < OUT_OF_MEMORY_LEVEL => TaskState::Signaled { signal: SIGKILL },
                state => state,
            };
            tracing::trace!(target: timeline::TARGET, step = "report_received", allocation = allocation.0);
            reports.push(TaskReport { allocation, rank, state, ended_ms, checkpoint, clean_up });
        }
        let command = Command::ReportTasks { node: self.joined.node, epoch: self.joined.epoch, reports };
        let (hub, author, seq) = (Arc::clone(&self.hub), self.author.clone(), message.seq);
        let decide = async move {
            let result = match decide(&hub, &author, command).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(reject)) => Err(Over::Refused(format!("task reports: {reject}"))),
                Err(over) => Err(over),
            };
            Finished::Reports { seq, result }
        };
        self.running.push(decide.boxed());
        Ok(())
    }

    fn usage(&mut self, message: v1::UsageReport) -> Result<(), Over> {
        check_count("intervals", message.intervals.len())?;
        let incarnation = message.incarnation;
        let level = self.hub.consensus.read(|state, _| state.meta.feature_level);
        let intervals = wire::intervals(message, level);
        let command = Command::RecordUsage { node: self.joined.node, incarnation, intervals };
        let (hub, author) = (Arc::clone(&self.hub), self.author.clone());
        let decide = async move {
            let result = match decide(&hub, &author, command).await {
                Ok(Ok(Done::Counted { mark })) => Ok(mark),
                // The agent goes on after the mark.
                Ok(Err(Reject::UsageGap { incarnation: counted, mark, .. })) if counted == incarnation => Ok(mark),
                Ok(Ok(other)) => Err(Over::Refused(format!("usage was answered {other:?}"))),
                Ok(Err(reject)) => Err(Over::Refused(format!("usage: {reject}"))),
                Err(over) => Err(over),
            };
            Finished::Usage { incarnation, result }
        };
        self.running.push(decide.boxed());
        Ok(())
    }

    /// What of the cards takes no new work. One report is decided at a time, so that an older one never overtakes a newer one.
    fn cards(&mut self, report: v1::CardReport) -> Result<(), Over> {
        let level = self.hub.consensus.read(|state, _| state.meta.feature_level);
        let withheld = wire::withheld(report, level).map_err(|error| Over::Bad(refusal::fields(&[error])))?;
        // Below that level the log has no place for it; the next Hello says the same.
        if level < CARDS_LEVEL {
            return Ok(());
        }
        match &mut self.cards {
            CardsUnderWay::None => self.decide_cards(withheld),
            CardsUnderWay::One => self.cards = CardsUnderWay::OneAndNext(withheld),
            CardsUnderWay::OneAndNext(next) => *next = withheld,
        }
        Ok(())
    }

    /// The ways inside the node. Nothing is decided where they are known: a fleet that connects again writes none of them.
    fn links(&mut self, links: v1::NodeLinks) -> Result<(), Over> {
        let links = NodeLinks::try_from(links).and_then(|links| links.validate().map(|()| links));
        let links = links.map_err(|error| Over::Bad(refusal::fields(&[error.under("links")])))?;
        let (node, epoch) = (self.joined.node, self.joined.epoch);
        let is_news = self.hub.consensus.read(|state, _| {
            let known = state.nodes.get(&node).is_some_and(|there| there.notes.links == links);
            state.meta.feature_level >= CARDS_LEVEL && !known
        });
        if is_news && !self.links_decided {
            self.links_decided = true;
            let (hub, author) = (Arc::clone(&self.hub), self.author.clone());
            let decide = async move {
                Finished::Links(match decide(&hub, &author, Command::ReportLinks { node, epoch, links }).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(reject)) => Err(Over::Refused(format!("links of the node: {reject}"))),
                    Err(over) => Err(over),
                })
            };
            self.running.push(decide.boxed());
        }
        Ok(())
    }

    /// What was said last of isolation, where the state has something else. It is asked again with every tick: the level may have been too low.
    fn proofs(&mut self) {
        let (node, epoch) = (self.joined.node, self.joined.epoch);
        let is_news = self.hub.consensus.read(|state, _| {
            let known = state.nodes.get(&node).is_none_or(|there| there.spec.proofs == self.joined.proofs);
            state.meta.feature_level >= PROOFS_LEVEL && !known
        });
        if !is_news || self.proofs_under_way {
            return;
        }
        self.proofs_under_way = true;
        let (hub, author, proofs) = (Arc::clone(&self.hub), self.author.clone(), self.joined.proofs.clone());
        let decide = async move {
            Finished::Proofs(match decide(&hub, &author, Command::ReportProofs { node, epoch, proofs }).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(reject)) => Err(Over::Refused(format!("proofs of isolation: {reject}"))),
                Err(over) => Err(over),
            })
        };
        self.running.push(decide.boxed());
    }

    fn decide_cards(&mut self, withheld: Vec<Withheld>) {
        self.cards = CardsUnderWay::One;
        let command = Command::ReportCards { node: self.joined.node, epoch: self.joined.epoch, withheld };
        let (hub, author) = (Arc::clone(&self.hub), self.author.clone());
        let decide = async move {
            Finished::Cards(match decide(&hub, &author, command).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(reject)) => Err(Over::Refused(format!("card report: {reject}"))),
                Err(over) => Err(over),
            })
        };
        self.running.push(decide.boxed());
    }

    fn finish(&mut self, finished: Finished) -> Result<(), Over> {
        match finished {
            Finished::Beat { seq, verdict } => {
                self.beats -= 1;
                match verdict {
                    Verdict::Renewed => {
                        let now_ms = self.hub.consensus.read(|state, _| state.meta.now_ms);
                        send(&self.out, ToAgent::Lease(v1::LeaseAck { seq, now_ms }))
                    }
                    Verdict::Lost => Err(Over::Refused("the node's epoch is not the newest".to_owned())),
                    Verdict::Unknown => Ok(()),
                }
            }
            Finished::Reports { seq, result } => {
                result?;
                send(&self.out, ToAgent::Reports(v1::ReportsAck { seq }))
            }
            Finished::Usage { incarnation, result } => {
                let mark = result?;
                send(&self.out, ToAgent::Usage(v1::UsageAck { incarnation, mark }))
            }
            Finished::Links(result) => result,
            Finished::Proofs(result) => {
                self.proofs_under_way = false;
                result
            }
            Finished::Cards(result) => {
                result?;
                if let CardsUnderWay::OneAndNext(next) = std::mem::take(&mut self.cards) {
                    self.decide_cards(next);
                }
                Ok(())
            }
        }
    }

    fn open_tap(&mut self, log_stream: OpenTap) -> Result<(), Over> {
        match self.log_streams.open(log_stream) {
            Some(request) => send(&self.out, ToAgent::Log(request)),
            None => Ok(()),
        }
    }

    fn tick(&mut self, heard: Instant, idle: Duration) -> Result<(), Over> {
        // An identity that was suspended counts as silence: what it says is not taken, and its node is fenced in time.
        let now_ms = self.hub.consensus.now_ms();
        let ask = Ask { rpc: Rpc::AgentsSession, about: About::Node(self.joined.node) };
        let caller = (&self.author, self.shown.as_ref());
        let judged = self.hub.consensus.read(|state, _| auth::still(state, now_ms, caller, &ask));
        judged.map_err(|denied| Over::Refused(denied.to_string()))?;
        self.proofs();
        if self.misses_secrets {
            self.refresh()?;
        }
        for request in self.log_streams.prune() {
            send(&self.out, ToAgent::Log(request))?;
        }
        // While nothing is read because the log does not answer, the agent is not to blame.
        if heard.elapsed() > idle && self.running.len() < IN_FLIGHT_MAX { Err(Over::Idle) } else { Ok(()) }
    }
}

fn check_count(field: &str, count: usize) -> Result<(), Over> {
    if count <= ITEMS_MAX {
        return Ok(());
    }
    Err(Over::Bad(refusal::field(field, format!("has {count}"), "send at most 4,096 in one message")))
}

/// Has a command decided, trying again while there is no answer: reports and usage may be decided twice and count once.
async fn decide(hub: &Hub, author: &Author, command: Command) -> Result<Result<Done, Reject>, Over> {
    loop {
        match hub.batcher.decide(author.clone(), command.clone()).await {
            Ok(decided) => return Ok(decided),
            Err(ProposeError::Stopped { .. }) => return Err(Over::Gone),
            Err(error @ ProposeError::TooLarge { .. }) => return Err(Over::Bad(refusal::propose(&error))),
            Err(error) => {
                tracing::debug!(%error, "a report waits for a leader");
                tokio::time::sleep(Duration::from_millis(hub.config.retry_ms)).await;
            }
        }
    }
}

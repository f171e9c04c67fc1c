//! Owns the view: takes in what is seen and what became of proposals, plans, and sends proposals off.
//!
//! What must stay true: the view has no other writer; everything that has arrived is taken in before the next pass, so passes are
//! as few as the planner is slow; proposals are bounded in number and in size; nothing is proposed without a lease in date.

use crate::ShardStatus;
use crate::config::MovesConfig;
use crate::control::Control;
use crate::follow::Seen;
use crate::leases::Leases;
use crate::moves::Moves;
use muster_model::{Cell, CellId, Epoch, JobId};
use muster_proto::v1;
use muster_proto::v1::proposal_result::Result as Answer;
use muster_proto::v1::rejection::Kind;
use muster_runtime::{Host, timeline};
use muster_scheduler_core::{Bounds, HAND_OVER_ROUND_MS, Proposal, View, plan};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Batches under way per cell: enough to cover a round trip through consensus, few enough that a lost lease wastes little.
const BATCHES_MAX: usize = 4;
/// Messages taken in before a pass at most, so that a flood does not keep the planner from planning.
const INTAKE_MAX: usize = 512;
/// A pass at least this often while jobs wait: rests end and hand-overs fall due by time alone.
const TICK: Duration = Duration::from_millis(500);
/// After a call that nobody answered, a cell proposes nothing for so long: a small part of a leader election.
const PAUSE_AFTER_SILENCE: Duration = Duration::from_millis(100);

/// The planner's connections to the other tasks.
pub(crate) struct Wires {
    pub(crate) seen: mpsc::Receiver<Seen>,
    pub(crate) cells: watch::Sender<Arc<Vec<Cell>>>,
    pub(crate) expected: watch::Sender<u64>,
}

/// What became of a batch.
struct Outcome {
    cell: CellId,
    epoch: Epoch,
    proposals: Vec<Proposal>,
    reply: Result<v1::ProposeReply, Status>,
}

/// The state's clock as this shard follows it: the last time it was told, and what has passed since.
struct StateClock {
    told_ms: u64,
    at: Instant,
}

impl StateClock {
    fn now_ms(&self) -> u64 {
        self.told_ms + self.at.elapsed().as_millis() as u64
    }

    fn told(&mut self, now_ms: u64) {
        if now_ms > self.now_ms() {
            *self = StateClock { told_ms: now_ms, at: Instant::now() };
        }
    }
}

pub(crate) struct Planner {
    host: Host,
    control: Arc<Control>,
    leases: Arc<Leases>,
    wires: Wires,
    status: Arc<Mutex<ShardStatus>>,
    outcomes: (mpsc::Sender<Outcome>, mpsc::Receiver<Outcome>),
    view: View,
    revision: u64,
    clock: StateClock,
    under_way: BTreeMap<CellId, usize>,
    paused_until: BTreeMap<CellId, Instant>,
    bound: u64,
    /// The last pass stopped at a bound.
    more: bool,
    moves: Option<Moves>,
}

impl Planner {
    pub(crate) fn new(
        host: Host,
        control: Arc<Control>,
        leases: Arc<Leases>,
        wires: Wires,
        status: Arc<Mutex<ShardStatus>>,
        moves: Option<MovesConfig>,
    ) -> Self {
        Planner {
            host,
            control,
            leases,
            wires,
            status,
            outcomes: mpsc::channel(INTAKE_MAX),
            view: View::default(),
            revision: 0,
            clock: StateClock { told_ms: 0, at: Instant::now() },
            under_way: BTreeMap::new(),
            paused_until: BTreeMap::new(),
            bound: 0,
            more: false,
            moves: moves.map(Moves::new),
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let wake = if self.more { Duration::ZERO } else { self.next_wake() };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(outcome) = self.outcomes.1.recv() => self.heard(outcome),
                seen = self.wires.seen.recv() => match seen {
                    Some(seen) => self.take_in(seen),
                    None => return,
                },
                () = self.leases.changed() => {}
                () = tokio::time::sleep(wake) => {}
            }
            self.take_in_all();
            self.pass();
            self.plan_moves();
            // A busy planner lets the other tasks of its thread go first.
            tokio::task::yield_now().await;
        }
    }

    fn next_wake(&self) -> Duration {
        let now_ms = self.clock.now_ms();
        let rest = self.view.next_wake_ms().map(|at_ms| Duration::from_millis(at_ms.saturating_sub(now_ms).max(1)));
        rest.map_or(TICK, |rest| rest.min(TICK))
    }

    /// Takes in whatever else has arrived: many changes, one pass.
    fn take_in_all(&mut self) {
        for _ in 0..INTAKE_MAX {
            if let Ok(outcome) = self.outcomes.1.try_recv() {
                self.heard(outcome);
            } else if let Ok(seen) = self.wires.seen.try_recv() {
                self.take_in(seen);
            } else {
                break;
            }
        }
        let cells: Vec<Cell> = self.view.cells().values().cloned().collect();
        self.wires.cells.send_if_modified(|known| {
            let new = **known != cells;
            if new {
                *known = Arc::new(cells);
            }
            new
        });
    }

    fn take_in(&mut self, seen: Seen) {
        let (revision, now_ms) = match seen {
            Seen::Snapshot { view, revision, now_ms } => {
                metrics::counter!("muster_shard_snapshots_total").increment(1);
                tracing::info!(revision, "snapshot loaded");
                self.view.replace(*view);
                (revision, now_ms)
            }
            Seen::Changes { changes, revision, now_ms } => {
                for change in changes {
                    self.view.absorb(change);
                }
                (revision, now_ms)
            }
        };
        self.revision = revision;
        tracing::trace!(target: timeline::TARGET, step = "seen_by_shard", revision);
        self.clock.told(now_ms);
        metrics::gauge!("muster_shard_view_revision").set(revision as f64);
    }

    /// Plans in every cell whose lease is in date and sends off what was found.
    fn pass(&mut self) {
        self.more = false;
        let now = Instant::now();
        let mut waiting = 0;
        for (cell, epoch) in self.leases.plannable(self.revision) {
            waiting += self.view.waiting(cell);
            let busy = self.under_way.get(&cell).copied().unwrap_or(0) >= BATCHES_MAX;
            let paused = self.paused_until.get(&cell).is_some_and(|until| *until > now);
            if busy || paused {
                continue;
            }
            let plan = plan(&mut self.view, cell, &Bounds::default(), self.clock.now_ms());
            metrics::histogram!("muster_shard_pass_seconds").record(now.elapsed().as_secs_f64());
            metrics::counter!("muster_shard_decisions_total").increment(plan.decisions);
            metrics::counter!("muster_shard_steps_total").increment(plan.steps);
            metrics::counter!("muster_shard_reservations_broken_total").increment(plan.reservations_broken);
            self.more |= plan.more;
            if !plan.proposals.is_empty() {
                self.propose(cell, epoch, plan.proposals);
            }
        }
        metrics::gauge!("muster_shard_waiting_jobs").set(waiting as f64);
        let mut status = self.status.lock();
        (status.revision, status.waiting) = (self.revision, waiting);
        (status.pending, status.bound) = (self.view.pending(), self.bound);
    }

    /// Plans moves in one cell that is due, when that was asked for.
    fn plan_moves(&mut self) {
        let Some(moves) = &mut self.moves else { return };
        let cells = self.leases.plannable(self.revision).into_iter().map(|(cell, _)| cell);
        moves.plan_one(&mut self.view, cells, self.clock.now_ms());
    }

    fn propose(&mut self, cell: CellId, epoch: Epoch, proposals: Vec<Proposal>) {
        *self.under_way.entry(cell).or_default() += 1;
        for proposal in &proposals {
            tracing::trace!(target: timeline::TARGET, step = "planned", job = proposal.job().0);
        }
        let request =
            v1::ProposeRequest { cell: cell.0, epoch: epoch.0, proposals: proposals.iter().map(to_wire).collect() };
        let (control, heard) = (self.control.clone(), self.outcomes.0.clone());
        self.host.spawn(async move {
            let reply = control.propose(request).await;
            // Closed only when the planner has stopped: nobody wants to know then.
            let _ = heard.send(Outcome { cell, epoch, proposals, reply }).await;
        });
    }

    fn heard(&mut self, outcome: Outcome) {
        let Outcome { cell, epoch, proposals, reply } = outcome;
        if let Some(count) = self.under_way.get_mut(&cell) {
            *count = count.saturating_sub(1);
        }
        let mut answers = match reply {
            Ok(reply) => {
                self.wires.expected.send_if_modified(|known| {
                    let newer = reply.revision > *known;
                    *known = reply.revision.max(*known);
                    newer
                });
                reply.results.into_iter()
            }
            Err(status) => {
                tracing::debug!(%cell, error = %status, proposals = proposals.len(), "proposals not answered");
                self.paused_until.insert(cell, Instant::now() + PAUSE_AFTER_SILENCE);
                Vec::new().into_iter()
            }
        };
        for proposal in proposals {
            match answers.next().and_then(|answer| answer.result) {
                Some(Answer::Allocation(allocation)) if matches!(proposal, Proposal::Grow(_)) => {
                    count("grown");
                    tracing::debug!(job = %proposal.job(), allocation, %cell, "grown");
                }
                Some(Answer::Allocation(allocation)) => {
                    count("bound");
                    self.bound += 1;
                    tracing::debug!(job = %proposal.job(), allocation, %cell, "bound");
                }
                Some(Answer::HandedToCell(to)) => {
                    count("handed_over");
                    tracing::debug!(job = %proposal.job(), %cell, to, "handed over");
                }
                Some(Answer::Reserved(_)) if matches!(proposal, Proposal::RecordBypass { .. }) => {
                    count("bypass_recorded")
                }
                Some(Answer::Reserved(_)) if matches!(proposal, Proposal::Shrink { .. }) => count("shrunk"),
                Some(Answer::Reserved(_)) => count("reserved"),
                Some(Answer::Rejection(rejection)) => self.rejected(cell, epoch, &proposal, &rejection),
                None => {
                    count("unanswered");
                    self.give_back(&proposal, View::unanswered);
                }
            }
        }
    }

    fn rejected(&mut self, cell: CellId, epoch: Epoch, proposal: &Proposal, rejection: &v1::Rejection) {
        let job = proposal.job();
        let kind = rejection.kind();
        count(kind_word(kind));
        tracing::debug!(%job, %cell, kind = kind_word(kind), why = %rejection.text, "proposal refused");
        match kind {
            Kind::StaleEpoch => {
                self.leases.lose(cell, epoch, "a proposal had an old epoch");
                self.give_back(proposal, View::unanswered);
            }
            Kind::NowhereElse => {
                let until_ms = self.clock.now_ms() + HAND_OVER_ROUND_MS;
                self.view.not_offered_before(job, until_ms);
            }
            Kind::WrongShape => {
                tracing::error!(%job, why = %rejection.text, "a proposed placement does not match the request of the job (a bug)");
                self.give_back(proposal, View::refused);
            }
            Kind::NotWaiting | Kind::DoesNotFit | Kind::OverMax | Kind::Other | Kind::Unspecified => {
                self.give_back(proposal, View::refused);
            }
        }
    }

    /// Undoes a binding's charge, or what stands apart for a reservation; a hand-over has neither.
    fn give_back(&mut self, proposal: &Proposal, how: fn(&mut View, JobId, u64)) {
        match proposal {
            Proposal::Bind(binding)
            | Proposal::Preempt { binding, .. }
            | Proposal::Move { binding, .. }
            | Proposal::Grow(binding)
            | Proposal::Shrink { binding, .. } => how(&mut self.view, binding.job, self.clock.now_ms()),
            Proposal::Reserve { job, .. } => self.view.not_reserved(*job, self.clock.now_ms()),
            // Nothing hangs on a hand-over, and a count is told again when more has started.
            Proposal::HandOver(_) | Proposal::RecordBypass { .. } => {}
        }
    }
}

fn to_wire(proposal: &Proposal) -> v1::Proposal {
    let kind = match proposal {
        Proposal::Bind(binding) => v1::proposal::Kind::Bind(v1::Bind::from(binding)),
        Proposal::Preempt { binding, victims } => {
            let victims = victims.iter().map(|victim| victim.0).collect();
            v1::proposal::Kind::Preempt(v1::Preempt { bind: Some(v1::Bind::from(binding)), victims })
        }
        Proposal::Move { binding, moves } => {
            let moves = moves.iter().map(Into::into).collect();
            v1::proposal::Kind::Move(v1::Move { bind: Some(v1::Bind::from(binding)), moves })
        }
        Proposal::Grow(binding) => v1::proposal::Kind::Grow(v1::Bind::from(binding)),
        Proposal::Shrink { binding, parts } => {
            let parts = parts.iter().map(|part| part.0).collect();
            v1::proposal::Kind::Shrink(v1::Shrink { bind: Some(v1::Bind::from(binding)), parts })
        }
        Proposal::HandOver(job) => v1::proposal::Kind::HandOver(v1::HandOver { job: job.0 }),
        Proposal::RecordBypass { job, cards } => {
            v1::proposal::Kind::RecordBypass(v1::RecordBypass { job: job.0, cards: *cards })
        }
        Proposal::Reserve { job, reserved } => {
            let reserved = reserved.as_deref().map(Into::into);
            v1::proposal::Kind::Reserve(v1::Reserve { job: job.0, reserved })
        }
    };
    v1::Proposal { kind: Some(kind) }
}

fn count(result: &'static str) {
    metrics::counter!("muster_shard_proposals_total", "result" => result).increment(1);
}

const fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Unspecified => "unspecified",
        Kind::StaleEpoch => "stale_epoch",
        Kind::NotWaiting => "not_waiting",
        Kind::DoesNotFit => "does_not_fit",
        Kind::OverMax => "over_max",
        Kind::WrongShape => "wrong_shape",
        Kind::NowhereElse => "nowhere_else",
        Kind::Other => "other",
    }
}

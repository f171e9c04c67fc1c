//! Moves: running jobs are started elsewhere, so that a gang fits that waits only because what is free is scattered.
//!
//! A shard planned this against its own view; everything is proved again here: the lease, the gang's turn, the shapes, that each job may be moved, what
//! the pool's budget has left, and that the gang and all moved jobs fit together once these have ended. What must stay true:
//! - nothing is stopped without a place for the gang and one for each moved job (a claim each), which nobody else takes meanwhile;
//! - only burst work whose job says that it is movable is moved, out of its cool-down, whole, and within one pool whose operators have set a budget
//!   (decision 0036);
//! - what a pool's moves promise to lose, and how many they are, never exceed its budget; the record is part of the state.

use super::bind::waiting_in;
use super::charge::charge_of;
use super::{cells, claims, level, preempt, shape};
use crate::draft::Draft;
use crate::leased_binding::LeasedBinding;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use crate::victim_fault::VictimFault;
use crate::windows;
use muster_model::capacity::{Ended, Misfit};
use muster_model::ids::{AllocationId, JobId, NodeId, TenantId};
use muster_model::moves::{DAY_MS, MOVED_JOBS_MAX, MOVES_KEPT_MAX, spent};
use muster_model::object::Key;
use muster_model::preemption::STOP_MS_MAX;
use muster_model::{
    Allocation, AllocationState, Claim, EndCause, GpuUnits, HoldMode, Job, JobPhase, MoveFate, MoveRecord, MovedJob,
    Object, PlannedMove, Pool, PreemptReason, ResourceVec, TaskPlacement,
};
use std::collections::BTreeSet;

/// A job that is moved.
struct Moved<'a> {
    held: &'a Allocation,
    job: &'a Job,
    /// Where it goes.
    to: LeasedBinding,
    promised_unit_s: u64,
}

impl Moved<'_> {
    /// What it holds then.
    fn then(&self, claim: &Claim) -> Allocation {
        Allocation { id: claim.allocation, tasks: self.to.tasks.clone(), ..self.held.clone() }
    }
}

pub(super) fn make(draft: &mut Draft<'_>, binding: &LeasedBinding, moves: &[PlannedMove]) -> Result<Done, Reject> {
    let state = draft.state;
    cells::held_at(state, binding.cell, binding.epoch)?;
    let job = waiting_in(draft, binding.cell, binding.job, Some(binding.attempt))?;
    level::need(state, level::QUOTAS, "moves")?;
    if moves.len() > MOVED_JOBS_MAX {
        let problem = format!("has {} jobs", moves.len());
        return Err(Reject::field("moves", problem, format!("move at most {MOVED_JOBS_MAX} jobs for one gang")));
    }
    let ids: Vec<AllocationId> = moves.iter().map(|one| one.allocation).collect();
    let held = preempt::live(draft, binding, &ids)?;
    let fault = |at: usize, why| Reject::NotPreemptible { allocation: ids[at], why };
    if job.preemptor.is_barred() {
        return Err(fault(0, VictimFault::Barred { failures: job.preemptor.failures }));
    }
    shape::check(state, job, binding)?;
    let mut moved = Vec::with_capacity(moves.len());
    for (at, (held, one)) in held.iter().zip(moves).enumerate() {
        moved.push(may_move(draft, binding, held, &one.tasks).map_err(|why| match why {
            Refused::Fault(why) => fault(at, why),
            Refused::Shape(reject) => reject,
        })?);
    }
    begin_before_windows(draft, job, binding, &moved)?;
    let pool = one_pool(state, &held).map_err(|at| fault(at, VictimFault::OtherPool))?;
    within_budget(draft, pool, &moved).map_err(|why| fault(0, why))?;
    let forgotten = forgettable(draft)?;

    let charge = charge_of(&job.spec, binding.model);
    let account = fits_quota(state, job, &charge, &moved)?;
    let (cpu_milli, memory_mib) = (job.spec.request.cpu_milli, job.spec.request.memory_mib);
    let claim = claims::on(draft, binding, (charge, account), ids.iter().copied().collect());
    let id = claim.allocation;
    let gang = Allocation { cpu_milli, memory_mib, ..Allocation::usual(id, job.id, job.tenant, binding.tasks.clone()) };
    let claims: Vec<Claim> = moved.iter().map(|one| claim_of(draft, one, &moved)).collect();
    let then: Vec<Allocation> = moved.iter().zip(&claims).map(|(one, claim)| one.then(claim)).collect();
    let together: Vec<&Allocation> = [&gang].into_iter().chain(&then).collect();
    state.capacity().prove_together(&held, &together)?;

    let record = record(draft, pool, job, &claim, &moved, &claims);
    forgotten.into_iter().for_each(|id| draft.delete(Key::Move(id)));
    stop_and_claim(draft, binding.job, claim, &moved, claims);
    draft.put(Object::Move(record));
    Ok(Done::Bound { allocation: id })
}

/// Why a job is not moved.
enum Refused {
    Fault(VictimFault),
    Shape(Reject),
}

impl From<VictimFault> for Refused {
    fn from(why: VictimFault) -> Self {
        Refused::Fault(why)
    }
}

/// Whether it may be moved there by its own rules, and what that loses at most.
fn may_move<'a>(
    draft: &Draft<'a>,
    binding: &LeasedBinding,
    held: &'a Allocation,
    to: &[TaskPlacement],
) -> Result<Moved<'a>, Refused> {
    let job = draft.state.jobs.get(&held.job).ok_or(VictimFault::Ended)?;
    let how = job.spec.movable.ok_or(VictimFault::NotMovable)?;
    if held.account().is_some() {
        return Err(VictimFault::Guaranteed.into());
    }
    // What an elastic gang has beyond its least stands where it stands.
    if held.is_growth || !job.growth.parts.is_empty() {
        return Err(VictimFault::NotMovable.into());
    }
    preempt::pools_allow(draft, held)?;
    if to == held.tasks {
        return Err(VictimFault::SamePlace.into());
    }
    let to = LeasedBinding {
        cell: binding.cell,
        epoch: binding.epoch,
        job: job.id,
        attempt: job.attempt.next(),
        model: held.model,
        tasks: to.to_vec(),
    };
    shape::check(draft.state, job, &to).map_err(Refused::Shape)?;
    let grace_s = job.spec.preemption.grace_s(job.spec.grace_s);
    let since_s = draft.now_ms.saturating_sub(saved_ms(job, held)).div_ceil(1_000);
    let loss = how.loss(held.charge.gpu_total(), since_s.saturating_add(grace_s));
    Ok(Moved { held, job, to, promised_unit_s: loss.unit_seconds })
}

/// When the job's work was saved last: by its newest checkpoint, or it began then.
pub(super) fn saved_ms(job: &Job, held: &Allocation) -> u64 {
    job.checkpoint_ms.unwrap_or(0).max(held.bound_ms)
}

/// Whether the windows of their nodes let the gang and the moved jobs begin when the last of them has left its place.
fn begin_before_windows(
    draft: &Draft<'_>,
    job: &Job,
    binding: &LeasedBinding,
    moved: &[Moved<'_>],
) -> Result<(), Reject> {
    let grace_s = moved.iter().map(|one| one.job.spec.preemption.grace_s(one.job.spec.grace_s)).max().unwrap_or(0);
    let begin_ms = draft.now_ms.saturating_add(1_000 * grace_s + STOP_MS_MAX);
    let nodes = |tasks: &[TaskPlacement]| tasks.iter().map(|task| task.node).collect::<Vec<_>>().into_iter();
    windows::check(draft.state, job, nodes(&binding.tasks), begin_ms)?;
    moved.iter().try_for_each(|one| windows::check(draft.state, one.job, nodes(&one.to.tasks), begin_ms))
}

/// The pool that all of them stand in; else the place of the first that does not.
fn one_pool<'a>(state: &'a State, held: &[&Allocation]) -> Result<&'a Pool, usize> {
    let mut found: Option<&str> = None;
    for (at, held) in held.iter().enumerate() {
        for node in held.tasks.iter().filter_map(|task| state.nodes.get(&task.node)) {
            if *found.get_or_insert(&node.spec.pool) != node.spec.pool {
                return Err(at);
            }
        }
    }
    found.map(|name| state.capacity().pool_named(name)).ok_or(0)
}

fn within_budget(draft: &Draft<'_>, pool: &Pool, moved: &[Moved<'_>]) -> Result<(), VictimFault> {
    if !pool.moves_jobs() {
        return Err(VictimFault::MovesOff);
    }
    let left = pool.moves_left(spent(draft.state.moves.values(), &pool.name, draft.now_ms));
    let asked = moved.len() as u64;
    if asked > left.moves {
        return Err(VictimFault::MovesSpent { left: left.moves, asked });
    }
    let asked = moved.iter().fold(0_u64, |sum, one| sum.saturating_add(one.promised_unit_s));
    if asked > left.unit_s {
        let gpu_s = |unit_s: u64| unit_s / GpuUnits::CARD.0;
        return Err(VictimFault::LossSpent { left_gpu_s: gpu_s(left.unit_s), asked_gpu_s: gpu_s(asked) });
    }
    Ok(())
}

/// Records that make room for another: old ones that no budget counts any more.
fn forgettable(draft: &Draft<'_>) -> Result<Vec<AllocationId>, Reject> {
    let moves = &draft.state.moves;
    let too_many = (moves.len() + 1).saturating_sub(MOVES_KEPT_MAX);
    let old = |record: &&MoveRecord| record.is_closed() && record.made_ms.saturating_add(DAY_MS) <= draft.now_ms;
    let found: Vec<AllocationId> = moves.values().filter(old).take(too_many).map(|record| record.id).collect();
    if found.len() < too_many {
        return Err(Reject::Full { what: "the history of moves".to_owned(), limit: MOVES_KEPT_MAX as u64 });
    }
    Ok(found)
}

/// The moved jobs are charged as before, so maxima and floors are asked for the gang alone. What others do not lend is asked for the moved jobs
/// too: they are bound anew.
fn fits_quota(state: &State, job: &Job, charge: &ResourceVec, moved: &[Moved<'_>]) -> Result<Option<TenantId>, Reject> {
    let capacity = state.capacity();
    let account = capacity.account_for(job.tenant, charge);
    capacity.max_allows(job.tenant, charge).map_err(Misfit::from)?;
    if account.is_none() {
        capacity.lending_allows(&Ended::default(), job.tenant, charge).map_err(Misfit::from)?;
    }
    for one in moved {
        capacity.lending_allows(&Ended::default(), one.held.tenant, charge).map_err(Misfit::from)?;
        let mut itself = Ended::default();
        capacity.note_ended(&mut itself, one.held);
        capacity.lending_allows(&itself, one.held.tenant, &one.held.charge).map_err(Misfit::from)?;
    }
    Ok(account)
}

/// What a moved job gets once it has left, and whoever else stands where it goes.
fn claim_of(draft: &mut Draft<'_>, one: &Moved<'_>, moved: &[Moved<'_>]) -> Claim {
    let to = nodes(&one.to.tasks);
    let in_the_way = |other: &&Moved<'_>| other.held.tasks.iter().any(|task| to.contains(&task.node));
    let others = moved.iter().filter(in_the_way).map(|other| other.held.id);
    let victims = others.chain([one.held.id]).collect();
    // No floor covers it, or it would not be burst now; what the gang is charged leaves no account more than before.
    claims::on(draft, &one.to, (one.held.charge, None), victims)
}

fn nodes(tasks: &[TaskPlacement]) -> BTreeSet<NodeId> {
    tasks.iter().map(|task| task.node).collect()
}

fn record(
    draft: &Draft<'_>,
    pool: &Pool,
    job: &Job,
    claim: &Claim,
    moved: &[Moved<'_>],
    claims: &[Claim],
) -> MoveRecord {
    let grace_ms = moved.iter().map(|one| 1_000 * one.job.spec.preemption.grace_s(one.job.spec.grace_s)).max();
    let taken: BTreeSet<(NodeId, u16)> = cards(&claim.tasks, |_| true);
    let shared: BTreeSet<(NodeId, u16)> =
        moved.iter().flat_map(|one| cards(&one.held.tasks, |mode| mode != HoldMode::Whole)).collect();
    let one = |(one, claim): (&Moved<'_>, &Claim)| MovedJob {
        job: one.job.id,
        from: one.held.id,
        to: claim.allocation,
        units: one.held.charge.gpu_total(),
        from_nodes: nodes(&one.held.tasks),
        to_nodes: nodes(&one.to.tasks),
        promised_unit_s: one.promised_unit_s,
        fate: MoveFate::Stopping,
        stopped_ms: None,
        unsaved_ms: 0,
        resumed_ms: None,
        lost_unit_s: None,
    };
    MoveRecord {
        id: claim.allocation,
        cell: claim.cell,
        made_ms: draft.now_ms,
        pool: pool.name.clone(),
        job: job.id,
        tenant: job.tenant,
        model: claim.model,
        units: claim.charge.gpu_total(),
        nodes: claim.nodes(),
        converted_cards: taken.intersection(&shared).count() as u32,
        due_ms: draft.now_ms.saturating_add(grace_ms.unwrap_or(0)).saturating_add(STOP_MS_MAX),
        started_ms: None,
        given_up_ms: None,
        moved: moved.iter().zip(claims).map(one).collect(),
    }
}

fn cards(tasks: &[TaskPlacement], of: impl Fn(HoldMode) -> bool) -> BTreeSet<(NodeId, u16)> {
    let holds = tasks.iter().flat_map(|task| task.devices.iter().map(move |hold| (task.node, hold)));
    holds.filter(|(_, hold)| of(hold.mode)).map(|(node, hold)| (node, hold.gpu)).collect()
}

/// The event log tells a hold when it meets the job's change: that of the gang, which takes the devices, goes before those of the moved jobs.
fn stop_and_claim(draft: &mut Draft<'_>, gang: JobId, claim: Claim, moved: &[Moved<'_>], claims: Vec<Claim>) {
    let id = claim.allocation;
    let cause = || AllocationState::Stopping(EndCause::Preempted { by: Some(gang), reason: PreemptReason::Move });
    for one in moved {
        if let Some(held) = draft.allocation_mut(one.held.id) {
            held.state = cause();
        }
    }
    if let Some(job) = draft.job_mut(gang) {
        job.claim = Some(Box::new(claim));
        job.reserved = None;
    }
    for (one, claim) in moved.iter().zip(claims) {
        if let Some(job) = draft.job_mut(one.job.id) {
            job.phase = JobPhase::Stopping(one.held.id);
            job.claim = Some(Box::new(claim));
            job.moving = Some(id);
        }
    }
}

//! Claims: what becomes of them when their victims end. A job that is moved has a claim on its new place, and is among its victims itself.
//!
//! What must stay true: a claim is bound in the entry in which the last of its victims has ended, or given up when a node of it is not what it was, or is in an open window;
//! the job then waits as before. Law 7: the shard that held the cell's newest epoch decided the place, at the preemption; the binding is
//! recorded under the epoch at its own time.

use super::ports;
use crate::draft::Draft;
use crate::leased_binding::LeasedBinding;
use crate::state::State;
use crate::tier::tier_of;
use muster_model::ids::{AllocationId, JobId, TenantId};
use muster_model::mig::PinnedLayout;
use muster_model::{
    Allocation, AllocationState, Claim, DeviceHold, EndCause, HoldMode, Job, JobPhase, Node, Object, Pool, QuotaClass,
    ResourceVec, TaskPlacement, TaskState,
};
use std::collections::{BTreeMap, BTreeSet};

/// What the job of a binding gets as soon as the victims have ended: a new allocation on that place, charged like this.
pub(super) fn on(
    draft: &mut Draft<'_>,
    binding: &LeasedBinding,
    (charge, account): (ResourceVec, Option<TenantId>),
    victims: BTreeSet<AllocationId>,
) -> Claim {
    let epoch = |task: &TaskPlacement| Some((task.node, draft.state.nodes.get(&task.node)?.epoch));
    let node_epochs = binding.tasks.iter().filter_map(epoch).collect();
    Claim {
        allocation: draft.next_allocation(),
        cell: binding.cell,
        cell_epoch: binding.epoch,
        model: binding.model,
        charge,
        account,
        tasks: binding.tasks.clone(),
        node_epochs,
        victims,
        made_ms: draft.now_ms,
    }
}

/// The tasks of an allocation are gone: whoever preempted it is one step nearer to its devices, and so are jobs that are moved together with it.
pub(super) fn victim_ended(draft: &mut Draft<'_>, held: &Allocation) {
    let AllocationState::Stopping(EndCause::Preempted { by: Some(by), .. }) = held.state else { return };
    freed(draft, by, held.id);
    for job in moved_with(draft, held) {
        freed(draft, job, held.id);
    }
}

/// A moved job is queued again: it gets its new place, unless others are still to leave it.
pub(super) fn moved_ended(draft: &mut Draft<'_>, held: &Allocation) {
    let waits = draft.job(held.job).is_some_and(|job| job.phase == JobPhase::Queued && job.moving.is_some());
    if waits {
        freed(draft, held.job, held.id);
    }
}

/// The other jobs of the move that an allocation is stopped by.
fn moved_with(draft: &Draft<'_>, held: &Allocation) -> Vec<JobId> {
    let record = draft.job(held.job).and_then(|job| draft.state.moves.get(&job.moving?));
    let jobs = record.iter().flat_map(|record| record.moved.iter().map(|moved| moved.job));
    jobs.filter(|job| *job != held.job).collect()
}

/// `gone` is in the way of the job's claim no more; the claim is bound when nothing is.
fn freed(draft: &mut Draft<'_>, id: JobId, gone: AllocationId) {
    let waits_for = |job: &Job| job.claim.as_ref().is_some_and(|claim| claim.victims.contains(&gone));
    if !draft.job(id).is_some_and(waits_for) {
        return;
    }
    let Some(claim) = draft.job_mut(id).and_then(|job| job.claim.as_mut()) else { return };
    claim.victims.remove(&gone);
    if claim.victims.is_empty() {
        bind(draft, id);
    }
}

/// Binds the claim, or gives it up when a node of it has changed.
fn bind(draft: &mut Draft<'_>, id: JobId) {
    let (state, now_ms) = (draft.state, draft.now_ms);
    let Some(job) = draft.job_mut(id) else { return };
    let Some(claim) = job.claim.take() else { return };
    let moved = job.moving.is_some();
    let named = job.spec.reservation.clone();
    // Windows that lie ahead were judged at the preemption: one that was planned since finds the job as one that was placed before.
    // A moved job that must not start any more waits as others do.
    if (moved && !job.is_eligible()) || is_in_open_window(state, &claim, named.as_deref()) || !stands(draft, &claim) {
        return;
    }
    // The lease of that moment: the cell may have another shard since the preemption.
    let epoch = draft.state.cells.get(&claim.cell).map_or(claim.cell_epoch, |cell| cell.epoch);
    let Some(job) = draft.job_mut(id) else { return };
    let mut held = Allocation { cell_epoch: epoch, ..begin_attempt(state, job, &claim, now_ms) };
    if moved {
        job.cell = Some(claim.cell);
    } else {
        job.preemptor.attempt = Some(held.attempt);
    }
    held.ports = ports::assign(draft, &held, None);
    draft.put(Object::Allocation(held));
}

/// Whether a node of the claim is in a window that has begun since and that the job may not use.
fn is_in_open_window(state: &State, claim: &Claim, named: Option<&str>) -> bool {
    let windows = claim.tasks.iter().flat_map(|task| state.windows_on(task.node));
    windows.into_iter().any(|window| window.open && !window.is_named_by(named))
}

fn stands(draft: &Draft<'_>, claim: &Claim) -> bool {
    claim.tasks.iter().all(|task| {
        let epoch = claim.node_epochs.get(&task.node);
        draft.node(task.node).is_some_and(|node| {
            let pool = draft.state.pools.get(&node.spec.pool);
            let card = |hold: &DeviceHold| {
                let card = node.spec.gpus.get(usize::from(hold.gpu));
                card.is_some_and(|card| card.withheld.is_none() && pool.is_none_or(|pool| keeps_pin(pool, node, hold)))
            };
            node.accepts_work() && epoch == Some(&node.epoch) && task.devices.iter().all(card)
        })
    })
}

/// Whether a card that the pool has pinned since is asked for one of the layout's slots.
fn keeps_pin(pool: &Pool, node: &Node, hold: &DeviceHold) -> bool {
    if pool.pinned_cards(&node.spec.gpus) >> hold.gpu & 1 == 0 {
        return true;
    }
    let model = node.spec.gpus[usize::from(hold.gpu)].model;
    let slots = |pin: &PinnedLayout| matches!(hold.mode, HoldMode::Mig(place) if pin.slots().contains(&place));
    pool.pinned.get(&model).is_some_and(slots)
}

/// The job's next attempt, on what it is given.
pub(super) fn begin_attempt(state: &State, job: &mut Job, claim: &Claim, now_ms: u64) -> Allocation {
    let attempt = job.attempt.next();
    job.phase = JobPhase::Starting(claim.allocation);
    job.attempt = attempt;
    job.last_allocation = Some(claim.allocation);
    job.bound_ms = Some(now_ms);
    job.started_ms = None;
    job.reserved = None;
    job.bypassed_cards = 0;
    job.growth.begin_attempt();
    job.nodes = claim.tasks.iter().map(|task| task.node).collect();
    let mut held = Allocation {
        id: claim.allocation,
        job: job.id,
        attempt,
        tenant: job.tenant,
        cell: claim.cell,
        cell_epoch: claim.cell_epoch,
        model: claim.model,
        cpu_milli: job.spec.request.cpu_milli,
        memory_mib: job.spec.request.memory_mib,
        charge: claim.charge,
        tasks: claim.tasks.clone(),
        task_states: vec![TaskState::Pending; claim.tasks.len()],
        node_epochs: BTreeMap::clone(&claim.node_epochs),
        state: AllocationState::Active,
        bound_ms: now_ms,
        failures: Vec::new(),
        classes: Default::default(),
        priority: job.spec.priority,
        submitted_ms: job.submitted_ms,
        is_growth: false,
        cleaning: Default::default(),
        cleaned_ms: 0,
        topology: job.spec.topology.to_require(),
        ports: Default::default(),
    };
    held.set_class(QuotaClass::of(claim.account, tier_of(state, Some(job), &held)), now_ms);
    held
}

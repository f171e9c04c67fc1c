//! Claims: what becomes of them when their victims end.
//!
//! What must stay true: a claim is bound in the entry in which the last of its victims has ended, or given up when a node of it is not what it was;
//! the job then waits as before. Law 7: the shard that held the cell's newest epoch decided the place, at the preemption; the binding is
//! recorded under the epoch at its own time.

use crate::draft::Draft;
use muster_model::ids::JobId;
use muster_model::{Allocation, AllocationState, Claim, EndCause, Job, JobPhase, Object, TaskState};
use std::collections::BTreeMap;

/// The tasks of an allocation are gone: whoever preempted it is one step nearer to its devices.
pub(super) fn victim_ended(draft: &mut Draft<'_>, held: &Allocation) {
    let AllocationState::Stopping(EndCause::Preempted { by: Some(by), .. }) = held.state else { return };
    let Some(claim) = draft.job_mut(by).and_then(|job| job.claim.as_mut()) else { return };
    claim.victims.remove(&held.id);
    if claim.victims.is_empty() {
        bind(draft, by);
    }
}

/// Binds the claim, or gives it up when a node of it has changed.
fn bind(draft: &mut Draft<'_>, id: JobId) {
    let now_ms = draft.now_ms;
    let Some(job) = draft.job_mut(id) else { return };
    let Some(claim) = job.claim.take() else { return };
    // Windows were judged at the preemption: one that was planned since finds the job as one that was placed before.
    if !stands(draft, &claim) {
        return;
    }
    // The lease of that moment: the cell may have another shard since the preemption.
    let epoch = draft.state.cells.get(&claim.cell).map_or(claim.cell_epoch, |cell| cell.epoch);
    let Some(job) = draft.job_mut(id) else { return };
    let held = Allocation { cell_epoch: epoch, ..begin_attempt(job, &claim, now_ms) };
    job.preemptor.attempt = Some(held.attempt);
    draft.put(Object::Allocation(held));
}

fn stands(draft: &Draft<'_>, claim: &Claim) -> bool {
    claim.tasks.iter().all(|task| {
        let epoch = claim.node_epochs.get(&task.node);
        draft.node(task.node).is_some_and(|node| {
            let card = |gpu: u16| node.spec.gpus.get(usize::from(gpu)).is_some_and(|card| card.withheld.is_none());
            node.accepts_work() && epoch == Some(&node.epoch) && task.devices.iter().all(|hold| card(hold.gpu))
        })
    })
}

/// The job's next attempt, on what it is given.
pub(super) fn begin_attempt(job: &mut Job, claim: &Claim, now_ms: u64) -> Allocation {
    let attempt = job.attempt.next();
    job.phase = JobPhase::Starting(claim.allocation);
    job.attempt = attempt;
    job.last_allocation = Some(claim.allocation);
    job.bound_ms = Some(now_ms);
    job.started_ms = None;
    job.reserved = None;
    job.bypassed_cards = 0;
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
        classes: Vec::new(),
        priority: job.spec.priority,
        submitted_ms: job.submitted_ms,
    };
    held.set_account(claim.account, now_ms);
    held
}

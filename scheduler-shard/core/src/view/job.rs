//! What a view keeps of a live job: its place in the queue and what it asks for while it waits, hardly anything once it runs.
//!
//! What must stay true: a job that does not wait keeps nothing that only waiting jobs need; a fleet runs far more than wait.

use crate::job_class::{JobClass, JobClasses};
use crate::queue::QueueKey;
use crate::search::Ask;
use muster_model::elastic::GROWTH_ENDS_MAX;
use muster_model::{
    AllocationId, Attempt, CellId, Claim, GpuModel, Job, JobId, JobPhase, Movable, Reservation, TenantId,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A live job.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) id: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) cell: Option<CellId>,
    pub(crate) phase: JobPhase,
    pub(crate) attempt: Attempt,
    pub(crate) queue_key: QueueKey,
    /// What it asks for; none when it does not wait for devices.
    pub(crate) class: Option<Arc<JobClass>>,
    /// How it may be moved, with what it asks for, as long as it lives; none when it may not.
    pub(crate) movable: Option<Arc<MayMove>>,
    /// How long it may run at most once it has started, until its tasks are killed; none when nothing bounds it.
    pub(crate) lasts_ms: Option<u64>,
    pub(crate) routed_ms: u64,
    /// While it waits.
    pub(crate) visited: BTreeSet<CellId>,
    /// While it waits.
    pub(crate) requeue_reason: Option<String>,
    /// While it waits.
    pub(crate) reserved: Option<Arc<Reservation>>,
    /// Cards that jobs behind it have started on, as far as that is recorded.
    pub(crate) bypassed_cards: u64,
    /// When it made its newest checkpoint, and what a restart costs it, in seconds of the whole gang.
    pub(crate) checkpoint_ms: Option<u64>,
    pub(crate) restart_cost_s: u64,
    /// How large a checkpoint is.
    pub(crate) checkpoint_bytes: u64,
    pub(crate) priority_class: Option<Arc<str>>,
    /// How often it has been preempted.
    pub(crate) preemptions: u32,
    /// It may not preempt any more.
    pub(crate) barred: bool,
    /// What it may take to stop when it is preempted, and its time limit: estimates need them.
    pub(crate) preempt_grace_ms: u64,
    pub(crate) time_limit_s: Option<u64>,
    /// What it gets when those that it preempts have ended.
    pub(crate) claim: Option<Arc<Claim>>,
    /// How it may grow now; none where it may not.
    pub(crate) may_grow: Option<Arc<MayGrow>>,
}

/// What moving a job needs to know of it.
#[derive(Clone, Debug)]
pub(crate) struct MayMove {
    pub(crate) how: Movable,
    pub(crate) class: Arc<JobClass>,
}

/// What growing a gang needs to know of it.
#[derive(Clone, Debug)]
pub(crate) struct MayGrow {
    /// One unit of it.
    pub(crate) class: Arc<JobClass>,
    /// Tasks now, and those that it may still get.
    pub(crate) tasks: u32,
    pub(crate) more: u32,
    pub(crate) minimum: AllocationId,
    /// When it may grow next.
    pub(crate) next_ms: u64,
}

impl MayGrow {
    /// Of a job that runs and has fewer tasks than it can use.
    fn of(job: &Job, classes: &mut JobClasses) -> Option<Self> {
        job.spec.elastic?;
        let JobPhase::Running(minimum) = job.phase else { return None };
        let tasks = job.spec.tasks + job.growth.tasks;
        let more = job.spec.tasks_max().saturating_sub(tasks);
        let wanted = more > 0 && !job.cancelled && !job.requeue_asked && job.growth.ends < GROWTH_ENDS_MAX;
        wanted.then(|| {
            let whole = classes.of(&job.spec);
            let class = classes.known_as(whole.with(job.spec.growth_unit(), whole.topology.required));
            let next_ms = job.growth.next_ms(job.started_ms.unwrap_or(0));
            MayGrow { class, tasks, more, minimum, next_ms }
        })
    }
}

impl Known {
    /// What it asks of the fleet when it would start at `now_ms`.
    pub(crate) fn ask<'a>(
        &self,
        class: &'a JobClass,
        (cell, model): (CellId, Option<GpuModel>),
        now_ms: u64,
    ) -> Ask<'a> {
        let over_ms = now_ms.saturating_add(class.stays_at_most_ms());
        Ask { over_ms, ends_ms: over_ms, job: Some(self.id), ..Ask::lasting(cell, self.tenant, class, model) }
    }

    /// What to keep of `job`.
    pub(super) fn of(job: Job, classes: &mut JobClasses) -> Self {
        let movable = job.spec.movable.filter(|_| !job.cancelled);
        let movable = movable.map(|how| Arc::new(MayMove { how, class: classes.of(&job.spec) }));
        let lasts_ms = job.spec.time_limit_s.map(|limit_s| 1_000 * limit_s.saturating_add(job.spec.grace_s));
        let waits = job.is_eligible() && job.claim.is_none();
        let may_grow = MayGrow::of(&job, classes).map(Arc::new);
        Known {
            may_grow,
            id: job.id,
            tenant: job.tenant,
            cell: job.cell,
            queue_key: QueueKey::of(&job),
            class: waits.then(|| classes.of(&job.spec)),
            phase: job.phase,
            attempt: job.attempt,
            movable,
            lasts_ms,
            routed_ms: job.routed_ms,
            visited: if waits { job.visited } else { BTreeSet::new() },
            requeue_reason: job.requeue_reason.filter(|_| waits),
            reserved: job.reserved.filter(|_| waits).map(Arc::new),
            bypassed_cards: job.bypassed_cards,
            checkpoint_ms: job.checkpoint_ms,
            restart_cost_s: job.spec.preemption.restart_cost_s,
            checkpoint_bytes: job.spec.preemption.checkpoint_bytes,
            priority_class: job.spec.priority_class.as_deref().map(Arc::from),
            preemptions: job.preemptions,
            barred: job.preemptor.is_barred(),
            preempt_grace_ms: 1_000 * job.spec.preemption.grace_s(job.spec.grace_s),
            time_limit_s: job.spec.time_limit_s,
            claim: job.claim.map(|claim| Arc::new(*claim)),
        }
    }

    /// Whether it may be placed, now or by a move, without a card.
    pub(super) fn needs_no_card(&self) -> bool {
        let movable = self.movable.as_ref().map(|movable| &movable.class);
        self.class.iter().chain(movable).any(|class| class.needs_no_card())
    }

    /// Whether the starvation guard protects it, as far as its count goes.
    pub(super) fn was_bypassed_enough(&self) -> bool {
        let enough = self.class.as_deref().and_then(JobClass::guarded_after_cards);
        enough.is_some_and(|enough| self.bypassed_cards >= enough)
    }

    /// Whether `new` waits in the same place of the same queue, whatever else was recorded of it.
    pub(super) fn stands_as(&self, new: &Known) -> bool {
        let place = |job: &Known| (job.tenant, job.cell, job.queue_key, job.attempt);
        self.waits() && place(self) == place(new) && self.class == new.class
    }

    /// Whether it waits for devices.
    pub(crate) fn waits(&self) -> bool {
        self.class.is_some()
    }
}

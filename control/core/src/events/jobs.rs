//! Jobs in the log: submitted, changed, preempting, waiting again, over.
//!
//! What must stay true: a job is over, or waits again, after its devices came back.

use super::event::{Amounts, DemoteReason, DropWhy, Ended, Event, Kind, Why};
use super::seen::{Asks, HoldSeen, JobSeen};
use super::{Follower, Told};
use crate::plan::charge_of;
use crate::routing::models_of;
use muster_model::ids::{AllocationId, JobId, TenantId};
use muster_model::priority_class::DEFAULT_PRIORITY_CLASS;
use muster_model::task::TaskEnd;
use muster_model::{Claim, EndCause, Job, JobPhase, Outcome, ResourceVec};
use std::collections::BTreeSet;

impl Follower {
    /// A job that was there before the log began. If it holds devices, that is told after it.
    pub(super) fn begin_job(&mut self, job: &Job, told: &mut Told) {
        let mut seen = self.seen(job);
        seen.ready &= job.phase.allocation().is_none();
        self.tell_submit(job, &seen, true, told);
        self.jobs.insert(job.id, seen);
    }

    /// A claim that was there before the log began is told as the allocation that it becomes.
    pub(super) fn begin_claim(&mut self, job: &Job, told: &mut Told) {
        let Some(claim) = &job.claim else { return };
        told.say(Event::Bind {
            alloc: claim.allocation,
            job: job.id,
            attempt: job.attempt.next(),
            tenant: self.path(job.tenant),
            tasks: claim.tasks.len() as u32,
            charge: Amounts(claim.charge),
            kind: if claim.account.is_some() { Kind::Guaranteed } else { Kind::Burst },
            account: self.account_path(claim.account),
            for_preempt: None,
            cell: claim.cell,
            cooldown_ms: None,
            since: Some(claim.made_ms),
            elastic: false,
        });
        if let Some(seen) = self.jobs.get_mut(&job.id) {
            seen.hold = Some(HoldSeen { id: claim.allocation, account: claim.account, bound: true });
            seen.waits = false;
        }
    }

    pub(super) fn job_put(&mut self, job: &Job, told: &mut Told) {
        let now = self.seen(job);
        let Some(before) = self.jobs.remove(&job.id) else {
            self.tell_submit(job, &now, false, told);
            self.jobs.insert(job.id, now);
            return;
        };
        // What it asks for is known as it was told: a change of what runs is told when it waits again.
        let JobSeen { asks: known, held, growth, hold, waits, ready, claims_lost, .. } = before.clone();
        let asks = now.asks.clone();
        let cancelled = now.cancelled && !before.cancelled;
        let is_ready = now.ready;
        self.jobs.insert(job.id, JobSeen { asks: known, held, growth, hold, waits, ready, claims_lost, ..now });
        self.tell_update(job.id, &asks, told);
        if job.checkpoint_ms > before.checkpoint_ms {
            told.say(Event::Checkpoint { job: job.id });
        }
        if cancelled {
            told.say(Event::Cancel { job: job.id });
        }
        self.claim_changed(job, told);
        if job.phase == JobPhase::Queued {
            // The release of its last attempt comes first, wherever the change stands in the entry.
            self.tell_growth_gone(job, told);
            if let Some(held) = held {
                self.tell_release(held, why_again(job, &before, held), told);
            }
            self.waits_again(job.id, is_ready, told);
            self.tell_update(job.id, &asks, told);
        }
    }

    /// What is left of its growth goes with the attempt.
    fn tell_growth_gone(&mut self, job: &Job, told: &mut Told) {
        let left = self.jobs.get(&job.id).map(|seen| seen.growth.clone()).unwrap_or_default();
        for part in left {
            self.tell_part_gone(part, how_part_ended(job, part), told);
        }
    }

    fn waits_again(&mut self, id: JobId, ready: bool, told: &mut Told) {
        let Some(seen) = self.jobs.get_mut(&id) else { return };
        if seen.hold.as_ref().is_some_and(|hold| hold.bound) {
            return;
        }
        if !std::mem::replace(&mut seen.waits, true) {
            told.say(Event::Requeue { job: id });
        }
        if std::mem::replace(&mut seen.ready, ready) != ready {
            told.say(Event::Ready { job: id, ready });
        }
    }

    pub(super) fn job_over(&mut self, job: &Job, told: &mut Told) {
        let Some(seen) = self.jobs.get(&job.id).cloned() else { return };
        let (state, why) = how_it_ended(job);
        if job.cancelled && !seen.cancelled {
            told.say(Event::Cancel { job: job.id });
        }
        self.tell_growth_gone(job, told);
        let unused = seen.hold.filter(|hold| hold.bound).map(|hold| hold.id);
        for held in seen.held.into_iter().chain(unused) {
            self.tell_release(held, why, told);
        }
        told.say(Event::Finish { job: job.id, state });
        self.jobs.remove(&job.id);
    }

    /// A claim was made, changed, bound or given up.
    fn claim_changed(&mut self, job: &Job, told: &mut Told) {
        let hold = self.jobs.get(&job.id).and_then(|seen| seen.hold.clone());
        match (hold, &job.claim) {
            (None, Some(claim)) => self.tell_preempt(job, claim, told),
            (Some(hold), Some(claim)) if hold.account != claim.account => {
                if claim.account.is_some() && told.charge_hold(hold.id, self.account_path(claim.account)) {
                    self.set_hold(job.id, Some(HoldSeen { account: claim.account, ..hold }));
                    return;
                }
                let reason = self.why_demoted(job.tenant, hold.account);
                let (alloc, preempt) = if hold.bound { (Some(hold.id), None) } else { (None, Some(hold.id)) };
                told.say(Event::Demote { alloc, preempt, reason });
                self.set_hold(job.id, Some(HoldSeen { account: claim.account, ..hold }));
            }
            // It is bound: the change of the allocation says so.
            (Some(hold), None) if job.phase.allocation() == Some(hold.id) => {}
            (Some(hold), None) => {
                self.set_hold(job.id, None);
                if hold.bound {
                    if let Some(seen) = self.jobs.get_mut(&job.id) {
                        seen.claims_lost += 1;
                    }
                    told.say(Event::Release { alloc: hold.id, why: Why::Lost });
                } else if !job.cancelled {
                    told.say(Event::DropHold { preempt: hold.id, why: DropWhy::Lost });
                }
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    pub(super) fn set_hold(&mut self, id: JobId, hold: Option<HoldSeen>) {
        if let Some(seen) = self.jobs.get_mut(&id) {
            seen.hold = hold;
        }
    }

    fn tell_preempt(&mut self, job: &Job, claim: &Claim, told: &mut Told) {
        told.say(Event::Preempt {
            preempt: claim.allocation,
            job: job.id,
            charge: Amounts(claim.charge),
            account: self.account_path(claim.account),
            victims: self.taken.remove(&job.id).unwrap_or_default(),
        });
        self.set_hold(job.id, Some(HoldSeen { id: claim.allocation, account: claim.account, bound: false }));
    }

    /// Why `account` does not pay for `tenant` any more.
    pub(super) fn why_demoted(&self, tenant: TenantId, account: Option<TenantId>) -> DemoteReason {
        // Where the state marks accounts as unmet, a mark on this one is the third reason.
        let mut above = std::iter::successors(Some(tenant), |id| self.tenants.get(id)?.parent);
        match account {
            Some(account) if above.any(|id| id == account) => DemoteReason::GuaranteeLowered,
            _ => DemoteReason::TenantMoved,
        }
    }

    fn tell_submit(&self, job: &Job, seen: &JobSeen, began: bool, told: &mut Told) {
        let Asks { tenant, priority, class, tasks, charge, movable } = seen.asks.clone();
        told.say(Event::Submit {
            job: job.id,
            tenant: self.path(tenant),
            priority,
            class: class.unwrap_or_else(|| DEFAULT_PRIORITY_CLASS.to_owned()),
            tasks,
            charge: Amounts(charge),
            movable,
            ready: seen.ready,
            // A task of an array is as old as the array.
            since: (began || job.submitted_ms < told.t).then_some(job.submitted_ms),
            preempted: if began { job.preemptions } else { 0 },
        });
    }

    /// Of a job that waits and holds nothing.
    fn tell_update(&mut self, job: JobId, asks: &Asks, told: &mut Told) {
        let Some(seen) = self.jobs.get_mut(&job).filter(|seen| seen.waits && seen.hold.is_none()) else { return };
        if seen.asks == *asks {
            return;
        }
        seen.asks = asks.clone();
        let Asks { tenant, priority, class: _, tasks, charge, movable } = asks.clone();
        told.say(Event::Update { job, tenant: self.path(tenant), priority, tasks, charge: Amounts(charge), movable });
    }

    fn seen(&self, job: &Job) -> JobSeen {
        let spec = &job.spec;
        JobSeen {
            asks: Asks {
                tenant: job.tenant,
                priority: spec.priority,
                class: spec.priority_class.clone(),
                tasks: spec.tasks,
                charge: self.preferred_charge(job),
                movable: spec.movable.is_some(),
            },
            held: None,
            growth: BTreeSet::new(),
            hold: None,
            waits: true,
            ready: is_ready(job),
            cancelled: job.cancelled,
            preemptions: job.preemptions,
            failures: (job.failures, job.start_faults),
            grace_ms: 1_000 * spec.preemption.grace_s(spec.grace_s),
            checkpoint_ms: job.checkpoint_ms,
            claims_lost: 0,
        }
    }

    /// On the first model that it accepts and that the fleet has.
    fn preferred_charge(&self, job: &Job) -> ResourceVec {
        let models = models_of(&job.spec);
        let there = models.iter().find(|model| model.is_some_and(|model| self.capacity.gpu(model).0 > 0));
        charge_of(&job.spec, there.or(models.first()).copied().flatten())
    }
}

/// Whether a pending job waits for devices alone.
fn is_ready(job: &Job) -> bool {
    !job.cancelled && (job.phase != JobPhase::Queued || job.is_eligible())
}

/// Why an attempt ended whose job waits again.
pub(super) fn why_again(job: &Job, before: &JobSeen, held: AllocationId) -> Why {
    let record = job.attempts.iter().rev().find(|record| record.allocation == held);
    let has = |end: TaskEnd| record.is_some_and(|record| record.ends.iter().any(|count| count.end == end));
    // A fault of a card may be the first of a new count.
    let faulty = has(TaskEnd::DeviceFault { by_job: false });
    if has(TaskEnd::Fenced) {
        Why::Lost
    } else if job.preemptions > before.preemptions {
        Why::Preempted
    } else if (job.failures, job.start_faults) != before.failures || faulty {
        Why::Failed
    } else {
        Why::Lost
    }
}

/// The same where the attempt was ended by `cause` as far as that was told.
pub(super) fn why_again_after(job: &Job, before: &JobSeen, held: AllocationId, cause: Option<&EndCause>) -> Why {
    match (why_again(job, before, held), cause) {
        (Why::Lost, Some(EndCause::Requeued | EndCause::Window { .. })) => Why::Cancelled,
        (why, _) => why,
    }
}

pub(super) fn how_it_ended(job: &Job) -> (Ended, Why) {
    match &job.phase {
        JobPhase::Finished(Outcome::Completed) => (Ended::Completed, Why::Finished),
        JobPhase::Finished(Outcome::Failed { .. }) => (Ended::Failed, Why::Failed),
        JobPhase::Finished(Outcome::TimedOut) => (Ended::Timeout, Why::Timeout),
        _ => (Ended::Cancelled, Why::Cancelled),
    }
}

/// How a part of growth ended by itself, if its job says so.
pub(super) fn how_part_ended(job: &Job, part: AllocationId) -> Option<Why> {
    let end = job.growth.last_end.as_ref().filter(|end| end.allocation == part)?;
    Some(if end.reason.is_empty() { Why::Finished } else { Why::Failed })
}

//! Allocations in the log: bound, promoted, demoted, preempted, released.
//!
//! What must stay true: the reason of a release is what the entry makes of the job, which its own change says; a preempted attempt is told with the
//! claim of the job that gets its devices.

use super::event::{Amounts, Event, Kind, Victim, Why};
use super::jobs::{how_it_ended, how_part_ended, why_again_after};
use super::seen::HeldSeen;
use super::{Follower, Told};
use muster_model::ids::{AllocationId, Attempt, JobId};
use muster_model::{Allocation, AllocationState, Change, EndCause, Job, Object, Pool};

impl Follower {
    /// An allocation that was there before the log began. One that is being preempted holds what the claim of another stands for.
    pub(super) fn begin_held(&mut self, held: &Allocation, told: &mut Told) {
        if held.pays() {
            self.tell_bind(held, true, told);
        }
    }

    pub(super) fn allocation_put(&mut self, held: &Allocation, told: &mut Told) {
        let cause = match &held.state {
            AllocationState::Active => None,
            AllocationState::Stopping(cause) => Some(cause.clone()),
        };
        let Some(seen) = self.held.get_mut(&held.id) else {
            let left_out = !held.pays();
            if !left_out {
                self.tell_bind(held, false, told);
            }
            return;
        };
        let (account, paid) = (std::mem::replace(&mut seen.account, held.account()), seen.pays);
        (seen.pays, seen.cause) = (held.pays(), cause);
        if paid && !held.pays() {
            self.taken_by(held);
        } else if account != held.account() {
            self.tell_account(held, account, told);
        }
    }

    /// Notes a victim for the preemption that takes it.
    fn taken_by(&mut self, held: &Allocation) {
        let AllocationState::Stopping(EndCause::Preempted { by: Some(by), reason }) = held.state else { return };
        let grace_ms = self.jobs.get(&held.job).map_or(0, |seen| seen.grace_ms);
        let victim = Victim { alloc: held.id, job: held.job, reason, grace_ms };
        self.taken.entry(by).or_default().push(victim);
    }

    fn tell_account(&self, held: &Allocation, before: Option<muster_model::ids::TenantId>, told: &mut Told) {
        if before.is_some() {
            let reason = self.why_demoted(held.tenant, before);
            told.say(Event::Demote { alloc: Some(held.id), preempt: None, reason });
        }
        if let Some(account) = held.account() {
            told.say(Event::Promote { alloc: held.id, account: self.path(account) });
        }
    }

    fn tell_bind(&mut self, held: &Allocation, began: bool, told: &mut Told) {
        let hold = self.jobs.get(&held.job).and_then(|seen| seen.hold.clone()).filter(|hold| hold.id == held.id);
        let cause = match &held.state {
            AllocationState::Stopping(cause) if began => Some(cause.clone()),
            _ => None,
        };
        let seen = HeldSeen { job: held.job, account: held.account(), pays: true, cause, is_growth: held.is_growth };
        self.held.insert(held.id, seen);
        let job = self.jobs.get_mut(&held.job);
        let claims_lost = job.as_ref().map_or(0, |job| job.claims_lost);
        if held.is_growth {
            job.into_iter().for_each(|job| job.growth.extend([held.id]));
        } else if let Some(job) = job {
            (job.held, job.hold, job.waits) = (Some(held.id), None, false);
            if began && !job.ready {
                job.ready = true;
                told.say(Event::Ready { job: held.job, ready: true });
            }
        }
        // A claim from before the log is in it already.
        if hold.as_ref().is_some_and(|hold| hold.bound) {
            return;
        }
        told.say(Event::Bind {
            alloc: held.id,
            job: held.job,
            attempt: Attempt(held.attempt.0 + claims_lost),
            tenant: self.path(held.tenant),
            tasks: held.tasks.len() as u32,
            charge: Amounts(held.charge),
            kind: if held.account().is_some() { Kind::Guaranteed } else { Kind::Burst },
            account: self.account_path(held.account()),
            for_preempt: hold.map(|hold| hold.id),
            cell: held.cell,
            cooldown_ms: Some(self.cool_down_of(held)).filter(|ms| *ms != 1_000 * Pool::standard_rules().cool_down_s),
            since: began.then_some(held.bound_ms),
            elastic: held.is_growth,
        });
    }

    /// The longest of the pools that it stands in.
    fn cool_down_of(&self, held: &Allocation) -> u64 {
        let pools = held.tasks.iter().filter_map(|task| self.nodes.get(&task.node));
        pools.map(|node| self.cool_down_ms(&node.pool)).max().unwrap_or(0)
    }

    /// The devices of an allocation came back; `changes` from `at` on are those that follow.
    pub(super) fn allocation_gone(&mut self, id: AllocationId, (changes, at): (&[Change], usize), told: &mut Told) {
        let Some(seen) = self.held.get(&id) else { return };
        let (job, cause, is_growth) = (seen.job, seen.cause.clone(), seen.is_growth);
        if is_growth {
            return self.tell_part_gone(id, ends_in(changes, job, id), told);
        }
        let Some(before) = self.jobs.get(&job) else { return };
        let (after, earlier) = (&changes[at..], &changes[..at]);
        let next = after.iter().chain(earlier).find_map(|change| of_job(change, job, id));
        let why = match next {
            Some(Next::Over(job)) => how_it_ended(job).1,
            Some(Next::Again(job)) => why_again_after(job, before, id, cause.as_ref()),
            None => Why::Lost,
        };
        self.tell_release(id, why, told);
    }

    /// The devices of a part of growth came back. `ended`: how it ended by itself, as far as its job says.
    pub(super) fn tell_part_gone(&mut self, id: AllocationId, ended: Option<Why>, told: &mut Told) {
        let Some(seen) = self.held.get(&id) else { return };
        let why = match (&seen.cause, ended) {
            (Some(EndCause::Preempted { .. }), _) => Why::Preempted,
            (_, Some(why)) => why,
            (Some(EndCause::NodeLost { .. }), None) => Why::Lost,
            (Some(EndCause::RankFailed { .. }), None) => Why::Failed,
            (Some(EndCause::TimeLimit), None) => Why::Timeout,
            (_, None) => Why::Cancelled,
        };
        self.tell_release(id, why, told);
    }

    pub(super) fn tell_release(&mut self, id: AllocationId, why: Why, told: &mut Told) {
        let job = self.held.remove(&id).map(|seen| seen.job);
        if let Some(seen) = job.and_then(|job| self.jobs.get_mut(&job))
            && !seen.growth.remove(&id)
        {
            seen.held = None;
        }
        told.say(Event::Release { alloc: id, why });
    }
}

/// How a part of growth ended by itself, as its job says in the same entry.
fn ends_in(changes: &[Change], id: JobId, part: AllocationId) -> Option<Why> {
    changes.iter().find_map(|change| {
        let job = match change {
            Change::Retire(job) if job.id == id => job,
            Change::Put(object) => match &**object {
                Object::Job(job) if job.id == id => job,
                _ => return None,
            },
            _ => return None,
        };
        how_part_ended(job, part)
    })
}

/// What becomes of a job whose attempt ended.
enum Next<'a> {
    Over(&'a Job),
    Again(&'a Job),
}

fn of_job(change: &Change, id: JobId, held: AllocationId) -> Option<Next<'_>> {
    match change {
        Change::Retire(job) if job.id == id => Some(Next::Over(job)),
        Change::Put(object) => match &**object {
            Object::Job(job) if job.id == id && job.phase.allocation() != Some(held) => Some(Next::Again(job)),
            _ => None,
        },
        _ => None,
    }
}

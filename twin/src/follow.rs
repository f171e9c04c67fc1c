//! Follows what the state machine does: keeps the ledger and the gauges in step with its changes, and has the nodes react.

use crate::events::{Event, Events};
use crate::fairness::Watch;
use crate::gathered::{BEGIN_MS, Kept};
use crate::input::Options;
use crate::ledger::Ledger;
use crate::measure::Measure;
use crate::nodes::NodeModel;
use crate::reservations::Told;
use muster_model::capacity::Capacity;
use muster_model::{Allocation, AllocationId, AllocationState, Change, Job, JobId, JobPhase, Key, Object, Outcome};
use std::collections::{BTreeMap, BTreeSet};

/// The records of a replay.
pub(crate) struct Records {
    pub(crate) ledger: Ledger,
    pub(crate) measure: Measure,
    /// None where there are no guarantees.
    pub(crate) watch: Option<Watch>,
    pub(crate) nodes: NodeModel,
    checkpoint_ms: u64,
    window_ms: u64,
    pub(crate) kept: Kept,
    /// Jobs that the state machine holds.
    pub(crate) live: u64,
    /// Allocations that were told to stop.
    stopping: BTreeSet<AllocationId>,
    /// Units of the allocations whose tasks all run.
    running: BTreeMap<AllocationId, u64>,
}

impl Records {
    pub(crate) fn new(
        ledger: Ledger,
        (measure, watch): (Measure, Option<Watch>),
        options: &Options,
        window_ms: u64,
    ) -> Self {
        Records {
            ledger,
            measure,
            watch,
            nodes: options.nodes,
            checkpoint_ms: 1_000 * options.checkpoint_s,
            window_ms,
            kept: Kept::default(),
            live: 0,
            stopping: BTreeSet::new(),
            running: BTreeMap::new(),
        }
    }

    /// A submission was accepted.
    pub(crate) fn accepted(&mut self, now_ms: u64, id: JobId, index: usize) {
        self.ledger.accepted(id, index);
        self.live += 1;
        self.waits(now_ms, index);
    }

    fn waits(&mut self, now_ms: u64, index: usize) {
        let account = &mut self.ledger.jobs[index];
        if !account.waits {
            account.waits = true;
            self.measure.waiting_jobs.add(now_ms, 1);
            self.measure.waiting_units.add(now_ms, account.units.0);
            if let Some(watch) = &mut self.watch {
                watch.waits(now_ms, account.tenant, account.units.0);
            }
        }
    }

    fn waits_no_more(&mut self, now_ms: u64, index: usize) {
        let account = &mut self.ledger.jobs[index];
        if account.waits {
            account.waits = false;
            self.measure.waiting_jobs.sub(now_ms, 1);
            self.measure.waiting_units.sub(now_ms, account.units.0);
            if let Some(watch) = &mut self.watch {
                watch.waits_no_more(now_ms, account.tenant, account.units.0);
            }
        }
    }

    /// Takes over one change.
    pub(crate) fn follow(&mut self, now_ms: u64, change: &Change, capacity: &Capacity, events: &mut Events) {
        match change {
            Change::Put(object) => match &**object {
                Object::Allocation(held) => self.allocation_put(now_ms, held, events),
                Object::Job(job) => self.job_put(now_ms, job, capacity),
                _ => {}
            },
            Change::Delete(Key::Allocation(id)) => self.released(now_ms, *id),
            Change::Delete(_) | Change::Audit(_) => {}
            Change::Retire(job) => self.retired(now_ms, job),
        }
    }

    fn allocation_put(&mut self, now_ms: u64, held: &Allocation, events: &mut Events) {
        let index = self.ledger.index_of(held.job);
        if self.ledger.holds.insert(held.id, index).is_none() {
            // The wait ends first: a tenant of which more waits below its floor goes on waiting.
            self.waits_no_more(now_ms, index);
            if let Some(watch) = &mut self.watch {
                watch.uses(now_ms, self.ledger.jobs[index].tenant, held.charge.gpu_total().0);
            }
            let account = &mut self.ledger.jobs[index];
            let first = account.bound_ms.is_none();
            if first {
                (account.bound_ms, account.bound_covered) = (Some(now_ms), held.account().is_some());
            }
            account.held_units = held.charge.gpu_total();
            (account.attempt_ms, account.started_ms, account.kept_ms) = (now_ms, None, None);
            let (tenant, units, counts) = (account.tenant, account.held_units, first && !account.warm);
            self.measure.take(now_ms, tenant, units);
            if counts {
                self.measure.placed(held);
            }
            events.push(now_ms + self.nodes.start_delay_ms, Event::Started(held.id));
        }
        if matches!(held.state, AllocationState::Stopping(_)) && self.stopping.insert(held.id) {
            self.runs_no_more(now_ms, held.id);
            let mut grace_ms = 0;
            if !held.pays() {
                let account = &mut self.ledger.jobs[index];
                account.preempted(now_ms, self.checkpoint_ms);
                grace_ms = account.grace_ms;
                self.kept.victims += 1;
                if let Some(watch) = &mut self.watch {
                    watch.uses_no_more(now_ms, account.tenant, account.held_units.0);
                }
            }
            events.push(now_ms + grace_ms + self.nodes.stop_delay_ms, Event::Stopped(held.id));
        }
    }

    fn job_put(&mut self, now_ms: u64, job: &Job, capacity: &Capacity) {
        match job.phase {
            JobPhase::Running(id) if !self.running.contains_key(&id) => {
                let units = self.ledger.job(job.id).held_units.0;
                self.running.insert(id, units);
                let index = self.ledger.index_of(job.id);
                self.ledger.jobs[index].started_ms = Some(now_ms);
                self.measure.running.add(now_ms, units);
            }
            JobPhase::Queued => {
                let index = self.ledger.index_of(job.id);
                self.waits(now_ms, index);
                let account = &mut self.ledger.jobs[index];
                if let Some(reserved) = job.reserved.as_ref().filter(|_| account.bound_ms.is_none()) {
                    let start_ms = reserved.start_ms.saturating_sub(BEGIN_MS);
                    let account_for = |model| capacity.account_for(job.tenant, &job.spec.charge_on(model));
                    let covered = || job.spec.possible_models().any(|model| account_for(model).is_some());
                    account.told = Some(Told::again(account.told, now_ms, start_ms, covered));
                }
            }
            _ => {}
        }
    }

    fn runs_no_more(&mut self, now_ms: u64, id: AllocationId) {
        if let Some(units) = self.running.remove(&id) {
            self.measure.running.sub(now_ms, units);
        }
    }

    fn released(&mut self, now_ms: u64, id: AllocationId) {
        self.runs_no_more(now_ms, id);
        self.stopping.remove(&id);
        if let Some(index) = self.ledger.holds.remove(&id) {
            let account = &self.ledger.jobs[index];
            self.measure.give(now_ms, account.tenant, account.held_units);
            let units = u128::from(account.held_units.0);
            if let Some(kept_ms) = account.kept_ms {
                let within = |ms: u64| ms.min(self.window_ms);
                self.kept.lost += units * u128::from(now_ms - kept_ms);
                self.kept.lost_in_window += units * u128::from(within(now_ms) - within(kept_ms));
                self.kept.saved += units * u128::from(within(kept_ms) - within(account.attempt_ms));
            } else if let Some(watch) = &mut self.watch {
                watch.uses_no_more(now_ms, account.tenant, account.held_units.0);
            }
        }
    }

    fn retired(&mut self, now_ms: u64, job: &Job) {
        let index = self.ledger.index_of(job.id);
        self.waits_no_more(now_ms, index);
        self.live -= 1;
        if let JobPhase::Finished(outcome) = &job.phase {
            if *outcome == Outcome::Completed {
                let account = &self.ledger.jobs[index];
                let held_ms = now_ms.min(self.window_ms).saturating_sub(account.attempt_ms);
                self.kept.finished += u128::from(account.held_units.0) * u128::from(held_ms);
            }
            self.ledger.ended(job.id, outcome, now_ms);
        }
    }
}

//! Follows what the state machine does: keeps the ledger and the gauges in step with its changes, and has the nodes react.

use crate::events::{Event, Events};
use crate::ledger::Ledger;
use crate::measure::Measure;
use crate::nodes::NodeModel;
use muster_model::{Allocation, AllocationId, AllocationState, Change, Job, JobId, JobPhase, Key, Object};
use std::collections::{BTreeMap, BTreeSet};

/// The records of a replay.
pub(crate) struct Records {
    pub(crate) ledger: Ledger,
    pub(crate) measure: Measure,
    pub(crate) nodes: NodeModel,
    /// Jobs that the state machine holds.
    pub(crate) live: u64,
    /// Allocations that were told to stop.
    stopping: BTreeSet<AllocationId>,
    /// Units of the allocations whose tasks all run.
    running: BTreeMap<AllocationId, u64>,
}

impl Records {
    pub(crate) fn new(ledger: Ledger, measure: Measure, nodes: NodeModel) -> Self {
        Records { ledger, measure, nodes, live: 0, stopping: BTreeSet::new(), running: BTreeMap::new() }
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
        }
    }

    fn waits_no_more(&mut self, now_ms: u64, index: usize) {
        let account = &mut self.ledger.jobs[index];
        if account.waits {
            account.waits = false;
            self.measure.waiting_jobs.sub(now_ms, 1);
            self.measure.waiting_units.sub(now_ms, account.units.0);
        }
    }

    /// Takes over one change.
    pub(crate) fn follow(&mut self, now_ms: u64, change: &Change, events: &mut Events) {
        match change {
            Change::Put(object) => match &**object {
                Object::Allocation(held) => self.allocation_put(now_ms, held, events),
                Object::Job(job) => self.job_put(now_ms, job),
                _ => {}
            },
            Change::Delete(Key::Allocation(id)) => self.released(now_ms, *id),
            Change::Delete(_) => {}
            Change::Retire(job) => self.retired(now_ms, job),
        }
    }

    fn allocation_put(&mut self, now_ms: u64, held: &Allocation, events: &mut Events) {
        let index = self.ledger.index_of(held.job);
        if self.ledger.holds.insert(held.id, index).is_none() {
            self.waits_no_more(now_ms, index);
            let account = &mut self.ledger.jobs[index];
            let first = account.bound_ms.is_none();
            account.bound_ms.get_or_insert(now_ms);
            account.held_units = held.charge.gpu_total();
            let (tenant, units, counts) = (account.tenant, account.held_units, first && !account.warm);
            self.measure.take(now_ms, tenant, units);
            if counts {
                self.measure.placed(held);
            }
            events.push(now_ms + self.nodes.start_delay_ms, Event::Started(held.id));
        }
        if matches!(held.state, AllocationState::Stopping(_)) && self.stopping.insert(held.id) {
            self.runs_no_more(now_ms, held.id);
            events.push(now_ms + self.nodes.stop_delay_ms, Event::Stopped(held.id));
        }
    }

    fn job_put(&mut self, now_ms: u64, job: &Job) {
        match job.phase {
            JobPhase::Running(id) if !self.running.contains_key(&id) => {
                let units = self.ledger.job(job.id).held_units.0;
                self.running.insert(id, units);
                self.measure.running.add(now_ms, units);
            }
            JobPhase::Queued => self.waits(now_ms, self.ledger.index_of(job.id)),
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
        }
    }

    fn retired(&mut self, now_ms: u64, job: &Job) {
        let index = self.ledger.index_of(job.id);
        self.waits_no_more(now_ms, index);
        self.live -= 1;
        if let JobPhase::Finished(outcome) = &job.phase {
            self.ledger.ended(job.id, outcome, now_ms);
        }
    }
}

//! What an explanation changes on its copy of the view, to see whether a job would start then.
//!
//! What must stay true: each change does what the same change of the replicated state would do, and wakes whom it would wake.

use super::{Known, NextTasks, View};
use crate::job_class::JobClass;
use crate::queue::CellQueue;
use crate::queue::backoff::Backoff;
use muster_model::capacity::TenantUse;
use muster_model::{Allocation, AllocationId, CellId, JobId, Key, Node, NodeHealth, NodeId, NodeNotes, TenantId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl View {
    /// A copy in which of `cell`'s queue only these jobs wait, and none of other cells' queues.
    pub(crate) fn copy_with_queue(&self, cell: CellId, waiting: &BTreeSet<JobId>) -> View {
        let mut copy = View {
            fleet: self.fleet.clone(),
            cells: self.cells.clone(),
            priority_classes: self.priority_classes.clone(),
            jobs: self.jobs.clone(),
            allocations: self.allocations.clone(),
            queues: std::iter::once((cell, CellQueue::default())).collect(),
            opened: BTreeMap::new(),
            classes: self.classes.clone(),
            assumed: self.assumed.clone(),
            reserved: self.reserved.clone(),
            last_pass_ms: self.last_pass_ms,
            searches: self.searches.clone(),
            proposals_made: self.proposals_made,
            backoff: Backoff::default(),
            bypassed_enough: self.bypassed_enough.clone(),
            preempting: self.preempting.clone(),
            priorities: self.priorities.clone(),
            reclaims_tried: self.reclaims_tried.clone(),
            storage_waits: BTreeMap::new(),
            moves_tried: self.moves_tried.clone(),
            moves: self.moves.clone(),
            not_offered_until: self.not_offered_until.clone(),
            elastics: self.elastics.clone(),
            run_times: self.run_times.clone(),
            windows: self.windows.clone(),
            past: self.past.clone(),
            arrays: self.arrays.clone(),
        };
        for id in waiting {
            if let Some(job) = self.jobs.get(id.0) {
                copy.enqueue(job);
            }
        }
        // On the copy nobody has been tried yet.
        copy.reserved_may_start();
        copy
    }

    /// The waiting job asks like this from now on.
    pub(crate) fn ask_otherwise(&mut self, id: JobId, class: JobClass) {
        let class = self.classes.known_as(class);
        self.edit_waiting(id, |job| job.class = Some(class));
    }

    /// The waiting job leaves the queue, and enters it again as another.
    fn edit_waiting(&mut self, id: JobId, edit: impl FnOnce(&mut Known)) {
        let Some(old) = self.jobs.get(id.0).cloned() else { return };
        let mut job = Known::clone(&old);
        edit(&mut job);
        let job = Arc::new(job);
        self.unqueue(&old);
        self.note_bypass(Some(&old), Some(&job));
        self.jobs.insert(id.0, job.clone());
        self.enqueue(&job);
    }

    /// The job ends, whether it runs or waits. Where it is a task of an array, the next one gets a job; `next_tasks` says where that waits. Answers
    /// whether there is such a task.
    pub(crate) fn end_job(&mut self, id: JobId, next_tasks: NextTasks) -> bool {
        let held: Vec<AllocationId> =
            self.allocations.values().filter(|held| held.job == id).map(|held| held.id).collect();
        held.into_iter().for_each(|held| self.delete(&Key::Allocation(held)));
        let waits = self.jobs.get(id.0).is_some_and(|job| job.waits());
        let next = self.make_next_task(id, waits, next_tasks);
        self.delete(&Key::Job(id));
        next
    }

    /// What the control plane does when a floor account has got something back: it pays for the next burst work that it covers.
    pub(crate) fn promote(&mut self) {
        let freed = self.fleet.capacity.take_freed();
        let tenants = self.fleet.capacity.tenants();
        let may_pay = |id: &TenantId| tenants.get(id).is_some_and(|at| !at.guarantee.is_empty());
        let mut accounts: Vec<TenantId> = freed.into_iter().filter(may_pay).collect();
        if accounts.is_empty() {
            return;
        }
        accounts.sort_by_key(|id| (Reverse(self.fleet.capacity.line_of(*id).count()), *id));
        let burst = self.allocations.values().filter(|held| held.pays() && held.account().is_none() && !held.is_growth);
        let mut burst: Vec<Arc<Allocation>> = burst.cloned().collect();
        burst.sort_by_key(|held| held.promotion_rank());
        for account in accounts {
            burst.retain(|held| {
                let below = self.fleet.capacity.line_of(held.tenant).any(|(id, _)| id == account);
                let pays = below && self.fleet.capacity.covers(account, &held.charge);
                if pays {
                    let mut promoted = Allocation::clone(held);
                    promoted.set_class(Some(account).into(), held.bound_ms);
                    self.replace_allocation(held, Arc::new(promoted));
                }
                !pays
            });
        }
    }

    /// What the control plane does where past use counts: whoever uses other amounts than before has used those until now.
    pub(crate) fn settle_past(&mut self, now_ms: u64) {
        if self.past.settle(now_ms, self.fleet.capacity.tenants()) {
            self.forget_orders();
        }
    }

    /// The job that holds this ends; growth alone ends without its job.
    pub(crate) fn end_held(&mut self, held: AllocationId, id: JobId) {
        if self.allocations.get(held.0).is_some_and(|held| held.is_growth) {
            self.delete(&Key::Allocation(held));
        } else {
            self.delete(&Key::Allocation(held));
            self.end_job(id, NextTasks::Elsewhere);
        }
        self.promote();
    }

    /// The tenant has other limits from now on; what it uses stays charged.
    pub(crate) fn edit_tenant(&mut self, id: TenantId, edit: impl FnOnce(&mut TenantUse)) {
        self.fleet.capacity.edit_tenant(id, edit);
        self.limits_changed(id);
    }

    /// Nobody was offered to another cell in vain. A job preempts only when no other cell may take it; what this shard remembers of that, the next one
    /// does not know.
    pub(crate) fn forget_what_was_offered(&mut self) {
        self.not_offered_until.clear();
    }

    /// The waiting job has this priority from now on.
    pub(crate) fn set_priority(&mut self, id: JobId, priority: i32) {
        self.edit_waiting(id, |job| job.queue_key = job.queue_key.with_priority(priority));
        self.reclaims_tried.clear();
    }

    /// The node takes new work from now on.
    pub(crate) fn open_node(&mut self, id: NodeId) {
        let Some(node) = self.fleet.capacity.nodes().get(&id).map(|there| Node::clone(&there.node)) else { return };
        let notes = NodeNotes { quarantine: None, lacks: String::new(), restored: None, ..node.notes.clone() };
        self.put_node(Node { health: NodeHealth::Ready, drained: false, notes, ..node });
    }
}

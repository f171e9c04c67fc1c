//! The starvation guard: smaller jobs flow past a gang that has no room, but not for ever.
//!
//! When jobs behind a gang have started on [`BYPASSED_SIZES_MAX`] times its size, free cards of its model are held back for it until it has
//! started; its wait is then bounded by what runs at that moment. Gangs with a reservation know when they start and need no guard. What
//! must stay true:
//! - whom the guard protects follows from the replicated state: the count is part of the job (`bypassed_cards`), so a shard that takes the
//!   cell over, a fresh snapshot and an explanation in the control plane all see the same;
//! - a shard counts what it sees bound and proposes to record it at once when the gang has waited enough, and otherwise at most every
//!   [`RECORD_AGAIN_MS`]: what a crash loses is bounded by that;
//! - a job that a floor account covers is not held back for a gang that none covers: a floor is not to wait for burst;
//! - a gang that its tenant's max keeps waiting, that needs what others do not lend, or that the cell could not hold if it were empty, is not
//!   protected.

pub use crate::job_class::BYPASSED_SIZES_MAX;
use crate::job_class::JobClass;
use crate::proposal::{Bounds, Plan, Proposal};
use crate::queue::{CellQueue, Counted};
use crate::search::{Ask, fits_when_empty};
use crate::view::View;
use muster_model::{CellId, GpuModel, JobId};
use std::collections::BTreeMap;

/// What has been counted is recorded this often at most, before it is enough: a gang waits through few of these, and a log entry each
/// is cheap.
pub const RECORD_AGAIN_MS: u64 = 10_000;

/// A gang that free cards of a model are held back for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) gang: JobId,
    pub(crate) cards: u64,
    /// A floor account covers the gang.
    pub(crate) covered: bool,
}

impl Guard {
    /// Whether it holds back `job`: others that are smaller than the gang. What a floor account covers is not held back for burst.
    pub(crate) fn holds_back(&self, job: JobId, class: &JobClass, covered: bool) -> bool {
        self.gang != job && self.cards > class.cards() && (self.covered || !covered)
    }
}

/// By model the gang that is protected.
pub(crate) type Guards = BTreeMap<GpuModel, Guard>;

/// Who is protected in `cell`: of each model the first in the queue's order.
pub(crate) fn guards(view: &View, cell: CellId) -> Guards {
    let mut guards = Guards::new();
    let models = view.fleet.index.models(cell).flatten().count();
    for id in view.bypassed_enough(cell) {
        if guards.len() == models {
            break;
        }
        let Some(job) = view.jobs.get(id.0) else { continue };
        let Some(class) = job.class.as_ref().filter(|_| !view.is_assumed(id) && view.reserved(id).is_none()) else {
            continue;
        };
        let behind = |queue: &CellQueue| !queue.is_first_of_its_limits(job.tenant, class, job.queue_key);
        // What is kept for a job that may stand on the nodes of its reservation alone would be kept in vain.
        if class.reservation.is_some() || view.queues.get(&cell).is_some_and(behind) {
            continue;
        }
        let capacity = &view.fleet.capacity;
        let allowed = class.offers().iter().filter(|offer| {
            capacity.max_allows(job.tenant, &offer.charge).is_ok() && capacity.could_be_lent(job.tenant, &offer.charge)
        });
        let fits =
            |model: &GpuModel| fits_when_empty(&view.fleet, &Ask::lasting(cell, job.tenant, class, Some(*model)));
        let Some(model) = allowed.filter_map(|offer| offer.model).find(fits) else { continue };
        let of_model = class.offers().iter().find(|offer| offer.model == Some(model));
        let covered =
            of_model.is_some_and(|offer| view.fleet.capacity.account_for(job.tenant, &offer.charge).is_some());
        let guard = Guard { gang: id, cards: class.cards(), covered };
        guards.entry(model).or_insert(guard);
    }
    guards
}

/// Proposes to record what has started past the gangs of the cell, where that is due.
pub(crate) fn count(view: &mut View, cell: CellId, bounds: &Bounds, now_ms: u64, plan: &mut Plan) {
    let Some(queue) = view.queues.get_mut(&cell) else { return };
    for key in queue.due_for_count() {
        let Some(counted) = view.queues.get(&cell).and_then(|queue| queue.counted(&key)) else { continue };
        if view.is_bypassed_enough(cell, counted.job) {
            continue;
        }
        // Of groups that differ in their time limit alone the first is counted for; another will be when it has become the first.
        let queue_key = view.jobs.get(counted.job.0).map(|job| job.queue_key);
        let is_first =
            |queue: &CellQueue| queue_key.is_some_and(|first| queue.is_first_of_its_limits(key.0, &key.1, first));
        if !view.queues.get(&cell).is_some_and(is_first) {
            continue;
        }
        let cards = to_record(view, &key.1, counted, now_ms).filter(|_| plan.proposals.len() < bounds.proposals_max);
        plan.proposals.extend(cards.map(|cards| Proposal::RecordBypass { job: counted.job, cards }));
        if let Some(queue) = view.queues.get_mut(&cell) {
            if cards.is_some() {
                queue.recorded(&key, now_ms);
            }
            queue.count_again_after(key);
        }
    }
}

/// All that has started past the gang at the head of a group, if that is worth recording now.
fn to_record(view: &View, class: &JobClass, counted: Counted, now_ms: u64) -> Option<u64> {
    let job = view.jobs.get(counted.job.0)?;
    if counted.more < class.cards() || view.reserved(job.id).is_some() {
        return None;
    }
    let enough = class.guarded_after_cards()?;
    let in_all = job.bypassed_cards.saturating_add(counted.more).min(enough);
    let due = in_all == enough || now_ms >= counted.recorded_ms.saturating_add(RECORD_AGAIN_MS);
    (due && job.bypassed_cards < in_all).then_some(in_all)
}

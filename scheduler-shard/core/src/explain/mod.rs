//! Why a job waits, with the figures, and the smallest change that would start it.
//!
//! The shard's passes are played on a copy of the view ([`trial`]). A job that starts there waits for nothing but its shard; otherwise the gate that
//! held it back is named ([`crate::gate`]), what stands in the way of a place is found by lifting one thing after the other ([`diagnose`]), and
//! changes are tried until some start it ([`remedies`]). What must stay true:
//! - the gates are those of the pass, on the same copy, so an explanation and the pass give the same answer at one revision;
//! - a change that is told has been made on a copy, and the job has started there, with all who wait beside it;
//! - it changes nothing; its search is bounded by the models and levels there are and by steps.

mod anti_affinity;
mod brief;
mod claimed;
mod diagnose;
mod entitlement;
mod estimate;
mod holders;
mod leaving;
mod levels;
mod lift;
mod limited;
mod pinned;
mod position;
mod quota;
mod reason;
mod remedies;
mod remedy;
mod reserved;
mod subject;
mod supply;
mod text;
mod trial;
mod windows;
mod words;

pub use crate::policy::reclaim::Protection;
pub use crate::view::ReservationFault;
pub use anti_affinity::{AntiAffinityConflict, TooSpread};
pub use brief::{Brief, brief};
pub use estimate::{Basis, Estimate, Predicted};
pub use holders::Blocker;
pub use leaving::Leaving;
pub use levels::Wider;
pub use limited::{Names, without_others};
pub use pinned::PinnedPool;
pub use position::POSITION_MAX;
pub use reason::{PoolRefusal, Reason, Why};
pub use remedy::{Change, Remedy, ToOpen};
pub use reserved::{Reserved, ReservedForGang};
pub use supply::{ClosedNode, HostRoom};
pub use windows::InWindow;

use crate::job_class::{JobClass, Offer};
use crate::policy::gate::{Gate, find_place};
use crate::policy::guard;
use crate::policy::if_ended::starts_if_ended;
use crate::search::{Ask, Steps};
use crate::view::{Known, NextTasks, View};
use muster_model::{AllocationId, CellId, GpuModel, JobId};
use remedies::Question;
use std::collections::BTreeMap;
use std::sync::Arc;
use supply::{Supply, has_model};
use trial::Trial;

/// Gates that are looked behind, one after the other, when what opens the first does not start the job.
const GATES_MAX: usize = 3;

/// Why a job stands where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// `pending`, `starting`, `running`, `completing`.
    pub phase: &'static str,
    /// What keeps it waiting, per model it may land on; empty when it does not wait.
    pub reasons: Vec<Reason>,
    /// How many jobs of its cell go before it, when it waits in one.
    pub position: Option<u64>,
    /// What wider levels would cost it, where closeness is what it waits for.
    pub wider: Vec<Wider>,
    /// When it would start, and what that rests on, the earliest first; empty when nothing gives a time.
    pub estimates: Vec<Estimate>,
}

impl Explanation {
    fn without_place(phase: &'static str, reasons: Vec<Reason>) -> Self {
        Explanation { phase, reasons, position: None, wider: Vec::new(), estimates: Vec::new() }
    }
}

/// Explains a live job at `now_ms` of the state's clock; none when there is no such job in the view.
#[must_use]
pub fn explain(view: &View, id: JobId, now_ms: u64) -> Option<Explanation> {
    let job = view.jobs.get(id.0)?;
    let phase = job.phase.word();
    let Some(class) = job.class.clone() else {
        let reasons = Why::claimed(view, job, now_ms).map(Reason::of).into_iter().collect();
        let estimates = job.claim.iter().map(|claim| estimate::of_claim(view, claim, now_ms)).collect();
        return Some(Explanation { estimates, ..Explanation::without_place(phase, reasons) });
    };
    let requeued = job.requeue_reason.clone().map(|why| Reason::of(Why::Requeued { why }));
    let Some(cell) = job.cell else {
        let reasons = std::iter::once(Reason::of(no_cell(view, &class))).chain(requeued).collect();
        return Some(Explanation::without_place(phase, reasons));
    };
    let mut reasons = Vec::new();
    if let Some(there) = view.cells.get(&cell).filter(|there| there.holder.is_none()) {
        reasons.push(Reason::of(Why::CellWithoutShard { cell: there.name.clone() }));
    }
    let mut trial = Trial::of(view, job, cell, now_ms);
    let (mut wider, mut estimates) = (Vec::new(), Vec::new());
    if trial.starts() {
        reasons.push(Reason::of(Why::JustQueued { model: trial.view.assumed_model(id) }));
        estimates.push(estimate::at_once(now_ms));
    } else if let Some(why) = growth_is_enough(&mut trial, job) {
        estimates.push(estimate::of_growth(&why, now_ms));
        reasons.push(Reason::of(Why::GrowthEnds(why)));
    } else {
        let closed = in_the_way(&mut trial, job, &class);
        wider = about_closeness(&trial, job, &class, &closed);
        reasons.extend(closed);
        if !trial.exhausted() {
            estimates = estimate::of_waiting(&trial, job, &class);
        }
    }
    reasons.extend(reserved::reservation(job, now_ms).map(|reserved| Reason::of(Why::Reserved(reserved))));
    reasons.extend(requeued);
    Some(Explanation { phase, reasons, position: position::of(view, cell, id, now_ms), wider, estimates })
}

/// When a live job would start, and what that rests on: the estimates of [`explain`], without its reasons and remedies.
#[must_use]
pub fn estimates(view: &View, id: JobId, now_ms: u64) -> Vec<Estimate> {
    let Some(job) = view.jobs.get(id.0) else { return Vec::new() };
    let Some(class) = job.class.clone() else {
        return job.claim.iter().map(|claim| estimate::of_claim(view, claim, now_ms)).collect();
    };
    let Some(cell) = job.cell else { return Vec::new() };
    let mut trial = Trial::of(view, job, cell, now_ms);
    if trial.starts() {
        return vec![estimate::at_once(now_ms)];
    }
    if let Some(why) = growth_is_enough(&mut trial, job) {
        return vec![estimate::of_growth(&why, now_ms)];
    }
    estimate::of_waiting(&trial, job, &class)
}

/// Growth that ends for the job, if it starts then, with all who go before it.
fn growth_is_enough(trial: &mut Trial, job: &Known) -> Option<Leaving> {
    let Some(Why::GrowthEnds(leaving)) = Why::growth_ends(&trial.view, job) else { return None };
    let parts: Vec<AllocationId> = trial.view.ending_for(job).map(|part| part.id).collect();
    starts_if_ended(&mut trial.view, job.id, trial.cell, &parts, trial.now_ms).then_some(leaving)
}

/// What keeps the job from starting on each model that its cell has; a place in another cell last.
fn in_the_way(trial: &mut Trial, job: &Known, class: &Arc<JobClass>) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for offer in class.offers() {
        let ask = trial.ask(job, class, offer.model);
        let nodes = trial.view.capacity().nodes().values().map(|there| &there.node);
        let has = nodes.filter(|node| node.cell == trial.cell).any(|node| has_model(&ask, node));
        if has {
            reasons.extend(on_model(trial, job, class, offer, GATES_MAX));
        }
    }
    if reasons.is_empty() {
        let (cell, models) = (cell_name(&trial.view, trial.cell), class.request.devices.models().to_vec());
        reasons.push(Reason::of(Why::NoCards { cell, models }));
    }
    let startable = reasons.iter().any(|reason| matches!(reason.why, Why::JustQueued { .. }));
    if startable {
        reasons.retain(|reason| matches!(reason.why, Why::JustQueued { .. }));
    } else {
        reasons.extend(other_cell(trial, job, class));
    }
    reasons
}

/// The closed gates on one model, the first with what would start the job. Where nothing past one gate alone does, the next is told too.
fn on_model(trial: &mut Trial, job: &Known, class: &JobClass, offer: &Offer, gates: usize) -> Vec<Reason> {
    let gate = match trial.gate(offer) {
        Ok(_) => return vec![Reason::of(Why::JustQueued { model: offer.model })],
        Err(gate) => gate,
    };
    let mut behind: Option<Trial> = None;
    let mut reasons = match gate {
        Gate::Quota(over) => {
            let why = Why::over_max(&trial.view, over.clone());
            let remedies = Question { trial, job, class, offer }.past_quota(&over);
            if remedies.is_empty() {
                behind = Some(remedies::without_ceilings(trial, offer));
            }
            vec![Reason { remedies, ..Reason::of(why) }]
        }
        Gate::NotLent(why, _) => {
            let remedies = Question { trial, job, class, offer }.past_not_lent(&why);
            vec![Reason { remedies, ..Reason::of(Why::NotLent(why)) }]
        }
        Gate::Trust => {
            let remedies = Question { trial, job, class, offer }.past_trust();
            vec![Reason { remedies, ..Reason::of(Why::Untrusted) }]
        }
        Gate::Reservation(fault) => no_reservation(trial, job, class, offer, fault),
        Gate::StarvationGuard(model, guard) => {
            let ask = trial.ask(job, class, offer.model);
            let free = Supply::of(&trial.view, &ask).free;
            let cell = cell_name(&trial.view, trial.cell);
            let why = Why::StarvationGuard { cell, model, gang: guard.gang, cards: guard.cards, free };
            let remedies = Question { trial, job, class, offer }.past_guard(guard.gang);
            if remedies.is_empty() {
                let mut without = trial.clone();
                without.view.end_job(guard.gang, NextTasks::InTheQueue);
                behind = Some(without);
            }
            vec![Reason { remedies, ..Reason::of(why) }]
        }
        Gate::NoPlace(model) => no_place(trial, job, class, offer, model),
    };
    if let Some(mut behind) = behind.filter(|_| gates > 1) {
        let further = on_model(&mut behind, job, class, offer, gates - 1);
        // What would start it there would not here.
        let told = further.into_iter().filter(|reason| !matches!(reason.why, Why::JustQueued { .. }));
        reasons.extend(told.map(|reason| Reason { remedies: Vec::new(), ..reason }));
    }
    reasons
}

/// The reservation that it names is not for it now: with a shorter time limit it may be.
fn no_reservation(
    trial: &mut Trial,
    job: &Known,
    class: &JobClass,
    offer: &Offer,
    fault: ReservationFault,
) -> Vec<Reason> {
    let why = vec![Why::reservation(class, fault)];
    let remedies = Question { trial, job, class, offer }.past_no_place(&why);
    why.into_iter().map(|why| Reason { remedies: remedies.clone(), ..Reason::of(why) }).collect()
}

fn no_place(trial: &mut Trial, job: &Known, class: &JobClass, offer: &Offer, model: Option<GpuModel>) -> Vec<Reason> {
    let whys = diagnose::no_place(trial, job, class, model);
    let remedies = Question { trial, job, class, offer }.past_no_place(&whys);
    let ending = remedies.iter().flat_map(|remedy| &remedy.0).find_map(|change| match change {
        Change::End(jobs) => Some(holders::of_jobs(&trial.view, jobs)),
        _ => None,
    });
    let ask = trial.ask(job, class, model);
    let ending = ending.filter(|holders| !holders.is_empty());
    let mut holders = ending.unwrap_or_else(|| holders::largest(&trial.view, &ask));
    holders::protect(&trial.view, job, offer, trial.now_ms, &mut holders);
    let mut reasons: Vec<Reason> = whys.into_iter().map(Reason::of).collect();
    if let Some(first) = reasons.first_mut() {
        first.remedies = remedies;
        if first.why.is_about_holders() {
            first.holders = holders;
        }
    }
    reasons
}

fn about_closeness(trial: &Trial, job: &Known, class: &JobClass, reasons: &[Reason]) -> Vec<Wider> {
    let apart =
        |offer: &&Offer| reasons.iter().any(|reason| offer.model.is_some() && reason.why.close_model() == offer.model);
    let asks = class.offers().iter().filter(apart).map(|offer| trial.ask(job, class, offer.model));
    asks.flat_map(|ask| levels::wider(&trial.view, &ask)).collect()
}

/// Another cell that is planned and has a place.
fn other_cell(trial: &mut Trial, job: &Known, class: &JobClass) -> Option<Reason> {
    let planned = trial.view.cells.values().filter(|cell| cell.id != trial.cell && cell.holder.is_some());
    let planned: Vec<(CellId, String)> = planned.map(|cell| (cell.id, cell.name.clone())).collect();
    for (id, other) in planned {
        let guards = guard::guards(&trial.view, id);
        for offer in class.offers() {
            let allowed = trial.view.capacity().max_allows(job.tenant, &offer.charge).is_ok();
            let covered = trial.view.capacity().account_for(job.tenant, &offer.charge).is_some();
            let guard = offer.model.and_then(|model| guards.get(&model));
            let guarded = guard.is_some_and(|guard| guard.holds_back(job.id, class, covered));
            let ask = Ask { cell: id, ..trial.ask(job, class, offer.model) };
            if allowed && !guarded && find_place(&mut trial.view, &ask, &mut Steps::default()).is_some() {
                return Some(Reason::of(Why::OtherCell { cell: cell_name(&trial.view, trial.cell), other }));
            }
        }
    }
    None
}

fn cell_name(view: &View, cell: CellId) -> String {
    view.cells.get(&cell).map_or_else(|| format!("#{cell}"), |there| there.name.clone())
}

fn share_in_words(ask: &Ask<'_>) -> String {
    use muster_model::DeviceRequest;
    match &ask.class.request.devices {
        DeviceRequest::Mig { profile, .. } => format!("a slice {profile}"),
        DeviceRequest::Mps { percent, memory_mib, .. } => {
            format!("a share of {percent} % and {}", words::memory(*memory_mib))
        }
        DeviceRequest::TimeSlice { memory_mib, .. } => format!("a share of {}", words::memory(*memory_mib)),
        DeviceRequest::None | DeviceRequest::Whole { .. } => "a share".to_owned(),
    }
}

fn no_cell(view: &View, class: &JobClass) -> Why {
    let wanted: Vec<Option<GpuModel>> = class.offers().iter().map(|offer| offer.model).collect();
    let mut cells: BTreeMap<CellId, (u64, u64)> = BTreeMap::new();
    for there in view.fleet.capacity.nodes().values() {
        let fits = |gpu: &&muster_model::Gpu| wanted.contains(&Some(gpu.model)) && gpu.withheld.is_none();
        let has = there.node.spec.gpus.iter().filter(fits).count() as u64;
        let (all, closed) = cells.entry(there.node.cell).or_default();
        *all += has;
        *closed += if there.node.accepts_work() { 0 } else { has };
    }
    let (largest, closed) = cells.into_values().max().unwrap_or_default();
    Why::NoCell { needed: class.cards(), largest, closed, models: class.request.devices.models().to_vec() }
}

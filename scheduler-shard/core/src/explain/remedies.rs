//! Looks for what would start a waiting job.
//!
//! What must stay true: nothing is told that was not played through: each remedy is made on a copy of the trial and the job starts there, with
//! all who wait beside it. Its work is bounded by the models and levels there are, by the steps of the trial, and by a few copies.

use super::holders;
use super::lift::Lift;
use super::reason::Why;
use super::remedy::{Change, Remedy, ToOpen, add_model};
use super::supply::{ClosedNode, Supply};
use super::trial::Trial;
use super::words::as_written;
use crate::job_class::{JobClass, Offer};
use crate::policy::gate::Gate;
use crate::view::{Known, NextTasks};
use muster_model::capacity::OverMax;
use muster_model::request::SharingMode;
use muster_model::{GpuModel, JobId, NumaPolicy, TopologyLevel};

/// Remedies that are told for one model.
const REMEDIES_MAX: usize = 3;
/// Changes of the request that are told among them.
const EDITS_MAX: usize = 2;
/// Smaller gangs that are tried one by one from the largest that could fit; below, halving finds one.
const TASKS_TRIED_MAX: u32 = 64;
/// Jobs that are named to end when others wait before the one that asks: beyond, its position in the queue says more.
const ENDS_BEFORE_MAX: usize = 16;
/// Ceilings that are raised one after the other.
const CEILINGS_MAX: usize = 8;
/// More than any tenant uses, and sums of it still fit.
const NO_CEILING: u64 = 1 << 60;

/// What is asked: one job on one model, with what stands in its way there.
pub(super) struct Question<'a> {
    pub(super) trial: &'a mut Trial,
    pub(super) job: &'a Known,
    pub(super) class: &'a JobClass,
    pub(super) offer: &'a Offer,
}

impl Question<'_> {
    /// Whether the job starts on a copy on which these changes are made; answers the copy as it is then. Where they let tasks of arrays get their jobs,
    /// it starts whether those wait in its queue or in another.
    fn starts_after(&mut self, changes: &[Change]) -> Option<Trial> {
        let (started, has_next) = self.starts_beside(changes, NextTasks::InTheQueue)?;
        if has_next {
            self.starts_beside(changes, NextTasks::Elsewhere)?;
        }
        Some(started)
    }

    fn starts_beside(&mut self, changes: &[Change], next_tasks: NextTasks) -> Option<(Trial, bool)> {
        if self.trial.exhausted() || !self.trial.complete {
            return None;
        }
        let mut copy = self.trial.clone();
        let has_next = make(&mut copy, self.class, changes, next_tasks);
        copy.view.promote();
        copy.view.settle_past(copy.now_ms);
        // Whom a job goes behind depends on who else may be tried: it starts in the shard that has tried all who wait as well as in one that has just
        // taken the cell over.
        let preempts = changes.iter().any(Change::is_for_preemption);
        if preempts {
            copy.view.forget_what_was_offered();
        }
        let starts = |copy: &mut Trial| if preempts { copy.starts_or_preempts() } else { copy.starts() };
        let mut anew = copy.clone();
        let starts_here = starts(&mut copy);
        anew.spent(&copy);
        anew.all_untried();
        let starts = starts_here && starts(&mut anew);
        self.trial.spent(&anew);
        starts.then_some((anew, has_next))
    }

    pub(super) fn verified(&mut self, changes: Vec<Change>) -> Option<Remedy> {
        self.starts_after(&changes).map(|_| Remedy(changes))
    }

    /// What helps past a ceiling: a higher one, or the end of jobs that fill it.
    pub(super) fn past_quota(&mut self, over: &OverMax) -> Vec<Remedy> {
        let mut remedies: Vec<Remedy> = self.raise().into_iter().collect();
        let filling = holders::of_tenant(self.trial, over);
        let ended = holders::fewest(self.trial, self.offer, filling);
        remedies.extend(ended.and_then(|jobs| self.verified(vec![Change::End(jobs)])));
        remedies
    }

    /// The maxes that would do, and no more than that: what is in use when the job starts with no ceiling in its way.
    fn raise(&mut self) -> Option<Remedy> {
        let mut open: Vec<Change> = Vec::new();
        let mut copy = self.trial.clone();
        for _ in 0..CEILINGS_MAX {
            let Err(Gate::Quota(over)) = copy.gate(self.offer) else { break };
            let change =
                Change::RaiseMax { tenant: over.tenant, path: over.path, resource: over.resource, to: NO_CEILING };
            make(&mut copy, self.class, std::slice::from_ref(&change), NextTasks::InTheQueue);
            open.push(change);
        }
        let started = self.starts_after(&open)?;
        let used = |change: Change| match change {
            Change::RaiseMax { tenant, path, resource, .. } => {
                let used = started.view.capacity().tenants().get(&tenant).map_or(0, |at| at.used.get(resource));
                Change::RaiseMax { tenant, path, resource, to: as_written(resource, used) }
            }
            other => other,
        };
        let raised = open.into_iter().map(used).collect();
        self.verified(raised)
    }

    /// What helps past the starvation guard: the gang starts or leaves.
    pub(super) fn past_guard(&mut self, gang: JobId) -> Vec<Remedy> {
        self.verified(vec![Change::End(vec![gang])]).into_iter().chain(self.by_right()).collect()
    }

    /// What helps where there is no place: another request, nodes that take work again, the end of what runs.
    pub(super) fn past_no_place(&mut self, whys: &[Why]) -> Vec<Remedy> {
        let mut remedies = Vec::new();
        for change in self.edits(whys) {
            if remedies.len() == EDITS_MAX {
                break;
            }
            remedies.extend(self.verified(vec![change]));
        }
        if remedies.is_empty() && whys.len() > 1 {
            remedies.extend(self.all_together(whys));
        }
        remedies.extend(self.open_nodes());
        if remedies.len() < REMEDIES_MAX {
            remedies.extend(self.ends(whys));
        }
        if whys.iter().any(Why::is_about_holders) {
            remedies.extend(self.by_right());
        }
        remedies
    }

    /// What stands in the way together, changed together.
    fn all_together(&mut self, whys: &[Why]) -> Option<Remedy> {
        let class = self.class;
        let changes: Option<Vec<Change>> = whys
            .iter()
            .map(|why| {
                Some(match why.lift()? {
                    Lift::Pool => Change::AnyPool(class.pool.clone()?),
                    Lift::Driver => Change::AnyDriver,
                    Lift::Selector => Change::AnyCard,
                    Lift::Reservations | Lift::Windows => Change::TimeLimit(why.time_limit_s()?),
                    Lift::Numa => Change::Numa(NumaPolicy::BestEffort),
                    Lift::Spread => {
                        let (level, tasks) = why.enough_in_one()?;
                        Change::TasksMax { level, tasks }
                    }
                    Lift::Topology => Change::Topology { from: class.topology.required?, to: None },
                    Lift::Closed => Change::Open(why.closed_nodes().iter().cloned().map(ToOpen::from).collect()),
                    Lift::Neighbours | Lift::Host => return None,
                })
            })
            .collect();
        self.verified(changes?)
    }

    fn ends(&mut self, whys: &[Why]) -> Option<Remedy> {
        let reserving: Vec<JobId> = whys.iter().filter_map(Why::reserving).collect();
        if !reserving.is_empty()
            && let Some(remedy) = self.verified(vec![Change::End(reserving)])
        {
            return Some(remedy);
        }
        let jobs = holders::who_must_end(self.trial, self.job, self.class, self.offer)?;
        self.verified(vec![Change::End(jobs)]).or_else(|| self.ends_for_those_before())
    }

    /// Those who wait before it would take the place: so many of the largest holders that it starts too.
    fn ends_for_those_before(&mut self) -> Option<Remedy> {
        let ask = self.trial.ask(self.job, self.class, self.offer.model);
        let holders = holders::in_order(&self.trial.view, &ask);
        let first = |count: usize| vec![Change::End(holders[..count].to_vec())];
        let most = holders.len().min(ENDS_BEFORE_MAX);
        let mut enough = 1;
        while enough < most && self.starts_after(&first(enough)).is_none() {
            enough = (2 * enough).min(most);
        }
        let mut too_few = enough / 2;
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            if self.starts_after(&first(middle)).is_some() { enough = middle } else { too_few = middle }
        }
        if holders.is_empty() { None } else { self.verified(first(enough)) }
    }

    /// The fewest closed nodes found that would have to take work again.
    fn open_nodes(&mut self) -> Option<Remedy> {
        let ask = self.trial.ask(self.job, self.class, self.offer.model);
        let mut closed = Supply::of(&self.trial.view, &ask).closed;
        // A drained node is opened by a command; one that is away must come back first.
        closed.sort_by_key(|node| (node.health, node.drained, std::cmp::Reverse(node.amount), node.node));
        let mut copy = self.trial.clone();
        let mut opened: Vec<ClosedNode> = Vec::new();
        for node in closed {
            copy.view.open_node(node.node);
            opened.push(node);
            if copy.gate(self.offer).is_ok() {
                break;
            }
        }
        if opened.is_empty() || copy.gate(self.offer).is_err() {
            return None;
        }
        let mut at = opened.len();
        while at > 0 {
            at -= 1;
            let mut without = self.trial.clone();
            opened
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at)
                .for_each(|(_, node)| without.view.open_node(node.node));
            if opened.len() <= NEEDLESS_MAX && without.gate(self.offer).is_ok() {
                opened.remove(at);
            }
        }
        self.verified(vec![Change::Open(opened.into_iter().map(ToOpen::from).collect())])
    }

    /// Changes of the request with which the search finds a place, the smallest first.
    fn edits(&mut self, whys: &[Why]) -> Vec<Change> {
        let mut edits = Vec::new();
        let is_in_the_way = |lift: Lift| whys.iter().any(|why| why.lift() == Some(lift));
        let mut try_one = |change: Change, question: &mut Self| {
            if question.fits(&change) {
                edits.push(change);
            }
        };
        if let Some(pool) = self.class.pool.clone() {
            try_one(Change::AnyPool(pool), self);
        }
        if is_in_the_way(Lift::Driver) {
            try_one(Change::AnyDriver, self);
        }
        if is_in_the_way(Lift::Selector) {
            try_one(Change::AnyCard, self);
        }
        if let Some(limit_s) = whys.iter().find_map(Why::time_limit_s) {
            try_one(Change::TimeLimit(limit_s), self);
        }
        if let Some((level, enough)) = whys.iter().find_map(Why::enough_in_one) {
            try_one(Change::TasksMax { level, tasks: enough }, self);
        }
        if is_in_the_way(Lift::Numa) {
            try_one(Change::Numa(NumaPolicy::BestEffort), self);
        }
        if let Some(from) = self.class.topology.required {
            let wider = TopologyLevel::ALL.into_iter().filter(|level| *level > from).map(Some).chain([None]);
            let first = wider.map(|to| Change::Topology { from, to }).find(|change| self.fits(change));
            edits.extend(first);
        }
        if is_in_the_way(Lift::Host) {
            edits.extend(self.smaller_host());
        }
        edits.extend(self.other_model());
        edits.extend(self.fewer_tasks());
        edits
    }

    /// Whether the search finds a place for the changed request, on the same model or on the one that the change adds.
    fn fits(&mut self, change: &Change) -> bool {
        let model = match change {
            Change::Model(model) => Some(*model),
            _ => self.offer.model,
        };
        let class = self.class.edited(|key| _ = change.edit(key));
        self.trial.fits(&class, model)
    }

    /// Another model of the cell that has a place.
    fn other_model(&mut self) -> Option<Change> {
        let named = self.class.request.devices.models().to_vec();
        let in_cell: Vec<GpuModel> = self.trial.view.fleet.index.models(self.trial.cell).flatten().collect();
        let other = |model: &GpuModel| !named.is_empty() && !named.contains(model);
        in_cell.into_iter().filter(other).map(Change::Model).find(|change| {
            let Change::Model(model) = change else { return false };
            let class = self.class.edited(|key| add_model(&mut key.request.devices, *model));
            class.offers().iter().any(|offer| offer.model == Some(*model)) && self.fits(change)
        })
    }

    /// Most CPU, or most memory, with which it fits.
    fn smaller_host(&mut self) -> Option<Change> {
        let request = &self.class.request;
        let (cpu_milli, memory_mib) = (request.cpu_milli, request.memory_mib);
        let cpu = self.most(cpu_milli, Change::Cpu);
        cpu.or_else(|| self.most(memory_mib, Change::Memory))
    }

    /// The change with the largest amount below `now` that fits.
    fn most(&mut self, now: u64, change: fn(u64) -> Change) -> Option<Change> {
        let (mut good, mut bad) = (0, now);
        if now == 0 || !self.fits(&change(good)) {
            return None;
        }
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if self.fits(&change(middle)) { good = middle } else { bad = middle }
        }
        // As it can be written: whole tenths of a CPU, whole MiB.
        let told = if matches!(change(0), Change::Cpu(_)) { good / 100 * 100 } else { good };
        (told > 0).then(|| change(told))
    }

    /// The largest smaller gang that fits.
    fn fewer_tasks(&mut self) -> Option<Change> {
        let from = self.class.tasks;
        // A gang of segments shrinks by whole segments.
        let step = self.class.topology.segment_tasks.unwrap_or(1).max(1);
        let parts = from / step;
        if parts < 2 || !self.fits(&Change::Tasks { from, to: step }) {
            return None;
        }
        let ask = self.trial.ask(self.job, self.class, self.offer.model);
        let whole = matches!(self.class.request.devices.mode(), None | Some(SharingMode::Whole));
        let slots = if whole { Supply::of(&self.trial.view, &ask).slots } else { u64::MAX };
        let most = (parts - 1).min(u32::try_from(slots / u64::from(step)).unwrap_or(u32::MAX)).max(1);
        let tried = (most.saturating_sub(TASKS_TRIED_MAX) + 1..=most).rev();
        let largest = tried.map(|parts| parts * step).find(|to| self.fits(&Change::Tasks { from, to: *to }));
        let to = largest.or_else(|| {
            let (mut good, mut bad) = (1, most.saturating_sub(TASKS_TRIED_MAX).max(2));
            while bad - good > 1 {
                let middle = good + (bad - good) / 2;
                if self.fits(&Change::Tasks { from, to: middle * step }) { good = middle } else { bad = middle }
            }
            Some(good * step)
        })?;
        Some(Change::Tasks { from, to })
    }
}

/// A copy on which no max stands in the job's way.
pub(super) fn without_ceilings(trial: &Trial, offer: &Offer) -> Trial {
    let mut copy = trial.clone();
    for _ in 0..CEILINGS_MAX {
        let Err(Gate::Quota(over)) = copy.gate(offer) else { break };
        copy.view.edit_tenant(over.tenant, |at| at.max.set(over.resource, NO_CEILING));
    }
    copy
}

/// Beyond so many nodes it is not tried which of them need not open.
const NEEDLESS_MAX: usize = 8;

/// Makes changes on a copy. Answers whether tasks of arrays get their jobs by them.
fn make(copy: &mut Trial, class: &JobClass, changes: &[Change], next_tasks: NextTasks) -> bool {
    let (mut edited, mut has_next) = (false, false);
    let class = class.edited(|key| changes.iter().for_each(|change| edited |= change.edit(key)));
    if edited {
        copy.view.ask_otherwise(copy.id, class);
    }
    for change in changes {
        match change {
            Change::RaiseMax { tenant, resource, to, .. } => {
                copy.view.edit_tenant(*tenant, |at| at.max.set(*resource, *to));
            }
            Change::RaiseGuarantee { tenant, resource, to, .. } => {
                copy.view.edit_tenant(*tenant, |at| at.guarantee.set(*resource, *to));
            }
            Change::Lend { tenant, resource, .. } => {
                copy.view.edit_tenant(*tenant, |at| _ = at.lends.insert(*resource, true));
            }
            Change::Trust { tenant, .. } => copy.view.edit_tenant(*tenant, |at| at.untrusted = false),
            Change::Priority(priority) => copy.view.set_priority(copy.id, *priority),
            Change::Open(nodes) => nodes.iter().for_each(|node| copy.view.open_node(node.node)),
            // One after the other, as they would: what one of them leaves is promoted before the next ends.
            Change::End(jobs) => jobs.iter().for_each(|job| {
                has_next |= copy.view.end_job(*job, next_tasks);
                copy.view.promote();
            }),
            _ => {}
        }
    }
    has_next
}

//! Who holds what a job lacks, and which of them would have to end.
//!
//! Places are tried where the job lacks least. There the largest holders are taken out one by one until the job fits, and those that need not
//! end after all are put back. What must stay true: the jobs that are named were ended in a trial, and the job had a place there; the list is
//! bounded; the same view names the same holders.

use super::supply::{self, has_model};
use super::trial::Trial;
use super::words::{counted, span, tasks};
use crate::fleet::index::{GROUP_LEVELS, group_of};
use crate::job_class::{JobClass, Offer};
use crate::policy::if_ended::IfEnded;
use crate::policy::reclaim::{Protection, protection};
use crate::search::Ask;
use crate::view::{Known, View};
use muster_model::capacity::NodeUse;
use muster_model::request::SharingMode;
use muster_model::{Allocation, AllocationId, JobId, NodeId, Place, TopologyLevel};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Holders that an explanation names at most: what fits on a screen beside the reason.
pub(super) const HOLDERS_MAX: usize = 5;
/// Places in which it is tried who would have to end.
const PLACES_MAX: usize = 4;
/// Jobs that have to end at most, to be worth naming.
const ENDS_MAX: usize = 64;

/// A job that holds what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The job.
    pub job: JobId,
    /// Cards, instances or shares it holds in the place; tasks, where the job wants no card.
    pub cards: u64,
    /// It is tasks that are counted.
    pub in_tasks: bool,
    /// The first node of the place that it stands on.
    pub node: String,
    /// On how many nodes of the place it stands.
    pub nodes: u64,
    /// Whether it may be moved.
    pub movable: bool,
    /// Why the waiting job may not preempt it; none where it may.
    pub protection: Option<Protection>,
    /// How many jobs of other tenants this stands for, of which the reader may not know more; 0: it is `job`.
    pub others: u64,
}

impl Blocker {
    /// For people: `job 12 holds 16 GPUs on 2 nodes (node-0003, ...), may not be preempted: it stands on a guarantee`.
    #[must_use]
    pub fn text(&self) -> String {
        let held = match (self.in_tasks, self.cards) {
            (true, count) => tasks(count),
            (false, 1) => "1 GPU".to_owned(),
            (false, count) => format!("{count} GPUs"),
        };
        let movable = if self.movable { ", movable" } else { "" };
        let protection = self.protection.map(|why| format!(", may not be preempted: {}", protected(why)));
        let rest = format!("{movable}{}", protection.unwrap_or_default());
        match (self.others, self.nodes) {
            (0, _) => {}
            (1, nodes) => return format!("1 job of another tenant holds {held} on {}{rest}", counted(nodes, "node")),
            (jobs, _) => return format!("{jobs} jobs of other tenants hold {held}{rest}"),
        }
        match self.nodes {
            0 | 1 => format!("job {} holds {held} on {}{rest}", self.job, self.node),
            nodes => format!("job {} holds {held} on {nodes} nodes ({}, ...){rest}", self.job, self.node),
        }
    }
}

fn protected(why: Protection) -> String {
    match why {
        Protection::Guaranteed => "it stands on a guarantee".to_owned(),
        Protection::Priority => "it has the same tenant and no lower priority".to_owned(),
        Protection::NotCovered => "no guarantee covers the waiting job".to_owned(),
        Protection::WithinGuarantee => "its side of the tree is within its guarantee".to_owned(),
        Protection::CoolingDown { left_ms } => format!("its cool-down ends in {}", span(left_ms)),
        Protection::TooOften { preemptions } => format!("it was preempted {preemptions} times already"),
        Protection::Barred => "the waiting job has failed too often after it preempted others".to_owned(),
    }
}

/// What one allocation holds of a place.
#[derive(Clone, Debug, Default)]
struct Held {
    cards: u64,
    tasks: u64,
    nodes: BTreeSet<NodeId>,
}

/// What a place has, and who holds how much.
#[derive(Default)]
struct HeldPlace {
    usable: u64,
    free: u64,
    holders: BTreeMap<AllocationId, Held>,
}

impl HeldPlace {
    /// The holders, those of most first.
    fn largest_first(&self) -> Vec<(AllocationId, &Held)> {
        let mut holders: Vec<(AllocationId, &Held)> = self.holders.iter().map(|(id, held)| (*id, held)).collect();
        holders.sort_by_key(|(id, held)| (Reverse(held.cards), Reverse(held.tasks), *id));
        holders
    }
}

/// A place: a domain, a node, an island or a card.
type Key = (Place, Option<NodeId>, Option<u16>);

/// The places that could hold the job if nobody else did, those where it lacks least first.
fn places(view: &View, ask: &Ask<'_>) -> Vec<HeldPlace> {
    let shares = !matches!(ask.class.request.devices.mode(), None | Some(SharingMode::Whole));
    let needed = if shares { 1 } else { u64::from(ask.class.tasks) * supply::each(ask) };
    let mut places: BTreeMap<Key, HeldPlace> = BTreeMap::new();
    let open = supply::in_cell(view, ask).filter(|there| there.node.accepts_work() && has_model(ask, &there.node));
    for there in open {
        for key in keys(ask, there, shares) {
            let ground = places.entry(key.clone()).or_default();
            let (usable, free) = in_place(ask, there, &key);
            (ground.usable, ground.free) = (ground.usable + usable, ground.free + free);
        }
    }
    for held in view.held().filter(|held| held.cell == ask.cell) {
        for task in &held.tasks {
            let Some(there) = view.fleet.capacity.nodes().get(&task.node) else { continue };
            for key in keys(ask, there, shares) {
                let Some(ground) = places.get_mut(&key) else { continue };
                let inside = |gpu: u16| in_key(ask, there, &key, gpu);
                let of = ground.holders.entry(held.id).or_default();
                of.cards += task.devices.iter().filter(|hold| inside(hold.gpu)).count() as u64;
                of.tasks += 1;
                of.nodes.insert(task.node);
            }
        }
    }
    let mut could: Vec<(Key, HeldPlace)> = places.into_iter().filter(|(_, ground)| ground.usable >= needed).collect();
    could.sort_by(|(a, one), (b, other)| {
        let key = |ground: &HeldPlace| (Reverse(ground.free.min(needed)), ground.holders.len());
        key(one).cmp(&key(other)).then_with(|| a.cmp(b))
    });
    could.into_iter().map(|(_, ground)| ground).collect()
}

/// The places that a node is part of.
fn keys(ask: &Ask<'_>, there: &NodeUse, shares: bool) -> Vec<Key> {
    let id = there.node.id;
    let place = &there.node.spec.place;
    let of_model = || (0_u16..).zip(&there.node.spec.gpus).filter(|(_, gpu)| Some(gpu.model) == ask.model);
    if shares {
        return of_model().map(|(at, _)| (Place::default(), Some(id), Some(at))).collect();
    }
    let on_node = || vec![(Place::default(), Some(id), None)];
    match ask.required_level() {
        Some(TopologyLevel::Island) if !place.nvlink_domain.is_empty() => vec![(place.clone(), None, None)],
        Some(TopologyLevel::Island) if ask.model.is_some() => {
            let islands: BTreeSet<u8> = of_model().map(|(_, gpu)| gpu.island).collect();
            islands.into_iter().map(|island| (Place::default(), Some(id), Some(u16::from(island)))).collect()
        }
        Some(TopologyLevel::Island | TopologyLevel::Node) => on_node(),
        _ if ask.class.tasks == 1 => on_node(),
        Some(level) if GROUP_LEVELS.contains(&level) => vec![(group_of(place, level), None, None)],
        _ => vec![(Place::default(), None, None)],
    }
}

/// Whether a card of the node is part of the place.
fn in_key(ask: &Ask<'_>, there: &NodeUse, (_, node, part): &Key, gpu: u16) -> bool {
    let shares = !matches!(ask.class.request.devices.mode(), None | Some(SharingMode::Whole));
    let Some(card) = there.node.spec.gpus.get(usize::from(gpu)) else { return false };
    match (node, part) {
        (Some(_), Some(card_at)) if shares => *card_at == gpu,
        (Some(_), Some(island)) => u16::from(card.island) == *island,
        _ => true,
    }
}

/// What of the place the node has for the job, and what of it is free.
fn in_place(ask: &Ask<'_>, there: &NodeUse, key: &Key) -> (u64, u64) {
    let Some(model) = ask.model else {
        return (there.node.spec.cpu_milli, there.cpu_free_milli.max(0) as u64);
    };
    let shares = !matches!(ask.class.request.devices.mode(), Some(SharingMode::Whole));
    let cards = (0_u16..).zip(&there.node.spec.gpus);
    let cards =
        cards.filter(|(at, gpu)| gpu.model == model && gpu.withheld.is_none() && (shares || !there.is_pinned(*at)));
    cards
        .filter(|(at, _)| in_key(ask, there, key, *at))
        .fold((0, 0), |(usable, free), (at, _)| (usable + 1, free + u64::from(there.is_free(at))))
}

/// The largest holders of the place where the job lacks least.
pub(super) fn largest(view: &View, ask: &Ask<'_>) -> Vec<Blocker> {
    let places = places(view, ask);
    let place = places.iter().find(|place| !place.holders.is_empty());
    let holders = place.into_iter().flat_map(|place| &place.holders);
    named(view, holders.filter_map(|(id, held)| Some((view.allocation(*id)?.job, held.clone()))))
}

/// Everybody who holds what the job lacks: place by place, those where it lacks least first, and in each the largest first.
pub(super) fn in_order(view: &View, ask: &Ask<'_>) -> Vec<JobId> {
    let mut jobs: Vec<JobId> = Vec::new();
    for place in places(view, ask).iter().take(PLACES_MAX * PLACES_MAX) {
        let held = place.largest_first().into_iter().filter_map(|(id, _)| Some(view.allocation(id)?.job));
        for job in held.collect::<Vec<_>>() {
            if !jobs.contains(&job) && jobs.len() < ENDS_MAX {
                jobs.push(job);
            }
        }
    }
    jobs
}

/// What these jobs hold, those of most first.
pub(super) fn of_jobs(view: &View, jobs: &[JobId]) -> Vec<Blocker> {
    let held = view.held().filter(|held| jobs.contains(&held.job)).map(|held| {
        let cards = held.tasks.iter().map(|task| task.devices.len() as u64).sum();
        let nodes = held.tasks.iter().map(|task| task.node).collect();
        (held.job, Held { cards, tasks: held.tasks.len() as u64, nodes })
    });
    named(view, held)
}

/// What each job holds with all of its allocations, those of most first.
fn named(view: &View, held: impl Iterator<Item = (JobId, Held)>) -> Vec<Blocker> {
    let mut by_job: BTreeMap<JobId, Held> = BTreeMap::new();
    for (job, more) in held {
        let of = by_job.entry(job).or_default();
        (of.cards, of.tasks) = (of.cards + more.cards, of.tasks + more.tasks);
        of.nodes.extend(more.nodes);
    }
    let mut holders: Vec<(JobId, Held)> = by_job.into_iter().collect();
    holders.sort_by_key(|(job, held)| (Reverse(held.cards), Reverse(held.tasks), *job));
    holders.truncate(HOLDERS_MAX);
    holders.into_iter().map(|(job, held)| blocker(view, job, &held)).collect()
}

fn blocker(view: &View, job: JobId, held: &Held) -> Blocker {
    let first = held.nodes.first().and_then(|node| view.fleet.capacity.nodes().get(node));
    let node = first.map(|there| there.node.spec.name.clone()).unwrap_or_default();
    let movable = view.jobs.get(job.0).is_some_and(|job| job.movable.is_some());
    let in_tasks = held.cards == 0;
    let cards = if in_tasks { held.tasks } else { held.cards };
    Blocker { job, cards, in_tasks, node, nodes: held.nodes.len() as u64, movable, protection: None, others: 0 }
}

/// Says of each holder why the job may not preempt it.
pub(super) fn protect(view: &View, job: &Known, offer: &Offer, now_ms: u64, holders: &mut [Blocker]) {
    for holder in holders {
        let minimum = view.held().find(|held| held.job == holder.job && !held.is_growth);
        holder.protection = minimum.and_then(|held| protection(view, (job, offer), held, now_ms));
    }
}

/// The fewest jobs found whose end gives the job a place.
pub(super) fn who_must_end(trial: &mut Trial, job: &Known, class: &JobClass, offer: &Offer) -> Option<Vec<JobId>> {
    let ask = trial.ask(job, class, offer.model);
    let candidates: Vec<Vec<Arc<Allocation>>> = places(&trial.view, &ask)
        .iter()
        .take(PLACES_MAX)
        .map(|place| {
            place.largest_first().into_iter().filter_map(|(id, _)| trial.view.allocation(id).cloned()).collect()
        })
        .collect();
    let sets = candidates.into_iter().filter_map(|holders| fewest(trial, offer, holders));
    sets.min_by_key(Vec::len)
}

/// Those of a tenant and below it that hold most of what its max bounds, the largest first.
pub(super) fn of_tenant(trial: &Trial, over: &muster_model::capacity::OverMax) -> Vec<Arc<Allocation>> {
    let ledger = trial.view.capacity();
    let below = |held: &&Arc<Allocation>| ledger.line_of(held.tenant).any(|(id, _)| id == over.tenant);
    let holds = |held: &&Arc<Allocation>| held.charge.get(over.resource) > 0;
    let mut held: Vec<Arc<Allocation>> = trial.view.held().filter(below).filter(holds).cloned().collect();
    held.sort_by_key(|held| (Reverse(held.charge.get(over.resource)), held.id));
    held
}

/// Ends `holders` one after the other until the job gets through the gates, and puts back those that need not end; all of it is undone.
pub(super) fn fewest(trial: &mut Trial, offer: &Offer, holders: Vec<Arc<Allocation>>) -> Option<Vec<JobId>> {
    let (id, cell, now_ms) = (trial.id, trial.cell, trial.now_ms);
    let mut without = IfEnded::begin(&mut trial.view, id, cell, now_ms)?;
    let mut ended: Vec<Arc<Allocation>> = Vec::new();
    let mut fits = false;
    for holder in holders.into_iter().take(ENDS_MAX) {
        without.end(&holder);
        ended.push(holder);
        fits = without.place(offer).is_ok();
        if fits {
            break;
        }
    }
    if !fits {
        return None;
    }
    // The smallest first: they are the most likely not to be needed.
    let mut at = ended.len();
    while at > 0 {
        at -= 1;
        without.restore(&ended[at]);
        if without.place(offer).is_ok() {
            ended.remove(at);
        } else {
            without.end(&ended[at]);
        }
    }
    let mut jobs: Vec<JobId> = ended.into_iter().map(|held| held.job).collect();
    // Growth of an elastic gang is an allocation of its own.
    jobs.sort_unstable();
    jobs.dedup();
    (!jobs.is_empty()).then_some(jobs)
}

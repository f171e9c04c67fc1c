//! Repartition by demand: which empty cards would be driven otherwise, what that costs and brings, and which slices nothing matches.
//!
//! Waiting shares are placed on the trial in their order by the search that places real work; an empty card that one of them opens is a
//! conversion. What finds no place is tried again with the rules of each pool that does not allow its mode widened by it, so that an admin
//! sees what that rule costs; the same for pools that pin cards to a layout, as if it were lifted. A rule's end may also let
//! shares beside others on cards in use: then the jobs are told and no card is converted. What must stay true: only empty cards are
//! converted; nothing stands in two places.

use super::Tried;
use super::report::Conversion;
use super::report::Unmatched;
use super::trial::{Trial, Wanted};
use crate::fleet::Fleet;
use crate::job_class::JobClass;
use crate::view::Known;
use muster_model::capacity::CardUse;
use muster_model::gpu::MigFamily;
use muster_model::mig::{self, MigPlacement, MigShape, PinnedLayout};
use muster_model::request::SharingMode;
use muster_model::{CellId, GpuModel, HoldMode, JobId, NodeId, Pool, TaskPlacement};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Seconds in which a card cannot be used while it changes to a mode. Assumptions until agents measure them: switching MIG on resets an
/// Ampere card and does not reset later ones (NVIDIA's MIG user guide), making the instances takes a few seconds, MPS starts a daemon,
/// and time-slicing starts nothing.
const fn conversion_s(model: GpuModel, to: SharingMode) -> u64 {
    match (to, model) {
        (SharingMode::Mig, GpuModel::A30 | GpuModel::A100_40 | GpuModel::A100_80) => 30,
        (SharingMode::Mig, _) => 5,
        (SharingMode::Mps, _) => 2,
        (SharingMode::Whole | SharingMode::TimeSlice, _) => 0,
    }
}

/// Free slices by pool, model and shape (none: lost ones): how many, and the cards they are on.
type Left = BTreeMap<(String, GpuModel, Option<MigShape>), (u64, BTreeSet<(NodeId, usize)>)>;

/// Conversions of one kind.
type Kind = (String, GpuModel, SharingMode, Option<Rule>);

#[derive(Default)]
struct Gathered {
    cards: BTreeSet<(NodeId, u16)>,
    jobs: Vec<JobId>,
}

/// Starts what it can of `waiting` on the trial; jobs that open no card are put to `starting`.
pub(super) fn conversions(
    trial: &mut Trial<'_>,
    cell: CellId,
    waiting: &[Arc<Known>],
    starting: &mut Vec<JobId>,
) -> Vec<Conversion> {
    let mut gathered: BTreeMap<Kind, Gathered> = BTreeMap::new();
    let mut hopeless: Tried<()> = Tried::default();
    let mut left: Vec<&Arc<Known>> = Vec::new();
    for job in waiting {
        let Some(class) = &job.class else { continue };
        let known = hopeless.get(job.tenant, class).is_some();
        if known || !start(trial, cell, job, class, None, &mut gathered, starting) {
            hopeless.insert(job.tenant, class, ());
            left.push(job);
        }
    }
    for (pool, rule) in rules(&trial.fleet, cell) {
        let fits = |job: &&&Arc<Known>| job.class.as_ref().is_some_and(|class| rule.may_help(class, &pool));
        let trying: Vec<&Arc<Known>> = left.iter().filter(fits).copied().collect();
        if trying.is_empty() {
            continue;
        }
        let before = trial.fleet.capacity.pools().get(&pool).cloned();
        let wider = before.clone().unwrap_or_else(|| Pool { name: pool.clone(), ..Pool::standard() });
        trial.fleet.set_pool(&pool, Some(rule.applied_to(wider)));
        let mut hopeless: Tried<()> = Tried::default();
        for job in trying {
            let Some(class) = &job.class else { continue };
            let known = hopeless.get(job.tenant, class).is_some();
            let there = class.in_pool(&pool);
            if !known && start(trial, cell, job, &there, Some(&rule), &mut gathered, starting) {
                left.retain(|other| other.id != job.id);
            } else {
                hopeless.insert(job.tenant, class, ());
            }
        }
        trial.fleet.set_pool(&pool, before);
    }
    gathered.into_iter().map(|(kind, gathered)| conversion(&trial.fleet, kind, gathered)).collect()
}

/// A rule that keeps shares off empty cards of a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    /// This mode is not allowed.
    Allow(SharingMode),
    /// Cards of this model keep this layout.
    Unpin(GpuModel, String),
}

impl Rule {
    /// Whether a job could start in the pool without it.
    fn may_help(&self, class: &JobClass, pool: &str) -> bool {
        let here = class.pool.as_ref().is_none_or(|wanted| wanted == pool);
        here && match self {
            Rule::Allow(mode) => class.request.devices.mode() == Some(*mode),
            Rule::Unpin(model, _) => class.offers().iter().any(|offer| offer.model == Some(*model)),
        }
    }

    fn applied_to(&self, mut pool: Pool) -> Pool {
        match self {
            Rule::Allow(mode) => drop(pool.modes.insert(*mode)),
            Rule::Unpin(model, _) => drop(pool.pinned.remove(model)),
        }
        pool
    }
}

/// The rules of the cell's pools that keep shares off empty cards, modes first.
fn rules(fleet: &Fleet, cell: CellId) -> Vec<(String, Rule)> {
    let pools: BTreeSet<&str> = fleet
        .capacity
        .nodes()
        .values()
        .map(|there| &there.node)
        .filter(|node| node.cell == cell)
        .map(|node| node.spec.pool.as_str())
        .collect();
    let mut rules: Vec<(String, Rule)> = Vec::new();
    for name in pools {
        let pool = fleet.capacity.pool_named(name);
        let shared = [SharingMode::Mig, SharingMode::Mps, SharingMode::TimeSlice];
        let missing = shared.into_iter().filter(|mode| !pool.modes.contains(mode)).map(Rule::Allow);
        let pinned = pool.pinned.iter().map(|(model, pin)| Rule::Unpin(*model, pin.in_words(*model)));
        rules.extend(missing.chain(pinned).map(|rule| (name.to_owned(), rule)));
    }
    rules
}

/// Starts one job on the first model that has room, and notes the empty cards that it opens.
fn start(
    trial: &mut Trial<'_>,
    cell: CellId,
    job: &Known,
    class: &JobClass,
    without: Option<&Rule>,
    gathered: &mut BTreeMap<Kind, Gathered>,
    starting: &mut Vec<JobId>,
) -> bool {
    for offer in class.offers() {
        let Some(model) = offer.model else { continue };
        let wanted = Wanted { job, class, cell, model };
        let Some(tasks) = trial.place(&wanted.ask()) else { continue };
        let opened = opened(&trial.fleet, &tasks);
        // The pool of a gang is one; the mode is the request's.
        let pool = tasks.first().and_then(|task| trial.fleet.capacity.nodes().get(&task.node));
        let pool = pool.map(|there| there.node.spec.pool.clone()).unwrap_or_default();
        let kind = (pool, model, class.request.devices.mode().unwrap_or(SharingMode::Whole), without.cloned());
        let converts = without.is_some() || !opened.is_empty() || on_converted(gathered.get(&kind), &tasks);
        trial.start(&wanted, tasks);
        if !converts {
            starting.push(job.id);
        } else {
            let into = gathered.entry(kind).or_default();
            into.cards.extend(opened);
            into.jobs.push(job.id);
        }
        return true;
    }
    false
}

fn on_converted(gathered: Option<&Gathered>, tasks: &[TaskPlacement]) -> bool {
    gathered.is_some_and(|gathered| {
        let holds = tasks.iter().flat_map(|task| task.devices.iter().map(|hold| (task.node, hold.gpu)));
        holds.into_iter().any(|card| gathered.cards.contains(&card))
    })
}

/// The empty cards among those of `tasks`; a pinned one is cut already.
fn opened(fleet: &Fleet, tasks: &[TaskPlacement]) -> BTreeSet<(NodeId, u16)> {
    let cards = tasks.iter().flat_map(|task| task.devices.iter().map(|hold| (task.node, hold.gpu)));
    let is_free = |(node, gpu): &(NodeId, u16)| {
        let there = fleet.capacity.nodes().get(node);
        let Some(there) = there.filter(|there| !there.is_pinned(*gpu)) else { return false };
        there.cards.get(usize::from(*gpu)) == Some(&CardUse::Free)
    };
    cards.filter(is_free).collect()
}

fn conversion(fleet: &Fleet, (pool, model, to, rule): Kind, gathered: Gathered) -> Conversion {
    let cards: Vec<(NodeId, u16, String)> = gathered
        .cards
        .into_iter()
        .filter_map(|(node, gpu)| {
            let there = fleet.capacity.nodes().get(&node)?;
            Some((node, gpu, layout(model, there.cards.get(usize::from(gpu))?)))
        })
        .collect();
    let card_seconds = cards.len() as u64 * conversion_s(model, to);
    let pinned = match &rule {
        Some(Rule::Unpin(_, layout)) => Some(layout.clone()),
        _ => None,
    };
    Conversion { pool, model, to, needs_rule: rule.is_some(), pinned, cards, jobs: gathered.jobs, card_seconds }
}

/// What stands on a card, in words: `3 x 1g.10gb + 1 x 3g.40gb`.
fn layout(model: GpuModel, card: &CardUse) -> String {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    match card {
        CardUse::Mig(instances) => {
            for (place, _) in instances.iter().filter(|(_, holder)| holder.is_some()) {
                let name = mig::profile_name(model, place.shape).unwrap_or_else(|| HoldMode::Mig(*place).to_string());
                *counts.entry(name).or_default() += 1;
            }
        }
        CardUse::Mps { shares, .. } => {
            for share in shares {
                *counts.entry(format!("MPS {} %, {} MiB", share.percent, share.memory_mib)).or_default() += 1;
            }
        }
        CardUse::TimeSlice { shares, .. } => {
            for share in shares {
                *counts.entry(format!("time-slice {} MiB", share.memory_mib)).or_default() += 1;
            }
        }
        CardUse::Free | CardUse::Whole(_) => {}
    }
    let parts: Vec<String> = counts.into_iter().map(|(name, count)| format!("{count} x {name}")).collect();
    parts.join(" + ")
}

/// The free slices of cut cards and the open slots of pinned ones: what waits was placed before, so nothing that waits matches them.
pub(super) fn unmatched(fleet: &Fleet, cell: CellId) -> Vec<Unmatched> {
    let mut found = Left::new();
    let mut running: BTreeMap<(String, GpuModel, MigShape), u64> = BTreeMap::new();
    for (id, there) in fleet.capacity.nodes().iter().filter(|(_, there)| there.node.cell == cell) {
        let pool = &there.node.spec.pool;
        for (at, (card, gpu)) in there.cards.iter().zip(&there.node.spec.gpus).enumerate() {
            let Some(family) = gpu.model.facts().mig else { continue };
            let pin = fleet.capacity.pool_of(&there.node).pinned.get(&gpu.model).filter(|_| there.is_pinned(at as u16));
            let standing: Vec<MigPlacement> = match card {
                CardUse::Mig(instances) => instances.iter().map(|(place, _)| *place).collect(),
                CardUse::Free if pin.is_some() => Vec::new(),
                _ => continue,
            };
            for place in &standing {
                *running.entry((pool.clone(), gpu.model, place.shape)).or_default() += 1;
            }
            if !there.node.accepts_work() || gpu.withheld.is_some() {
                continue;
            }
            let (stand, dead) = match pin {
                // What else is free on a pinned card is not for anybody.
                Some(pin) => (open_slots(family, &standing, pin), 0),
                None => left_over(family, standing.iter().fold(0, |mask, place| mask | place.shape.mask(place.start))),
            };
            let counts = stand.into_iter().map(|place| (Some(place.shape), 1));
            for (shape, count) in counts.chain((dead > 0).then_some((None, dead))) {
                let into = found.entry((pool.clone(), gpu.model, shape)).or_default();
                into.0 += count;
                into.1.insert((*id, at));
            }
        }
    }
    let told = |((pool, model, shape), (count, cards)): ((String, GpuModel, Option<MigShape>), (u64, BTreeSet<_>))| {
        let running = shape.and_then(|shape| running.get(&(pool.clone(), model, shape))).copied().unwrap_or(0);
        let profile = shape.and_then(|shape| mig::profile_name(model, shape));
        Unmatched { pool, model, profile, count, cards: cards.len() as u64, running }
    };
    found.into_iter().map(told).collect()
}

/// The slots of a pinned card that nobody holds.
fn open_slots(family: MigFamily, standing: &[MigPlacement], pin: &PinnedLayout) -> Vec<MigPlacement> {
    pin.slots().iter().copied().filter(|slot| mig::can_stand(family, standing, *slot)).collect()
}

/// The largest base profiles that stand in the free slices of a card, and how many memory slices are then left in which none can.
fn left_over(family: MigFamily, mut occupied: u8) -> (Vec<MigPlacement>, u64) {
    let mut stand = Vec::new();
    for shape in MigShape::ALL.into_iter().rev().filter(|shape| shape.is_base()) {
        for &start in shape.starts(family) {
            if shape.mask(start) & occupied == 0 {
                occupied |= shape.mask(start);
                stand.push(MigPlacement { shape, start });
            }
        }
    }
    let slices = match family {
        MigFamily::Four => 4,
        MigFamily::Eight => 8,
    };
    (stand, slices - u64::from(occupied.count_ones()).min(slices))
}

//! What could be moved and converted so that waiting work starts: a plan, proved on the fleet in a transaction that is undone. Nothing is executed
//! here; the policy that moves jobs ([`crate::policy::moves`]) asks for one opening at a time.
//!
//! A plan opens islands, nodes and wider domains for gangs that wait only because free cards are scattered ([`one_place`], [`domain`]), a card for a
//! single part of one ([`one_card`]), empties shared cards ([`packing`]), and says which empty cards demand would have driven otherwise and which slices nothing matches
//! ([`repartition`]). What must stay true, and is tested on random fleets:
//! - only jobs that say that they are movable are moved, whole, each at most once, and never further apart than they stood;
//! - what is moved never exceeds the stated share of the movable work;
//! - the moves made one by one in their order keep every law, and then the gang stands where the plan says, by the search that places
//!   real work;
//! - the same view and settings give the same plan; its search is bounded by steps.

mod domain;
mod one_card;
mod one_place;
mod packing;
mod repartition;
mod report;
mod trial;
mod victims;

pub use report::{Conversion, Move, MovePlan, NoPlan, Opening, Packing, Unhelped, Unmatched};

use crate::fleet::Fleet;
use crate::job_class::JobClass;
use crate::search::Ask;
use crate::view::{Known, View, in_turn};
use muster_model::capacity::CardUse;
use muster_model::moves::Left;
use muster_model::request::SharingMode;
use muster_model::{CellId, GpuModel, GpuUnits, JobId, TaskPlacement, TenantId, TopologyLevel};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use trial::{Trial, Wanted};
use victims::Victims;

/// The share of the movable work that a plan moves when nobody says another.
pub const SHARE_PERCENT_DEFAULT: u8 = 2;
/// Waiting jobs that one plan looks at, in turn.
const JOBS_MAX: usize = 1_000;
/// Gangs for which places are sought: each search looks at every node.
const SEARCHES_MAX: usize = 64;
/// Gangs without a plan that are named; the rest look the same.
const UNHELPED_MAX: usize = 100;

/// What a plan may do and where it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// At most this share of what movable jobs hold is moved, in percent.
    pub share_percent: u8,
    /// Nodes, states and sets looked at; checked between two searches.
    pub steps_max: u64,
    /// The state's clock: what a move loses grows with it.
    pub now_ms: u64,
}

impl Settings {
    /// The usual share and bound at `now_ms`.
    #[must_use]
    pub const fn at(now_ms: u64) -> Self {
        // About a second: a plan is asked for by people, or made in the background.
        Settings { share_percent: SHARE_PERCENT_DEFAULT, steps_max: 20_000_000, now_ms }
    }
}

/// What came of a tenant's class: jobs of one tenant and class are interchangeable.
#[derive(Debug)]
struct Tried<V>(BTreeMap<TenantId, Vec<(Arc<JobClass>, V)>>);

impl<V> Default for Tried<V> {
    fn default() -> Self {
        Tried(BTreeMap::new())
    }
}

impl<V> Tried<V> {
    fn get(&self, tenant: TenantId, class: &Arc<JobClass>) -> Option<&V> {
        self.0.get(&tenant)?.iter().find(|(known, _)| known == class).map(|(_, value)| value)
    }

    fn insert(&mut self, tenant: TenantId, class: &Arc<JobClass>, value: V) {
        if self.get(tenant, class).is_none() {
            self.0.entry(tenant).or_default().push((class.clone(), value));
        }
    }
}

/// How much may be moved.
#[derive(Clone, Copy, Debug)]
struct Budget {
    movable: GpuUnits,
    share_percent: u8,
    moved: GpuUnits,
    /// What one opening may move and lose, where moves are to be executed.
    left: Left,
}

impl Budget {
    fn of(victims: &Victims, share_percent: u8) -> Self {
        let movable = GpuUnits(victims.values().map(|victim| victim.units.0).sum());
        let left = Left { moves: u64::MAX, unit_s: u64::MAX };
        Budget { movable, share_percent, moved: GpuUnits(0), left }
    }

    fn left(&self) -> GpuUnits {
        let all = self.movable.0.saturating_mul(u64::from(self.share_percent)) / 100;
        GpuUnits(all.saturating_sub(self.moved.0))
    }

    /// Whether so many jobs of so many units may be moved at that loss.
    fn allows(&self, jobs: u64, units: GpuUnits, lost: u64) -> bool {
        units <= self.left() && jobs <= self.left.moves && lost <= self.left.unit_s
    }

    /// The share that moving `units` more would take.
    fn beyond(&self, units: GpuUnits) -> NoPlan {
        let percent = (self.moved.0 + units.0).saturating_mul(100).div_ceil(self.movable.0.max(1));
        NoPlan::BeyondShare { percent }
    }
}

/// Plans for one cell. The view is used for trials, and is as before afterwards.
#[must_use]
pub fn plan_moves(view: &mut View, cell: CellId, settings: &Settings) -> MovePlan {
    let mut waiting: Vec<JobId> = Vec::new();
    let more = in_turn(view, cell, |_, job| {
        waiting.push(job);
        if waiting.len() == JOBS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let jobs: Vec<Arc<Known>> = waiting.into_iter().filter_map(|id| view.jobs.get(id.0).cloned()).collect();
    let mut planner = Planner::of(view, cell, settings);
    planner.plan.complete &= !more;
    let mut shares: Vec<Arc<Known>> = Vec::new();
    let mut tried: Tried<NoPlan> = Tried::default();
    for job in jobs {
        let Some(class) = &job.class else { continue };
        match class.request.devices.mode() {
            Some(SharingMode::Whole) => {
                let known = tried.get(job.tenant, class).copied();
                match known.map_or_else(|| planner.help(&job, class), Err) {
                    Ok(()) => {}
                    Err(why) => {
                        tried.insert(job.tenant, class, why);
                        planner.unhelped(job.id, why);
                    }
                }
            }
            Some(_) => {
                let vain = !may_open_for(class) || tried.get(job.tenant, class).is_some();
                match if vain { Err(NoPlan::NotLookedAt) } else { planner.open_card(&job, class) } {
                    Ok(()) => {}
                    Err(why) => {
                        tried.insert(job.tenant, class, why);
                        shares.push(job);
                    }
                }
            }
            None => {}
        }
    }
    planner.plan.packings = packing::pack(&mut planner.trial, cell, &mut planner.victims, &mut planner.budget);
    planner.plan.conversions = repartition::conversions(&mut planner.trial, cell, &shares, &mut planner.plan.starting);
    planner.plan.unmatched = repartition::unmatched(&planner.trial.fleet, cell);
    planner.done()
}

/// Whether moves are looked for: for gangs of whole cards, and for single tasks of a part of a card.
pub(crate) fn may_open_for(class: &JobClass) -> bool {
    class.request.devices.mode().is_some_and(|mode| mode == SharingMode::Whole || class.tasks == 1)
}

/// The moves that alone would start one waiting job; none when it does not wait in a cell for what moves could open. The view is as before
/// afterwards.
#[must_use]
pub fn open_for(view: &mut View, id: JobId, settings: &Settings) -> Option<Result<Opening, NoPlan>> {
    let job = view.jobs.get(id.0)?.clone();
    let (class, cell) = (job.class.as_ref()?, job.cell?);
    if !may_open_for(class) {
        return None;
    }
    let mut planner = Planner::of(view, cell, settings);
    match planner.help(&job, class) {
        Ok(()) => planner.plan.openings.pop().map(Ok),
        Err(why) => Some(Err(why)),
    }
}

/// The moves in one pool that would start a waiting gang and may be made at once, within what the pool's budget has left; none if there are none.
/// The view is as before afterwards.
pub(crate) fn open_in_pool(
    view: &mut View,
    id: JobId,
    pool: &str,
    left: Left,
    settings: &Settings,
) -> (Option<Opening>, u64) {
    let Some(job) = view.jobs.get(id.0).cloned() else { return (None, 0) };
    let (Some(class), Some(cell)) = (job.class.as_ref(), job.cell) else { return (None, 0) };
    let victims = victims::of_cell(view, cell, settings.now_ms);
    let victims = victims::movable_now(view, victims, pool, settings.now_ms);
    if victims.is_empty() {
        return (None, 0);
    }
    let budget = Budget { left, ..Budget::of(&victims, 100) };
    let mut planner = Planner::with(view, cell, settings, victims, budget);
    let opened = planner.help(&job, class);
    let found = opened.ok().and_then(|()| planner.plan.openings.pop());
    (found, planner.trial.steps.0)
}

struct Planner<'v> {
    cell: CellId,
    steps_max: u64,
    trial: Trial<'v>,
    victims: Victims,
    budget: Budget,
    searches: usize,
    plan: MovePlan,
}

impl<'v> Planner<'v> {
    fn of(view: &'v mut View, cell: CellId, settings: &Settings) -> Self {
        let victims = victims::of_cell(view, cell, settings.now_ms);
        let share_percent = settings.share_percent.min(100);
        let budget = Budget::of(&victims, share_percent);
        Self::with(view, cell, settings, victims, budget)
    }

    fn with(view: &'v mut View, cell: CellId, settings: &Settings, victims: Victims, budget: Budget) -> Self {
        let plan = MovePlan {
            movable_jobs: victims.len() as u64,
            movable: budget.movable,
            share_percent: budget.share_percent,
            complete: true,
            ..MovePlan::default()
        };
        let trial = Trial::on(&mut view.fleet, &view.queues);
        Planner { cell, steps_max: settings.steps_max, trial, victims, budget, searches: 0, plan }
    }

    /// Starts a waiting job on the trial, as things stand or after moves.
    fn help(&mut self, job: &Known, class: &JobClass) -> Result<(), NoPlan> {
        let models = self.models(job, class);
        if let Some((model, tasks)) = self.place(job, class, &models) {
            self.trial.start(&Wanted { job, class, cell: self.cell, model }, tasks);
            self.plan.starting.push(job.id);
            return Ok(());
        }
        self.open_one_of(job, class, models)
    }

    /// Starts a part of a card after moves; where it has a place as things stand, it is left to the conversions.
    fn open_card(&mut self, job: &Known, class: &JobClass) -> Result<(), NoPlan> {
        let models = self.models(job, class);
        if self.place(job, class, &models).is_some() || models.is_empty() {
            return Err(NoPlan::NotLookedAt);
        }
        self.open_one_of(job, class, models)
    }

    /// Those that the job may go to, and that its tenants' limits allow.
    fn models(&self, job: &Known, class: &JobClass) -> Vec<GpuModel> {
        let capacity = &self.trial.fleet.capacity;
        let allowed = class.offers().iter().filter(|offer| capacity.max_allows(job.tenant, &offer.charge).is_ok());
        allowed.filter_map(|offer| offer.model).collect()
    }

    /// Where the job stands as things are.
    fn place(&mut self, job: &Known, class: &JobClass, models: &[GpuModel]) -> Option<(GpuModel, Vec<TaskPlacement>)> {
        let cell = self.cell;
        models.iter().find_map(|&model| {
            let wanted = Wanted { job, class, cell, model };
            self.trial.place(&wanted.ask()).map(|tasks| (model, tasks))
        })
    }

    fn open_one_of(&mut self, job: &Known, class: &JobClass, models: Vec<GpuModel>) -> Result<(), NoPlan> {
        let (cell, mut why) = (self.cell, None);
        for model in models {
            match self.open(&Wanted { job, class, cell, model }) {
                Ok(()) => return Ok(()),
                // Of several models the one that came closest is told.
                Err(one) => why = why.max(Some(one)),
            }
        }
        // Only its max is in its way, or it is for no card of this cell: nothing that moves would help.
        why.map_or(Ok(()), Err)
    }

    fn open(&mut self, wanted: &Wanted<'_>) -> Result<(), NoPlan> {
        let needed = wanted.class.cards();
        let in_part = one_card::is_for(wanted);
        let free = if in_part { needed } else { free(&self.trial.fleet, &wanted.ask()) };
        // What shares cards may leave whole ones free without taking any.
        if free < needed && free + shared_by(&self.trial, wanted, &self.victims) < needed {
            return Err(NoPlan::TooFewFree { free, needed });
        }
        if self.victims.is_empty() {
            return Err(NoPlan::TooLittleMovable);
        }
        if self.searches == SEARCHES_MAX || self.trial.steps.0 >= self.steps_max {
            self.plan.complete = false;
            return Err(NoPlan::NotLookedAt);
        }
        self.searches += 1;
        let in_one = one_place::is_for(wanted);
        let search = match (in_part, in_one) {
            (true, _) => one_card::open,
            (false, true) => one_place::open,
            (false, false) => domain::open,
        };
        let opened = search(&mut self.trial, wanted, &self.victims, self.budget)?;
        let moves = opened.proof.moves;
        for made in &moves {
            self.budget.moved.0 += made.units.0;
            self.victims.remove(&made.allocation);
        }
        let fleet = &self.trial.fleet;
        let stood: Vec<_> = moves.iter().map(|made| trial::islands(fleet, &made.from)).collect();
        let stands = trial::islands(fleet, &opened.proof.tasks);
        let islands = stands.iter().filter(|island| stood.iter().any(|stood| stood.contains(island))).count() as u64;
        let level = wanted.class.topology.required.unwrap_or(if in_one {
            TopologyLevel::Node
        } else {
            // Without a level the gang may lie anywhere in its cell, which has no name of its own.
            TopologyLevel::Region
        });
        self.plan.openings.push(Opening {
            job: wanted.job.id,
            model: wanted.model,
            cards: needed,
            level,
            islands,
            moves,
            tasks: opened.proof.tasks,
            cheapest: opened.cheapest,
        });
        Ok(())
    }

    fn unhelped(&mut self, job: JobId, why: NoPlan) {
        if self.plan.unhelped.len() < UNHELPED_MAX {
            self.plan.unhelped.push(Unhelped { job, why });
        }
    }

    fn done(mut self) -> MovePlan {
        self.plan.moved = self.budget.moved;
        self.plan.steps = self.trial.steps.0;
        self.plan
    }
}

/// Cards of the cell that movable jobs alone share.
fn shared_by(trial: &Trial<'_>, wanted: &Wanted<'_>, victims: &Victims) -> u64 {
    let here = trial.fleet.capacity.nodes().values().filter(|there| there.node.cell == wanted.cell);
    let cards = here.flat_map(|there| there.cards.iter().zip(&there.node.spec.gpus));
    let shared = cards.filter(|(card, gpu)| {
        let is_shared = !matches!(card, CardUse::Free | CardUse::Whole(_));
        is_shared && gpu.model == wanted.model && card.holders().iter().all(|holder| victims.contains_key(holder))
    });
    shared.count() as u64
}

/// Free whole cards where the job may go.
fn free(fleet: &Fleet, ask: &Ask<'_>) -> u64 {
    let buckets = ask.buckets(fleet);
    buckets.map(|(_, bucket)| bucket.free()).sum()
}

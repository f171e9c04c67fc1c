//! Which cell tries to place a job.
//!
//! A job goes to the cell that could ever hold it and has most room left for the models it wants, what already waits there
//! counted against it; ties go to the lowest id. What must stay true: no scan over nodes or jobs, only over cells and the few
//! shapes of their nodes; the same state gives the same cell.

use crate::index::{CellIndex, NodeShape, Shapes, tasks_on, wanted};
use crate::state::State;
use muster_model::capacity::CardRules;
use muster_model::eligibility::PoolRefusal;
use muster_model::gang::{Gang, Held, Tally};
use muster_model::ids::CellId;
use muster_model::{GpuModel, JobSpec, Pool, ResourceVec, TopologyLevel};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The models a job may land on; `None` stands for a gang without GPUs.
pub(crate) type Models = Vec<Option<GpuModel>>;

/// The models that could ever serve `spec`.
pub(crate) fn models_of(spec: &JobSpec) -> Models {
    if spec.request.devices.mode().is_none() {
        return vec![None];
    }
    spec.possible_models().map(Some).collect()
}

/// The rules of the pool named `name`: the standard ones when nobody has described it.
pub(crate) fn rules<'a>(state: &'a State, name: &str) -> &'a Pool {
    state.pools.get(name).unwrap_or_else(|| Pool::standard_rules())
}

/// By which rules the cards of that pool are given.
pub(crate) fn card_rules<'a>(state: &'a State, name: &str) -> CardRules<'a> {
    CardRules { pool: rules(state, name), shares: state.capacity().share_rule() }
}

/// Why nodes of the pool named `name` do not serve `spec`, if they do not.
pub(crate) fn refusal_of_pool(state: &State, name: &str, spec: &JobSpec) -> Option<PoolRefusal> {
    spec.eligibility().check_pool(name, rules(state, name)).err()
}

/// Chooses cells for the jobs of one command, each seeing those chosen before it.
pub(crate) struct Router<'a> {
    state: &'a State,
    added: BTreeMap<CellId, ResourceVec>,
}

impl<'a> Router<'a> {
    pub(crate) fn new(state: &'a State) -> Self {
        Router { state, added: BTreeMap::new() }
    }

    /// The eligible cell with most room, if any cell could ever hold the gang.
    pub(crate) fn route(&mut self, spec: &JobSpec, models: &Models) -> Option<CellId> {
        let chosen = self.best(spec, models, |_, _| true)?;
        self.added.entry(chosen).or_default().add(&wanted(spec));
        Some(chosen)
    }

    /// The next cell for a job that `from` hands on: not in `visited`, and with room for the whole gang or at least with more
    /// free than `from` has.
    pub(crate) fn pass_on(&self, from: CellId, spec: &JobSpec, visited: &BTreeSet<CellId>) -> Option<CellId> {
        let models = models_of(spec);
        let free_here = self.state.index().cells.get(&from).map_or(0, |cell| free(cell, &models));
        let needed = amount(&wanted(spec), &models);
        self.best(spec, &models, |id, cell| {
            let free_there = free(cell, &models);
            id != from && !visited.contains(&id) && (free_there >= needed || free_there > free_here)
        })
    }

    fn best(&self, spec: &JobSpec, models: &Models, admit: impl Fn(CellId, &CellIndex) -> bool) -> Option<CellId> {
        let reserved = spec.reservation.as_deref().and_then(|name| self.state.cell_of_window(name));
        let may = |id: CellId| reserved.is_none_or(|cell| cell == id);
        let cells = self.state.index().cells.iter().filter(|(id, cell)| may(**id) && admit(**id, cell));
        let mut ranked: Vec<(Reverse<i128>, CellId, &CellIndex)> =
            cells.map(|(&id, cell)| (Reverse(self.room(id, cell, models)), id, cell)).collect();
        ranked.sort_by_key(|(room, id, _)| (*room, *id));
        let enough = u64::from(spec.tasks);
        let holds =
            |cell: &CellIndex| models.iter().any(|&model| tasks_held(self.state, cell, spec, model, enough) >= enough);
        ranked.into_iter().find(|(_, _, cell)| holds(cell)).map(|(_, id, _)| id)
    }

    /// What is free of the wanted models, less what waits for it.
    fn room(&self, id: CellId, cell: &CellIndex, models: &Models) -> i128 {
        let added = self.added.get(&id).map_or(0, |added| amount(added, models));
        free(cell, models) - amount(&cell.waiting, models) - added
    }
}

/// Whether `cell` could ever hold the gang, on one of the models it accepts.
pub(crate) fn could_hold(state: &State, cell: &CellIndex, spec: &JobSpec) -> bool {
    let enough = u64::from(spec.tasks);
    models_of(spec).into_iter().any(|model| tasks_held(state, cell, spec, model, enough) >= enough)
}

/// How many tasks of the gang `cell` would hold on cards of `model` if it were empty, inside one domain of the level that the
/// gang requires; counting stops once `enough` is reached.
pub(crate) fn tasks_held(state: &State, cell: &CellIndex, spec: &JobSpec, model: Option<GpuModel>, enough: u64) -> u64 {
    let Some(gang) = Gang::of(spec.tasks, &spec.topology, &spec.request, model.is_some()) else { return 0 };
    let count = Count { state, cell, spec, gang, model, enough };
    match spec.topology.required {
        None => count.within(None, &cell.shapes),
        Some(level @ (TopologyLevel::Island | TopologyLevel::Node)) => {
            let on_node = count.on_one_node(level == TopologyLevel::Island);
            let spanning = cell.domains_at(TopologyLevel::Island, None).filter(|_| model.is_some());
            let spanning = spanning.filter(|_| level == TopologyLevel::Island);
            spanning.map(|(_, shapes)| count.on_island(shapes)).chain([on_node]).max().unwrap_or(0)
        }
        Some(level) => {
            let mut most = 0;
            for (path, shapes) in cell.domains_at(level, None) {
                most = most.max(count.within(Some((level, path)), shapes));
                if most >= enough {
                    break;
                }
            }
            most
        }
    }
}

/// One question to a cell.
struct Count<'a> {
    state: &'a State,
    cell: &'a CellIndex,
    spec: &'a JobSpec,
    gang: Gang,
    model: Option<GpuModel>,
    enough: u64,
}

impl Count<'_> {
    /// Tasks that the best node holds.
    fn on_one_node(&self, one_island: bool) -> u64 {
        let served = self.cell.shapes.keys().filter(|shape| self.serves(&shape.pool));
        served.map(|shape| self.gang.whole(self.on_node(shape, one_island))).max().unwrap_or(0)
    }

    fn serves(&self, pool: &str) -> bool {
        refusal_of_pool(self.state, pool, self.spec).is_none()
    }

    fn on_node(&self, shape: &NodeShape, one_island: bool) -> u64 {
        tasks_on(shape, card_rules(self.state, &shape.pool), self.spec, self.model, one_island)
    }

    /// Tasks that the nodes of an NVLink domain hold together.
    fn on_island(&self, shapes: &Shapes) -> u64 {
        self.gang.whole(self.on_nodes(shapes, |_| true))
    }

    /// Tasks inside one domain; none is the whole cell. Segments are counted whole, by node or, where NVLink spans nodes, by its domain.
    fn within(&self, domain: Option<(TopologyLevel, &str)>, shapes: &Shapes) -> u64 {
        let path = domain.map(|(_, path)| path);
        // What the spread allows on one node is counted there.
        let cap = self.gang.cap.filter(|cap| cap.level > TopologyLevel::Node);
        let gang = Gang { cap, ..self.gang };
        let mut tally: Tally<&str, &str> = Tally::default();
        if let Some(cap) = cap.filter(|cap| domain.is_none_or(|(level, _)| cap.level < level)) {
            for (spread, shapes) in self.cell.domains_at(cap.level, path) {
                let units = self.on_nodes(shapes, |_| true);
                if tally.add(&gang, spread, Held::Units(units)) >= self.enough {
                    break;
                }
            }
            return tally.total();
        }
        // A domain of the spread's own level, or inside one, counts as one of them.
        let here = "";
        if gang.tasks > 1 && gang.with_cards {
            for (island, shapes) in self.cell.domains_at(TopologyLevel::Island, path) {
                tally.add(&gang, here, Held::Tasks(island, self.on_nodes(shapes, |_| true)));
            }
            tally.add(&gang, here, Held::Units(self.on_nodes(shapes, |shape| !shape.spans) / gang.tasks));
        } else {
            tally.add(&gang, here, Held::Units(self.on_nodes(shapes, |_| true) / gang.tasks));
        }
        tally.total().saturating_mul(gang.tasks)
    }

    /// Tasks that these nodes hold, each for itself.
    fn on_nodes(&self, shapes: &Shapes, which: impl Fn(&NodeShape) -> bool) -> u64 {
        let served = shapes.iter().filter(|(shape, _)| which(shape) && self.serves(&shape.pool));
        self.sum(served.map(|(shape, count)| self.on_node(shape, false).saturating_mul(u64::from(*count))))
    }

    /// The sum, or as much of it as is enough.
    fn sum(&self, each: impl Iterator<Item = u64>) -> u64 {
        let mut sum = 0_u64;
        for more in each {
            sum = sum.saturating_add(more);
            if sum >= self.enough {
                break;
            }
        }
        sum
    }
}

fn free(cell: &CellIndex, models: &Models) -> i128 {
    amount(&cell.open, models) - amount(&cell.held, models)
}

fn amount(of: &ResourceVec, models: &Models) -> i128 {
    models.iter().map(|model| model.map_or(of.cpu_milli, |model| of.gpu(model).0)).map(i128::from).sum()
}

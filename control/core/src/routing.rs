//! Which cell tries to place a job.
//!
//! A job goes to the cell that could ever hold it and has most room left for the models it wants, what already waits there
//! counted against it; ties go to the lowest id. What must stay true: no scan over nodes or jobs, only over cells and the few
//! shapes of their nodes; the same state gives the same cell.

use crate::index::{CellIndex, Shapes, tasks_on, wanted};
use crate::state::State;
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

/// Why nodes of the pool named `name` do not serve `spec`, if they do not.
pub(crate) fn refusal_of_pool(state: &State, name: &str, spec: &JobSpec) -> Option<String> {
    let pool = rules(state, name);
    if spec.pool.as_ref().is_some_and(|asked| asked != name) {
        return Some(format!("pool {name} is not the one asked for"));
    }
    if !pool.classes.contains(&spec.class) {
        return Some(format!("pool {name} does not serve {}", spec.class));
    }
    let mode = spec.request.devices.mode()?;
    (!pool.modes.contains(&mode)).then(|| format!("pool {name} does not allow {mode}"))
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
        let cells = self.state.index().cells.iter().filter(|(id, cell)| admit(**id, cell));
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
    match spec.topology.required {
        None => in_shapes(state, &cell.shapes, spec, model, enough),
        Some(level @ (TopologyLevel::Island | TopologyLevel::Node)) => {
            let one_island = level == TopologyLevel::Island;
            let served = cell.shapes.keys().filter(|shape| refusal_of_pool(state, &shape.pool, spec).is_none());
            let each = served.map(|shape| tasks_on(shape, rules(state, &shape.pool), spec, model, one_island));
            each.max().unwrap_or(0)
        }
        Some(level) => {
            let mut most = 0;
            for shapes in cell.domains_at(level) {
                most = most.max(in_shapes(state, shapes, spec, model, enough));
                if most >= enough {
                    break;
                }
            }
            most
        }
    }
}

fn in_shapes(state: &State, shapes: &Shapes, spec: &JobSpec, model: Option<GpuModel>, enough: u64) -> u64 {
    let mut sum = 0_u64;
    for (shape, &count) in shapes {
        if refusal_of_pool(state, &shape.pool, spec).is_none() {
            let each = tasks_on(shape, rules(state, &shape.pool), spec, model, false);
            sum = sum.saturating_add(each.saturating_mul(u64::from(count)));
            if sum >= enough {
                break;
            }
        }
    }
    sum
}

fn free(cell: &CellIndex, models: &Models) -> i128 {
    amount(&cell.open, models) - amount(&cell.held, models)
}

fn amount(of: &ResourceVec, models: &Models) -> i128 {
    models.iter().map(|model| model.map_or(of.cpu_milli, |model| of.gpu(model).0)).map(i128::from).sum()
}

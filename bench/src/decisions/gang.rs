//! S2: a gang of 512 cards on a fleet that is nine tenths full, and whether its place is the tightest there is.

use super::churn::Bench;
use super::fleet::{self, CELL};
use crate::table::{self, Row};
use anyhow::{Result, ensure};
use muster_model::ids::TenantId;
use muster_model::{Change, DeviceRequest, Key, Object, Place, TaskPlacement, TopologyLevel};
use muster_scheduler_core::{Bounds, Proposal, View, plan};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Fleets smaller than this have no room for the gang when nine tenths are held.
pub(super) const NODES_MIN: u32 = 2_000;
const CARDS: u32 = 512;
const ROUNDS: usize = 200;

/// The gang as tasks of eight, four, two and one cards.
pub(super) fn measure(mut bench: Bench, nodes: u32) -> Result<Vec<Row>> {
    [8, 4, 2, 1].into_iter().map(|each| one(&mut bench, nodes, each)).collect()
}

fn one(bench: &mut Bench, nodes: u32, each: u32) -> Result<Row> {
    let spec = fleet::spec(CARDS / each, DeviceRequest::Whole { count: each, models: Vec::new() })?;
    let best = tightest(&bench.view, each);
    let mut passes = Vec::with_capacity(ROUNDS);
    let mut last: Option<Vec<TaskPlacement>> = None;
    for _ in 0..ROUNDS {
        let id = bench.next_job();
        bench.view.absorb(Change::put(Object::Job(fleet::job(id, TenantId(1), spec.clone()))));
        let begin = Instant::now();
        let found = plan(&mut bench.view, CELL, &Bounds { proposals_max: 1, ..Bounds::default() }, id.0);
        let took = begin.elapsed().as_nanos() as u64;
        if let Some(Proposal::Bind(binding)) = found.proposals.into_iter().next() {
            passes.push(took);
            last = Some(binding.tasks);
        }
        bench.view.absorb(Change::Delete(Key::Job(id)));
    }
    passes.sort_unstable();
    let us = |share| format!("{:.0} µs", table::percentile(&passes, share) as f64 / 1e3);
    let measured = match (&last, &best) {
        (Some(tasks), Some((level, free))) => {
            let got = spread(&bench.view, tasks);
            ensure!(got == (*level, *free), "placed in {got:?}, a look at every domain finds {best:?}");
            let on: BTreeSet<_> = tasks.iter().map(|task| task.node).collect();
            format!(
                "p50 {}, p99 {}; one {}, the tightest ({free} cards free), {} nodes",
                us(0.5),
                us(0.99),
                level.map_or("cell".to_owned(), |level| level.to_string()),
                on.len()
            )
        }
        (None, None) => "no room for it, and none by a look at every domain".to_owned(),
        (got, best) => anyhow::bail!("placed: {}, a look at every domain: {best:?}", got.is_some()),
    };
    Ok(Row::new(
        format!("S2 {} × {each} GPUs, {nodes} nodes × 8", CARDS / each),
        measured,
        "Slurm 29 such gangs/s on an empty fleet",
        "<= 1 ms, tightest level",
    ))
}

const LEVELS: [Option<TopologyLevel>; 4] =
    [Some(TopologyLevel::Leaf), Some(TopologyLevel::Block), Some(TopologyLevel::Region), None];

fn domain(place: &Place, level: Option<TopologyLevel>) -> String {
    level.map_or_else(String::new, |level| place.domain(level))
}

/// Free cards of each domain of `level`, and how many tasks of `each` cards it holds.
fn domains(view: &View, level: Option<TopologyLevel>, each: u32) -> BTreeMap<String, (u64, u32)> {
    let mut domains: BTreeMap<String, (u64, u32)> = BTreeMap::new();
    for there in view.capacity().nodes().values() {
        let free = there.free_cards() as u32;
        let sums = domains.entry(domain(&there.node.spec.place, level)).or_default();
        (sums.0, sums.1) = (sums.0 + u64::from(free), sums.1 + free / each);
    }
    domains
}

/// The tightest level at which some domain holds the gang, and the fewest free cards of one that does, by looking at every node.
fn tightest(view: &View, each: u32) -> Option<(Option<TopologyLevel>, u64)> {
    LEVELS.into_iter().find_map(|level| {
        let holding = domains(view, level, each).into_values().filter(|(_, tasks)| *tasks >= CARDS / each);
        holding.map(|(free, _)| free).min().map(|free| (level, free))
    })
}

/// The tightest level at which all of `tasks` lie in one domain, and that domain's free cards.
fn spread(view: &View, tasks: &[TaskPlacement]) -> (Option<TopologyLevel>, u64) {
    let nodes = view.capacity().nodes();
    let places: Vec<&Place> = tasks.iter().filter_map(|task| Some(&nodes.get(&task.node)?.node.spec.place)).collect();
    let inside = |level: &Option<TopologyLevel>| {
        places.iter().map(|place| domain(place, *level)).collect::<BTreeSet<String>>().len() == 1
    };
    let level = LEVELS.into_iter().find(inside).unwrap_or(None);
    let here = places.first().map_or_else(String::new, |place| domain(place, level));
    (level, domains(view, level, 1).get(&here).map_or(0, |(free, _)| *free))
}

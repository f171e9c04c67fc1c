//! The cards that a demand needs: everything that runs and waits is placed anew, by the scheduler, under the fleet's rules, on as many nodes of the
//! fleet's shapes as it takes.
//!
//! A job that said its needs alone is resolved anew, so that the rules of the pools decide how it holds a card. Limits, guarantees and start
//! conditions do not count: the question is what the demand is, not who may have it. What must stay true: what finds no place even so is counted.

use super::run::Run;
use super::{Options, Submission, WhatIfError};
use muster_control_core::State;
use muster_model::node::NodeSpec;
use muster_model::object::Meta;
use muster_model::{
    Cell, CellId, DeviceRequest, Epoch, GpuModel, Job, JobPhase, JobSpec, Limits, Node, NodeId, Object, ResourceVec,
    StartConditions, Tenant, ValidJobSpec,
};
use std::collections::BTreeMap;

/// Nodes of one shape: above any fleet.
const NODES_MAX: u64 = 20_000;
/// Jobs that are submitted at one moment: far fewer than one tenant may have waiting.
const JOBS_AT_ONCE: usize = 2_000;
/// Tasks of one array that count.
const ARRAY_TASKS_MAX: u64 = 10_000;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Needed {
    /// Cards that hold something, by model.
    pub(super) cards: BTreeMap<GpuModel, u64>,
    /// Jobs that found no place.
    pub(super) unplaced: u64,
}

/// What the demand of `state` and of what is submitted at the beginning needs.
pub(super) fn needed(state: &State, now_ms: u64, workload: &[Submission]) -> Result<Needed, WhatIfError> {
    let specs = demand(state, workload);
    if specs.is_empty() {
        return Ok(Needed::default());
    }
    let objects = boundless(state, &specs);
    let options =
        Options { horizon_ms: (specs.len() / JOBS_AT_ONCE) as u64 + 1, explained_max: 0, ..Options::default() };
    let mut run = Run::begin(objects, now_ms, &options);
    let at = |(index, spec): (usize, ValidJobSpec)| Submission {
        after_ms: (index / JOBS_AT_ONCE) as u64,
        spec,
        work_ms: None,
    };
    let submissions: Vec<Submission> = specs.into_iter().enumerate().map(at).collect();
    run.submit(&submissions);
    run.go()?;
    let waits = run.forecasts.jobs.values().filter(|forecast| forecast.waits).count();
    Ok(Needed { cards: run.forecasts.usage.cards(), unplaced: (waits + run.refused.len()) as u64 })
}

/// Every job that runs or waits, and those of the workload that come at once, as they were submitted.
fn demand(state: &State, workload: &[Submission]) -> Vec<ValidJobSpec> {
    let mut specs = Vec::new();
    for job in state.jobs.values().filter(|job| !job.cancelled && !matches!(job.phase, JobPhase::Finished(_))) {
        let count = tasks_left(state, job);
        specs.extend((0..count).map(|_| anew(&job.spec)));
    }
    let at_once = workload.iter().filter(|one| one.after_ms == 0);
    for one in at_once {
        let count = one.spec.array.as_ref().map_or(1, |array| {
            array.indices.len().min(array.max_running.map_or(u64::MAX, u64::from)).min(ARRAY_TASKS_MAX)
        });
        specs.extend((0..count).map(|_| anew(&one.spec)));
    }
    specs
}

/// One for a job; for the record of an array as many tasks as may still come at once.
fn tasks_left(state: &State, job: &Job) -> u64 {
    let Some(array) = &job.array else { return 1 };
    let live = state.index().starts.live_tasks(job.id) as u64;
    let may = array.max_running.map_or(u64::MAX, u64::from).saturating_sub(live);
    array.left.len().min(may).min(ARRAY_TASKS_MAX)
}

/// As it was submitted: needs are resolved again. The selector of its device class is part of its own already.
fn anew(spec: &JobSpec) -> ValidJobSpec {
    let mut spec = spec.clone();
    spec.asked.choice = None;
    if spec.asked.needs.is_some() {
        spec.request.devices = DeviceRequest::None;
    } else {
        spec.asked.device_class = None;
    }
    (spec.start, spec.array) = (StartConditions::default(), None);
    ValidJobSpec::from_control_plane(spec)
}

/// The fleet's rules with nobody on it, without limits, and with as many nodes of its shapes as these jobs can need.
fn boundless(state: &State, specs: &[ValidJobSpec]) -> Vec<Object> {
    let cell = Cell { id: CellId(1), name: "needed".to_owned(), epoch: Epoch(1), holder: Some("needed".to_owned()) };
    let mut objects = vec![Object::Cell(cell)];
    let free = |tenant: &Tenant| Tenant { guarantee: ResourceVec::default(), max: Limits::default(), ..tenant.clone() };
    objects.extend(state.tenants.values().map(|tenant| Object::Tenant(free(tenant))));
    objects.extend(state.pools.values().cloned().map(Object::Pool));
    objects.extend(state.device_classes.values().cloned().map(Object::DeviceClass));
    let mut id = 0;
    for shape in shapes(state) {
        let cards = shape.spec.gpus.len().max(1) as u64;
        let most = |spec: &ValidJobSpec| u64::from(spec.tasks) * u64::from(spec.request.devices.cards().max(1));
        let wanted: u64 = specs.iter().map(most).sum();
        // Twice as many as hold the cards: what asks for much CPU leaves cards free, and gangs stand inside one leaf.
        let nodes = (2 * wanted.div_ceil(cards) + shape.leaf.max(shape.block)).min(NODES_MAX);
        for number in 0..nodes {
            id += 1;
            let node = Node::usual(NodeId(id), CellId(1), shape.node(id, number));
            objects.push(Object::Node(node));
        }
    }
    let meta = Meta {
        feature_level: state.meta.feature_level,
        next_tenant: state.meta.next_tenant,
        next_cell: CellId(2),
        next_node: NodeId(id + 1),
        ..State::new(1).meta
    };
    objects.push(Object::Meta(meta));
    objects
}

/// Equal nodes.
struct Shape {
    spec: NodeSpec,
    /// Most of them under one leaf, in one block, in one NVLink domain.
    leaf: u64,
    block: u64,
    domain: u64,
}

impl Shape {
    fn node(&self, id: u32, number: u64) -> NodeSpec {
        let mut spec = self.spec.clone();
        spec.name = format!("needed-{id}");
        spec.address = spec.name.clone();
        spec.cell = "needed".to_owned();
        for (index, card) in spec.gpus.iter_mut().enumerate() {
            (card.uuid, card.withheld) = (format!("GPU-needed-{id}-{index}"), None);
        }
        let pool = &spec.pool;
        let of = |most: u64| format!("{pool}-{}-{}", self.spec.name, number / most.max(1));
        (spec.place.block, spec.place.leaf) = (of(self.block), of(self.leaf));
        if !spec.place.nvlink_domain.is_empty() {
            spec.place.nvlink_domain = format!("nvl-{}", number % self.leaf.max(1) / self.domain.max(1));
        }
        spec
    }
}

/// The different shapes of nodes that take work; of all nodes, where none does.
fn shapes(state: &State) -> Vec<Shape> {
    let open: Vec<&Node> = state.nodes.values().map(AsRef::as_ref).filter(|node| node.accepts_work()).collect();
    let nodes = if open.is_empty() { state.nodes.values().map(AsRef::as_ref).collect() } else { open };
    let mut alike: Vec<(NodeSpec, Vec<&Node>)> = Vec::new();
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for node in nodes {
        let key = key_of(&node.spec);
        // Fleets have few shapes; the text narrows them down to one or two.
        let short =
            format!("{}|{}|{}|{:?}", key.pool, key.gpus.len(), key.cpu_milli, key.gpus.first().map(|card| card.model));
        let found = places.entry(short).or_default();
        match found.iter().find(|place| alike[**place].0 == key) {
            Some(place) => alike[*place].1.push(node),
            None => {
                found.push(alike.len());
                alike.push((key, vec![node]));
            }
        }
    }
    let most = |nodes: &[&Node], domain: &dyn Fn(&Node) -> String| {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        nodes.iter().for_each(|node| *counts.entry(domain(node)).or_default() += 1);
        counts.into_values().max().unwrap_or(1)
    };
    let shape = |(_, nodes): (NodeSpec, Vec<&Node>)| Shape {
        leaf: most(&nodes, &|node| node.spec.place.domain(muster_model::TopologyLevel::Leaf)),
        block: most(&nodes, &|node| node.spec.place.domain(muster_model::TopologyLevel::Block)),
        domain: most(&nodes, &|node| node.spec.place.spanning_island().unwrap_or_default()),
        spec: nodes[0].spec.clone(),
    };
    alike.into_iter().map(shape).collect()
}

/// What nodes of one shape have in common.
fn key_of(spec: &NodeSpec) -> NodeSpec {
    let mut key = spec.clone();
    (key.name, key.address, key.boot_id, key.cell) = Default::default();
    (key.labels, key.place.block, key.place.leaf) = Default::default();
    if !key.place.nvlink_domain.is_empty() {
        key.place.nvlink_domain = "spans".to_owned();
    }
    for card in &mut key.gpus {
        (card.uuid, card.withheld) = (String::new(), None);
    }
    // Why something does not hold is told by each host in its own words.
    key.proofs.iter_mut().filter_map(|proof| proof.fault.as_mut()).for_each(String::clear);
    key
}

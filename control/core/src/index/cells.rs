//! What a cell consists of, in few groups: nodes of one shape are counted, not listed.
//!
//! Routing asks "could this cell ever hold that gang" for every submission. Thousands of nodes have few distinct shapes, so the
//! answer is a sum over shapes, per network domain where the gang requires one. What must stay true: derived from the objects
//! alone; nothing here knows what is free right now beyond the sums that rank cells.

use muster_model::capacity::CardRules;
use muster_model::gang::Gang;
use muster_model::ids::NodeId;
use muster_model::mig::{self, MigPlacement, PinnedLayout};
use muster_model::request::SharingMode;
use muster_model::selector::Known;
use muster_model::{
    DeviceRequest, DriverVersion, GpuModel, Job, JobSpec, Node, NumaPolicy, ResourceVec, TopologyLevel,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One card as routing sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CardShape {
    /// Model.
    pub model: GpuModel,
    /// Memory in MiB as reported.
    pub memory_mib: u64,
    /// NVLink island in the node.
    pub island: u8,
    /// NUMA node of the host.
    pub numa: u8,
}

/// What makes nodes alike for routing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeShape {
    /// The pool's name.
    pub pool: String,
    /// Cards by index. Withheld ones count: they may come back.
    pub cards: Vec<CardShape>,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// MiB of memory.
    pub memory_mib: u64,
    /// Its cards are part of an NVLink island that spans several nodes.
    pub spans: bool,
    /// Its driver, when that can be read.
    pub driver: Option<DriverVersion>,
}

impl NodeShape {
    fn of(node: &Node) -> Self {
        let card = |gpu: &muster_model::Gpu| CardShape {
            model: gpu.model,
            memory_mib: gpu.memory_mib,
            island: gpu.island,
            numa: gpu.numa,
        };
        NodeShape {
            pool: node.spec.pool.clone(),
            cards: node.spec.gpus.iter().map(card).collect(),
            cpu_milli: node.spec.cpu_milli,
            memory_mib: node.spec.memory_mib,
            spans: !node.spec.place.nvlink_domain.is_empty(),
            driver: DriverVersion::reported(&node.spec.driver),
        }
    }

    /// Whether nodes of this shape may have a card that `spec` accepts. Their labels and places are not known here, so a selector
    /// that asks for those may still find none.
    #[must_use]
    pub fn may_serve(&self, spec: &JobSpec, model: Option<GpuModel>) -> bool {
        let eligibility = spec.eligibility();
        let new_enough = eligibility.has_driver(self.driver);
        let (Some(_), Some(model)) = (eligibility.selector, model) else { return new_enough };
        let memories = || self.cards.iter().filter(|card| card.model == model).map(|card| card.memory_mib);
        let (Some(least), Some(most)) = (memories().min(), memories().max()) else { return false };
        let (memory_mib, driver) = ((least, most), Some(self.driver));
        let known = Known { model, memory_mib, driver, cuda: None, pool: Some(&self.pool), node: None };
        new_enough && eligibility.may_accept(&known)
    }
}

/// How many nodes there are of each shape.
pub type Shapes = BTreeMap<Arc<NodeShape>, u32>;

/// One cell's nodes in groups, with the sums that rank cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellIndex {
    /// Its nodes.
    pub nodes: BTreeSet<NodeId>,
    /// All of them by shape.
    pub shapes: Shapes,
    /// The same per domain of each level above the node, and of NVLink domains that span nodes as islands, by the domain's path.
    pub domains: BTreeMap<(TopologyLevel, String), Shapes>,
    /// What its nodes that accept work have, withheld cards left out.
    pub open: ResourceVec,
    /// What its live allocations are charged.
    pub held: ResourceVec,
    /// What the jobs queued in it would be charged on the model they prefer.
    pub waiting: ResourceVec,
}

impl CellIndex {
    pub(crate) fn add_node(&mut self, node: &Node) {
        self.nodes.insert(node.id);
        let shape = Arc::new(NodeShape::of(node));
        for (level, path) in domains_of(node) {
            count_up(self.domains.entry((level, path)).or_default(), &shape);
        }
        count_up(&mut self.shapes, &shape);
        self.open.add(&open_on(node));
    }

    pub(crate) fn remove_node(&mut self, node: &Node) {
        self.nodes.remove(&node.id);
        let shape = Arc::new(NodeShape::of(node));
        for key in domains_of(node) {
            if let Some(shapes) = self.domains.get_mut(&key) {
                count_down(shapes, &shape);
                if shapes.is_empty() {
                    self.domains.remove(&key);
                }
            }
        }
        count_down(&mut self.shapes, &shape);
        self.open.sub(&open_on(node));
    }

    pub(super) fn add_waiting(&mut self, job: &Job) {
        self.waiting.add(&wanted(&job.spec));
    }

    pub(super) fn remove_waiting(&mut self, job: &Job) {
        self.waiting.sub(&wanted(&job.spec));
    }

    /// The domains of `level` by their path, those inside the domain at `within` if one is given.
    pub fn domains_at<'a>(
        &'a self,
        level: TopologyLevel,
        within: Option<&str>,
    ) -> impl Iterator<Item = (&'a str, &'a Shapes)> + 'a {
        let prefix = within.map_or_else(String::new, |path| format!("{path}/"));
        self.domains
            .range((level, prefix.clone())..)
            .take_while(move |((at, path), _)| *at == level && path.starts_with(&prefix))
            .map(|((_, path), shapes)| (path.as_str(), shapes))
    }
}

/// What the whole gang would be charged on the model it prefers: an estimate for ranking cells, the same in every cell.
#[must_use]
pub(crate) fn wanted(spec: &JobSpec) -> ResourceVec {
    let preferred = spec.possible_models().next().unwrap_or(GpuModel::ALL[0]);
    spec.charge_on(preferred)
}

/// How many tasks of `spec` an otherwise empty node of `shape` could run on cards of `model` under these rules; with
/// `one_island`, on the cards of its best island. Segments are counted whole, but for nodes whose NVLink goes on to others.
#[must_use]
pub fn tasks_on(
    shape: &NodeShape,
    rules: CardRules<'_>,
    spec: &JobSpec,
    model: Option<GpuModel>,
    one_island: bool,
) -> u64 {
    let request = &spec.request;
    if !shape.may_serve(spec, model) {
        return 0;
    }
    let by_host = shape
        .cpu_milli
        .checked_div(request.cpu_milli)
        .unwrap_or(u64::MAX)
        .min(shape.memory_mib.checked_div(request.memory_mib).unwrap_or(u64::MAX));
    let Some(model) = model else { return by_host };
    let of_model = shape.cards.iter().filter(|card| card.model == model).enumerate();
    let cards = || of_model.clone().map(|(rank, card)| (card, rules.pool.pin_at(model, rank)));
    let by_cards = if one_island {
        let islands: BTreeSet<u8> = cards().map(|(card, _)| card.island).collect();
        let on = |island| tasks_of(cards().filter(move |(card, _)| card.island == island), rules, spec);
        islands.into_iter().map(on).max().unwrap_or(0)
    } else {
        tasks_of(cards(), rules, spec)
    };
    let tasks = by_cards.min(by_host);
    let Some(gang) = Gang::of(spec.tasks, &spec.topology, request, true) else { return 0 };
    let tasks = tasks.min(gang.cap_at(TopologyLevel::Node));
    // Where NVLink goes on to other nodes so does a segment: they are counted by the domain.
    if shape.spans { tasks } else { gang.whole(tasks) }
}

/// How many tasks these cards, each with the layout that it is pinned to, could run, each task's on one NUMA node where the job insists on it.
fn tasks_of<'a>(
    cards: impl Iterator<Item = (&'a CardShape, Option<&'a PinnedLayout>)>,
    rules: CardRules<'_>,
    spec: &JobSpec,
) -> u64 {
    let devices = &spec.request.devices;
    let each = match devices {
        DeviceRequest::Whole { count, .. } => u64::from((*count).max(1)),
        _ => 1,
    };
    let mut slots: BTreeMap<u8, u64> = BTreeMap::new();
    for (card, pin) in cards {
        let numa = if spec.numa == NumaPolicy::SingleNumaNode { card.numa } else { 0 };
        *slots.entry(numa).or_default() += match pin {
            Some(pin) => devices.mig_shape(card.model).map_or(0, |shape| pin.count(shape) as u64),
            None => slots_on(card, rules, devices),
        };
    }
    slots.into_values().map(|slots| slots / each).sum()
}

/// How many holds of this kind one empty card takes.
fn slots_on(card: &CardShape, CardRules { pool, shares }: CardRules<'_>, devices: &DeviceRequest) -> u64 {
    let by_memory = |mode, memory_mib| shares.count(card.model, mode, card.memory_mib, memory_mib);
    match devices {
        DeviceRequest::None => 0,
        DeviceRequest::Whole { .. } => 1,
        DeviceRequest::Mig { .. } => {
            let (Some(family), Some(shape)) = (card.model.facts().mig, devices.mig_shape(card.model)) else { return 0 };
            let mut standing: Vec<MigPlacement> = Vec::new();
            while let Some(place) = { mig::free_starts(family, &standing, shape).next() } {
                standing.push(place);
            }
            standing.len() as u64
        }
        DeviceRequest::Mps { percent, memory_mib, .. } => u64::from(pool.mps_clients)
            .min(100 / u64::from((*percent).max(1)))
            .min(by_memory(SharingMode::Mps, *memory_mib)),
        DeviceRequest::TimeSlice { memory_mib, .. } => {
            u64::from(pool.time_slice_replicas).min(by_memory(SharingMode::TimeSlice, *memory_mib))
        }
    }
}

fn domains_of(node: &Node) -> impl Iterator<Item = (TopologyLevel, String)> + '_ {
    [TopologyLevel::Leaf, TopologyLevel::Block, TopologyLevel::Region]
        .into_iter()
        .map(|level| (level, node.spec.place.domain(level)))
        .chain(node.spec.place.spanning_island().map(|path| (TopologyLevel::Island, path)))
}

fn open_on(node: &Node) -> ResourceVec {
    let mut open = ResourceVec::default();
    if node.accepts_work() {
        for gpu in node.spec.gpus.iter().filter(|gpu| gpu.withheld.is_none()) {
            open.add(&ResourceVec::of_gpu(gpu.model, muster_model::GpuUnits::CARD));
        }
        open.cpu_milli = node.spec.cpu_milli;
        open.memory_mib = node.spec.memory_mib;
    }
    open
}

fn count_up(shapes: &mut Shapes, shape: &Arc<NodeShape>) {
    *shapes.entry(Arc::clone(shape)).or_default() += 1;
}

fn count_down(shapes: &mut Shapes, shape: &Arc<NodeShape>) {
    if let Some(count) = shapes.get_mut(shape) {
        *count -= 1;
        if *count == 0 {
            shapes.remove(shape);
        }
    }
}

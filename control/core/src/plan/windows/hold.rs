//! Which nodes a reservation gets, and whether they can be held for it.
//!
//! What must stay true: whole nodes are reserved, of one cell; by the time limits of what runs there each of them is free at the start; nodes
//! that were asked for by a number of GPUs stand as close together as those that can be held allow.

use crate::draft::Draft;
use crate::reject::Reject;
use crate::state::State;
use crate::windows::latest_end_ms;
use muster_model::ids::{AllocationId, CellId, JobId, NodeId};
use muster_model::window::START_MS;
use muster_model::{AllocationState, GpuModel, Node, TopologyLevel, Window, WindowSpec, utc};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes, with the cards that each has of what is asked for.
type FreeNodes<'a> = Vec<(&'a Node, u64)>;

/// Jobs that a refusal names.
const JOBS_SHOWN_MAX: usize = 8;

/// The window with its nodes, each of which can be held.
///
/// # Errors
/// Why there are too few, with the figures.
pub(super) fn nodes(draft: &Draft<'_>, window: Window, spec: &WindowSpec) -> Result<Window, Reject> {
    let state = draft.state;
    let look = Look { state, window: &window, now_ms: draft.now_ms, claimed: claimed(state) };
    let Some(model) = spec.model.filter(|_| spec.gpus > 0) else {
        look.check_named()?;
        return Ok(window);
    };
    let mut supply = Supply::default();
    let mut open: Vec<(&Node, u64)> = Vec::new();
    for node in state.nodes.values().filter(|node| cards(node, model) > 0) {
        let has = cards(node, model);
        supply.has += has;
        match look.obstacle(node) {
            None => open.push((node, has)),
            Some(Obstacle::Closed(_)) => supply.closed += has,
            Some(Obstacle::Window(_)) => supply.windows += has,
            Some(Obstacle::Jobs(jobs)) => {
                supply.held += has;
                supply.jobs.extend(jobs);
            }
        }
    }
    match tightest(&open, spec.gpus) {
        Some(nodes) => Ok(Window { nodes, ..window }),
        None => Err(supply.too_little(&open, spec.gpus, model, window.start_ms)),
    }
}

/// Cards of a model on these nodes.
pub(super) fn cards_on(state: &State, nodes: &BTreeSet<NodeId>, model: GpuModel) -> u64 {
    nodes.iter().filter_map(|id| state.nodes.get(id)).map(|node| cards(node, model)).sum()
}

fn cards(node: &Node, model: GpuModel) -> u64 {
    node.spec.gpus.iter().filter(|gpu| gpu.model == model && gpu.withheld.is_none()).count() as u64
}

/// Nodes that others have claimed: nobody knows yet when they leave them.
fn claimed(state: &State) -> BTreeMap<NodeId, JobId> {
    let claims = state.index().claims.iter().filter_map(|id| Some((*id, state.jobs.get(id)?.claim.as_ref()?)));
    claims.flat_map(|(id, claim)| claim.nodes().into_iter().map(move |node| (node, id))).collect()
}

/// What keeps a node from being held.
enum Obstacle {
    Closed(&'static str),
    Window(String),
    Jobs(Vec<JobId>),
}

struct Look<'a> {
    state: &'a State,
    window: &'a Window,
    now_ms: u64,
    claimed: BTreeMap<NodeId, JobId>,
}

impl Look<'_> {
    fn obstacle(&self, node: &Node) -> Option<Obstacle> {
        if let Some(why) = node.closed_by() {
            return Some(Obstacle::Closed(why));
        }
        let taken = |other: &&Window| other.overlaps(self.window.start_ms, self.window.end_ms);
        if let Some(other) = self.state.windows_on(node.id).find(taken) {
            return Some(Obstacle::Window(format!("{} {}", other.kind, other.name)));
        }
        let held = self.state.index().allocations_on(node.id).filter_map(|id| self.stays(id));
        let jobs: Vec<JobId> = held.chain(self.claimed.get(&node.id).copied()).collect();
        (!jobs.is_empty()).then_some(Obstacle::Jobs(jobs))
    }

    /// The job of an allocation that may still be there at the start.
    fn stays(&self, id: AllocationId) -> Option<JobId> {
        let held = self.state.allocations.get(&id)?;
        let spec = &self.state.jobs.get(&held.job)?.spec;
        if spec.reservation.as_deref() == Some(&*self.window.name) {
            return None;
        }
        // What is past its time, or is being stopped, may take as long as a start.
        let end_ms = match held.state {
            AllocationState::Active => latest_end_ms(held, spec).max(self.now_ms.saturating_add(START_MS)),
            AllocationState::Stopping(_) => self.now_ms.saturating_add(1_000 * spec.grace_s).saturating_add(START_MS),
        };
        (end_ms > self.window.start_ms).then_some(held.job)
    }

    fn check_named(&self) -> Result<(), Reject> {
        let mut cells: BTreeSet<CellId> = BTreeSet::new();
        for node in self.window.nodes.iter().filter_map(|id| self.state.nodes.get(id)) {
            cells.insert(node.cell);
            let (name, start) = (&node.spec.name, utc::show(self.window.start_ms));
            let problem = match self.obstacle(node) {
                None => continue,
                Some(Obstacle::Closed(why)) => format!("node {name} is {why}"),
                Some(Obstacle::Window(other)) => format!("node {name} is in {other} at that time"),
                Some(Obstacle::Jobs(jobs)) => {
                    format!(
                        "node {name} cannot be held from {start}: {} may still run there",
                        listed(&jobs.into_iter().collect())
                    )
                }
            };
            let fix = "choose other nodes or a later start, or let Muster choose by gpus and model";
            return Err(Reject::field("nodes", problem, fix));
        }
        if cells.len() > 1 {
            let problem = format!("are in {} cells", cells.len());
            return Err(Reject::field("nodes", problem, "reserve nodes of one cell: a gang does not cross cells"));
        }
        Ok(())
    }
}

/// Cards of the model by what becomes of them.
#[derive(Default)]
struct Supply {
    has: u64,
    closed: u64,
    windows: u64,
    held: u64,
    jobs: BTreeSet<JobId>,
}

impl Supply {
    fn too_little(&self, open: &[(&Node, u64)], asked: u64, model: GpuModel, start_ms: u64) -> Reject {
        let mut cells: BTreeMap<CellId, u64> = BTreeMap::new();
        open.iter().for_each(|(node, has)| *cells.entry(node.cell).or_default() += has);
        let most = cells.into_values().max().unwrap_or(0);
        let Supply { has, closed, windows, held, jobs } = self;
        let by_jobs = if jobs.is_empty() { String::new() } else { format!(" ({})", listed(jobs)) };
        let problem = format!(
            "is {asked}, but at most {most} GPUs {model} of one cell can be held from {}: of {has} in the fleet, {closed} are on \
             closed nodes, {windows} are in other windows then, {held} are on nodes where jobs may still run{by_jobs}",
            utc::show(start_ms)
        );
        Reject::field("gpus", problem, "reserve fewer, or choose a later start")
    }
}

fn listed(jobs: &BTreeSet<JobId>) -> String {
    let shown: Vec<String> = jobs.iter().take(JOBS_SHOWN_MAX).map(ToString::to_string).collect();
    let more =
        if jobs.len() > JOBS_SHOWN_MAX { format!(" and {} more", jobs.len() - JOBS_SHOWN_MAX) } else { String::new() };
    format!("job{} {}{more}", if jobs.len() == 1 { "" } else { "s" }, shown.join(", "))
}

/// Nodes with so many cards in the smallest domain that has them: the leaf, block or region with the fewest, otherwise the cell. Inside it the
/// nodes with most cards come first.
fn tightest(open: &[(&Node, u64)], asked: u64) -> Option<BTreeSet<NodeId>> {
    let levels = [Some(TopologyLevel::Leaf), Some(TopologyLevel::Block), Some(TopologyLevel::Region), None];
    levels.into_iter().find_map(|level| {
        let mut domains: BTreeMap<(CellId, String), (u64, FreeNodes<'_>)> = BTreeMap::new();
        for &(node, has) in open {
            let domain = level.map(|level| node.spec.place.domain(level)).unwrap_or_default();
            let there = domains.entry((node.cell, domain)).or_default();
            there.0 += has;
            there.1.push((node, has));
        }
        let enough = domains.into_values().filter(|(has, _)| *has >= asked);
        let (_, mut nodes) = enough.min_by_key(|(has, nodes)| (*has, nodes.first().map(|(node, _)| node.id)))?;
        nodes.sort_by_key(|(node, has)| (std::cmp::Reverse(*has), node.id));
        let mut left = asked;
        let mut chosen = BTreeSet::new();
        for (node, has) in nodes {
            if left == 0 {
                break;
            }
            chosen.insert(node.id);
            left = left.saturating_sub(has);
        }
        Some(chosen)
    })
}

//! Nodes, cells and pools as they are shown.

use crate::output::{Block, Columns};
use crate::units::{show_cpus, show_mebibytes, show_moment};
use crate::view::links::LinksView;
use muster_model::Pool;
use muster_model::node::WITHHELD_PERCENT_MAX;
use muster_proto::v1;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// ready, silent, down, quarantined, unproven (it lacks isolation that its pool needs), restored (from a backup and not confirmed), drained (no task left) or draining.
    pub state: &'static str,
    /// What an operator should know of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Its cell.
    pub cell: String,
    /// Its pool.
    pub pool: String,
    /// Where it stands.
    pub place: String,
    /// Models of its cards.
    pub models: String,
    /// Cards.
    pub gpus: usize,
    /// Cards that new work may be given: none on a node that takes none.
    pub gpus_free: u32,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// Milli-CPUs that new work may be given.
    pub cpu_free_milli: i64,
    /// MiB.
    pub memory_mib: u64,
    /// MiB that new work may be given.
    pub memory_free_mib: i64,
    /// Tasks on it.
    pub tasks: u32,
    /// Grows each time it is fenced.
    pub epoch: u64,
    /// Driver.
    pub driver: String,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What came of trying to get past the isolation of tasks: `holds`, or why it does not.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub proofs: BTreeMap<String, String>,
    /// How its GPUs and network cards reach each other, once its agent has told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<LinksView>,
}

impl NodeView {
    /// From the message.
    #[must_use]
    pub fn new(view: &v1::NodeView) -> Self {
        let node = view.node.clone().unwrap_or_default();
        let health = node.health();
        let quarantined = node.notes.as_ref().is_some_and(|notes| notes.quarantine.is_some());
        let unproven = node.notes.as_ref().is_some_and(|notes| !notes.lacks.is_empty());
        let restored = node.notes.as_ref().is_some_and(|notes| notes.restored.is_some());
        let open = |kind: &str| view.windows.iter().any(|window| window.open && window.kind == kind);
        let (maintained, reserved) = (open("maintenance"), open("reservation"));
        let windows = view.windows.iter().map(window_words);
        let links = LinksView::of_node(&node);
        let spec = node.spec.unwrap_or_default();
        let place = spec.place.unwrap_or_default();
        let models: BTreeSet<&str> = spec.gpus.iter().map(|gpu| gpu.model.as_str()).collect();
        NodeView {
            state: match (health, node.drained, view.tasks) {
                (v1::NodeHealth::Ready, ..) if restored => "restored",
                (v1::NodeHealth::Ready, false, _) if maintained => "maintenance",
                (v1::NodeHealth::Ready, false, _) if reserved => "reserved",
                (v1::NodeHealth::Ready, true, 0) => "drained",
                (v1::NodeHealth::Ready, true, _) => "draining",
                (v1::NodeHealth::Ready, false, _) if quarantined => "quarantined",
                (v1::NodeHealth::Ready, false, _) if unproven => "unproven",
                (v1::NodeHealth::Ready, false, _) => "ready",
                (v1::NodeHealth::Silent, ..) => "silent",
                (v1::NodeHealth::Down, ..) => "down",
                (v1::NodeHealth::Unspecified, ..) => "unknown",
            },
            reason: [node.reason]
                .into_iter()
                .filter(|text| !text.is_empty())
                .chain(windows)
                .collect::<Vec<_>>()
                .join("; "),
            models: models.into_iter().collect::<Vec<_>>().join(","),
            name: spec.name,
            cell: spec.cell,
            pool: spec.pool,
            place: place_words(place),
            gpus: spec.gpus.len(),
            gpus_free: view.gpus_free,
            cpu_milli: spec.cpu_milli,
            cpu_free_milli: view.cpu_free_milli,
            memory_mib: spec.memory_mib,
            memory_free_mib: view.memory_free_mib,
            tasks: view.tasks,
            epoch: node.epoch,
            driver: spec.driver,
            labels: spec.labels,
            proofs: spec.proofs.into_iter().map(proof_words).collect(),
            links,
        }
    }
}

fn proof_words(v1::Proof { protection, fault }: v1::Proof) -> (String, String) {
    (protection, if fault.is_empty() { "holds".to_owned() } else { fault })
}

/// `maintenance kernel from .. to ..: new kernel`.
fn window_words(window: &v1::Window) -> String {
    let until = window.end_ms.map(|end_ms| format!(" to {}", show_moment(end_ms))).unwrap_or_default();
    let why = if window.reason.is_empty() { String::new() } else { format!(": {}", window.reason) };
    format!("{} {} from {}{until}{why}", window.kind, window.name, show_moment(window.start_ms))
}

/// From the widest; the NVLink domain last, where there is one.
fn place_words(place: v1::Place) -> String {
    let mut parts = vec![place.region, place.zone, place.block, place.leaf, place.nvlink_domain];
    parts.retain(|part| !part.is_empty());
    parts.join("/")
}

/// The table of nodes.
#[must_use]
pub fn nodes_table(nodes: &[NodeView], wide: bool) -> Vec<Block> {
    let narrow = ["NODE", "STATE", "CELL", "POOL", "MODEL", "GPUS", "FREE", "CPUS FREE", "MEMORY FREE", "TASKS"];
    let more = ["EPOCH", "PLACE", "DRIVER"];
    let heads: Vec<&'static str> = if wide { narrow.iter().chain(&more).copied().collect() } else { narrow.to_vec() };
    let mut columns = Columns::new(&heads).right(&["GPUS", "FREE", "CPUS FREE", "MEMORY FREE", "TASKS", "EPOCH"]);
    for node in nodes {
        let mut row = vec![
            node.name.clone(),
            node.state.to_owned(),
            node.cell.clone(),
            node.pool.clone(),
            node.models.clone(),
            node.gpus.to_string(),
            node.gpus_free.to_string(),
            show_cpus(u64::try_from(node.cpu_free_milli).unwrap_or(0)),
            show_mebibytes(u64::try_from(node.memory_free_mib).unwrap_or(0)),
            node.tasks.to_string(),
        ];
        if wide {
            row.extend([node.epoch.to_string(), node.place.clone(), node.driver.clone()]);
        }
        columns.row(row);
    }
    let reasons = nodes.iter().filter(|node| !node.reason.is_empty());
    let reasons: Vec<String> = reasons.map(|node| format!("{}: {}", node.name, node.reason)).collect();
    let mut blocks = vec![columns.block()];
    if !reasons.is_empty() {
        blocks.push(Block::Text(reasons.join("\n")));
    }
    blocks
}

/// A cell.
#[derive(Clone, Debug, Serialize)]
pub struct CellView {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// The shard that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Grows each time the lease changes hands.
    pub epoch: u64,
    /// Nodes.
    pub nodes: u32,
    /// Nodes that take new work.
    pub nodes_ready: u32,
    /// Nodes that are heard of and take none.
    pub nodes_drained: u32,
    /// Nodes that are not heard of.
    pub nodes_silent: u32,
    /// Cards.
    pub gpus: u32,
    /// Cards that new work may be given.
    pub gpus_free: u32,
    /// Jobs that wait there.
    pub pending: u64,
    /// Jobs that run there.
    pub running: u64,
}

impl CellView {
    /// From the message.
    #[must_use]
    pub fn new(view: &v1::CellView) -> Self {
        let cell = view.cell.clone().unwrap_or_default();
        CellView {
            name: cell.name,
            id: cell.id,
            holder: cell.holder,
            epoch: cell.epoch,
            nodes: view.nodes,
            nodes_ready: view.nodes_ready,
            nodes_drained: view.nodes_drained,
            nodes_silent: view.nodes_silent,
            gpus: view.gpus,
            gpus_free: view.gpus_free,
            pending: view.waiting,
            running: view.running,
        }
    }
}

/// The table of cells.
#[must_use]
pub fn cells_table(cells: &[CellView]) -> Vec<Block> {
    let heads =
        ["CELL", "ID", "SHARD", "EPOCH", "NODES", "READY", "DRAINED", "SILENT", "GPUS", "FREE", "PENDING", "RUNNING"];
    let mut columns = Columns::new(&heads)
        .right(&["ID", "EPOCH", "NODES", "READY", "DRAINED", "SILENT", "GPUS", "FREE", "PENDING", "RUNNING"]);
    for cell in cells {
        columns.row(vec![
            cell.name.clone(),
            cell.id.to_string(),
            cell.holder.clone().unwrap_or_else(|| "-".to_owned()),
            cell.epoch.to_string(),
            cell.nodes.to_string(),
            cell.nodes_ready.to_string(),
            cell.nodes_drained.to_string(),
            cell.nodes_silent.to_string(),
            cell.gpus.to_string(),
            cell.gpus_free.to_string(),
            cell.pending.to_string(),
            cell.running.to_string(),
        ]);
    }
    vec![columns.block()]
}

/// A pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// Sharing modes.
    pub modes: Vec<String>,
    /// Workload classes.
    pub classes: Vec<String>,
    /// Tasks on a time-sliced card.
    pub time_slice_replicas: u32,
    /// Clients of an MPS card.
    pub mps_clients: u32,
    /// How long a turn on a time-sliced card is.
    pub time_slice: String,
    /// How much compute a slice chosen for needs may lack, in percent.
    pub compute_tolerance_percent: u32,
    /// Cards that keep fixed MIG slices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig_layouts: Vec<LayoutView>,
    /// Most times that a job here may be preempted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptions_max: Option<u32>,
    /// What the storage of checkpoints takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_mib_per_s: Option<u64>,
    /// Jobs that may be moved in an hour; 0: none.
    pub moves_per_hour: u32,
    /// GPU-hours that moves may cost in a day.
    pub moves_lost_gpu_hours_per_day: u32,
    /// Images that jobs may use here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// What jobs may mount here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountRuleView>,
    /// What a node has to prove before it gets work.
    pub isolation: String,
    /// What tasks see of the network.
    pub network: String,
    /// What a task that asked for no memory may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_mib: Option<u64>,
    /// Percent of its cards in a cell that may be withheld by verdicts on their health.
    pub withheld_max_percent: u32,
    /// And how many at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld_max_gpus: Option<u32>,
    /// What a job that a floor covers waits at most for what others borrow here, in seconds: cool-down, longest grace, stopping, and until the storage of
    /// checkpoints can take more.
    pub floor_wait_s: u64,
    /// Of it, the cool-down of burst jobs.
    pub cool_down_s: u64,
    /// Of it, the longest grace of the burst jobs in the pool.
    pub longest_grace_s: u64,
    /// Of it, the wait for the storage of checkpoints, where the pool says what that takes.
    pub stagger_s: u64,
}

/// What jobs may mount in a pool.
#[derive(Clone, Debug, Serialize)]
pub struct MountRuleView {
    /// The folder, and all below it.
    pub path: String,
    /// Jobs may write there.
    pub write: bool,
}

impl MountRuleView {
    fn new(rule: &v1::MountRule) -> Self {
        MountRuleView { path: rule.path.clone(), write: rule.write }
    }
}

/// MIG slices that cards of a model keep.
#[derive(Clone, Debug, Serialize)]
pub struct LayoutView {
    /// The model.
    pub model: String,
    /// How many of each profile.
    pub slices: BTreeMap<String, u32>,
    /// On the first so many cards of the model on each node; on all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cards_per_node: Option<u32>,
}

impl LayoutView {
    fn new(layout: &v1::PinnedLayout) -> Self {
        LayoutView {
            model: layout.model.clone(),
            slices: layout.slices.iter().map(|(name, count)| (name.clone(), *count)).collect(),
            cards_per_node: layout.cards_per_node,
        }
    }

    fn in_words(&self) -> String {
        // Largest first: names begin with their compute slices.
        let slices: Vec<String> = self.slices.iter().rev().map(|(name, count)| format!("{name} x{count}")).collect();
        let cards = self.cards_per_node.map(|cards| format!(" ({cards} on each node)")).unwrap_or_default();
        format!("{}{cards}: {}", self.model, slices.join(", "))
    }
}

impl PoolView {
    /// From the message.
    #[must_use]
    pub fn new(pool: &v1::Pool, wait: Option<&v1::FloorWait>) -> Self {
        let wait = wait.cloned().unwrap_or_default();
        PoolView {
            floor_wait_s: wait.cool_down_s + wait.retry_s + wait.grace_s + wait.stop_s + wait.stagger_s,
            cool_down_s: pool.cool_down_s,
            longest_grace_s: wait.grace_s,
            stagger_s: wait.stagger_s,
            name: pool.name.clone(),
            modes: pool.modes.clone(),
            classes: pool.workload_classes.clone(),
            time_slice_replicas: pool.time_slice_replicas,
            mps_clients: pool.mps_clients,
            time_slice: pool.time_slice.clone(),
            compute_tolerance_percent: pool.compute_tolerance_percent.unwrap_or_default(),
            mig_layouts: pool.mig_layouts.iter().map(LayoutView::new).collect(),
            preemptions_max: pool.preemptions_max,
            checkpoint_mib_per_s: pool.checkpoint_mib_per_s,
            moves_per_hour: pool.moves_per_hour,
            moves_lost_gpu_hours_per_day: pool.moves_lost_gpu_hours_per_day,
            images: pool.images.clone(),
            mounts: pool.mounts.iter().map(MountRuleView::new).collect(),
            isolation: pool.isolation.clone(),
            network: Pool::try_from(pool.clone()).map(|pool| pool.network().to_string()).unwrap_or_default(),
            memory_limit_mib: pool.memory_limit_mib,
            withheld_max_percent: pool.withheld_max_percent.unwrap_or_else(|| WITHHELD_PERCENT_MAX.into()),
            withheld_max_gpus: pool.withheld_max_gpus,
        }
    }
}

/// The table of pools.
#[must_use]
pub fn pools_table(pools: &[PoolView]) -> Vec<Block> {
    let heads = [
        "POOL",
        "MODES",
        "CLASSES",
        "TIME-SLICE REPLICAS",
        "TIME-SLICE",
        "MPS CLIENTS",
        "TOLERANCE",
        "FLOOR WAIT",
        "ISOLATION",
        "NETWORK",
        "PINNED",
    ];
    let mut columns = Columns::new(&heads).right(&["TIME-SLICE REPLICAS", "MPS CLIENTS", "TOLERANCE", "FLOOR WAIT"]);
    for pool in pools {
        columns.row(vec![
            pool.name.clone(),
            pool.modes.join(","),
            pool.classes.join(","),
            pool.time_slice_replicas.to_string(),
            pool.time_slice.clone(),
            pool.mps_clients.to_string(),
            format!("{} %", pool.compute_tolerance_percent),
            format!("{} s", pool.floor_wait_s),
            pool.isolation.clone(),
            pool.network.clone(),
            if pool.mig_layouts.is_empty() {
                "-".to_owned()
            } else {
                pool.mig_layouts.iter().map(LayoutView::in_words).collect::<Vec<_>>().join("; ")
            },
        ]);
    }
    vec![columns.block()]
}

//! Edits of a fleet, as the commands that the real ones would be.

use super::added::{self, AddedNodes};
use muster_control_core::plan::drain_name;
use muster_control_core::{Command, Reject, State};
use muster_model::tenant_edit::TenantEdit;
use muster_model::use_history::half_life_in_words;
use muster_model::{DeviceClass, NodeId, Pool, PriorityClass, WindowKind, WindowSpec, utc};
use muster_scheduler_core::PlacementPolicy;

/// One thing that is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Tenants, as `muster tenants apply` changes them.
    Tenants {
        /// What changes.
        edits: Vec<TenantEdit>,
        /// Tenants below the edited ones that no edit names are removed.
        prune: bool,
        /// The half-life of past use; none: as it is.
        half_life_s: Option<u64>,
    },
    /// A pool has these rules.
    Pool(Pool),
    /// A device class means this for jobs that are submitted from now on.
    DeviceClass(DeviceClass),
    /// A priority class sets this for jobs that are submitted from now on, and its jobs may preempt those of these classes.
    PriorityClass(PriorityClass),
    /// Schedulers choose places by another rule.
    Placement(PlacementPolicy),
    /// A node takes no new work.
    DrainNode(String),
    /// A node takes no new work that has not ended by then, and what would still run is preempted.
    DrainNodeBy {
        /// Its name.
        node: String,
        /// By when, in the time of the state.
        by_ms: u64,
    },
    /// No node of a cell takes new work.
    DrainCell(String),
    /// Maintenance, or a reservation, is planned as `muster maintenance` and `muster reservations` plan it.
    Window(WindowSpec),
    /// A window is given up, or ends. To change one, it is deleted and planned anew.
    DeleteWindow(String),
    /// Nodes join.
    AddNodes(AddedNodes),
}

impl Edit {
    /// The commands, in their order.
    pub(super) fn commands(&self, state: &State) -> Result<Vec<Command>, Reject> {
        let drain = |node: NodeId| Command::SetDrained { node, drained: true, reason: String::new(), force: false };
        match self {
            Edit::Tenants { edits, prune, half_life_s } => {
                let (prune, half_life_s) = (*prune, *half_life_s);
                Ok(vec![Command::EditTenants { edits: edits.clone(), prune, half_life_s }])
            }
            Edit::Pool(pool) => Ok(vec![Command::PutPool(pool.clone())]),
            Edit::DeviceClass(class) => Ok(vec![Command::PutDeviceClass(class.clone())]),
            Edit::PriorityClass(class) => Ok(vec![Command::PutPriorityClass(class.clone())]),
            // The state machine knows nothing of it.
            Edit::Placement(_) => Ok(Vec::new()),
            Edit::DrainNode(name) if name.is_empty() => Err(Reject::field("node", "is empty", "name the node")),
            Edit::DrainNode(name) => match state.index().node_ids.get(name) {
                Some(node) => Ok(vec![drain(*node)]),
                None => Err(Reject::not_found("node", name)),
            },
            Edit::DrainNodeBy { node, by_ms } => Ok(vec![Command::PutWindow(WindowSpec {
                name: drain_name(node),
                kind: WindowKind::Drain,
                nodes: vec![node.clone()],
                gpus: 0,
                model: None,
                start_ms: *by_ms,
                end_ms: None,
                reason: String::new(),
                tenants: Vec::new(),
                flex: false,
                preempt: true,
            })]),
            Edit::DrainCell(name) => {
                let cell = state.index().cell_ids.get(name).ok_or_else(|| Reject::not_found("cell", name))?;
                let nodes = state.nodes.values().filter(|node| node.cell == *cell && !node.drained);
                Ok(nodes.map(|node| drain(node.id)).collect())
            }
            Edit::Window(spec) => Ok(vec![Command::PutWindow(spec.clone())]),
            Edit::DeleteWindow(name) => Ok(vec![Command::DeleteWindow { name: name.clone() }]),
            Edit::AddNodes(added) => {
                let join = |spec| Command::JoinNode { spec, usage_incarnation: None, agent: 0 };
                Ok(added::specs(state, added)?.into_iter().map(join).collect())
            }
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Edit::Tenants { edits, prune, half_life_s } => {
                let half_life = half_life_s.map(|half_life_s| format!("half-life {}", half_life_in_words(half_life_s)));
                if let (Some(half_life), true) = (&half_life, edits.is_empty()) {
                    return half_life.clone();
                }
                let half_life = half_life.map(|words| format!(", {words}")).unwrap_or_default();
                let paths: Vec<&str> = edits.iter().take(3).map(|edit| edit.path.as_str()).collect();
                let more = if edits.len() > 3 { format!(" and {} more", edits.len() - 3) } else { String::new() };
                let prune = if *prune { ", others below them removed" } else { "" };
                format!("tenants {}{more} as in the file{prune}{half_life}", paths.join(", "))
            }
            Edit::Pool(pool) => format!("pool {} as in the file", pool.name),
            Edit::DeviceClass(class) => format!("device class {} as in the file", class.name),
            Edit::PriorityClass(class) => format!("priority class {} as in the file", class.name),
            Edit::Placement(policy) => format!("places are chosen {}", policy.in_words()),
            Edit::DrainNode(name) => format!("node {name} drained"),
            Edit::DrainNodeBy { node, by_ms } => format!("node {node} drained by {}", utc::show(*by_ms)),
            Edit::DrainCell(name) => format!("all nodes of cell {name} drained"),
            Edit::Window(spec) => {
                let what = match (spec.gpus, spec.model) {
                    (gpus @ 1.., Some(model)) => format!("{gpus} GPUs of {model}"),
                    _ if spec.nodes.len() == 1 => format!("node {}", spec.nodes[0]),
                    _ => format!("{} nodes", spec.nodes.len()),
                };
                let end = spec.end_ms.map(|end_ms| format!(" to {}", utc::show(end_ms))).unwrap_or_default();
                format!("{} {} of {what} from {}{end}", spec.kind, spec.name, utc::show(spec.start_ms))
            }
            Edit::DeleteWindow(name) => format!("window {name} deleted"),
            Edit::AddNodes(added) => format!("{added} added"),
        }
    }
}

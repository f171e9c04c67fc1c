//! What keeps a job waiting because something must stand apart: its own tasks, or its tenant from another.
//!
//! What must stay true: each is given only when the job would start without it, by the same placement.

use super::cell_name;
use super::trial::Trial;
use super::words::{self, counted};
use crate::policy::gate::find_place;
use crate::search::Ask;
use muster_model::capacity::{CardUse, NodeUse};
use muster_model::{AntiAffinityLevel, GpuModel, NodeId, Spread, TopologyLevel, closeness};
use std::collections::{BTreeMap, BTreeSet};

/// Its tasks must stand further apart than there is room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooSpread {
    /// The cell.
    pub cell: String,
    /// The model.
    pub model: Option<GpuModel>,
    /// Over the domains of which level they are spread.
    pub level: TopologyLevel,
    /// Tasks in one of them at most.
    pub most: u32,
    /// Tasks of the gang.
    pub tasks: u32,
    /// Domains with room for a task.
    pub open: usize,
    /// With so many in one domain it would start.
    pub enough: Option<u32>,
}

impl TooSpread {
    pub(super) fn text(&self) -> String {
        let TooSpread { cell, model, level, most, tasks, open, .. } = self;
        let (tasks, open) = (words::tasks(u64::from(*tasks)), counted(*open as u64, &level.to_string()));
        let on = model.map(|model| format!(" on {model}")).unwrap_or_default();
        format!("{tasks}{on} must be spread, at most {most} on one {level}; only {open} of cell {cell} have room")
    }

    pub(super) fn figures(&self) -> [(String, String); 3] {
        [
            ("tasks".to_owned(), self.tasks.to_string()),
            ("tasks_max".to_owned(), self.most.to_string()),
            (format!("open_{}s", self.level), self.open.to_string()),
        ]
    }
}

/// Its tenant is kept apart from another that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AntiAffinityConflict {
    /// The cell.
    pub cell: String,
    /// Its tenant.
    pub tenant: String,
    /// The other.
    pub other: String,
    /// What they may not share.
    pub level: AntiAffinityLevel,
    /// A node with room where the other is.
    pub node: String,
    /// Nodes of the cell that the tenant is kept off.
    pub nodes: usize,
}

impl AntiAffinityConflict {
    pub(super) fn text(&self) -> String {
        let AntiAffinityConflict { cell, tenant, other, level, node, nodes } = self;
        let nodes = counted(*nodes as u64, "node");
        if other.is_empty() {
            return format!(
                "{tenant} may not share one {level} with another tenant (anti-affinity): {nodes} of cell {cell} cannot be used"
            );
        }
        format!(
            "{tenant} may not share one {level} with {other} (anti-affinity), which is on {node}: {nodes} of cell {cell} cannot be used"
        )
    }
}

/// It would fit, but not so far apart.
pub(super) fn spread_out(trial: &mut Trial, ask: &Ask<'_>) -> Option<TooSpread> {
    let spread = ask.class.topology.required_spread()?;
    let closer = ask.class.spread(Some(Spread { required: false, ..spread }));
    let closer = Ask { class: &closer, ..*ask };
    let placed = trial.with_own_nodes(|view, steps| find_place(view, &closer, steps))?;
    let view = &trial.view;
    let domain = |id: &NodeId| Some(closeness::spread_domain(&view.fleet.capacity.nodes().get(id)?.node, spread.level));
    let mut tasks: BTreeMap<String, u32> = BTreeMap::new();
    placed.iter().filter_map(|task| domain(&task.node)).for_each(|domain| *tasks.entry(domain).or_default() += 1);
    let alone = ask.class.with(1, None);
    let room = |there: &NodeUse| {
        let cards = there.cards.iter().zip(&there.node.spec.gpus);
        let free = cards.filter(|(card, gpu)| {
            Some(gpu.model) == ask.model && gpu.withheld.is_none() && !matches!(card, CardUse::Whole(_))
        });
        let enough = ask.model.is_none() || free.count() as u64 >= alone.cards();
        enough && there.node.cell == ask.cell && there.node.accepts_work() && ask.host_slots(&view.fleet, there) > 0
    };
    let open = view
        .fleet
        .capacity
        .nodes()
        .values()
        .filter(|there| ask.pool_allows(&view.fleet, &there.node.spec.pool) && room(there));
    let open: BTreeSet<String> = open.map(|there| closeness::spread_domain(&there.node, spread.level)).collect();
    Some(TooSpread {
        cell: cell_name(view, ask.cell),
        model: ask.model,
        level: spread.level,
        most: spread.tasks_max,
        tasks: ask.class.tasks,
        open: open.len(),
        enough: tasks.into_values().max(),
    })
}

/// It would fit beside a tenant that it is kept apart from.
pub(super) fn anti_affinity_conflict(trial: &mut Trial, ask: &Ask<'_>) -> Option<AntiAffinityConflict> {
    let anybody = ask.class.beside_anybody();
    let anybody = Ask { class: &anybody, ..*ask };
    let placed = trial.with_own_nodes(|view, steps| find_place(view, &anybody, steps))?;
    let (view, ledger) = (&trial.view, trial.view.capacity());
    let kept = placed.iter().find_map(|task| {
        let there = ledger.nodes().get(&task.node)?;
        let on_card = || task.devices.iter().find_map(|hold| ledger.kept_off_card(ask.tenant, there, hold.gpu));
        ledger.kept_off_node(ask.tenant, there).or_else(on_card)
    })?;
    let path = |id| ledger.tenants().get(&id).map_or_else(String::new, |at| at.path.clone());
    let here = ledger.nodes().values().filter(|there| there.node.cell == ask.cell);
    Some(AntiAffinityConflict {
        cell: cell_name(view, ask.cell),
        tenant: path(ask.tenant),
        other: path(kept.other),
        level: kept.level,
        node: ledger.nodes().get(&kept.node).map_or_else(String::new, |there| there.node.spec.name.clone()),
        nodes: here.filter(|there| ledger.kept_off_node(ask.tenant, there).is_some()).count(),
    })
}

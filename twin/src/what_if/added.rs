//! Nodes that are added to a copy of a fleet: `4x8:h100:cell=cell-2:pool=default:leaf=8`.
//!
//! What must stay true: a new node is like those that the fleet has of its model and number of cards; it stands under new leaves of a new block,
//! since nobody has said where it will be cabled.

use muster_control_core::{Reject, State};
use muster_model::node::{NodeSpec, Place};
use muster_model::{CellId, Gpu, GpuModel, Node, Proof};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Added at once: as many as a fleet is built for.
const NODES_MAX: u32 = 10_000;
/// Cards of a node.
const GPUS_MAX: u32 = muster_model::validate::bounds::GPUS_PER_NODE_MAX as u32;
/// Nodes under one leaf, where nothing is said: 64 cards of 8-card nodes.
const NODES_PER_LEAF: u32 = 8;

/// Nodes of one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedNodes {
    /// How many.
    pub nodes: u32,
    /// Cards of each.
    pub gpus: u32,
    /// Their model.
    pub model: GpuModel,
    /// The cell; none: that of the nodes like them.
    pub cell: Option<String>,
    /// The pool; none: that of the nodes like them.
    pub pool: Option<String>,
    /// Nodes under one leaf switch.
    pub nodes_per_leaf: u32,
}

impl FromStr for AddedNodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: String| format!("{text:?}: {why}; write NODESxGPUS:MODEL, such as 4x8:h100");
        let mut words = text.trim().split(':');
        let size = words.next().unwrap_or_default();
        let (nodes, gpus) = size.split_once('x').ok_or_else(|| wrong(format!("{size:?} has no 'x'")))?;
        let count = |what, word: &str, max| match word.parse::<u32>() {
            Ok(number) if (1..=max).contains(&number) => Ok(number),
            _ => Err(wrong(format!("{what} {word:?} is not a number from 1 to {max}"))),
        };
        let model = words.next().ok_or_else(|| wrong("no model is named".to_owned()))?;
        let mut added = AddedNodes {
            nodes: count("number of nodes", nodes, NODES_MAX)?,
            gpus: count("number of GPUs", gpus, GPUS_MAX)?,
            model: model.parse().map_err(|error| wrong(format!("{error}")))?,
            cell: None,
            pool: None,
            nodes_per_leaf: NODES_PER_LEAF,
        };
        for word in words {
            match word.split_once('=') {
                Some(("cell", name)) if !name.is_empty() => added.cell = Some(name.to_owned()),
                Some(("pool", name)) if !name.is_empty() => added.pool = Some(name.to_owned()),
                Some(("leaf", value)) => added.nodes_per_leaf = count("leaf", value, NODES_MAX)?,
                _ => return Err(wrong(format!("{word:?} is not cell=NAME, pool=NAME or leaf=NODES"))),
            }
        }
        Ok(added)
    }
}

impl fmt::Display for AddedNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, gpus) =
            (if self.nodes == 1 { "node" } else { "nodes" }, if self.gpus == 1 { "GPU" } else { "GPUs" });
        write!(f, "{} {nodes} with {} {} {gpus}", self.nodes, self.gpus, self.model)?;
        self.cell.iter().try_for_each(|cell| write!(f, " in cell {cell}"))?;
        self.pool.iter().try_for_each(|pool| write!(f, " in pool {pool}"))
    }
}

/// The nodes as their agents would describe them.
pub(super) fn specs(state: &State, added: &AddedNodes) -> Result<Vec<NodeSpec>, Reject> {
    let like = like(state, added);
    let cell = match (&added.cell, like) {
        (Some(name), _) => name.clone(),
        (None, Some(node)) => node.spec.cell.clone(),
        (None, None) => usual_cell(state, added.model).unwrap_or_else(|| "cell-1".to_owned()),
    };
    let beside = state.nodes.values().find(|node| node.spec.cell == cell).or_else(|| state.nodes.values().next());
    let place = beside.map(|node| node.spec.place.clone()).unwrap_or_default();
    let driver = state.nodes.values().map(|node| node.spec.driver.clone()).max();
    let mut number = 0;
    let mut made = Vec::with_capacity(added.nodes as usize);
    for index in 0..added.nodes {
        let name = loop {
            number += 1;
            let name = format!("added-{number:04}");
            if !state.index().node_ids.contains_key(&name) && !state.removed_nodes.contains_key(&name) {
                break name;
            }
        };
        let mut spec = match like {
            Some(node) => NodeSpec { labels: BTreeMap::new(), ..node.spec.clone() },
            None => NodeSpec {
                cpu_milli: u64::from(added.gpus) * 16_000,
                memory_mib: u64::from(added.gpus) * 262_144,
                driver: driver.clone().unwrap_or_default(),
                proofs: Proof::all_hold(),
                ..NodeSpec::usual(&name, Gpu::usual_cards(&name, added.gpus, added.model))
            },
        };
        for (gpu, card) in spec.gpus.iter_mut().enumerate() {
            (card.uuid, card.withheld) = (format!("GPU-{name}-{gpu}"), None);
        }
        let leaf = index / added.nodes_per_leaf + 1;
        spec.place = Place {
            block: "added".to_owned(),
            leaf: format!("added-{leaf}"),
            nvlink_domain: String::new(),
            ..place.clone()
        };
        (spec.address, spec.boot_id) = (name.clone(), "added".to_owned());
        (spec.name, spec.cell) = (name, cell.clone());
        if let Some(pool) = &added.pool {
            spec.pool = pool.clone();
        }
        made.push(spec);
    }
    Ok(made)
}

/// A node with such cards: in the cell that is named if there is one, and one that takes work rather than another.
fn like<'a>(state: &'a State, added: &AddedNodes) -> Option<&'a Node> {
    let same = |node: &&Node| {
        node.spec.gpus.len() == added.gpus as usize && node.spec.gpus.iter().all(|card| card.model == added.model)
    };
    let nodes = state.nodes.values().map(AsRef::as_ref).filter(same);
    nodes.min_by_key(|node: &&Node| {
        let elsewhere = added.cell.as_ref().is_some_and(|cell| *cell != node.spec.cell);
        let other_pool = added.pool.as_ref().is_some_and(|pool| *pool != node.spec.pool);
        (elsewhere, other_pool, !node.accepts_work(), node.id)
    })
}

/// The cell with most cards of the model, or the first.
fn usual_cell(state: &State, model: GpuModel) -> Option<String> {
    let mut cards: BTreeMap<CellId, usize> = BTreeMap::new();
    for node in state.nodes.values() {
        *cards.entry(node.cell).or_default() += node.spec.gpus.iter().filter(|card| card.model == model).count();
    }
    let most = state.cells.values().max_by_key(|cell| (cards.get(&cell.id).copied(), std::cmp::Reverse(cell.id)));
    most.map(|cell| cell.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_read_and_shown() {
        let text = |text: &str| text.parse::<AddedNodes>().map(|added| added.to_string());
        assert_eq!(text("4x8:h100").as_deref(), Ok("4 nodes with 8 h100 GPUs"));
        assert_eq!(text("1x1:a100-80:cell=c2:pool=p").as_deref(), Ok("1 node with 1 a100-80 GPU in cell c2 in pool p"));
        for bad in ["", "4", "4x8", "0x8:h100", "4x0:h100", "4x8:nope", "4x8:h100:x=1", "4x8:h100:cell=", "9x999:h100"]
        {
            assert!(bad.parse::<AddedNodes>().is_err(), "{bad:?}");
        }
    }
}

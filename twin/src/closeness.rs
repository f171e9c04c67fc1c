//! How close together gangs were placed, against the fewest places that could hold them.
//!
//! What must stay true: every gang bound in the window counts once, at its first binding, by what it was given then.

use crate::fleet::Fleet;
use crate::report::ClosenessRow;
use muster_model::{Allocation, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Cards of the largest node, leaf and block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Largest {
    node: u64,
    leaf: u64,
    block: u64,
}

impl Largest {
    pub(crate) fn of(fleet: &Fleet) -> Self {
        let most = |of: fn(&crate::fleet::NodeGroup) -> u64| fleet.groups.iter().map(of).max().unwrap_or(1).max(1);
        Largest {
            node: most(|group| u64::from(group.gpus)),
            leaf: most(|group| u64::from(group.gpus) * u64::from(group.nodes_per_leaf.min(group.nodes))),
            block: most(|group| {
                let nodes = u64::from(group.nodes_per_leaf) * u64::from(group.leaves_per_block);
                u64::from(group.gpus) * nodes.min(u64::from(group.nodes))
            }),
        }
    }
}

/// What was counted, by the class of the gang's size.
#[derive(Clone, Debug)]
pub(crate) struct Closeness {
    largest: Largest,
    rows: BTreeMap<u64, ClosenessRow>,
}

impl Closeness {
    pub(crate) fn new(largest: Largest) -> Self {
        Closeness { largest, rows: BTreeMap::new() }
    }

    /// A gang was bound; `place` gives the leaf and block of a node.
    pub(crate) fn count(&mut self, held: &Allocation, place: impl Fn(NodeId) -> Option<(usize, usize)>) {
        let cards: u64 = held.tasks.iter().map(|task| task.devices.len() as u64).sum();
        if cards < 2 {
            return;
        }
        let nodes: BTreeSet<NodeId> = held.tasks.iter().map(|task| task.node).collect();
        let places: BTreeSet<(usize, usize)> = nodes.iter().filter_map(|node| place(*node)).collect();
        let blocks: BTreeSet<usize> = places.iter().map(|(_, block)| *block).collect();
        let most = cards.next_power_of_two();
        let row = self.rows.entry(most).or_insert_with(|| ClosenessRow {
            size: if most == 2 { "2".to_owned() } else { format!("{}-{most}", most / 2 + 1) },
            ..ClosenessRow::default()
        });
        row.gangs += 1;
        row.nodes += nodes.len() as u64;
        row.leaves += places.len() as u64;
        row.blocks += blocks.len() as u64;
        let fewest = |each: u64| cards.div_ceil(each);
        row.nodes_fewest += fewest(self.largest.node);
        row.leaves_fewest += fewest(self.largest.leaf);
        row.blocks_fewest += fewest(self.largest.block);
        row.one_node += u64::from(nodes.len() == 1);
        row.one_leaf += u64::from(places.len() == 1);
        row.one_block += u64::from(blocks.len() == 1);
    }

    pub(crate) fn rows(&self) -> Vec<ClosenessRow> {
        self.rows.values().cloned().collect()
    }
}

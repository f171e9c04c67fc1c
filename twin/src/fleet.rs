//! The fleet that a replay runs on: groups of equal nodes, with their place in the network and their cells.
//!
//! Written by hand as YAML or JSON, as shorthand (`256x8:h100`), or read from openb's node list. What must stay true: the same
//! description gives the same nodes with the same names in the same order.

use crate::import::{ImportError, unzipped};
use muster_model::node::{Gpu, NodeSpec, Place};
use muster_model::{GpuModel, Proof, WorkloadClass};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;

/// Nodes of one description: a few times the largest fleet that the system is built for.
const NODES_MAX: u64 = 100_000;

/// Nodes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeGroup {
    /// How many.
    pub nodes: u32,
    /// Cards of each.
    pub gpus: u32,
    /// Their model.
    pub model: GpuModel,
    /// Cards joined by NVLink; all of a node's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_island: Option<u32>,
    /// Milli-CPUs of each node; 16,000 per card when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// MiB of each node; 262,144 per card when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Nodes under one leaf switch.
    #[serde(default = "nodes_per_leaf")]
    pub nodes_per_leaf: u32,
    /// Nodes of one NVLink domain, in whose cards the island spans them (18 of 4 cards: GB200 NVL72); each node's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_per_nvlink_domain: Option<u32>,
    /// Leaves under one spine group.
    #[serde(default = "leaves_per_block")]
    pub leaves_per_block: u32,
    /// Cells that the group's blocks are dealt to, in equal runs.
    #[serde(default = "one")]
    pub cells: u32,
}

/// 64 GPUs of 8-GPU nodes under a leaf; published fabrics have about 7 hosts each.
const fn nodes_per_leaf() -> u32 {
    8
}

/// 512 GPUs of 8-GPU nodes in a block.
const fn leaves_per_block() -> u32 {
    8
}

const fn one() -> u32 {
    1
}

/// A whole fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// For the report's heading.
    #[serde(default)]
    pub name: String,
    /// Its nodes.
    pub groups: Vec<NodeGroup>,
}

/// Why a fleet's description is not one.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The shorthand is not one.
    #[error(
        "fleet {got:?}: {why}; write nodes x GPUs : model, such as 256x8:h100, joined by commas, with :cells=4 if wanted"
    )]
    Shorthand {
        /// What was given.
        got: String,
        /// What is wrong.
        why: String,
    },
    /// A figure is out of range.
    #[error("fleet group {group}: {why}")]
    Group {
        /// Which, from 1.
        group: usize,
        /// What is wrong and how to mend it.
        why: String,
    },
    /// The node list cannot be read.
    #[error(transparent)]
    Nodes(#[from] ImportError),
    /// A row of the node list is wrong; a fleet is not guessed.
    #[error("{source_name}, line {line}: {why}")]
    NodeRow {
        /// The file.
        source_name: String,
        /// Its line.
        line: u64,
        /// What is wrong.
        why: String,
    },
}

impl Fleet {
    /// Reads `256x8:h100,32x4:a100-80:cells=2`.
    ///
    /// # Errors
    /// What is not understood.
    pub fn parse_shorthand(text: &str) -> Result<Self, FleetError> {
        let wrong = |why: String| FleetError::Shorthand { got: text.to_owned(), why };
        let mut groups = Vec::new();
        for part in text.split(',') {
            let mut words = part.trim().split(':');
            let size = words.next().unwrap_or("");
            let (nodes, gpus) = size.split_once('x').ok_or_else(|| wrong(format!("{size:?} has no 'x'")))?;
            let count = |what, word: &str| word.parse().map_err(|_| wrong(format!("{what} {word:?} is no number")));
            let model = words.next().ok_or_else(|| wrong(format!("{part:?} names no model")))?;
            let model = model.parse().map_err(|error| wrong(format!("{error}")))?;
            let mut group = NodeGroup::of(count("nodes", nodes)?, count("GPUs", gpus)?, model);
            for word in words {
                match word.split_once('=') {
                    Some(("cells", value)) => group.cells = count("cells", value)?,
                    Some(("leaf", value)) => group.nodes_per_leaf = count("leaf", value)?,
                    Some(("block", value)) => group.leaves_per_block = count("block", value)?,
                    Some(("nvlink", value)) => {
                        let nodes = count("nvlink", value)?;
                        group.nodes_per_nvlink_domain = Some(nodes);
                        // A domain lies inside one leaf: a leaf that is not said has one.
                        if !part.contains(":leaf=") {
                            group.nodes_per_leaf = nodes;
                        }
                    }
                    _ => return Err(wrong(format!("{word:?} is not cells=, leaf=, block= or nvlink="))),
                }
            }
            groups.push(group);
        }
        let fleet = Fleet { name: text.trim().to_owned(), groups };
        fleet.validate()?;
        Ok(fleet)
    }

    /// Reads openb's node list (`sn,cpu_milli,memory_mib,gpu,model`): nodes of one kind become a group, in the list's order.
    ///
    /// # Errors
    /// What is not understood.
    pub fn from_openb_nodes(reader: impl Read, source: &str) -> Result<Self, FleetError> {
        let bad = |line, why: String| FleetError::NodeRow { source_name: source.to_owned(), line, why };
        let plain = unzipped(reader).map_err(|error| bad(0, error.to_string()))?;
        let mut csv = csv::Reader::from_reader(plain);
        let mut kinds: Vec<NodeGroup> = Vec::new();
        for row in csv.deserialize::<OpenbNode>() {
            let row = row.map_err(|e| bad(e.position().map_or(0, csv::Position::line), e.to_string()))?;
            let models = crate::import::openb_models(&row.model).map_err(|why| bad(0, why))?;
            let [model] = models[..] else { return Err(bad(0, format!("model {:?} is not one model", row.model))) };
            let mut kind = NodeGroup::of(0, row.gpu, model);
            (kind.cpu_milli, kind.memory_mib) = (Some(row.cpu_milli), Some(row.memory_mib));
            match kinds.iter_mut().find(|there| NodeGroup { nodes: 0, ..(**there).clone() } == kind) {
                Some(there) => there.nodes += 1,
                None => kinds.push(NodeGroup { nodes: 1, ..kind }),
            }
        }
        let fleet = Fleet { name: source.rsplit('/').next().unwrap_or(source).to_owned(), groups: kinds };
        fleet.validate()?;
        Ok(fleet)
    }

    /// Checks every figure.
    ///
    /// # Errors
    /// The first that is out of range.
    pub fn validate(&self) -> Result<(), FleetError> {
        let mut nodes = 0;
        for (index, group) in self.groups.iter().enumerate() {
            let wrong = |why: &str| Err(FleetError::Group { group: index + 1, why: why.to_owned() });
            let cards_max = muster_model::validate::bounds::GPUS_PER_NODE_MAX as u32;
            if group.nodes == 0 || group.gpus == 0 || group.gpus > cards_max {
                return wrong("needs at least one node with 1 to 72 GPUs");
            }
            if group.nodes_per_leaf == 0 || group.leaves_per_block == 0 || group.cells == 0 {
                return wrong("nodes_per_leaf, leaves_per_block and cells are at least 1");
            }
            if group.gpus_per_island == Some(0) || group.cpu_milli == Some(0) || group.memory_mib == Some(0) {
                return wrong("gpus_per_island, cpu_milli and memory_mib are at least 1 where given");
            }
            if let Some(nodes) = group.nodes_per_nvlink_domain {
                if nodes == 0 || !group.nodes_per_leaf.is_multiple_of(nodes) {
                    return wrong(
                        "nodes_per_leaf is a multiple of nodes_per_nvlink_domain: a domain lies inside one leaf",
                    );
                }
                if group.gpus_per_island.is_some_and(|gpus| gpus < group.gpus) {
                    return wrong(
                        "gpus_per_island is left out where nodes share an NVLink domain: all cards are one island",
                    );
                }
            }
            if group.cells > group.blocks() {
                return wrong("has more cells than blocks; a cell is made of whole blocks");
            }
            nodes += u64::from(group.nodes);
        }
        if self.groups.is_empty() || nodes > NODES_MAX {
            let why = format!("the fleet has {nodes} nodes; use 1 to {NODES_MAX}");
            return Err(FleetError::Group { group: 0, why });
        }
        Ok(())
    }

    /// Cards of the whole fleet.
    #[must_use]
    pub fn gpus(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.nodes) * u64::from(group.gpus)).sum()
    }

    /// Cards by model.
    #[must_use]
    pub fn gpus_by_model(&self) -> BTreeMap<GpuModel, u64> {
        let mut by_model = BTreeMap::new();
        for group in &self.groups {
            *by_model.entry(group.model).or_default() += u64::from(group.nodes) * u64::from(group.gpus);
        }
        by_model
    }

    /// Every node, named in order: `g1-n0001` is the first of the first group.
    pub fn node_specs(&self) -> impl Iterator<Item = NodeSpec> + '_ {
        self.groups
            .iter()
            .enumerate()
            .flat_map(|(index, group)| (0..group.nodes).map(move |number| group.node_spec(index + 1, number)))
    }
}

#[derive(Deserialize)]
struct OpenbNode {
    cpu_milli: u64,
    memory_mib: u64,
    gpu: u32,
    model: String,
}

impl NodeGroup {
    /// Nodes with the usual figures beside.
    #[must_use]
    pub fn of(nodes: u32, gpus: u32, model: GpuModel) -> Self {
        NodeGroup {
            nodes,
            gpus,
            model,
            gpus_per_island: None,
            cpu_milli: None,
            memory_mib: None,
            nodes_per_leaf: nodes_per_leaf(),
            nodes_per_nvlink_domain: None,
            leaves_per_block: leaves_per_block(),
            cells: one(),
        }
    }

    fn blocks(&self) -> u32 {
        self.nodes.div_ceil(self.nodes_per_leaf).div_ceil(self.leaves_per_block)
    }

    fn node_spec(&self, group: usize, number: u32) -> NodeSpec {
        let leaf = number / self.nodes_per_leaf;
        let block = leaf / self.leaves_per_block;
        let cell = u64::from(block) * u64::from(self.cells) / u64::from(self.blocks());
        let name = format!("g{group}-n{:04}", number + 1);
        let island = self.gpus_per_island.unwrap_or(self.gpus);
        let card = |index: u32| Gpu {
            numa: u8::from(index >= self.gpus.div_ceil(2)),
            island: (index / island) as u8,
            ..Gpu::usual(&name, index, self.model)
        };
        NodeSpec {
            place: Place {
                region: "replay".to_owned(),
                zone: "replay".to_owned(),
                block: format!("g{group}-b{:02}", block + 1),
                leaf: format!("g{group}-l{:03}", leaf + 1),
                nvlink_domain: match self.nodes_per_nvlink_domain {
                    Some(nodes) => format!("nvl{}", number % self.nodes_per_leaf / nodes + 1),
                    None => String::new(),
                },
            },
            cell: format!("cell-{}", cell + 1),
            cpu_milli: self.cpu_milli.unwrap_or(u64::from(self.gpus) * 16_000),
            memory_mib: self.memory_mib.unwrap_or(u64::from(self.gpus) * 262_144),
            driver: "replay".to_owned(),
            proofs: Proof::all_hold(),
            ..NodeSpec::usual(&name, (0..self.gpus).map(card).collect())
        }
    }
}

/// The class that replayed work is submitted under: traces do not say, and every pool serves it by default.
pub(crate) const REPLAY_CLASS: WorkloadClass = WorkloadClass::Batch;

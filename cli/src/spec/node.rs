//! A simulated node as an operator writes it, and the tiled fleets that `muster dev` makes of it.
//!
//! ```yaml
//! name: gpu-host-1       # the name of the host when it is left out
//! model: h100
//! gpus: 8
//! cpus: 128
//! memory: 2Ti
//! region: local
//! zone: local-a
//! nvlink-domain: nvl-1   # shared with other nodes of its leaf
//! cell: cell-0
//! driver: "570.86"
//! labels: {tier: gold}
//! ```

use crate::failure::Failure;
use crate::spec::scalar::{Scalar, Version};
use crate::spec::yaml;
use crate::units::{self, UnitError};
use muster_model::validate::bounds::{GPUS_PER_NODE_MAX, NAME_BYTES_MAX};
use muster_model::{FieldError, Gpu, GpuModel, Place};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The keys of a node file.
pub const KEYS: &[&str] = &[
    "name",
    "address",
    "model",
    "gpus",
    "cpus",
    "memory",
    "region",
    "zone",
    "block",
    "leaf",
    "nvlink-domain",
    "cell",
    "pool",
    "driver",
    "labels",
];

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct NodeText {
    name: Option<String>,
    address: Option<String>,
    model: Option<String>,
    gpus: Option<u32>,
    cpus: Option<Scalar>,
    memory: Option<Scalar>,
    region: Option<String>,
    zone: Option<String>,
    block: Option<String>,
    leaf: Option<String>,
    nvlink_domain: Option<String>,
    cell: Option<String>,
    pool: Option<String>,
    driver: Option<Version>,
    labels: BTreeMap<String, Scalar>,
}

/// One simulated host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedNode {
    /// Its name in the fleet; empty as long as nobody has given one.
    pub name: String,
    /// Where ranks reach it.
    pub address: String,
    /// Where it stands.
    pub place: Place,
    /// Its cell.
    pub cell: String,
    /// Its pool.
    pub pool: String,
    /// Model of its cards.
    pub model: GpuModel,
    /// How many.
    pub gpus: u32,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// MiB of memory.
    pub memory_mib: u64,
    /// Driver version that it reports.
    pub driver: String,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
}

impl Default for SimulatedNode {
    /// An 8-GPU H100 host.
    fn default() -> Self {
        SimulatedNode {
            name: String::new(),
            address: "127.0.0.1".to_owned(),
            place: Place {
                region: "local".to_owned(),
                zone: "local-a".to_owned(),
                block: "block-0".to_owned(),
                leaf: "leaf-0".to_owned(),
                nvlink_domain: String::new(),
            },
            cell: "cell-0".to_owned(),
            pool: "default".to_owned(),
            model: GpuModel::H100,
            gpus: 8,
            cpu_milli: 128_000,
            memory_mib: 2 * 1024 * 1024,
            driver: "570.86-simulated".to_owned(),
            labels: BTreeMap::new(),
        }
    }
}

impl SimulatedNode {
    /// From a file; what it does not say is as in an 8-GPU H100 host.
    ///
    /// # Errors
    /// When it is not a node, with the key.
    pub fn parse(text: &str, file: &str) -> Result<Self, Failure> {
        Self::parse_over(SimulatedNode::default(), text, file)
    }

    /// From a file; what it does not say is as in `base`.
    ///
    /// # Errors
    /// When it is not a node, with the key.
    pub fn parse_over(base: SimulatedNode, text: &str, file: &str) -> Result<Self, Failure> {
        let mut documents: Vec<NodeText> = yaml::documents(text, file, "a node", KEYS)?;
        if documents.len() > 1 {
            return Err(Failure::field(file, "has more than one document", "keep one document with one node"));
        }
        let text = documents.pop().unwrap_or_default();
        let mut node = base;
        let mut faults = Vec::new();
        let word = |target: &mut String, written: Option<String>| {
            if let Some(written) = written {
                *target = written;
            }
        };
        word(&mut node.name, text.name);
        word(&mut node.address, text.address);
        word(&mut node.place.region, text.region);
        word(&mut node.place.zone, text.zone);
        word(&mut node.place.block, text.block);
        word(&mut node.place.leaf, text.leaf);
        word(&mut node.place.nvlink_domain, text.nvlink_domain);
        word(&mut node.cell, text.cell);
        word(&mut node.pool, text.pool);
        word(&mut node.driver, text.driver.map(|version| version.0));
        if let Some(model) = text.model {
            match model.parse() {
                Ok(model) => node.model = model,
                Err(error) => faults.push(FieldError::new("model", format!("{error}"), "use a known GPU model")),
            }
        }
        node.gpus = text.gpus.unwrap_or(node.gpus);
        if node.gpus as usize > GPUS_PER_NODE_MAX {
            faults.push(FieldError::new("gpus", format!("is {}", node.gpus), "use at most 72"));
        }
        set("cpus", &mut node.cpu_milli, text.cpus, units::milli_cpus, &mut faults);
        set("memory", &mut node.memory_mib, text.memory, units::mebibytes, &mut faults);
        node.labels = text.labels.into_iter().map(|(key, value)| (key, value.0)).collect();
        if faults.is_empty() { Ok(node) } else { Err(Failure::from(faults)) }
    }

    /// The node as one host: without a name of its own it has that of the host it runs on, which is `host`.
    ///
    /// # Errors
    /// When the host's name is none that a node can have.
    pub fn on_host(self, host: &str) -> Result<Self, Failure> {
        if !self.name.is_empty() {
            return Ok(self);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty() || host.len() > NAME_BYTES_MAX || !host.chars().all(plain) {
            let problem = format!("is missing, and the host name {host:?} is not a valid node name");
            return Err(Failure::field("name", problem, "give the node a name in its file (--spec)"));
        }
        Ok(SimulatedNode { name: host.to_owned(), ..self })
    }

    /// The cards, two NUMA nodes, one island.
    #[must_use]
    pub fn cards(&self) -> Vec<Gpu> {
        let numa = |index| u8::from(index >= self.gpus.div_ceil(2));
        let of = format!("sim-{}", self.name);
        let card = |index| Gpu { numa: numa(index), ..Gpu::usual(&of, index, self.model) };
        (0..self.gpus).map(card).collect()
    }
}

fn set(
    field: &str,
    target: &mut u64,
    written: Option<Scalar>,
    parse: impl Fn(&str) -> Result<u64, UnitError>,
    faults: &mut Vec<FieldError>,
) {
    match written.map(|text| parse(&text.0)) {
        Some(Ok(value)) => *target = value,
        Some(Err(error)) => faults.push(FieldError::new(field, error.problem, error.fix)),
        None => {}
    }
}

/// How a fleet of equal nodes is laid out over a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Nodes under one leaf switch.
    pub nodes_per_leaf: u32,
    /// Leaves under one spine group.
    pub leaves_per_block: u32,
    /// Nodes of one NVLink domain; each node's own without.
    pub nodes_per_nvlink_domain: Option<u32>,
    /// Cells that share the leaves.
    pub cells: u32,
}

impl Tiling {
    /// Node `index` of `total`: its leaf, its block, and its cell, which is a run of whole leaves.
    #[must_use]
    pub fn node(&self, like: &SimulatedNode, index: u32, total: u32) -> SimulatedNode {
        let leaf = index / self.nodes_per_leaf;
        let leaves = total.div_ceil(self.nodes_per_leaf).max(1);
        let cell = u64::from(leaf) * u64::from(self.cells.max(1)) / u64::from(leaves);
        SimulatedNode {
            name: format!("{}-{index:04}", if like.name.is_empty() { "node" } else { &like.name }),
            place: Place {
                block: format!("block-{}", leaf / self.leaves_per_block),
                leaf: format!("leaf-{leaf}"),
                nvlink_domain: self.nvlink_domain(index, &like.place),
                ..like.place.clone()
            },
            cell: format!("cell-{cell}"),
            ..like.clone()
        }
    }

    /// The domain of node `index`, which is a run of nodes under one leaf.
    fn nvlink_domain(&self, index: u32, like: &Place) -> String {
        match self.nodes_per_nvlink_domain {
            Some(nodes) => format!("nvl-{}", index % self.nodes_per_leaf / nodes.max(1)),
            None => like.nvlink_domain.clone(),
        }
    }
}

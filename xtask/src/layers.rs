//! The layers of the workspace, checked from `cargo metadata`.
//!
//! `model <- {control, scheduler-shard, node}/core <- runtime, proto, twin, gpu-double <- enrolment <- servers, agent <- bench <- chaos <- cli <- fuzz`.
//!
//! What must stay true: a crate depends only on crates of lower layers, so cores never depend on each other; and nothing that is
//! pure (the model, the cores, the twin) reaches an async runtime, a network stack, a store or a source of chance, by any path.

use crate::Finding;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Our crates from the bottom; a crate may depend on those of lower rows only.
const LAYERS: &[&[&str]] = &[
    &["muster-model"],
    &["muster-control-core", "muster-scheduler-core", "muster-node-core"],
    &["muster-runtime", "muster-proto", "muster-twin", "muster-gpu-double"],
    &["muster-enrolment"],
    &["muster-control-server", "muster-scheduler-server", "muster-agent"],
    &["muster-bench"],
    &["muster-chaos"],
    &["muster"],
    &["muster-fuzz"],
];

/// Crates that make no use of the outside world: they take time, ids and chance as arguments.
const PURE: &[&str] =
    &["muster-model", "muster-control-core", "muster-scheduler-core", "muster-node-core", "muster-twin"];

/// What pure crates must not reach, however far down: runtimes, networks, stores, clocks' and chance's usual crates.
const IMPURE: &[&str] = &[
    "tokio",
    "tokio-util",
    "tokio-stream",
    "async-std",
    "smol",
    "futures",
    "tonic",
    "prost",
    "hyper",
    "axum",
    "tower",
    "mio",
    "socket2",
    "openraft",
    "rocksdb",
    "rand",
    "rand_core",
    "rand_chacha",
    "fastrand",
    "getrandom",
    "uuid",
    "chrono",
    "nix",
    "libc",
    "parking_lot",
    "dashmap",
    "tracing",
    "metrics",
    "anyhow",
];

/// Crates beside the layers that may not depend on ours: they look at the workspace from outside.
const OUTSIDE: &[&str] = &["muster-xtask"];

/// What is used of `cargo metadata --format-version 1`.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// All packages, ours and foreign.
    pub packages: Vec<Package>,
    /// Ids of ours.
    pub workspace_members: Vec<String>,
    /// The resolved graph.
    pub resolve: Resolve,
}

/// A package.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// As in the graph.
    pub id: String,
    /// As in its manifest.
    pub name: String,
}

/// The resolved graph.
#[derive(Debug, Deserialize)]
pub struct Resolve {
    /// One for each package.
    pub nodes: Vec<Node>,
}

/// A package and what it depends on.
#[derive(Debug, Deserialize)]
pub struct Node {
    /// Which package.
    pub id: String,
    /// Its dependencies.
    pub deps: Vec<Dep>,
}

/// An edge.
#[derive(Debug, Deserialize)]
pub struct Dep {
    /// To which package.
    pub pkg: String,
    /// In which roles.
    pub dep_kinds: Vec<DepKind>,
}

/// A role of an edge.
#[derive(Debug, Deserialize)]
pub struct DepKind {
    /// Absent for a normal dependency; otherwise `dev` or `build`.
    pub kind: Option<String>,
}

impl Dep {
    fn is_normal(&self) -> bool {
        self.dep_kinds.iter().any(|kind| kind.kind.is_none())
    }
}

/// The graph by name, as the rules speak of it.
struct Graph<'a> {
    name_of: BTreeMap<&'a str, &'a str>,
    deps_of: BTreeMap<&'a str, &'a [Dep]>,
}

impl<'a> Graph<'a> {
    fn new(metadata: &'a Metadata) -> Self {
        Graph {
            name_of: metadata.packages.iter().map(|package| (package.id.as_str(), package.name.as_str())).collect(),
            deps_of: metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node.deps.as_slice())).collect(),
        }
    }

    fn name(&self, id: &'a str) -> &'a str {
        self.name_of.get(id).copied().unwrap_or(id)
    }

    fn deps(&self, id: &str) -> &'a [Dep] {
        self.deps_of.get(id).copied().unwrap_or(&[])
    }

    /// The shortest path of normal dependencies from `start` to each impure crate that it reaches.
    fn impure_paths(&self, start: &'a str) -> Vec<Vec<&'a str>> {
        let mut seen = BTreeSet::from([start]);
        let mut queue = std::collections::VecDeque::from([vec![start]]);
        let mut found = Vec::new();
        while let Some(path) = queue.pop_front() {
            let Some(last) = path.last().copied() else { continue };
            for dep in self.deps(last).iter().filter(|dep| dep.is_normal()) {
                if !seen.insert(&dep.pkg) {
                    continue;
                }
                let mut longer = path.clone();
                longer.push(&dep.pkg);
                let name = self.name(&dep.pkg);
                if IMPURE.contains(&name) {
                    found.push(longer.iter().map(|id| self.name(id)).collect());
                } else if !PURE.contains(&name) {
                    // What a pure crate of ours reaches is reported at that crate.
                    queue.push_back(longer);
                }
            }
        }
        found
    }
}

/// Every broken rule.
#[must_use]
pub fn check(metadata: &Metadata) -> Vec<Finding> {
    let graph = Graph::new(metadata);
    let ours: BTreeSet<&str> = metadata.workspace_members.iter().map(|id| graph.name(id)).collect();
    let mut findings = Vec::new();
    for id in &metadata.workspace_members {
        let name = graph.name(id);
        match layer_of(name) {
            Some(layer) => check_layer(&graph, id, layer, &ours, &mut findings),
            None if OUTSIDE.contains(&name) => check_outside(&graph, id, &ours, &mut findings),
            None => findings.push(Finding::new(name, "stands in no layer: give it one in xtask/src/layers.rs")),
        }
        if PURE.contains(&name) {
            for path in graph.impure_paths(id) {
                let reached = path.last().copied().unwrap_or_default();
                findings.push(Finding::new(
                    name,
                    format!("is pure but reaches {reached} ({}): take the dependency out", path.join(" -> ")),
                ));
            }
        }
    }
    findings.sort();
    findings
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&name))
}

fn check_layer(graph: &Graph<'_>, id: &str, layer: usize, ours: &BTreeSet<&str>, findings: &mut Vec<Finding>) {
    for dep in graph.deps(id) {
        let to = graph.name(&dep.pkg);
        if !ours.contains(to) {
            continue;
        }
        // Tests of a crate may lean on its own layer (the simulation of one server needs the other), never on a higher one.
        let highest_allowed = if dep.is_normal() { layer } else { layer + 1 };
        if layer_of(to).is_none_or(|other| other >= highest_allowed) {
            let text = format!("depends on {to}, which is not in a lower layer: move the code down or the edge away");
            findings.push(Finding::new(graph.name(id), text));
        }
    }
}

fn check_outside(graph: &Graph<'_>, id: &str, ours: &BTreeSet<&str>, findings: &mut Vec<Finding>) {
    for dep in graph.deps(id) {
        let to = graph.name(&dep.pkg);
        if ours.contains(to) {
            findings.push(Finding::new(graph.name(id), format!("depends on {to}: it must build when ours do not")));
        }
    }
}

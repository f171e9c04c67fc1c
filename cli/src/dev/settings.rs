//! What a development cluster is like, chosen at its first start and kept with its data.
//!
//! What must stay true: a start without options is the same cluster again; what the data cannot follow (the voters) is refused
//! when it is changed.

use crate::args::roles::{Dev, DevGpus, GpuKind, Isolated, Tiling};
use crate::dev::folder::Folder;
use crate::failure::Failure;
use muster_model::GpuModel;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Control nodes.
    pub voters: u32,
    /// Scheduler shards, and cells.
    pub shards: u32,
    /// Simulated hosts.
    pub nodes: u32,
    /// Cards of each.
    pub gpus_per_node: u32,
    /// Their model.
    pub model: GpuModel,
    /// Agent processes.
    pub agents: u32,
    /// Hosts under one leaf switch.
    pub nodes_per_leaf: u32,
    /// Hosts of one NVLink domain; none: NVLink ends at the host.
    #[serde(default)]
    pub nvlink_domain: Option<u32>,
    /// Leaves under one spine group.
    pub leaves_per_block: u32,
    /// First port of the cluster; 0 before one is chosen.
    pub port: u16,
    /// Where the cards are.
    #[serde(default)]
    pub gpus: GpuKind,
    /// Tasks are pretended.
    pub virtual_tasks: bool,
    /// Length of the agents' usage intervals, in seconds.
    #[serde(default = "usage_period_s")]
    pub usage_period_s: u64,
    /// How tasks are isolated.
    #[serde(default)]
    pub isolation: Isolated,
    /// Paths that isolated tasks may write below.
    #[serde(default)]
    pub task_writes: Vec<PathBuf>,
    /// The control node that all agents dial; any when absent.
    #[serde(default)]
    pub sessions_on: Option<u32>,
    /// Connections are encrypted, and machines prove who they are. Clusters of before were not.
    #[serde(default)]
    pub secured: bool,
    /// Grows when the hosts' tasks were ended with the cluster.
    pub boot: u64,
    /// The voters are a cluster.
    pub bootstrapped: bool,
}

/// Usage is shown soon after it was used.
fn usage_period_s() -> u64 {
    2
}

impl Settings {
    /// What the options ask for, on top of what was there before.
    ///
    /// # Errors
    /// When an option makes no sense, or the data cannot follow it.
    pub fn of(args: &Dev, before: Option<&Settings>) -> Result<Self, Failure> {
        let model = match &args.model {
            Some(name) => Some(
                name.parse().map_err(|error| Failure::field("model", format!("{error}"), "use a known GPU model"))?,
            ),
            None => None,
        };
        let nodes = args.nodes.or(before.map(|b| b.nodes)).unwrap_or(4);
        let tiling = Tiling {
            nodes_per_leaf: args.nodes_per_leaf.or(before.map(|b| b.nodes_per_leaf)),
            nvlink_domain: args.nvlink_domain.or(before.and_then(|b| b.nvlink_domain)),
            ..Tiling::default()
        };
        tiling.check()?;
        let settings = Settings {
            voters: args.voters.or(before.map(|b| b.voters)).unwrap_or(1),
            shards: args.shards.or(before.map(|b| b.shards)).unwrap_or(1),
            nodes,
            gpus_per_node: args.gpus_per_node.or(before.map(|b| b.gpus_per_node)).unwrap_or(8),
            model: model.or(before.map(|b| b.model)).unwrap_or(GpuModel::H100),
            agents: args
                .agents
                .or(before.map(|b| b.agents))
                .unwrap_or_else(|| nodes.div_ceil(16).clamp(1, 4))
                .min(nodes),
            nodes_per_leaf: tiling.nodes_per_leaf(),
            nvlink_domain: tiling.nvlink_domain,
            leaves_per_block: args.leaves_per_block.or(before.map(|b| b.leaves_per_block)).unwrap_or(4),
            port: before.map_or(0, |b| b.port),
            gpus: match args.gpus {
                Some(DevGpus::Simulated) => GpuKind::Simulated,
                Some(DevGpus::Double) => GpuKind::Double,
                None => before.map(|b| b.gpus).unwrap_or_default(),
            },
            virtual_tasks: args.virtual_tasks || before.is_some_and(|b| b.virtual_tasks),
            usage_period_s: args
                .usage_period
                .map(|period| period.0)
                .or(before.map(|b| b.usage_period_s))
                .unwrap_or_else(usage_period_s),
            isolation: args.isolation.or(before.map(|b| b.isolation)).unwrap_or_default(),
            task_writes: match before {
                Some(before) if args.task_writes.is_empty() => before.task_writes.clone(),
                _ => args.task_writes.clone(),
            },
            sessions_on: args.sessions_on.or(before.and_then(|b| b.sessions_on)),
            secured: before.map_or(!args.plaintext, |b| b.secured),
            boot: before.map_or(0, |b| b.boot),
            bootstrapped: before.is_some_and(|b| b.bootstrapped),
        };
        if settings.secured && args.plaintext {
            let problem = "the cluster in the data folder is encrypted";
            return Err(Failure::field("plaintext", problem, "leave it out, or give another --data"));
        }
        settings.check(before)?;
        Ok(settings)
    }

    fn check(&self, before: Option<&Settings>) -> Result<(), Failure> {
        if ![1, 3, 5].contains(&self.voters) {
            return Err(Failure::field("voters", format!("is {}", self.voters), "use 1, 3 or 5"));
        }
        if let Some(id) = self.sessions_on.filter(|id| !(1..=self.voters).contains(id)) {
            let remedy = "use the id of a control node, from 1";
            return Err(Failure::field("sessions-on", format!("is {id}, of {} voters", self.voters), remedy));
        }
        let leaves = self.nodes.div_ceil(self.nodes_per_leaf);
        if self.shards > leaves {
            let problem = format!("is {}, more than the {leaves} leaves of {} nodes", self.shards, self.nodes);
            return Err(Failure::field(
                "shards",
                problem,
                "use more nodes or a smaller --nodes-per-leaf: each shard has a cell of whole leaves",
            ));
        }
        let Some(before) = before else { return Ok(()) };
        for (field, was, is) in [("voters", before.voters, self.voters), ("shards", before.shards, self.shards)] {
            if was != is {
                let problem = format!("is {is}, but the cluster in the data folder has {was}");
                return Err(Failure::field(field, problem, "leave it out, or give another --data"));
            }
        }
        Ok(())
    }

    /// What was kept, if the folder was used before.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(folder: &Folder) -> Result<Option<Self>, Failure> {
        let path = folder.settings();
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                Failure::Role(anyhow::anyhow!("{}: {error}; remove the folder to start a new cluster", path.display()))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::io(format!("reading {}", path.display()), error)),
        }
    }

    /// Keeps them.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn save(&self, folder: &Folder) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| Failure::Role(error.into()))?;
        folder.replace(&folder.settings(), &text)
    }

    /// For people.
    #[must_use]
    pub fn words(&self) -> String {
        let plural = |count: u32, word: &str| if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") };
        format!(
            "{}, {}, {} of {} {} ({} GPUs) in {}",
            plural(self.voters, "voter"),
            plural(self.shards, "shard"),
            plural(self.nodes, "node"),
            self.gpus_per_node,
            self.model,
            self.nodes * self.gpus_per_node,
            plural(self.agents, "agent process").replace("processs", "processes"),
        )
    }
}

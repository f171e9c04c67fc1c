//! Arguments of the roles, of the cluster on one machine, and of the demonstration.

use crate::args::admin::member;
use crate::args::{Seconds, duration};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// How a role writes its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// JSON objects, one on a line.
    Json,
}

/// What every role takes.
#[derive(Clone, Debug, Default, Args)]
pub struct RoleCommon {
    /// Serve /metrics and /healthz here; port 0 chooses one
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<String>,
    /// How the log is written, to standard error
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Stop when the process that started this one is gone
    #[arg(long, hide = true)]
    pub die_with_parent: bool,
}

/// `muster control`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  muster control --id 1 --data /var/lib/muster --listen 0.0.0.0:7400 --advertise 10.0.0.1:7400 \\
      --bootstrap 1=10.0.0.1:7400 --bootstrap 2=10.0.0.2:7400 --bootstrap 3=10.0.0.3:7400
  muster control --id 4 --data /var/lib/muster --listen 0.0.0.0:7400 --advertise 10.0.0.4:7400
      then, anywhere: muster raft add 4 10.0.0.4:7400 && muster raft promote 4

--bootstrap is safe to leave in place: a node that has ever been part of a cluster ignores it.")]
pub struct Control {
    /// This node's id, never used again after the node was removed or its data lost
    #[arg(long, value_name = "ID")]
    pub id: u64,
    /// Data folder
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Serve here
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    pub listen: String,
    /// How others reach this node; --listen when absent
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// The voters of a new cluster, this node among them
    #[arg(long, value_name = "ID=HOST:PORT", value_parser = member)]
    pub bootstrap: Vec<(u64, String)>,
    /// What every role takes.
    #[command(flatten)]
    pub common: RoleCommon,
}

/// `muster shard`.
#[derive(Clone, Debug, Default, Args)]
pub struct Shard {
    /// A name for logs; made up when absent
    #[arg(long)]
    pub name: Option<String>,
    /// Schedule these cells only, unless they are another shard's
    #[arg(long, value_name = "CELL", value_delimiter = ',')]
    pub cells: Vec<String>,
    /// What every role takes.
    #[command(flatten)]
    pub common: RoleCommon,
}

/// `muster node`.
#[derive(Clone, Debug, Default, Args)]
pub struct Node {
    /// Data folder: the tasks' folders, and what must outlive the agent
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// What the host is (YAML): name, place, cell, pool, and its GPUs where they are simulated
    #[arg(long, value_name = "FILE")]
    pub spec: Option<PathBuf>,
    /// Be so many simulated hosts like that one
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub simulate: u32,
    /// Number of the first simulated host
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first: u32,
    /// Simulated hosts of the whole fleet, over which cells are laid out
    #[arg(long, value_name = "N")]
    pub total: Option<u32>,
    /// How the simulated hosts stand in the network.
    #[command(flatten)]
    pub tiling: Tiling,
    /// What every role takes.
    #[command(flatten)]
    pub common: RoleCommon,
}

/// How simulated hosts are laid out.
#[derive(Clone, Copy, Debug, Args)]
pub struct Tiling {
    /// Nodes under one leaf switch
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes_per_leaf: u32,
    /// Leaves under one spine group
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub leaves_per_block: u32,
    /// Cells
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub cells: u32,
}

impl Default for Tiling {
    fn default() -> Self {
        Tiling { nodes_per_leaf: 8, leaves_per_block: 4, cells: 1 }
    }
}

/// `muster dev`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  muster dev                                       one voter, one shard, 4 nodes of 8 h100
  muster dev --voters 3 --shards 2 --nodes 64      a small fleet
  eval \"$(muster dev --print-env)\"                  point this shell at it

Every role is a process of its own: kill any of them, or all, and see. Running it again on the same --data goes on
where it stopped, with its jobs. Ctrl-C stops it; tasks then end with it unless --leave-tasks.")]
pub struct Dev {
    /// Data folder
    #[arg(long, value_name = "DIR", default_value = ".muster-dev")]
    pub data: PathBuf,
    /// Control nodes: 1, 3 or 5
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub voters: u32,
    /// Scheduler shards, each with a cell
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub shards: u32,
    /// Simulated nodes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub nodes: u32,
    /// GPUs of each
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=72))]
    pub gpus_per_node: u32,
    /// Their model
    #[arg(long, default_value = "h100")]
    pub model: String,
    /// Agent processes that share the nodes; chosen when absent
    #[arg(long, value_name = "N")]
    pub agents: Option<u32>,
    /// Nodes under one leaf switch
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes_per_leaf: u32,
    /// Leaves under one spine group
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub leaves_per_block: u32,
    /// First port; the first free ones from here on are taken, and kept
    #[arg(long, value_name = "PORT", default_value_t = 7400)]
    pub port: u16,
    /// Leave tasks running when stopped, for the next start to find
    #[arg(long)]
    pub leave_tasks: bool,
    /// Print the shell line that points at this cluster, and exit
    #[arg(long)]
    pub print_env: bool,
    /// Stop when this long has passed
    #[arg(long, value_name = "TIME", value_parser = duration, hide = true)]
    pub for_time: Option<Seconds>,
}

/// `muster demo`.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Data folder, kept; a temporary one when absent
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Single-GPU, MIG and shared jobs beside the gangs
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub jobs: u32,
}

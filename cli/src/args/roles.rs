//! Arguments of the roles, of the cluster on one machine, and of the demonstration.

use crate::args::admin::member;
use crate::args::{Seconds, duration};
use crate::failure::Failure;
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
    /// Stop when this process, which started this one, is gone
    #[arg(long, value_name = "PID", hide = true)]
    pub parent: Option<i32>,
}

/// `muster control`.
#[derive(Clone, Debug, Args)]
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
    /// Keep finished jobs for this time; say the same on all control nodes
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = duration)]
    pub keep_jobs: Seconds,
    /// And at most this many of them: those that ended first are forgotten first
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub keep_jobs_max: u64,
    /// The longest round trip between two control nodes, in milliseconds: heartbeats, elections and deadlines follow it; say the same on all
    /// control nodes
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=500))]
    pub wan_rtt: u64,
    /// What every role takes.
    #[command(flatten)]
    pub common: RoleCommon,
}

/// `muster shard`.
#[derive(Clone, Debug, Default, Args)]
pub struct Shard {
    /// Prefix of its name; a suffix makes it unique for each start
    #[arg(long)]
    pub name: Option<String>,
    /// How many shards should run: each takes its share of the cells at once, and more when others are gone
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub shards_expected: u32,
    /// Plan moves in the background, of at most this share of the movable work, in percent; reported in log and metrics, never carried out
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub plan_moves: Option<u8>,
    /// How often each cell is planned
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration, requires = "plan_moves")]
    pub plan_every: Option<Seconds>,
    /// What every role takes.
    #[command(flatten)]
    pub common: RoleCommon,
}

/// `muster node`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  muster node --data /var/lib/muster --spec node.yaml --endpoints 10.0.0.1:7400,10.0.0.2:7400
  muster node --data sim --simulate 16 --total 64 --cells 2      the first 16 of 64 simulated hosts

A node file is YAML. The defaults are those of a host with 8 h100; the default name is the host's:
  name: gpu-host-1
  model: h100
  gpus: 8
  cpus: 128
  memory: 2Ti
  region: eu-north
  zone: eu-north-a
  block: block-0
  leaf: leaf-0
  nvlink-domain: nvl-0      of its leaf, when NVLink joins it to other nodes
  cell: cell-0
  pool: default")]
pub struct Node {
    /// Data folder: the tasks' folders, and what must outlive the agent
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// What the host is (YAML): name, place, cell, pool, and its GPUs where they are simulated
    #[arg(long, value_name = "FILE")]
    pub spec: Option<PathBuf>,
    /// Run this many simulated hosts like that one, numbered and laid out over a network
    #[arg(long, value_name = "N")]
    pub simulate: Option<u32>,
    /// Number of the first simulated host
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first: u32,
    /// Simulated hosts of the whole fleet, over which cells are laid out
    #[arg(long, value_name = "N")]
    pub total: Option<u32>,
    /// Usage is cut into intervals of this length
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub usage_period: Seconds,
    /// Pretend to run tasks instead of running them
    #[arg(long, hide = true)]
    pub virtual_tasks: bool,
    /// Counts the boots of simulated hosts beyond those of this machine
    #[arg(long, value_name = "N", default_value_t = 0, hide = true)]
    pub boot: u64,
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
    /// Nodes under one leaf switch [default: 8, or those of one NVLink domain]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes_per_leaf: Option<u32>,
    /// Nodes of one NVLink domain, such as 18 of 4 GPUs; without it NVLink ends at the host
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub nvlink_domain: Option<u32>,
    /// Leaves under one spine group
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub leaves_per_block: u32,
    /// Cells
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub cells: u32,
}

impl Default for Tiling {
    fn default() -> Self {
        Tiling { nodes_per_leaf: None, nvlink_domain: None, leaves_per_block: 4, cells: 1 }
    }
}

/// Nodes under one leaf switch when nobody says: 64 GPUs of 8-GPU nodes.
const NODES_PER_LEAF: u32 = 8;

impl Tiling {
    /// Nodes under one leaf switch: a domain lies inside one leaf.
    #[must_use]
    pub fn nodes_per_leaf(&self) -> u32 {
        self.nodes_per_leaf.or(self.nvlink_domain).unwrap_or(NODES_PER_LEAF)
    }

    /// Checks that leaves are made of whole domains.
    ///
    /// # Errors
    /// When they are not.
    pub fn check(&self) -> Result<(), Failure> {
        match self.nvlink_domain {
            Some(domain) if !self.nodes_per_leaf().is_multiple_of(domain) => {
                let problem =
                    format!("is {}, no multiple of the {domain} nodes of an NVLink domain", self.nodes_per_leaf());
                Err(Failure::field(
                    "nodes-per-leaf",
                    problem,
                    "a domain is inside one leaf: use a multiple of the domain",
                ))
            }
            _ => Ok(()),
        }
    }
}

/// `muster dev`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  muster dev                                       one voter, one shard, 4 nodes of 8 h100
  muster dev --voters 3 --shards 2 --nodes 64      a small fleet
  muster dev --nodes 36 --gpus-per-node 4 --nvlink-domain 18 --model b200    two racks of 72 on one NVLink each
  eval \"$(muster dev --print-env)\"                  point this shell at it

Every role is a process of its own: kill any of them, or all, and see. Running it again on the same --data goes on
where it stopped, with its jobs and its size. Ctrl-C stops it and its tasks; jobs that ran then start again with it.")]
pub struct Dev {
    /// Data folder
    #[arg(long, value_name = "DIR", default_value = DEV_FOLDER)]
    pub data: PathBuf,
    /// Control nodes: 1, 3 or 5 [default: 1]
    #[arg(long, value_name = "N")]
    pub voters: Option<u32>,
    /// Scheduler shards, each with a cell [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20))]
    pub shards: Option<u32>,
    /// Simulated nodes [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub nodes: Option<u32>,
    /// GPUs of each [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=72))]
    pub gpus_per_node: Option<u32>,
    /// Their model [default: h100]
    #[arg(long)]
    pub model: Option<String>,
    /// Agent processes that share the nodes; one for 16 nodes when absent, up to 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=40))]
    pub agents: Option<u32>,
    /// Nodes under one leaf switch [default: 8, or those of one NVLink domain]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes_per_leaf: Option<u32>,
    /// Nodes of one NVLink domain, such as 18 of 4 GPUs; without it NVLink ends at the host
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub nvlink_domain: Option<u32>,
    /// Leaves under one spine group [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub leaves_per_block: Option<u32>,
    /// First of a hundred ports; 7400 in the usual folder, otherwise chosen and kept
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..65000))]
    pub port: Option<u16>,
    /// Leave a process that died dead for this long before it is started again [default: at once]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub restart_after: Option<Seconds>,
    /// Pretend to run tasks instead of running them
    #[arg(long)]
    pub virtual_tasks: bool,
    /// Agents report usage in intervals of this length [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub usage_period: Option<Seconds>,
    /// Agents dial this control node and no other, to measure what their sessions cost one
    #[arg(long, value_name = "ID", hide = true)]
    pub sessions_on: Option<u32>,
    /// Print the shell line that points at this cluster, and exit
    #[arg(long)]
    pub print_env: bool,
}

/// Where `muster dev` keeps everything unless told otherwise.
pub const DEV_FOLDER: &str = ".muster-dev";

/// `muster demo`.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Data folder, kept; a temporary one when absent
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Single-GPU, MIG and shared jobs beside the gangs
    #[arg(long, value_name = "N", default_value_t = 320, value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs: u32,
}

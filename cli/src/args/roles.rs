//! Arguments of the roles, of the cluster on one machine, and of the demonstration.

use crate::args::admin::member;
use crate::args::node::NodeCommand;
use crate::args::{Seconds, duration};
use crate::failure::Failure;
use clap::{Args, ValueEnum};
use muster_runtime::Transport;
use std::path::PathBuf;

/// How a role writes its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines of text.
    #[default]
    Text,
    /// One JSON object on each line.
    Json,
}

/// What every role takes.
#[derive(Clone, Debug, Default, Args)]
pub struct RoleCommon {
    /// Address of the pages /metrics and /healthz; port 0: any free port [default: no pages]
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<String>,
    /// File with a token of 16 characters or more, which requests for /metrics have to show; nobody else may read it. A replaced file is
    /// taken over within 10 s [default: whoever reaches the address reads the metrics]
    #[arg(long, value_name = "FILE", requires = "http")]
    pub http_token_file: Option<PathBuf>,
    /// PEM file with a private key and its chain of certificates, for /metrics and /healthz over TLS 1.3; nobody else may read it. A replaced
    /// file is taken over within 10 s [default: clear text]
    #[arg(long, value_name = "FILE", requires = "http")]
    pub http_certificate: Option<PathBuf>,
    /// Folder with the key and certificate of this machine, as `muster ca` makes it: connections between machines are encrypted, and each
    /// side proves who it is. All of a cluster use one, or none [default: none, clear text]
    #[arg(long, value_name = "DIR")]
    pub identity: Option<PathBuf>,
    /// Format of the log, which goes to standard error
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Stop when this process, which started this one, is gone
    #[arg(long, value_name = "PID", hide = true)]
    pub parent: Option<i32>,
}

impl RoleCommon {
    /// How the role talks with other machines.
    #[must_use]
    pub fn transport(&self) -> Transport {
        if self.identity.is_some() { Transport::Mutual } else { Transport::Plain }
    }
}

/// `muster control`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  muster control --id 1 --data /var/lib/muster --listen 0.0.0.0:7400 --advertise 10.0.0.1:7400 \\
      --bootstrap 1=10.0.0.1:7400 --bootstrap 2=10.0.0.2:7400 --bootstrap 3=10.0.0.3:7400
  muster control --id 4 --data /var/lib/muster --listen 0.0.0.0:7400 --advertise 10.0.0.4:7400
      then, on any machine: muster raft add 4 10.0.0.4:7400 && muster raft promote 4
  muster control --id 1 --data /var/lib/muster --listen 0.0.0.0:7400 --identity /etc/muster/identity \\
      --listen-machines 0.0.0.0:7401 --advertise 10.0.0.1:7401 --bootstrap 1=10.0.0.1:7401 ...
      encrypted, with the identity that `muster ca control 1` has made; shards and agents call port 7401

You can leave --bootstrap in the command line: a control node that was ever part of a cluster ignores it.")]
pub struct Control {
    /// Id of this control node, 1 or more; do not use it again after the node was removed or has lost its data
    #[arg(long, value_name = "ID")]
    pub id: u64,
    /// Data folder: the log and the state
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Address to listen on
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7400")]
    pub listen: String,
    /// With --identity: address for control nodes, shards and agents, who all prove who they are. People and services keep --listen, over TLS
    #[arg(long, value_name = "HOST:PORT", requires = "identity")]
    pub listen_machines: Option<String>,
    /// While a cluster is being encrypted, one machine after another: serve at --listen-machines in clear text too, and speak clear text with
    /// control nodes that do not speak TLS yet. Nothing is protected until all control nodes run without it
    #[arg(long, requires = "listen_machines")]
    pub accept_plaintext: bool,
    /// Address at which other machines reach this node [default: the address of --listen-machines, or of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Voter of a new cluster; repeat it for each voter, this node included
    #[arg(long, value_name = "ID=HOST:PORT", value_parser = member)]
    pub bootstrap: Vec<(u64, String)>,
    /// Keep finished jobs for this time, at least 1h; use the same value on all control nodes
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = duration)]
    pub keep_jobs: Seconds,
    /// Keep at most this many finished jobs, at least 1000; those that ended first are deleted first
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub keep_jobs_max: u64,
    /// Keep records of the audit for this time, at least 1d; use the same value on all control nodes
    #[arg(long, value_name = "TIME", default_value = "400d", value_parser = duration)]
    pub keep_audit: Seconds,
    /// Longest round-trip time between two control nodes, in milliseconds, 0 to 500; election timeouts and deadlines grow with it. Use the
    /// same value on all control nodes
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=500))]
    pub wan_rtt: u64,
    /// File with the identity provider of people (YAML: issuer, client-id, user-claim, groups-claim, scopes, session, device-flow, ca-file), for
    /// `muster login`; the same on all control nodes [default: none]
    #[arg(long, value_name = "FILE")]
    pub oidc: Option<PathBuf>,
    /// What every role takes.
    #[command(flatten)]
    pub common: RoleCommon,
}

/// `muster shard`.
#[derive(Clone, Debug, Default, Args)]
pub struct Shard {
    /// Prefix of the name of this shard; each start adds a new suffix [default: shard]
    #[arg(long)]
    pub name: Option<String>,
    /// Number of shards that should run, at least 1; each takes its part of the cells at once, and further cells when a shard is down
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub shards_expected: u32,
    /// Plan moves of jobs in the background, of at most this percentage of the GPUs of movable jobs, 0 to 100. Plans go to the log and the
    /// metrics; no job is moved [default: no plans]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub plan_moves: Option<u8>,
    /// With --plan-moves: time between two plans of a cell
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration, requires = "plan_moves")]
    pub plan_every: Option<Seconds>,
    /// File with a join token, as `muster machine token create` writes it: without an identity, this machine first enrols with it. With an
    /// identity the file is not read
    #[arg(long, value_name = "FILE", requires = "identity")]
    pub join: Option<PathBuf>,
    /// What every role takes.
    #[command(flatten)]
    pub common: RoleCommon,
}

/// How much a node isolates its tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolated {
    /// All of it, or the node does not start
    Full,
    /// As much as this machine gives; the log says what is missing
    #[default]
    Available,
    /// Nothing
    None,
}

impl Isolated {
    /// As it is written on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Isolated::Full => "full",
            Isolated::Available => "available",
            Isolated::None => "none",
        }
    }
}

/// How a node isolates its tasks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Isolation of tasks (`muster node doctor` shows what this machine gives)")]
pub struct Isolation {
    /// Namespaces, a user of its own and limits for each task
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub isolation: Isolated,
    /// Run all tasks as this user instead of one user for each tenant; takes an agent of root
    #[arg(long, value_name = "UID", conflicts_with = "task_user_base")]
    pub task_user: Option<u32>,
    /// Run the tasks of each tenant as the user of this number plus the tenant's number
    #[arg(long, value_name = "UID", default_value_t = 2_000_000_000)]
    pub task_user_base: u32,
    /// Allow tasks to run as root or as another system user (below 1000)
    #[arg(long)]
    pub allow_system_users: bool,
    /// Let tasks write below this path, as far as their user may; may be repeated
    #[arg(long, value_name = "PATH", env = "MUSTER_TASK_WRITES", value_delimiter = ',')]
    pub task_writes: Vec<PathBuf>,
    /// Most processes and threads of one task
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    pub task_processes: u64,
    /// Keep the scratch folder of each task in memory, of this size at most, so that no task fills the disk; the memory is the task's own [default: on the disk, without a bound]
    #[arg(long, value_name = "SIZE", value_parser = crate::units::mebibytes)]
    pub task_scratch: Option<u64>,
    /// How often to try again what this machine gives to isolate tasks
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = duration, hide = true)]
    pub probe_every: Seconds,
    /// Program that brings container images from registries
    #[arg(long, value_name = "PROGRAM", default_value = "skopeo")]
    pub skopeo: PathBuf,
}

/// `muster node`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  muster node --data /var/lib/muster --spec node.yaml --endpoints 10.0.0.1:7400,10.0.0.2:7400
  muster node --data sim --simulate 16 --total 64 --cells 2      the first 16 of 64 simulated nodes
  muster node doctor                                             what this machine gives to isolate tasks
  muster node record --out host.json                             a recording of this machine's GPUs, for tests elsewhere

A node file is YAML. Every key has a default; the default name is the host name of the machine:
  name: gpu-host-1
  model: h100
  gpus: 8
  cpus: 128
  memory: 2Ti
  region: eu-north
  zone: eu-north-a
  block: block-0
  leaf: leaf-0
  nvlink-domain: nvl-0      # only if NVLink connects it to other nodes of its leaf
  cell: cell-0
  pool: default")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Node {
    /// Instead of running an agent.
    #[command(subcommand)]
    pub instead: Option<NodeCommand>,
    /// Data folder: the folders and output of tasks, and the records of the agent
    #[arg(long, value_name = "DIR", required = true)]
    pub data: Option<PathBuf>,
    /// Node file (YAML, see below): name, location, cell, pool and simulated GPUs
    #[arg(long, value_name = "FILE")]
    pub spec: Option<PathBuf>,
    /// Run this many simulated nodes as in the node file; their names get numbers. With --identity each has its own, in a folder of its name
    #[arg(long, value_name = "N")]
    pub simulate: Option<u32>,
    /// File with a join token, as `muster machine token create` writes it: without an identity, this machine first enrols with it. With an
    /// identity the file is not read
    #[arg(long, value_name = "FILE", requires = "identity")]
    pub join: Option<PathBuf>,
    /// Number of the first simulated node of this process
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first: u32,
    /// Number of simulated nodes of the whole fleet, in all processes [default: --first plus --simulate]
    #[arg(long, value_name = "N")]
    pub total: Option<u32>,
    /// Report GPU usage in intervals of this length
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub usage_period: Seconds,
    /// Which GPUs the node has: simulated ones as in the node file, those of NVIDIA's driver, or those of a double of the driver as in the node file
    #[arg(long, value_name = "KIND", default_value = "simulated")]
    pub gpus: GpuKind,
    /// With --gpus double: the host to be, as `muster node record` has written it; the GPUs of the node file do not count
    #[arg(long, value_name = "FILE")]
    pub gpu_recording: Option<PathBuf>,
    /// NVIDIA's management library, for --gpus nvml
    #[arg(long, value_name = "FILE", default_value = "libnvidia-ml.so.1")]
    pub nvml_library: PathBuf,
    /// Read faults of GPUs from this file or pipe in place of the kernel's log; simulated GPUs have the pipe `kernel-log` in the folder of their node
    #[arg(long, value_name = "FILE")]
    pub kernel_log: Option<PathBuf>,
    /// What follows from faults of GPUs: withhold them and end the tasks on them, or only report
    #[arg(long, value_name = "MODE", default_value = "enforce")]
    pub gpu_health: GpuHealth,
    /// When to reset GPUs that ask for it: verdicts, and changes of the MIG mode that take a reset
    #[arg(long, value_name = "WHEN", default_value = "drained")]
    pub gpu_resets: GpuResets,
    /// Whether /metrics names the tenants that hold GPUs; jobs and allocations are always told by number
    #[arg(long, value_name = "WHEN", default_value = "loopback")]
    pub metrics_tenants: MetricsTenants,
    /// How tasks are isolated from this machine and from each other.
    #[command(flatten)]
    pub isolation: Isolation,
    /// Simulate tasks instead of starting processes
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

impl Node {
    /// The data folder as an absolute path: shims run elsewhere, in `/`, where it must mean the same.
    ///
    /// # Errors
    /// When the present folder cannot be found.
    pub fn data(&self) -> std::io::Result<PathBuf> {
        std::path::absolute(self.data.as_deref().unwrap_or(std::path::Path::new(".")))
    }
}

/// Which GPUs a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuKind {
    /// Simulated in the agent, as in the node file.
    #[default]
    Simulated,
    /// Those of this machine, through NVIDIA's driver.
    Nvml,
    /// A double of the driver, through the same calls, with the GPUs of the node file.
    Double,
}

impl GpuKind {
    /// As an option takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            GpuKind::Simulated => "simulated",
            GpuKind::Nvml => "nvml",
            GpuKind::Double => "double",
        }
    }
}

/// Which GPUs the nodes of `muster dev` have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DevGpus {
    /// Simulated in the agents.
    Simulated,
    /// A double of NVIDIA's driver.
    Double,
}

/// What an agent does about faults of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum GpuHealth {
    /// Withhold faulty GPUs and MIG slices, and end the tasks on them.
    #[default]
    Enforce,
    /// Report what would be done in the log, and do nothing.
    Observe,
}

/// When an agent resets GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum GpuResets {
    /// While the node is drained and nobody uses any of its GPUs.
    #[default]
    Drained,
    /// Never: somebody else does it.
    Never,
}

/// Whether the page of metrics names tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricsTenants {
    /// Only when the page is served on a loopback address.
    #[default]
    Loopback,
    /// Never.
    Never,
}

/// How simulated hosts are laid out.
#[derive(Clone, Copy, Debug, Args)]
pub struct Tiling {
    /// Nodes under one leaf switch [default: 8, or the size of --nvlink-domain]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes_per_leaf: Option<u32>,
    /// Nodes in one NVLink domain, 2 to 256, such as 18 nodes of 4 GPUs [default: NVLink only inside each node]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub nvlink_domain: Option<u32>,
    /// Leaf switches in one block
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub leaves_per_block: u32,
    /// Number of cells
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
                    format!("is {}, not a multiple of the {domain} nodes of an NVLink domain", self.nodes_per_leaf());
                Err(Failure::field(
                    "nodes-per-leaf",
                    problem,
                    "use a multiple of --nvlink-domain: an NVLink domain lies inside one leaf",
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
  muster dev --nodes 36 --gpus-per-node 4 --nvlink-domain 18 --model b200    two NVLink domains of 72 GPUs
  eval \"$(muster dev --print-env)\"                  use this cluster in this shell

Each control node, shard and agent is a process of its own; you can kill any of them, and it is started again. The same
command with the same --data continues the cluster with its jobs and its size. Ctrl-C stops the cluster and its tasks;
jobs that ran at that time start again at the next start.")]
pub struct Dev {
    /// Data folder of all processes
    #[arg(long, value_name = "DIR", default_value = DEV_FOLDER)]
    pub data: PathBuf,
    /// Number of control nodes: 1, 3 or 5 [default: 1]
    #[arg(long, value_name = "N")]
    pub voters: Option<u32>,
    /// Number of scheduler shards and of cells, 1 to 20 [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20))]
    pub shards: Option<u32>,
    /// Number of simulated nodes, 1 to 8192 [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub nodes: Option<u32>,
    /// GPUs of each node, 1 to 72 [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=72))]
    pub gpus_per_node: Option<u32>,
    /// GPU model [default: h100]
    #[arg(long)]
    pub model: Option<String>,
    /// Number of agent processes, 1 to 40 [default: one for each 16 nodes, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=40))]
    pub agents: Option<u32>,
    /// Nodes under one leaf switch [default: 8, or the size of --nvlink-domain]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub nodes_per_leaf: Option<u32>,
    /// Nodes in one NVLink domain, 2 to 256, such as 18 nodes of 4 GPUs [default: NVLink only inside each node]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub nvlink_domain: Option<u32>,
    /// Leaf switches in one block [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub leaves_per_block: Option<u32>,
    /// First of 100 ports, 1024 to 64999 [default: 7400 in the default data folder, otherwise 100 free ports, kept in the folder]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..65000))]
    pub port: Option<u16>,
    /// Time before a process that died is started again [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub restart_after: Option<Seconds>,
    /// Where the GPUs are: simulated in the agents, or in a double of NVIDIA's driver, through the same calls as real ones [default: simulated]
    #[arg(long, value_name = "KIND")]
    pub gpus: Option<DevGpus>,
    /// Simulate tasks instead of starting processes
    #[arg(long)]
    pub virtual_tasks: bool,
    /// Report GPU usage in intervals of this length [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub usage_period: Option<Seconds>,
    /// How tasks are isolated from this machine: full, available or none [default: available]
    #[arg(long, value_enum, value_name = "HOW")]
    pub isolation: Option<Isolated>,
    /// Let tasks write below this path, as far as their user may; may be repeated
    #[arg(long, value_name = "PATH")]
    pub task_writes: Vec<PathBuf>,
    /// Connections on this machine in clear text, where nobody proves who they are [default: TLS, with identities in the data folder]
    #[arg(long)]
    pub plaintext: bool,
    /// Agents connect to this control node only; for measurements
    #[arg(long, value_name = "ID", hide = true)]
    pub sessions_on: Option<u32>,
    /// Print the shell command that makes `muster` use this cluster, and exit
    #[arg(long)]
    pub print_env: bool,
}

/// Where `muster dev` keeps everything unless told otherwise.
pub const DEV_FOLDER: &str = ".muster-dev";

/// `muster demo`.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Data folder; it is kept [default: a temporary folder, deleted if all checks pass]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Number of single-GPU, MIG, MPS and time-slice jobs, in addition to the gangs
    #[arg(long, value_name = "N", default_value_t = 320, value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs: u32,
}

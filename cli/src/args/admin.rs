//! Arguments of what operators do: tenants, pools, nodes, voters.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `muster tenants`.
#[derive(Clone, Debug, Subcommand)]
pub enum Tenants {
    /// Create and change tenants, all or none, and print what changed
    #[command(after_help = "\
Fields in the file are changed. Fields that are not in the file keep their values. null removes a value: `max: null`,
`max: {h100: null}`. The file has the form of the tenant tree. Amounts of GPUs are numbers of GPUs; a part of a GPU is
0.5, 3/7 or `2333 units` (1 GPU has 7000 units):
  research:
    guarantee: {h100: 8}
    max: {h100: 16, cpus: 512, memory: 4Ti}
    weight: 2
    teams:
      nlp: {guarantee: {h100: 4}, weight: {default: 1, h100: 3}}
      vision: {max: {h100: 8}, trust: untrusted, lend: no}
weight and lend are for all resources, or by resource: `lend: {h100: no}` keeps idle H100s and lends the rest. default is for
the resources that are not named; `lend: no` is for all of them.")]
    Apply {
        /// YAML file; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Print what would change, without changing it
        #[arg(long)]
        dry_run: bool,
        /// Remove tenants that the file does not name, below the ones at its top; their jobs must have ended
        #[arg(long)]
        prune: bool,
    },
    /// List tenants: guarantee, max and present use
    List(Under),
    /// Show tenants as a tree, with the same columns
    Tree(Under),
    /// Move a tenant with everything below it, or rename it; its jobs go on running
    #[command(after_help = "\
  muster tenants move research/nlp applied/nlp        # another parent
  muster tenants move research/nlp research/language  # another name")]
    Move {
        /// Its present path, such as research/nlp
        path: String,
        /// Its new path; the parent must exist
        to: String,
        /// Print what would change, without changing it
        #[arg(long)]
        dry_run: bool,
    },
    /// Show why a tenant gets more or less than its siblings, and since when
    Explain {
        /// Path of the tenant, such as research/nlp
        path: String,
    },
    /// Show what a tenant was guaranteed and by what it was ordered, and since when; changes are kept for 25 months
    #[command(after_help = "\
  muster tenants history research/nlp    # also of removed tenants that had this path
  muster tenants history '#17'           # the tenant with this id, whatever its path")]
    History {
        /// Path of the tenant, such as research/nlp, or # and its id
        path: String,
    },
    /// Delete a tenant; it must have no children and no pending or running jobs
    Delete {
        /// Path of the tenant, such as research/nlp
        path: String,
    },
}

/// A part of the quota tree.
#[derive(Clone, Debug, Default, Args)]
pub struct Under {
    /// Only this tenant and the tenants below it
    #[arg(value_name = "TENANT", default_value = "", hide_default_value = true)]
    pub under: String,
}

/// `muster usage`.
#[derive(Clone, Debug, Default, Args)]
pub struct Usage {
    /// Which part of the tree.
    #[command(flatten)]
    pub under: Under,
    /// Show one allocation instead, such as `muster job -o json` names: what it is or was, who pays for it since when, and what agents have
    /// reported of it. Kept for a day after its end
    #[arg(long, value_name = "ID", conflicts_with = "under")]
    pub allocation: Option<u64>,
}

/// `muster tree`.
#[derive(Clone, Debug, Default, Args)]
pub struct Tree {
    /// Which part of it.
    #[command(flatten)]
    pub under: Under,
    /// Show floor accounts instead: what of each guarantee is not handed down, and how much of it is busy, idle, lent and unmet
    #[arg(long)]
    pub accounts: bool,
}

/// `muster nodes`.
#[derive(Clone, Debug, Default, Args)]
pub struct Nodes {
    /// Only nodes of this cell
    #[arg(long)]
    pub cell: Option<String>,
    /// Only nodes of this pool
    #[arg(long)]
    pub pool: Option<String>,
}

/// `muster gpus`.
#[derive(Clone, Debug, Default, Args)]
pub struct Gpus {
    /// Only GPUs of this node
    pub node: Option<String>,
    /// Show how GPUs and network cards reach each other: NVLinks, PIX (one PCIe bridge), PXB (several), PHB (host bridge), NODE (NUMA node), SYS
    #[arg(long)]
    pub topology: bool,
}

/// `muster undrain`.
#[derive(Clone, Debug, Args)]
pub struct Undrain {
    /// Node names, as `muster nodes` shows them
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<String>,
    /// Also for those who have drained the node themselves, and may be at work on it
    #[arg(long)]
    pub force: bool,
}

/// Names of nodes.
#[derive(Clone, Debug, Args)]
pub struct NodeNames {
    /// Node names, as `muster nodes` shows them
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<String>,
}

/// `muster clear-gpu`.
#[derive(Clone, Debug, Args)]
pub struct ClearGpu {
    /// Node name, as `muster gpus` shows it
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Index of the GPU on its node, as `muster gpus` shows it
    #[arg(value_name = "GPU")]
    pub gpu: u16,
    /// Why it may be used again; kept with the node, and in the log of its agent
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// `muster drain`.
#[derive(Clone, Debug, Args)]
pub struct Drain {
    /// Node names, as `muster nodes` shows them
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<String>,
    /// Drain the nodes by this time: until then they take jobs that end before, and what would still run is preempted its grace before
    /// [default: now; running jobs continue]
    #[arg(long, value_name = "WHEN")]
    pub by: Option<String>,
    /// Reason, shown by `muster nodes`; at most 256 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

/// `muster pools`.
#[derive(Clone, Debug, Subcommand)]
pub enum Pools {
    /// List pools
    List,
    /// Create and change pools
    #[command(after_help = "\
One document for each pool:
  name: notebooks
  modes: [mig, mps, time-slice]
  classes: [interactive]
  time-slice-replicas: 4                 # tasks that share one GPU by time-slicing, 1 to 32
  mps-clients: 8                         # tasks that share one GPU under MPS, 1 to 48 (60 from CUDA 13.1)
  time-slice: medium                     # how long a turn on a time-sliced GPU is: short, medium or long
  cool-down: 600                         # seconds that burst jobs run at least before they may be preempted; default: 0
  preemptions-max: 5                     # most times that a job may be preempted; default: no bound
  checkpoint-bandwidth: 20000            # MiB/s that the storage of checkpoints takes; default: preemptions are not staggered
  compute-tolerance: 20                  # a MIG slice chosen for `needs` may have 20 % less compute than asked
  mig-layouts:                           # these GPUs always keep these MIG slices, and serve nothing else
    - model: h100
      cards-per-node: 4                  # the first 4 GPUs of each node; default: all
      slices: {3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}")]
    Apply {
        /// YAML file; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete a pool; no node may belong to it
    Delete {
        /// Name of the pool
        name: String,
    },
}

/// `muster device-classes`.
#[derive(Clone, Debug, Subcommand)]
pub enum DeviceClasses {
    /// List device classes
    List,
    /// Create and change device classes; jobs that are already accepted keep the selector they were submitted with
    #[command(after_help = "\
One document for each device class. A selector compares device.model, device.memory_mib, device.driver, device.cuda,
node.name, node.pool, node.region, node.zone, node.block, node.leaf and node.labels[...] by ==, !=, <, <=, >, >= or in.
Comparisons are joined by && || ! ( ):
  name: large-memory
  selector: device.memory_mib >= 80000 && device.driver >= version(\"550\")
  tenants: [research, ads/ranking]        # default: all tenants")]
    Apply {
        /// YAML file; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete a device class
    Delete {
        /// Name of the device class
        name: String,
    },
}

/// `muster priority-classes`.
#[derive(Clone, Debug, Subcommand)]
pub enum PriorityClasses {
    /// List priority classes
    List,
    /// Create and change priority classes; jobs that are already accepted keep their priority
    #[command(after_help = "\
One document for each priority class:
  name: production
  priority: 1000
  preempts: [batch, default]              # whose burst jobs its jobs may preempt, in every tenant; default: none
  tenants: [product]                      # who may use it; default: all tenants

A job that names no class is of the class default. A job preempts jobs of other tenants by its class only where its priority
is strictly higher and no guarantee pays for them.")]
    Apply {
        /// YAML file; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete a priority class; no job that has not ended may name it
    Delete {
        /// Name of the priority class
        name: String,
    },
}

/// `muster plan`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  muster plan                        all cells, moves of at most 2 % of the GPUs of movable jobs
  muster plan --cell cell-0 --share 10
  muster plan -o json | jq '.cells[].openings[] | .job'")]
pub struct Plan {
    /// Only this cell
    #[arg(long)]
    pub cell: Option<String>,
    /// Move at most this share of the GPUs that movable jobs hold, 0 to 100 [default: 2]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub share: Option<u8>,
}

/// `muster moves`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  muster moves                       the newest 100 moves, and what each pool may still move
  muster moves --pool training --limit 10
  muster moves -o json | jq '.moves[] | {job, promised_loss_gpu_s, lost_gpu_s}'")]
pub struct Moves {
    /// Only moves in this pool
    #[arg(long)]
    pub pool: Option<String>,
    /// At most this many moves, the newest first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    pub limit: u32,
}

/// `muster raft`.
#[derive(Clone, Debug, Subcommand)]
pub enum Raft {
    /// Show the state of every control node
    Status,
    /// Add a control node as a learner, and wait until it has the whole log
    Add {
        /// Id of the new control node; an id that this cluster has never used
        id: u64,
        /// HOST:PORT at which the other control nodes reach it
        address: String,
    },
    /// Make a learner a voter
    Promote {
        /// Id of the learner
        id: u64,
    },
    /// Remove a control node, voter or learner, from the cluster
    Remove {
        /// Id of the control node to remove
        id: u64,
        /// Promote this learner to a voter in the same change
        #[arg(long, value_name = "ID")]
        replace_with: Option<u64>,
        /// Remove it even if the cluster then survives the loss of fewer voters, for example 3 voters become 2
        #[arg(long)]
        yes: bool,
    },
    /// Set the cluster's time back to the voters' clocks, after a wrong clock has moved it ahead
    #[command(
        after_help = "Check the clocks first. `muster raft status` shows how far each clock is ahead of the leader's clock, and how far\n\
the cluster's time is ahead of a majority of the clocks. A client that has no answer to a submission from before the\n\
reset must submit it again under a new request id."
    )]
    ResetClock,
    /// Create a new cluster of empty control nodes; refused if one of them was ever part of a cluster
    #[command(after_help = "Example:\n  muster raft bootstrap 1=10.0.0.1:7400 2=10.0.0.2:7400 3=10.0.0.3:7400")]
    Bootstrap {
        /// Id and address of each voter: 1, 3 or 5 voters
        #[arg(value_name = "ID=HOST:PORT", required = true, value_parser = member)]
        members: Vec<(u64, String)>,
    },
}

/// `1=10.0.0.1:7400`.
///
/// # Errors
/// When it is not.
pub fn member(text: &str) -> Result<(u64, String), String> {
    let parts = text.split_once('=').and_then(|(id, address)| Some((id.parse::<u64>().ok()?, address)));
    match parts {
        Some((id, address)) if id > 0 && address.contains(':') => Ok((id, address.to_owned())),
        _ => Err("is not ID=HOST:PORT; write it as 1=10.0.0.1:7400".to_owned()),
    }
}

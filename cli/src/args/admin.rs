//! Arguments of what operators do: tenants, pools, nodes, voters.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `muster tenants`.
#[derive(Clone, Debug, Subcommand)]
pub enum Tenants {
    /// Add tenants and change those that exist, all or none, and say what changed
    #[command(after_help = "\
What the file names changes; what it leaves out stays as it is. null removes a value: `max: null`, `max: {h100: null}`.
The file is the tree as it is; GPUs are in cards, parts of a card as 0.5, 3/7 or `2333 units`:
  research:
    guarantee: {h100: 8}
    max: {h100: 16, cpus: 512, memory: 4Ti}
    weight: 2
    teams:
      nlp: {guarantee: {h100: 4}}
      vision: {max: {h100: 8}, trust: untrusted}")]
    Apply {
        /// YAML file; - is standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Say what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List tenants with what they are guaranteed, may use and use
    List(Under),
    /// The same as a tree
    Tree(Under),
    /// Remove a tenant that has no children and no live job
    Delete {
        /// Its path
        path: String,
    },
}

/// A part of the quota tree.
#[derive(Clone, Debug, Default, Args)]
pub struct Under {
    /// This tenant and those below it
    #[arg(value_name = "TENANT", default_value = "", hide_default_value = true)]
    pub under: String,
}

/// `muster nodes`.
#[derive(Clone, Debug, Default, Args)]
pub struct Nodes {
    /// Of this cell
    #[arg(long)]
    pub cell: Option<String>,
    /// Of this pool
    #[arg(long)]
    pub pool: Option<String>,
}

/// `muster gpus`.
#[derive(Clone, Debug, Default, Args)]
pub struct Gpus {
    /// Of this node
    pub node: Option<String>,
}

/// Names of nodes.
#[derive(Clone, Debug, Args)]
pub struct NodeNames {
    /// Names of nodes
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<String>,
}

/// `muster drain`.
#[derive(Clone, Debug, Args)]
pub struct Drain {
    /// Names of nodes
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<String>,
    /// Why, for whoever looks at `muster nodes`
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

/// `muster pools`.
#[derive(Clone, Debug, Subcommand)]
pub enum Pools {
    /// List pools
    List,
    /// Add pools and change those that exist
    #[command(after_help = "\
One document for each pool:
  name: notebooks
  modes: [mig, mps, time-slice]
  classes: [interactive]
  time-slice-replicas: 4
  mps-clients: 8
  compute-tolerance: 20                  # percent of compute that a MIG slice chosen for needs may lack
  mig-layouts:                           # cards that keep these slices and serve nothing else
    - model: h100
      cards-per-node: 4                  # the first four of each host; all when left out
      slices: {3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}")]
    Apply {
        /// YAML file; - is standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Remove a pool that no node belongs to
    Delete {
        /// Its name
        name: String,
    },
}

/// `muster device-classes`.
#[derive(Clone, Debug, Subcommand)]
pub enum DeviceClasses {
    /// List device classes
    List,
    /// Add device classes and change those that exist; jobs that were accepted keep what they meant
    #[command(after_help = "\
One document for each class; a selector compares device.model, device.memory_mib, device.driver, node.name, node.pool,
node.region, node.zone, node.block, node.leaf and node.labels[...] with ==, !=, <, <=, >, >=, in, joined by && || ! ( ):
  name: large-memory
  selector: device.memory_mib >= 80000 && device.driver >= version(\"550\")
  tenants: [research, ads/ranking]        # leave it out for all")]
    Apply {
        /// YAML file; - is standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Remove a device class
    Delete {
        /// Its name
        name: String,
    },
}

/// `muster plan`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  muster plan                        all cells, moving at most 2 % of the movable work
  muster plan --cell cell-0 --share 10
  muster plan -o json | jq '.cells[].openings[] | .job'")]
pub struct Plan {
    /// Of this cell
    #[arg(long)]
    pub cell: Option<String>,
    /// At most this share of what movable jobs hold is moved
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub share: Option<u8>,
}

/// `muster raft`.
#[derive(Clone, Debug, Subcommand)]
pub enum Raft {
    /// What every endpoint says of itself
    Status,
    /// Add a node as a learner, and wait until it has caught up
    Add {
        /// An id that was never used
        id: u64,
        /// host:port
        address: String,
    },
    /// Make a learner a voter
    Promote {
        /// Its id
        id: u64,
    },
    /// Take a node out, voter or learner
    Remove {
        /// Its id
        id: u64,
        /// Promote this learner in the same change
        #[arg(long, value_name = "ID")]
        replace_with: Option<u64>,
        /// Even if the cluster then goes on with fewer voters lost, as from 3 voters to 2
        #[arg(long)]
        yes: bool,
    },
    /// Set the cluster's time back to the voters' clocks, when a wrong clock had moved it ahead
    #[command(
        after_help = "Check the clocks first: `muster raft status` shows how far each is ahead of the leader's, and how far\n\
the cluster's time is ahead of a majority of them. Clients must send again, as new submissions, what\n\
they issued before the reset and had no answer to."
    )]
    ResetClock,
    /// Make empty nodes a new cluster; refused when one of them was ever part of one
    #[command(after_help = "Example:\n  muster raft bootstrap 1=10.0.0.1:7400 2=10.0.0.2:7400 3=10.0.0.3:7400")]
    Bootstrap {
        /// The voters
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
        _ => Err("is not ID=HOST:PORT, such as 1=10.0.0.1:7400".to_owned()),
    }
}

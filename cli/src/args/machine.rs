//! Arguments of `muster machine`.

use super::{Seconds, duration};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `muster machine`.
#[derive(Clone, Debug, Subcommand)]
#[command(after_help = "\
A machine is named node:NAME, shard:NAME or member:ID (a control node). To add nodes to a cluster:
  muster machine token create node --names 'gpu-[0001-0064]' --cell c1 --pool main --ttl 24h --out join
Copy the file to each of them; on node gpu-0001:
  muster node --join join --identity /var/lib/muster/identity --endpoints control-1:7401 ...
The node makes its key, and the cluster pins it to the name. Its certificate is renewed by itself.")]
pub enum Machine {
    /// List machines: their keys, and whether they are taken at their word
    List,
    /// Manage join tokens: what lets machines enrol
    #[command(subcommand)]
    Token(JoinToken),
    /// Enrol this machine with a join token, and keep its identity in a folder
    Join {
        /// node:NAME or shard:NAME
        name: String,
        /// File that `muster machine token create` has written
        file: PathBuf,
        /// Folder of the identity
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Pin the keys of machines whose identities `muster ca` has made
    Pin {
        /// Folders of identities
        #[arg(required_unless_present = "key")]
        folders: Vec<PathBuf>,
        /// A machine and its key without its folder: NAME=SHA256, as `muster ca show -o json` prints it
        #[arg(long, value_name = "NAME=SHA256")]
        key: Vec<String>,
        /// Replace other keys of the same names
        #[arg(long)]
        replace: bool,
    },
    /// Take nothing that a machine says any more; what runs on a node runs on until the node is fenced
    Suspend {
        /// node:NAME, shard:NAME or member:ID
        name: String,
        /// Why, for people; at most 256 bytes
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Take a suspended machine at its word again
    Resume {
        /// node:NAME, shard:NAME or member:ID
        name: String,
    },
    /// After a restore from a backup: take machines for those of the fleet. Until then they get no work, and nothing that runs is stopped
    Confirm {
        /// node:NAME or shard:NAME
        #[arg(required_unless_present_any = ["all", "dry_run"], conflicts_with = "all")]
        names: Vec<String>,
        /// All that come from the backup
        #[arg(long)]
        all: bool,
        /// The hosts of these nodes are off for good, so that nothing runs there. If --dry-run shows another agent of that name, it is let in
        #[arg(long, conflicts_with_all = ["all", "dry_run"], requires = "names")]
        gone: bool,
        /// Only say what would follow
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove a machine: its key is nobody's any more
    Remove {
        /// node:NAME, shard:NAME or member:ID
        name: String,
    },
    /// Say whether machines have to be enrolled
    Enrolment {
        /// optional: a certificate is enough until a key is pinned to its name; required: whose key is not pinned is nobody
        enrolment: Enrolment,
    },
}

/// See [`Machine::Enrolment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Enrolment {
    /// Certificates are enough.
    Optional,
    /// Keys have to be pinned.
    Required,
}

/// `muster machine token`.
#[derive(Clone, Debug, Subcommand)]
pub enum JoinToken {
    /// Make a join token: each of its names may be claimed once, by one key
    Create(CreateJoinToken),
    /// List join tokens, and which of their names were claimed
    List,
    /// End a join token; what was enrolled with it stays enrolled
    Revoke {
        /// Its number
        id: u64,
    },
}

/// `muster machine token create`.
#[derive(Clone, Debug, Args)]
pub struct CreateJoinToken {
    /// node or shard
    pub role: String,
    /// Names, separated by commas; gpu-[0001-0064] are 64 names
    #[arg(long, required = true, value_delimiter = ',', value_name = "NAMES")]
    pub names: Vec<String>,
    /// The only cell of these nodes, or that these shards may hold [default: any]
    #[arg(long, default_value = "", value_name = "CELL")]
    pub cell: String,
    /// The only pool of these nodes [default: any]
    #[arg(long, default_value = "", value_name = "POOL")]
    pub pool: String,
    /// GPUs that each node may have at the most [default: any number]
    #[arg(long, value_name = "NUMBER")]
    pub gpus_max: Option<u32>,
    /// Labels that these nodes may have, and no others; --labels '' allows none [default: any]
    #[arg(long, value_delimiter = ',', value_name = "KEY=VALUE")]
    pub labels: Option<Vec<String>>,
    /// How long it is valid; at most 30 days
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub ttl: Seconds,
    /// Let a machine whose key is lost have another one
    #[arg(long)]
    pub rejoin: bool,
    /// File to write; who has it can enrol these names [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

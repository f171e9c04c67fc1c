//! The command line: what can be said, with help that teaches by example.
//!
//! What must stay true: flags and file keys are the same words; every option that waits says for how long.

pub mod admin;
pub mod bench;
pub mod jobs;
pub mod replay;
pub mod roles;

use crate::output::{Colour, Format};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  muster dev                                           a whole cluster on this machine
  muster submit --tenant research/nlp --gpus 8 --tasks 4 --model h100 --topology leaf --time 4h -- torchrun train.py
  muster jobs                                          what waits and runs
  muster explain 42                                    why it waits, and what would start it
  muster logs 42 -f                                    its output as it comes
  muster tenants apply -f tree.yaml                    the quota tree
  muster jobs --all -o json | jq '.[] | .id'           for scripts

Exit status:
  0  done
  1  the job that was waited for did not complete, or the operation failed
  2  wrong usage, or input that was refused (each field is named)
  3  there is no such job, tenant, node or file
  4  no control node answered in time, or none leads
  5  refused as things stand: in use, full, already there
  130  Ctrl-C while waiting; the jobs go on

Environment:
  MUSTER_ENDPOINTS  host:port of control nodes, joined by commas
  MUSTER_CONFIG     configuration file (otherwise ~/.config/muster/config.yaml)
  NO_COLOR          no colour
  RUST_LOG          what the roles log, for example info,muster=debug";

/// The control plane of one GPU fleet that a whole organisation shares.
#[derive(Debug, Parser)]
#[command(name = "muster", version, about, after_help = EXAMPLES, propagate_version = true, max_term_width = 120)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What goes with every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// Control nodes to ask, in this order
    #[arg(
        long,
        global = true,
        env = "MUSTER_ENDPOINTS",
        value_delimiter = ',',
        value_name = "HOST:PORT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Everywhere")]
    pub endpoints: Vec<String>,
    /// Configuration file
    #[arg(
        long,
        global = true,
        env = "MUSTER_CONFIG",
        value_name = "FILE",
        hide_env_values = true,
        help_heading = "Everywhere"
    )]
    pub config: Option<PathBuf>,
    /// How results are printed
    #[arg(short, long, global = true, value_name = "FORMAT", help_heading = "Everywhere")]
    pub output: Option<Format>,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    #[arg(help_heading = "Everywhere")]
    pub color: Colour,
    /// Give up a call after this long
    #[arg(long, global = true, value_name = "TIME", default_value = "20s", value_parser = duration)]
    #[arg(help_heading = "Everywhere")]
    pub timeout: Option<Seconds>,
    /// Answer from the node that is asked, even if it is behind the leader
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub stale: bool,
}

/// A length of time from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub u64);

/// For clap.
///
/// # Errors
/// When it is no duration.
pub fn duration(text: &str) -> Result<Seconds, crate::units::UnitError> {
    crate::units::seconds(text).map(Seconds)
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Submit a job, or a file of jobs
    Submit(Box<jobs::Submit>),
    /// List jobs: what waits and runs, or all
    #[command(visible_alias = "queue")]
    Jobs(jobs::List),
    /// Show one job
    Job(jobs::One),
    /// Print what a task writes
    Logs(jobs::Logs),
    /// End jobs: a waiting one at once, a running one gracefully
    Cancel(jobs::Several),
    /// Wait until jobs have ended; the exit status says whether all completed
    Wait(jobs::Several),
    /// Say why a job is pending, and the smallest change that would start it
    Explain(jobs::One),
    /// The quota tree
    #[command(subcommand)]
    Tenants(admin::Tenants),
    /// GPU-seconds by tenant
    Usage(admin::Under),
    /// List nodes
    Nodes(admin::Nodes),
    /// List GPUs and what holds them
    Gpus(admin::Gpus),
    /// List cells and the shards that hold them
    Cells,
    /// Sets of nodes with rules
    #[command(subcommand)]
    Pools(admin::Pools),
    /// Named selectors of GPUs that jobs may use
    #[command(subcommand)]
    DeviceClasses(admin::DeviceClasses),
    /// Say which moves and conversions would start pending jobs, and what they cost; nothing is moved
    Plan(admin::Plan),
    /// Stop new work on nodes; what runs there goes on
    Drain(admin::Drain),
    /// Allow new work on nodes again, and lift their quarantine
    Undrain(admin::NodeNames),
    /// Take a node on which nothing runs out of the fleet
    RemoveNode(admin::NodeNames),
    /// The voters: state, and changes of membership
    #[command(subcommand)]
    Raft(admin::Raft),
    /// Run a control node
    Control(Box<roles::Control>),
    /// Run a scheduler shard
    Shard(roles::Shard),
    /// Run the agent of a GPU host, or of several simulated ones
    Node(roles::Node),
    /// Run a whole cluster on this machine, with simulated GPUs and real processes
    Dev(roles::Dev),
    /// Show the product's main job on this machine, with kills, and check it
    Demo(roles::Demo),
    /// Replay a trace: on a described fleet in virtual time, or on a running cluster
    Replay(Box<replay::Replay>),
    /// Measure this machine: tables with the anchor beside each figure
    Bench(bench::Bench),
    /// Print a script that lets a shell complete commands, flags, ids and names
    #[command(after_help = "\
Put one of these into the file that your shell reads when it starts:
  source <(muster completions bash)
  source <(muster completions zsh)
  muster completions fish | source")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

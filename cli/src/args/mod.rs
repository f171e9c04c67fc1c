//! The command line: what can be said, with help that teaches by example.
//!
//! What must stay true: flags and file keys are the same words; every option that waits says for how long.

pub mod access;
pub mod admin;
pub mod audit;
pub mod backup;
pub mod bench;
pub mod ca;
pub mod events;
pub mod jobs;
pub mod machine;
pub mod node;
pub mod replay;
pub mod roles;
pub mod secret;
pub mod what_if;
pub mod windows;

use crate::output::{Colour, Format};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  muster dev                                           run a whole cluster on this machine
  muster submit --tenant research/nlp --gpus 8 --tasks 4 --model h100 --topology leaf --time 4h -- torchrun train.py
  muster jobs                                          list pending and running jobs
  muster explain 42                                    why job 42 is pending, and what would start it
  muster logs 42 -f                                    follow the output of job 42
  muster tenants apply -f tree.yaml                    create and change tenants and their quotas
  muster jobs --all -o json | jq '.[] | .id'           JSON output, for scripts

Exit status:
  0  success
  1  a job that you waited for did not complete, or the operation failed
  2  wrong usage or invalid input (the message names each wrong field)
  3  the job, tenant, node or file does not exist
  4  no control node answered in time, or the cluster has no leader
  5  refused in the present state: in use, full, or it exists already
  130  Ctrl-C during a wait; the jobs continue

Environment:
  MUSTER_ENDPOINTS  HOST:PORT of control nodes, separated by commas
  MUSTER_CONFIG     configuration file (default: ~/.config/muster/config.yaml)
  MUSTER_TOKEN_FILE file with a session or token that goes with every call
  MUSTER_ROOTS_FILE file with the roots that control nodes have to prove themselves by; calls are encrypted then
  NO_COLOR          when set, output has no colour
  RUST_LOG          what control, shard and node log, for example info,muster=debug";

/// Control plane of a GPU fleet that the teams of one organisation share.
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
    /// Control nodes to call, separated by commas [default: 127.0.0.1:7400]
    #[arg(
        long,
        global = true,
        env = "MUSTER_ENDPOINTS",
        value_delimiter = ',',
        value_name = "HOST:PORT",
        hide_env_values = true
    )]
    #[arg(help_heading = "Global options")]
    pub endpoints: Vec<String>,
    /// Configuration file [default: ~/.config/muster/config.yaml]
    #[arg(
        long,
        global = true,
        env = "MUSTER_CONFIG",
        value_name = "FILE",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub config: Option<PathBuf>,
    /// Output format [default: table]
    #[arg(short, long, global = true, value_name = "FORMAT", help_heading = "Global options")]
    pub output: Option<Format>,
    /// When to use colour [default: auto]
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    #[arg(help_heading = "Global options")]
    pub color: Colour,
    /// Time limit of each call to the control plane, retries included
    #[arg(long, global = true, value_name = "TIME", default_value = "20s", value_parser = duration)]
    #[arg(help_heading = "Global options")]
    pub timeout: Option<Seconds>,
    /// Read from the control node that is called, without the leader; the answer may be out of date
    #[arg(long, global = true, help_heading = "Global options")]
    pub stale: bool,
}

/// A length of time from the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}s", self.0)
    }
}

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
    /// Submit a job, or all jobs of a file
    Submit(Box<jobs::Submit>),
    /// List jobs: those that have not ended, or all
    #[command(visible_alias = "queue")]
    Jobs(jobs::List),
    /// Show one job
    Job(jobs::One),
    /// Print the output of a task
    Logs(jobs::Logs),
    /// Keep pending jobs from starting, until they are released
    Hold(jobs::Hold),
    /// Let held jobs start
    Release(jobs::Hold),
    /// Cancel jobs: a pending job ends at once, a running job gets SIGTERM and its grace period
    Cancel(jobs::Cancel),
    /// Queue jobs again: a running job is stopped first, with its preemption signal and grace, and keeps its id and its age
    Requeue(jobs::Several),
    /// Change a pending job, or the time limit, priority and name of a running one
    Update(jobs::Update),
    /// Inside a task: say that the job has saved its progress
    Checkpoint(jobs::Checkpoint),
    /// Change how many tasks of an array run at once
    ArrayLimit(jobs::ArrayLimit),
    /// Wait until jobs have ended; exit status 0 if all of them completed
    Wait(jobs::Several),
    /// Show why a job is pending, and the smallest change that would start it
    Explain(jobs::One),
    /// Show the quota tree: what each tenant is guaranteed, borrows, lends and waits for
    Tree(admin::Tree),
    /// Manage tenants and their quotas
    #[command(subcommand)]
    Tenants(admin::Tenants),
    /// Show used GPU-seconds by tenant
    Usage(admin::Usage),
    /// List nodes
    Nodes(admin::Nodes),
    /// List GPUs and the jobs that hold them
    Gpus(admin::Gpus),
    /// List cells, and the scheduler shard of each
    Cells,
    /// Manage pools: sets of nodes that allow certain sharing modes and job classes
    #[command(subcommand)]
    Pools(admin::Pools),
    /// Manage device classes: named GPU selectors that jobs may use
    #[command(subcommand)]
    DeviceClasses(admin::DeviceClasses),
    /// Manage priority classes: named priorities, and which of them may preempt jobs of other tenants
    #[command(subcommand)]
    PriorityClasses(admin::PriorityClasses),
    /// Manage maintenance windows: times for which nodes take no work
    #[command(subcommand)]
    Maintenance(windows::Maintenance),
    /// Manage advance reservations: nodes that are kept for tenants for a time
    #[command(subcommand)]
    Reservations(windows::Reservations),
    /// Show which moves and conversions would start pending jobs, and their cost; nothing is moved
    Plan(admin::Plan),
    /// Show the moves of running jobs that were made: what was promised, and what came of it
    Moves(admin::Moves),
    /// Show what a change of quotas, nodes or pools would bring: who gains, who waits, who is evicted; nothing is changed
    WhatIf(Box<what_if::WhatIf>),
    /// Save a copy of the state, for what-if
    #[command(subcommand)]
    State(what_if::State),
    /// Write the event log of the cluster: what happened to quota and devices, for the fairness referee
    #[command(subcommand)]
    Events(events::Events),
    /// Stop new work on nodes; running jobs continue
    Drain(admin::Drain),
    /// Allow new work on nodes again, and end their quarantine
    Undrain(admin::Undrain),
    /// Take a withheld GPU into use again, once it was looked at or repaired
    ClearGpu(admin::ClearGpu),
    /// Remove nodes from the fleet; no job may run on them
    RemoveNode(admin::NodeNames),
    /// Show who you are to the cluster, and what you may do
    #[command(name = "whoami")]
    WhoAmI,
    /// Log in with the identity provider of the cluster, and keep the session in a file
    Login(access::Login),
    /// End your session
    Logout,
    /// List sessions
    Sessions(access::Sessions),
    /// Manage tokens: what programs prove themselves with
    #[command(subcommand)]
    Token(access::Token),
    /// Manage grants: who may do what, and where
    #[command(subcommand)]
    Grant(access::Grant),
    /// Say whether the cluster asks who calls
    #[command(subcommand)]
    Access(access::Access),
    /// Make an admin session for an hour, on the machine of a control node
    Recover(access::Recover),
    /// Write the state to a file, check such a file, and make a new cluster from it
    #[command(subcommand)]
    Backup(backup::Backup),
    /// Show who changed what, and check that the record of it is whole
    #[command(subcommand)]
    Audit(access::Audit),
    /// Manage secrets of tenants: values that jobs get in their environment and nobody reads back
    #[command(subcommand)]
    Secret(secret::Secret),
    /// Manage the machines of the cluster: join tokens, keys, suspension
    #[command(subcommand)]
    Machine(machine::Machine),
    /// Make the keys and certificates by which machines prove who they are
    #[command(subcommand)]
    Ca(ca::Ca),
    /// Show the state of the control nodes, and change the membership
    #[command(subcommand)]
    Raft(admin::Raft),
    /// Run a control node
    Control(Box<roles::Control>),
    /// Run a scheduler shard
    Shard(roles::Shard),
    /// Run the agent of a GPU node, or of several simulated nodes
    Node(Box<roles::Node>),
    /// Run a whole cluster on this machine, with simulated GPUs and real processes
    Dev(roles::Dev),
    /// Run a demonstration on this machine: jobs while processes are killed, then checks of the result
    Demo(roles::Demo),
    /// Replay a trace: on a simulated fleet in virtual time, or on a running cluster
    Replay(Box<replay::Replay>),
    /// Run benchmarks on this machine; each table shows a published figure for comparison
    Bench(bench::Bench),
    /// Print a completion script for a shell: commands, options, job ids and names
    #[command(after_help = "\
Add one of these lines to the start-up file of your shell:
  source <(muster completions bash)
  source <(muster completions zsh)
  muster completions fish | source")]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
}

//! Arguments of `muster what-if` and `muster state`.

use super::{Seconds, duration};
use clap::{Args, Subcommand, ValueEnum};
use muster_twin::PlacementPolicy;
use muster_twin::import::Format as TraceFormat;
use muster_twin::what_if::{AddedNodes, RunTimeBasis};
use std::path::PathBuf;
use std::str::FromStr;

/// `muster state`.
#[derive(Clone, Debug, Subcommand)]
pub enum State {
    /// Save a copy of the state to a file, without the commands and environments of jobs
    Save {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Rules by which places are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// By topology, parts of cards where least is lost: what a fleet runs
    Topology,
    /// Nodes in the order of their ids, the network unseen
    FirstFit,
    /// The fullest node first, the network unseen
    BestFit,
}

impl From<Placement> for PlacementPolicy {
    fn from(rule: Placement) -> Self {
        match rule {
            Placement::Topology => PlacementPolicy::Topology,
            Placement::FirstFit => PlacementPolicy::FirstFit,
            Placement::BestFit => PlacementPolicy::BestFit,
        }
    }
}

/// What is assumed of run times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunTimes {
    /// Their time limits, or the share of them that --limit-use says
    Limits,
    /// As long as earlier jobs of their tenants of the same size ran, where 8 or more have ended; otherwise as with limits
    Predicted,
}

impl From<RunTimes> for RunTimeBasis {
    fn from(basis: RunTimes) -> Self {
        match basis {
            RunTimes::Limits => RunTimeBasis::Limits,
            RunTimes::Predicted => RunTimeBasis::Predicted,
        }
    }
}

/// `muster what-if`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A copy of the state is run forward on this machine, as it is and with the change, by the state machine and the scheduler of the
fleet. Nothing is changed. The edits are made in this order: placement, pools, added nodes, tenants, device classes, priority
classes, deleted windows, windows, drains.

Examples:
  muster what-if --tenants tree.yaml                    quotas as `muster tenants apply` would set them
  muster what-if --drain node-0007 --for 8h             what waits if a node takes no new work
  muster what-if --windows kernel.yaml --for 1d         maintenance or a reservation: who waits longer, who is evicted
  muster what-if --add-nodes 4x8:h100:pool=training     buy: four nodes of eight GPUs
  muster what-if --pools mig.yaml --jobs models.yaml    pack: other rules of a pool, with these jobs submitted in both runs
  muster what-if --placement best-fit --for 1d          another way of choosing places
  muster what-if --jobs large.yaml --run-times predicted
                                                        when these jobs would start, and who would wait for them
  muster state save monday.state; muster what-if --state monday.state --drain-cell cell-2")]
pub struct WhatIf {
    /// Use a copy that `muster state save` has made, instead of asking the cluster
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Tenants: a file as `muster tenants apply` reads it
    #[arg(long, value_name = "FILE", help_heading = "The change")]
    pub tenants: Option<PathBuf>,
    /// Remove tenants that the file does not name, below the ones at its top
    #[arg(long, requires = "tenants", help_heading = "The change")]
    pub prune: bool,
    /// Pools: a file as `muster pools apply` reads it
    #[arg(long, value_name = "FILE", help_heading = "The change")]
    pub pools: Option<PathBuf>,
    /// Device classes: a file as `muster device-classes apply` reads it. They count for jobs that are submitted from then on
    #[arg(long, value_name = "FILE", help_heading = "The change")]
    pub device_classes: Option<PathBuf>,
    /// Priority classes: a file as `muster priority-classes apply` reads it. Priorities count for jobs that are submitted from then on,
    /// which classes may be preempted counts at once
    #[arg(long, value_name = "FILE", help_heading = "The change")]
    pub priority_classes: Option<PathBuf>,
    /// Schedulers choose places by another rule
    #[arg(long, value_name = "RULE", help_heading = "The change")]
    pub placement: Option<Placement>,
    /// Nodes that take no new work
    #[arg(long, value_name = "NODE", value_delimiter = ',', help_heading = "The change")]
    pub drain: Vec<String>,
    /// The nodes of --drain are drained by this time, as `muster drain --by` does
    #[arg(long, value_name = "WHEN", requires = "drain", help_heading = "The change")]
    pub by: Option<String>,
    /// Cells whose nodes take no new work
    #[arg(long, value_name = "CELL", value_delimiter = ',', help_heading = "The change")]
    pub drain_cell: Vec<String>,
    /// Maintenance and reservations that are planned: a file with name, kind (maintenance or reservation), start, end, and nodes, cell,
    /// pool or place, or tenants, gpus and model; also reason, preempt and flex. Times count from when the copy was made
    #[arg(long, value_name = "FILE", help_heading = "The change")]
    pub windows: Option<PathBuf>,
    /// Maintenance windows and reservations that are given up or ended; with --windows of the same name: changed
    #[arg(long, value_name = "WINDOW", value_delimiter = ',', help_heading = "The change")]
    pub delete_window: Vec<String>,
    /// Nodes that join: NODESxGPUS:MODEL, optionally :cell=NAME, :pool=NAME and :leaf=NODES (nodes under one leaf)
    #[arg(long, value_name = "NODES", value_parser = AddedNodes::from_str, help_heading = "The change")]
    pub add_nodes: Vec<AddedNodes>,

    /// Jobs that are submitted now: a file as `muster submit` reads it. Beside other changes they are submitted in both runs
    #[arg(long, value_name = "FILE", help_heading = "Workload")]
    pub jobs: Vec<PathBuf>,
    /// Jobs that are submitted as in this trace, plain or gzip, from now on. Beside other changes they are submitted in both runs
    #[arg(long, value_name = "FILE", requires_all = ["format", "under"], help_heading = "Workload")]
    pub trace: Option<PathBuf>,
    /// Format of the trace: openb, itp, philly or sacct
    #[arg(long, value_name = "FORMAT", value_parser = TraceFormat::from_str, requires = "trace", help_heading = "Workload")]
    pub format: Option<TraceFormat>,
    /// Begin with this day of the trace, counted from 0
    #[arg(long, value_name = "DAY", default_value_t = 0, requires = "trace", help_heading = "Workload")]
    pub from_day: u32,
    /// Submit all jobs of the trace for this tenant
    #[arg(long, value_name = "TENANT", requires = "trace", help_heading = "Workload")]
    pub under: Option<String>,

    /// How far both runs go, up to 30 days
    #[arg(long = "for", value_name = "TIME", default_value = "2h", value_parser = duration, help_heading = "Assumptions")]
    pub horizon: Seconds,
    /// What is assumed of how long jobs run
    #[arg(long, value_name = "BASIS", default_value = "limits", help_heading = "Assumptions")]
    pub run_times: RunTimes,
    /// Jobs run for this share of their time limits, 1 to 100
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "Assumptions")]
    pub limit_use: u32,
    /// Jobs without a time limit run for so long [default: they do not end]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Assumptions")]
    pub run_time: Option<Seconds>,

    /// Show every job and tenant, also those for which nothing changes
    #[arg(long)]
    pub all: bool,
}

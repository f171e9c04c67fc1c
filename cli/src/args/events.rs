//! Arguments of `muster events`.

use super::{Seconds, duration};
use clap::{Args, Subcommand};
use muster_model::preemption::STOP_MS_MAX;
use std::path::PathBuf;

/// `muster events`.
#[derive(Clone, Debug, Subcommand)]
pub enum Events {
    /// Write the event log of the cluster, for the fairness referee
    Export(Export),
}

/// `muster events export`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
The log is JSON lines: first the quota tree, the capacity and what runs and waits at a revision, then every event after it. Control nodes
keep the last changes in memory: the log begins as early as they reach back, or with the state at --since.

Examples:
  muster events export --out fleet.jsonl               what happened lately, up to now
  muster events export --follow --out fleet.jsonl.gz   the same, and what happens until Ctrl-C
  muster events export --since 120000 | fairness_referee.py -")]
pub struct Export {
    /// Begin with the state at this revision [default: as early as possible]
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    pub since: Option<u64>,
    /// Write to this file instead of standard output; compressed when the name ends in .gz
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Go on with what happens, until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,
    /// How long a preempted job may take from the end of its grace until its devices are free: the referee reports what takes longer.
    /// Where nodes fail, their silence and fencing are part of it
    #[arg(long, value_name = "TIME", default_value_t = Seconds(STOP_MS_MAX / 1_000), value_parser = duration)]
    pub stop_max: Seconds,
}

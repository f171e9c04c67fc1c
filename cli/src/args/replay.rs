//! Flags of `muster replay`.

use super::{Seconds, duration};
use clap::Args;
use muster_model::TopologyLevel;
use muster_twin::PlacementPolicy;
use muster_twin::import::Format as TraceFormat;
use muster_twin::quota::QuotaChoice;
use std::path::PathBuf;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  muster replay --format itp --fleet 256x8:h100 --days 7 --from-day busiest cluster04.csv --html out.html
  sacct -aPX -S 2024-03-01 -o JobID,User,Account,Submit,Start,End,Elapsed,AllocTRES,ReqTRES,State,NNodes |
    muster replay --format sacct --fleet fleet.yaml --quota equal:150 -
  muster replay --format openb --fleet openb_node_list_gpu_node.csv openb_pod_list_default.csv --json out.json
  muster replay --format philly --days 1 --live --speed-up 600 --under replay philly.csv

  muster replay --mix day.yaml --traces traces --fleet 6250x8:h100 --prefer leaf --policy best-fit --html out.html

A mix file:
  name: a mixed day
  seed: 1
  warm_days: 7
  sources:
    - {name: research, jobs_per_day: 20000, tenants: 200, trace: {format: itp, files: [itp/cluster01.csv, itp/cluster02.csv]}}
    - {name: serving, jobs_per_day: 9000, tenants: 60, trace: {format: openb, files: [openb.csv], only: shares, shares: mig}}
    - {name: frontier, jobs_per_day: 150, tenants: 12, gangs: {gpus: [128, 512], hours: [2, 20]}}

A fleet file:
  name: two halls
  groups:
    - {nodes: 256, gpus: 8, model: h100, nodes_per_leaf: 8, leaves_per_block: 8, cells: 2}
    - {nodes: 40, gpus: 4, model: a100-80, cpu_milli: 96000, memory_mib: 786432}
    - {nodes: 36, gpus: 4, model: b200, nodes_per_leaf: 18, nodes_per_nvlink_domain: 18}";

/// Replay a trace on a described fleet: the same state machine and scheduler, on virtual time.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Replay {
    /// Files of the trace, gzip or plain; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "mix", requires = "format")]
    pub files: Vec<PathBuf>,
    /// What they are: openb, itp, philly, sacct
    #[arg(long, value_name = "FORMAT", value_parser = TraceFormat::from_str)]
    pub format: Option<TraceFormat>,
    /// A mixed day put together from traces instead, as this YAML file describes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "format", "days"])]
    pub mix: Option<PathBuf>,
    /// Folder of the traces that the mix names; its own when absent
    #[arg(long, value_name = "DIR", requires = "mix")]
    pub traces: Option<PathBuf>,
    /// NODESxGPUS:MODEL (more joined by commas; :cells=N, :leaf=N, :block=N, :nvlink=N), a YAML file, or openb's list of nodes
    #[arg(long, value_name = "FLEET", required_unless_present = "live", conflicts_with = "live")]
    pub fleet: Option<String>,
    /// Heading of the report
    #[arg(long)]
    pub title: Option<String>,

    /// Replay this many days; all when absent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "What is replayed")]
    pub days: Option<u32>,
    /// The first of them, from 0, or `busiest`: the run of days that brings most GPU time
    #[arg(long, value_name = "DAY", default_value = "0", requires = "days", help_heading = "What is replayed")]
    pub from_day: FromDay,
    /// Begin with an empty fleet, without the jobs that ran when the window began
    #[arg(long, help_heading = "What is replayed")]
    pub cold: bool,
    /// Continue for this many days after the window, so that submitted jobs can end
    #[arg(long, value_name = "N", default_value_t = 60, help_heading = "What is replayed")]
    pub drain_days: u32,

    /// Limits to impose on tenants: none, equal:PERCENT of an equal share, quantile:PERMILLE:DAYS of the demand before the window
    #[arg(long, value_name = "QUOTA", default_value = "none", value_parser = quota, help_heading = "How")]
    pub quota: QuotaChoice,
    /// Any card serves, whatever model the trace names
    #[arg(long, help_heading = "How")]
    pub any_model: bool,
    /// Gangs of several tasks prefer one island, node, leaf, block, region
    #[arg(long, value_name = "LEVEL", value_parser = TopologyLevel::from_str, help_heading = "How")]
    pub prefer: Option<TopologyLevel>,
    /// Gangs of several tasks require one
    #[arg(long, value_name = "LEVEL", value_parser = TopologyLevel::from_str, help_heading = "How")]
    pub require: Option<TopologyLevel>,
    /// Jobs without a time limit say this many percent of what they will take; with limits, pending gangs get reservations
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(101..=10_000), help_heading = "How")]
    pub time_limits: Option<u32>,
    /// How places are chosen; first-fit and best-fit do not see the network, for comparison: topology, first-fit, best-fit
    #[arg(long, value_name = "POLICY", default_value = "topology", value_parser = policy, conflicts_with = "live", help_heading = "How")]
    pub policy: PlacementPolicy,
    /// From binding until every task runs
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, help_heading = "How")]
    pub start_delay: Seconds,
    /// From the order to stop until every task is gone
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, help_heading = "How")]
    pub stop_delay: Seconds,

    /// Write the report as JSON
    #[arg(long, value_name = "FILE", conflicts_with = "live", help_heading = "Results")]
    pub json: Option<PathBuf>,
    /// Write the report as a page with plots
    #[arg(long, value_name = "FILE", conflicts_with = "live", help_heading = "Results")]
    pub html: Option<PathBuf>,

    /// Submit the trace to a running cluster instead, as processes that sleep
    #[arg(long, help_heading = "On a running cluster")]
    pub live: bool,
    /// Run this many times faster than the trace
    #[arg(long, value_name = "TIMES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "On a running cluster")]
    pub speed_up: u32,
    /// Tenants are made under this one
    #[arg(long, value_name = "TENANT", default_value = "replay", help_heading = "On a running cluster")]
    pub under: String,
    /// Wait until every job has ended
    #[arg(long, requires = "live", help_heading = "On a running cluster")]
    pub wait: bool,
}

/// Where the window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromDay {
    /// At this day.
    Day(u32),
    /// Where most GPU time is submitted.
    Busiest,
}

impl FromStr for FromDay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("busiest") {
            return Ok(FromDay::Busiest);
        }
        text.parse().map(FromDay::Day).map_err(|_| format!("{text:?} is neither a day, from 0, nor `busiest`"))
    }
}

fn policy(text: &str) -> Result<PlacementPolicy, String> {
    match text {
        "topology" => Ok(PlacementPolicy::Topology),
        "first-fit" => Ok(PlacementPolicy::FirstFit),
        "best-fit" => Ok(PlacementPolicy::BestFit),
        _ => Err(format!("{text:?} is none of topology, first-fit, best-fit")),
    }
}

fn quota(text: &str) -> Result<QuotaChoice, String> {
    let wrong = || format!("{text:?} is none of none, equal:PERCENT, quantile:PERMILLE:DAYS");
    let number =
        |word: Option<&str>| word.and_then(|word| word.parse::<u32>().ok()).filter(|n| *n > 0).ok_or_else(wrong);
    let mut words = text.split(':');
    let choice = match words.next() {
        Some("none") => QuotaChoice::None,
        Some("equal") => QuotaChoice::Equal { percent: number(words.next())? },
        Some("quantile") => {
            QuotaChoice::Quantile { permille: number(words.next())?.min(1_000), training_days: number(words.next())? }
        }
        _ => return Err(wrong()),
    };
    if words.next().is_some() { Err(wrong()) } else { Ok(choice) }
}

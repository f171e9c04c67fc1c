//! Flags of `muster replay`.

use super::{Seconds, duration};
use clap::Args;
use muster_model::TopologyLevel;
use muster_twin::PlacementPolicy;
use muster_twin::import::Format as TraceFormat;
use muster_twin::queue::QueueChoice;
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

/// Replay a trace on a simulated fleet, with the state machine and the scheduler of a real cluster, in virtual time.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Replay {
    /// Files of the trace, plain or gzip; - reads standard input
    #[arg(value_name = "FILE", required_unless_present = "mix", requires = "format")]
    pub files: Vec<PathBuf>,
    /// Format of the trace: openb, itp, philly or sacct
    #[arg(long, value_name = "FORMAT", value_parser = TraceFormat::from_str)]
    pub format: Option<TraceFormat>,
    /// Instead of files: a mix of traces, described by this YAML file (see below)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "format", "days"])]
    pub mix: Option<PathBuf>,
    /// Folder of the traces that the mix names [default: the folder of the mix file]
    #[arg(long, value_name = "DIR", requires = "mix")]
    pub traces: Option<PathBuf>,
    /// Fleet: NODESxGPUS:MODEL (optionally :cells=N, :leaf=N, :block=N, :nvlink=N; several groups separated by commas), a YAML file (see
    /// below), or the CSV list of nodes of an openb trace
    #[arg(long, value_name = "FLEET", required_unless_present = "live", conflicts_with = "live")]
    pub fleet: Option<String>,
    /// Title of the report [default: name of the trace and of the fleet]
    #[arg(long)]
    pub title: Option<String>,

    /// Replay this many days, 1 to 100000 [default: the whole trace]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Part of the trace")]
    pub days: Option<u32>,
    /// First day of --days, counted from 0; or `busiest`: the days in which most GPU time is submitted
    #[arg(long, value_name = "DAY", default_value = "0", requires = "days", help_heading = "Part of the trace")]
    pub from_day: FromDay,
    /// Begin with an empty fleet, without the jobs that ran before the first day
    #[arg(long, help_heading = "Part of the trace")]
    pub cold: bool,
    /// Continue for at most this many days after the last day, so that submitted jobs can end
    #[arg(long, value_name = "N", default_value_t = 60, help_heading = "Part of the trace")]
    pub drain_days: u32,

    /// Quota of each tenant: none; equal:PERCENT of an equal share of the fleet; quantile:PERMILLE:DAYS: this quantile of its demand in
    /// the DAYS before the first day
    #[arg(long, value_name = "QUOTA", default_value = "none", value_parser = quota, help_heading = "Replay options")]
    pub quota: QuotaChoice,
    /// Let jobs run on any GPU model, whatever model the trace names
    #[arg(long, help_heading = "Replay options")]
    pub any_model: bool,
    /// Jobs of several tasks prefer one island, node, leaf, block or region
    #[arg(long, value_name = "LEVEL", value_parser = TopologyLevel::from_str, help_heading = "Replay options")]
    pub prefer: Option<TopologyLevel>,
    /// Jobs of several tasks require one island, node, leaf, block or region
    #[arg(long, value_name = "LEVEL", value_parser = TopologyLevel::from_str, help_heading = "Replay options")]
    pub require: Option<TopologyLevel>,
    /// Give jobs without a time limit one of this percentage of their run time, 101 to 10000; pending gangs then get reservations
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(101..=10_000), help_heading = "Replay options")]
    pub time_limits: Option<u32>,
    /// Placement policy: topology, first-fit or best-fit; the last two ignore the network and are for comparison
    #[arg(long, value_name = "POLICY", default_value = "topology", value_parser = policy, conflicts_with = "live", help_heading = "Replay options")]
    pub policy: PlacementPolicy,
    /// Time from placement of a job until all its tasks run
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, help_heading = "Replay options")]
    pub start_delay: Seconds,
    /// Time from the order to stop a job until all its tasks have ended
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, help_heading = "Replay options")]
    pub stop_delay: Seconds,

    /// Quota tree: a file as `muster tenants apply` reads it; tenants of the trace that it does not name are added without a guarantee
    #[arg(long, value_name = "FILE", conflicts_with = "live", help_heading = "Replay options")]
    pub tenants: Option<PathBuf>,
    /// Queues: tree, jobs wait under their tenants; or, for comparison, one queue without quota: fifo, or strict-priority by the tenants' guarantees
    #[arg(long, value_name = "QUEUES", default_value = "tree", value_parser = QueueChoice::from_str, conflicts_with = "live", help_heading = "Replay options")]
    pub queue: QueueChoice,
    /// Time that burst work runs before it may be preempted
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, help_heading = "Replay options")]
    pub cool_down: Seconds,
    /// Of one in so many jobs that still wait after a minute, ask when they will start, as `muster explain` does; the JSON report has the errors
    #[arg(long, value_name = "EVERY", default_value_t = 0, conflicts_with = "live", help_heading = "Replay options")]
    pub estimates: u32,
    /// Time that a preempted job may take to stop
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3_600), help_heading = "Replay options")]
    pub grace_s: Option<u64>,
    /// Time between two checkpoints of a running job: a preempted one goes on from its last; 0: it begins anew
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600, help_heading = "Replay options")]
    pub checkpoint_s: u64,

    /// Write the event log to this file, for the fairness referee; compressed when the name ends in .gz
    #[arg(long, value_name = "FILE", conflicts_with = "live", help_heading = "Results")]
    pub events: Option<PathBuf>,
    /// Write the report to this file as JSON
    #[arg(long, value_name = "FILE", conflicts_with = "live", help_heading = "Results")]
    pub json: Option<PathBuf>,
    /// Write the report to this file as an HTML page with plots
    #[arg(long, value_name = "FILE", conflicts_with = "live", help_heading = "Results")]
    pub html: Option<PathBuf>,

    /// Submit the jobs of the trace to a running cluster, as processes that sleep
    #[arg(long, help_heading = "On a running cluster")]
    pub live: bool,
    /// Replay this many times faster than the trace, 1 to 1000000
    #[arg(long, value_name = "TIMES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "On a running cluster")]
    pub speed_up: u32,
    /// Create the tenants of the trace under this tenant
    #[arg(long, value_name = "TENANT", default_value = "replay", help_heading = "On a running cluster")]
    pub under: String,
    /// Wait until all submitted jobs have ended
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
        text.parse().map(FromDay::Day).map_err(|_| format!("{text:?} is not a day; use a number from 0, or `busiest`"))
    }
}

fn policy(text: &str) -> Result<PlacementPolicy, String> {
    match text {
        "topology" => Ok(PlacementPolicy::Topology),
        "first-fit" => Ok(PlacementPolicy::FirstFit),
        "best-fit" => Ok(PlacementPolicy::BestFit),
        _ => Err(format!("{text:?} is not a policy; use topology, first-fit or best-fit")),
    }
}

fn quota(text: &str) -> Result<QuotaChoice, String> {
    let wrong = || format!("{text:?} is not a quota; use none, equal:PERCENT or quantile:PERMILLE:DAYS");
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

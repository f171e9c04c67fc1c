//! Flags of `muster bench`: each benchmark prints a table of measured figures, each with a published one for comparison.

use super::{Seconds, duration};
use clap::{Args, Subcommand, ValueEnum};
use muster_bench::decisions::Mix;
use muster_bench::packing::policy::Policy;
use muster_bench::quotas::{Policy as QuotaPolicy, Source};
use std::path::PathBuf;
use std::str::FromStr;

/// Which benchmark.
#[derive(Debug, Args)]
pub struct Bench {
    /// Print a JSON list of tables instead of tables
    #[arg(long, global = true)]
    pub json: bool,
    /// Folder for the data of the clusters while they run; use a real disk, not a tmpfs
    #[arg(long, global = true, value_name = "DIR", default_value = ".")]
    pub under: PathBuf,
    /// Measure clusters whose connections are encrypted, with certificates on both sides [default: clear text]
    #[arg(long, global = true)]
    pub secured: bool,
    /// Benchmark
    #[command(subcommand)]
    pub what: What,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Run these with their defaults: decisions, passes, submissions, lifecycle, failover, stall
    All,
    /// Scheduling decisions per second of one shard, for several fleet sizes; placement of a gang of 512 GPUs (S1, S2)
    Decisions {
        /// Fleet sizes, as numbers of nodes with 8 GPUs, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "625,6250,62500")]
        nodes: Vec<u32>,
        /// Decisions to measure at each fleet size
        #[arg(long, default_value_t = 200_000)]
        decisions: u32,
        /// Seed of the random jobs
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Kinds of jobs: all, whole, mig, shares, tight; separated by commas
        #[arg(long, value_delimiter = ',', default_value = "all,whole,mig,shares,tight")]
        mix: Vec<Mix>,
    },
    /// Time of a scheduling pass over thousands of pending jobs on a full fleet, with reservations and backfill (S4)
    Passes {
        /// Fleet sizes, as numbers of nodes with 8 GPUs, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "625,6250")]
        nodes: Vec<u32>,
        /// Number of pending jobs
        #[arg(long, default_value_t = 10_000)]
        waiting: u32,
        /// Seed of the random jobs
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Whose jobs they are
        #[command(flatten)]
        tenants: BenchTenants,
    },
    /// Time to find the victims for a large gang that a floor account covers, on a fleet full of burst jobs (S3; not part of `all`)
    Reclaim {
        /// Fleet sizes, as numbers of nodes with 8 GPUs, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "625,6250")]
        nodes: Vec<u32>,
        /// Tasks of the gang, of 8 GPUs each
        #[arg(long, default_value_t = 64)]
        tasks: u32,
        /// Gangs measured on each fleet
        #[arg(long, default_value_t = 20)]
        rounds: u32,
        /// Seed of the jobs that run
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Whose jobs they are
        #[command(flatten)]
        tenants: BenchTenants,
    },
    /// Time of `muster plan` on a full fleet whose free GPUs are scattered (not part of `all`)
    Plans {
        /// Fleet sizes, as numbers of nodes with 8 GPUs, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "625,6250")]
        nodes: Vec<u32>,
        /// Move at most this percentage of the GPUs of movable jobs, 0 to 100
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=100))]
        share: u8,
    },
    /// Durable job submissions per second, compared with etcd in the same run (S5)
    Submissions {
        /// Numbers of clients, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "1,64,256,1000")]
        clients: Vec<u64>,
        /// Seconds of load for each number of clients
        #[arg(long, default_value_t = 8.0)]
        seconds: f64,
        /// Jobs in one batch submission
        #[arg(long, default_value_t = 100)]
        batch: u32,
    },
    /// Time from submission to running, and jobs per second, with simulated agents (S6)
    Lifecycle {
        /// Number of simulated nodes with 8 GPUs
        #[arg(long, default_value_t = 64)]
        nodes: u32,
        /// Number of jobs in the throughput run
        #[arg(long, default_value_t = 10_000)]
        jobs: u32,
        /// Submissions per second in the latency run
        #[arg(long, default_value_t = 300)]
        rate: u32,
        /// Duration of the latency run, in seconds
        #[arg(long, default_value_t = 10)]
        seconds: u32,
    },
    /// Time of each step of one job, from submission to running (not part of `all`)
    TraceOne {
        /// Number of simulated nodes with 8 GPUs
        #[arg(long, default_value_t = 64)]
        nodes: u32,
        /// Submissions per second, 1 to 10000, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "50,300", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        rate: Vec<u32>,
        /// Duration for each rate, in seconds, 1 to 600
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
        seconds: u32,
    },
    /// Time from kill -9 of the leader to the next acknowledged write, compared with etcd in the same run (R2)
    Failover {
        /// Number of kills
        #[arg(long, default_value_t = 30)]
        rounds: u32,
    },
    /// Delay of jobs while one agent, shard or follower is stopped (SIGSTOP)
    Stall {
        /// Number of jobs in each phase, submitted at 50 per second
        #[arg(long, default_value_t = 500)]
        jobs: u32,
    },
    /// What TLS costs: handshakes, memory of a connection, messages (not part of `all`)
    Secure {
        /// Number of handshakes of each kind in each of nine rounds
        #[arg(long, default_value_t = 300)]
        handshakes: u32,
        /// Number of connections that are held at once
        #[arg(long, default_value_t = 2_000)]
        connections: u32,
        /// Number of agents that reconnect to one control node at once
        #[arg(long, default_value_t = 6_250)]
        agents: u32,
    },
    /// Starting and ending tasks on one node, isolated and not; run it as root to see all of it (not part of `all`)
    Tasks {
        /// Number of tasks one after the other
        #[arg(long, default_value_t = 50)]
        rounds: u32,
        /// Number of tasks at once [default: eight cards with seven slices each]
        #[arg(long, default_value_t = 56)]
        at_once: u32,
    },
    /// One agent with 8 GPUs of 7 MIG slices each and a task on every slice, on the double of NVIDIA's driver: CPU, memory, desired state to
    /// running, stop to clean; run it as root to see all of it (not part of `all`)
    Node {
        /// Number of tasks stopped and started one after the other, beside the others
        #[arg(long, default_value_t = 112)]
        rounds: u32,
        /// Seconds over which CPU is measured, idle and with all tasks
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
        seconds: u32,
    },
    /// Delay of heartbeats and submissions, and elections, while clients call `muster plan` and `muster explain` in a loop (not part of
    /// `all`)
    Searches {
        /// Number of simulated nodes with 8 GPUs
        #[arg(long, default_value_t = 1_000)]
        nodes: u32,
        /// Number of clients that call plan and explain without a pause
        #[arg(long, default_value_t = 8)]
        callers: u32,
        /// Duration of each phase, in seconds
        #[arg(long, default_value_t = 30)]
        seconds: u32,
    },
    /// Five voters in three regions (2, 2, 1): commit latency under load, needless elections, loss of a region (not part of `all`)
    Wan {
        /// Round-trip times between regions, in milliseconds, 0 to 500, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "40,80,150", value_parser = clap::value_parser!(u64).range(0..=500))]
        round_trips: Vec<u64>,
        /// Submissions of one job per second
        #[arg(long, default_value_t = 300)]
        rate: u64,
        /// Duration of the load at each round-trip time, in seconds
        #[arg(long, default_value_t = 30)]
        seconds: u64,
        /// Number of losses of the leader's region at each round-trip time
        #[arg(long, default_value_t = 10)]
        rounds: u32,
    },
    /// Three voters with a large fleet: CPU time for agent sessions, memory, log and disk per hour, restart times (S8, S9; not part of `all`)
    Scale {
        /// Number of simulated nodes with 8 GPUs, a multiple of 5, at most 8190; 24 jobs run on each 5 nodes
        #[arg(long, default_value_t = 6_250, value_parser = clap::value_parser!(u32).range(5..=8_190))]
        nodes: u32,
        /// Number of pending jobs
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10..=900_000))]
        waiting: u32,
        /// Number of finished jobs that are kept on disk
        #[arg(long, default_value_t = 100_000)]
        finished: u32,
        /// Number of teams in the tenant tree
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        teams: u32,
        /// Number of users in all teams together
        #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        users: u32,
        /// Duration of the measurement without submissions, in seconds
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
        seconds: u32,
        /// Number of kills of a follower, and of all control nodes
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Spread the agent sessions over the voters [default: one voter has all of them]
        #[arg(long)]
        spread: bool,
    },
    /// Overload: three times the highest rate of submissions, slow watchers, a stopped follower, one tenant that submits too much (not part
    /// of `all`)
    Overload {
        /// Number of clients in the first step; each step doubles it, until the rate does not rise any more
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4_096))]
        clients: u64,
        /// Duration of each step, in seconds
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
        /// Duration of each fault, in seconds
        #[arg(long, default_value_t = 20.0)]
        fault_seconds: f64,
    },
    /// Packing of GPU fractions on a public trace, compared with published policies (Q1, Q2; not part of `all`: it needs the trace)
    Packing(Packing),
    /// Quotas with borrowing and reclaim on public traces, beside static quotas, FIFO and strict priority: goodput, floors, waits (Q3, Q5;
    /// not part of `all`: it needs the traces)
    Quotas(Box<Quotas>),
}

/// The tenants whose jobs run and wait.
#[derive(Clone, Copy, Debug, Args)]
pub struct BenchTenants {
    /// Number of teams in the tenant tree
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub teams: u32,
    /// Number of users in all teams together, each a tenant below its team; 0: the teams submit themselves
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub users: u32,
}

/// Replays of traces under quota trees that are made from their training days.
#[derive(Clone, Debug, Args)]
pub struct Quotas {
    /// Folder of the public traces, with the folders itp and philly
    #[arg(long, value_name = "DIR")]
    pub traces: PathBuf,
    /// Traces: itp, philly; separated by commas
    #[arg(long, value_delimiter = ',', default_value = "itp,philly", value_parser = Source::from_str)]
    pub trace: Vec<Source>,
    /// Offered loads, in multiples of the recorded submissions, 0.1 to 10, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,1.5,2", value_parser = load)]
    pub loads: Vec<u32>,
    /// Number of seeds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub seeds: u64,
    /// Policies: muster, static, fifo, strict-priority; separated by commas
    #[arg(long, value_delimiter = ',', default_value = "muster,static,fifo,strict-priority", value_parser = QuotaPolicy::from_str)]
    pub policies: Vec<QuotaPolicy>,
    /// Days that are measured
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub days: u32,
    /// Days before them, so that the measured days begin with running jobs
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(0..=60))]
    pub warm_days: u32,
    /// Continue for at most this many days after the measured days
    #[arg(long, default_value_t = 14)]
    pub drain_days: u32,
    /// Time limit of each job, in percent of its run time, 101 to 10000; 0: none
    #[arg(long, value_name = "PERCENT", default_value_t = 200)]
    pub time_limits: u32,
    /// Time that a preempted job may take to stop
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub grace: Seconds,
    /// Time between two checkpoints of a running job; 0s: none
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    pub checkpoint: Seconds,
    /// Time that burst work runs before it may be preempted
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub cool_down: Seconds,
    /// Of one in so many jobs that still wait after a minute, ask when they will start, as `muster explain` does, and show the errors; 0: of none
    #[arg(long, value_name = "EVERY", default_value_t = 0)]
    pub estimates: u32,
    /// Runs at the same time
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Program that judges event logs, run as `python3 FILE LOG --json` [default: event logs are not judged]
    #[arg(long, value_name = "FILE")]
    pub referee: Option<PathBuf>,
    /// Keep the event logs in this folder
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Append each finished run to this file, and do not repeat the runs that are in it; it must come from the same options
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Write the figures of all runs to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// A multiple as thousandths.
fn load(text: &str) -> Result<u32, String> {
    let times: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.1..=10.0).contains(&times) { Ok((times * 1000.0).round() as u32) } else { Err("use 0.1 to 10".to_owned()) }
}

/// One run on given files, or all runs of a folder.
#[derive(Clone, Debug, Args)]
pub struct Packing {
    /// CSV file of nodes: sn,cpu_milli,memory_mib,gpu,model
    #[arg(long, value_name = "FILE", required_unless_present = "all")]
    pub nodes: Option<PathBuf>,
    /// CSV file of pods: name,cpu_milli,memory_mib,num_gpu,gpu_milli and, optionally, gpu_spec
    #[arg(long, value_name = "FILE", required_unless_present = "all")]
    pub pods: Option<PathBuf>,
    /// CSV file of arrivals: seed,pod; plain or gzip
    #[arg(long, value_name = "FILE", required_unless_present = "all")]
    pub arrivals: Option<PathBuf>,
    /// Use the arrivals of this seed
    #[arg(long, required_unless_present = "all")]
    pub seed: Option<u64>,
    /// Shuffle the nodes with this seed [default: the order of the file]
    #[arg(long, value_name = "SEED")]
    pub node_order: Option<u64>,
    /// With --policy muster: allow moves of this percentage of the pods placed so far
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub moves: f64,
    /// Placement policy
    #[arg(long, value_enum, default_value_t = PackingPolicy::Muster)]
    pub policy: PackingPolicy,
    /// File for the log of placements; with --all, a folder for the logs of all runs
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// File of published results [default: in the folder of the pods]
    #[arg(long, value_name = "FILE")]
    pub published: Option<PathBuf>,
    /// Run all traces of this folder with all seeds
    #[arg(long, value_name = "DIR", conflicts_with_all = ["nodes", "pods", "arrivals", "seed", "node_order"])]
    pub all: Option<PathBuf>,
    /// With --all: number of shuffled node orders; 0: the order of the file
    #[arg(long, default_value_t = 3, requires = "all")]
    pub orders: u64,
}

/// Who decides where a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PackingPolicy {
    /// Muster's packing: learns the demand while it runs, and does not use the order of nodes
    Muster,
    /// The complete placement of a shard, with fractions as MPS shares
    Placement,
    /// The published FGD: knows the demand of the whole trace; the order of nodes decides ties
    Fgd,
    /// FGD without its rounding, so that the order of nodes decides no ties
    FgdPlain,
    /// The published best-fit policy
    Bestfit,
    /// A random node that fits
    Random,
}

impl From<PackingPolicy> for Policy {
    fn from(policy: PackingPolicy) -> Self {
        match policy {
            PackingPolicy::Muster => Policy::Muster,
            PackingPolicy::Placement => Policy::Placement,
            PackingPolicy::Fgd => Policy::Fgd,
            PackingPolicy::FgdPlain => Policy::FgdPlain,
            PackingPolicy::Bestfit => Policy::BestFit,
            PackingPolicy::Random => Policy::Random,
        }
    }
}

impl What {
    /// With its defaults.
    #[must_use]
    pub fn decisions() -> Self {
        What::Decisions { nodes: vec![625, 6_250, 62_500], decisions: 200_000, seed: 1, mix: Mix::ALL.to_vec() }
    }

    /// With its defaults.
    #[must_use]
    pub fn passes() -> Self {
        What::Passes {
            nodes: vec![625, 6_250],
            waiting: 10_000,
            seed: 1,
            tenants: BenchTenants { teams: 300, users: 0 },
        }
    }

    /// With its defaults.
    #[must_use]
    pub fn submissions() -> Self {
        What::Submissions { clients: vec![1, 64, 256, 1_000], seconds: 8.0, batch: 100 }
    }

    /// With its defaults.
    #[must_use]
    pub fn lifecycle() -> Self {
        What::Lifecycle { nodes: 64, jobs: 10_000, rate: 300, seconds: 10 }
    }

    /// With its defaults.
    #[must_use]
    pub fn failover() -> Self {
        What::Failover { rounds: 30 }
    }

    /// With its defaults.
    #[must_use]
    pub fn stall() -> Self {
        What::Stall { jobs: 500 }
    }
}

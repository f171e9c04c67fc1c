//! Flags of `muster bench`: each benchmark prints a table with the anchor beside each figure.

use clap::{Args, Subcommand, ValueEnum};
use muster_bench::decisions::Mix;
use muster_bench::packing::policy::Policy;
use std::path::PathBuf;

/// Which benchmark.
#[derive(Debug, Args)]
pub struct Bench {
    /// Print one JSON document, a list of tables, instead of tables
    #[arg(long, global = true)]
    pub json: bool,
    /// Where clusters keep their data while they run (a real disk, not a tmpfs)
    #[arg(long, global = true, value_name = "DIR", default_value = ".")]
    pub under: PathBuf,
    /// The benchmark
    #[command(subcommand)]
    pub what: What,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum What {
    /// All of them, one after the other, with their defaults
    All,
    /// S1 and S2: decisions of one shard core over fleets of several sizes, and a gang of 512 cards
    Decisions {
        /// Fleet sizes in nodes of eight cards
        #[arg(long, value_delimiter = ',', default_value = "625,6250,62500")]
        nodes: Vec<u32>,
        /// Decisions measured at each size
        #[arg(long, default_value_t = 200_000)]
        decisions: u32,
        /// Seed of the mix
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// What jobs ask for: all, whole, mig, shares, tight (repeat or separate by commas)
        #[arg(long, value_delimiter = ',', default_value = "all,whole,mig,shares,tight")]
        mix: Vec<Mix>,
    },
    /// S4: a pass over thousands of waiting jobs on a full fleet, with reservations and backfill, and the passes after it
    Passes {
        /// Fleet sizes in nodes of eight cards
        #[arg(long, value_delimiter = ',', default_value = "625,6250")]
        nodes: Vec<u32>,
        /// Jobs that wait
        #[arg(long, default_value_t = 10_000)]
        waiting: u32,
        /// Seed of the mix
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Plans of moves on a full fleet whose free cards are scattered (not part of `all`)
    Plans {
        /// Fleet sizes in nodes of eight cards
        #[arg(long, value_delimiter = ',', default_value = "625,6250")]
        nodes: Vec<u32>,
        /// Share of the movable work that may be moved, in percent
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=100))]
        share: u8,
    },
    /// S5: acknowledged durable submissions, beside etcd in the same run
    Submissions {
        /// Client counts
        #[arg(long, value_delimiter = ',', default_value = "1,64,256,1000")]
        clients: Vec<u64>,
        /// Seconds of each load
        #[arg(long, default_value_t = 8.0)]
        seconds: f64,
        /// Jobs in a batch
        #[arg(long, default_value_t = 100)]
        batch: u32,
    },
    /// S6: the whole life of a job, with simulated agents
    Lifecycle {
        /// Simulated nodes of eight cards
        #[arg(long, default_value_t = 64)]
        nodes: u32,
        /// Jobs of the throughput run
        #[arg(long, default_value_t = 10_000)]
        jobs: u32,
        /// Submissions a second of the latency run
        #[arg(long, default_value_t = 300)]
        rate: u32,
        /// Seconds of the latency run
        #[arg(long, default_value_t = 10)]
        seconds: u32,
    },
    /// Where the time of one job goes from submit to running, and that of one submission, step by step (not part of `all`)
    TraceOne {
        /// Simulated nodes of eight cards
        #[arg(long, default_value_t = 64)]
        nodes: u32,
        /// Submissions a second (repeat or separate by commas)
        #[arg(long, value_delimiter = ',', default_value = "50,300", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        rate: Vec<u32>,
        /// Seconds of each rate
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
        seconds: u32,
    },
    /// R2: kill -9 of the leader to the next acknowledged write, beside etcd in the same run
    Failover {
        /// Kills
        #[arg(long, default_value_t = 30)]
        rounds: u32,
    },
    /// What a stopped agent, shard or follower costs the others
    Stall {
        /// Jobs of each phase, 50 a second
        #[arg(long, default_value_t = 500)]
        jobs: u32,
    },
    /// What `muster plan` and `muster explain` in a loop cost heartbeats, elections and submissions (not part of `all`)
    Searches {
        /// Simulated nodes of eight cards
        #[arg(long, default_value_t = 1_000)]
        nodes: u32,
        /// Callers that plan and explain without a pause
        #[arg(long, default_value_t = 8)]
        callers: u32,
        /// Seconds of each phase
        #[arg(long, default_value_t = 30)]
        seconds: u32,
    },
    /// Five voters in three regions, two, two and one: commits under load, needless elections, and the loss of a region (not part of `all`)
    Wan {
        /// Round trips between regions, in milliseconds
        #[arg(long, value_delimiter = ',', default_value = "40,80,150", value_parser = clap::value_parser!(u64).range(0..=500))]
        round_trips: Vec<u64>,
        /// Small submissions a second
        #[arg(long, default_value_t = 300)]
        rate: u64,
        /// Seconds of load at each round trip
        #[arg(long, default_value_t = 30)]
        seconds: u64,
        /// Losses of the leader's region at each round trip
        #[arg(long, default_value_t = 10)]
        rounds: u32,
    },
    /// S8, S9: a whole fleet against three voters: what its sessions cost, memory, log and disk an hour, restarts (not part of `all`)
    Scale {
        /// Simulated nodes of eight cards, a multiple of 5; jobs run on all of them, 24 on each five
        #[arg(long, default_value_t = 6_250, value_parser = clap::value_parser!(u32).range(5..=8_190))]
        nodes: u32,
        /// Jobs that wait
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10..=900_000))]
        waiting: u32,
        /// Jobs that have ended before and are kept on disk
        #[arg(long, default_value_t = 100_000)]
        finished: u32,
        /// Teams of the tenant tree
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        teams: u32,
        /// Users of all teams
        #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        users: u32,
        /// Seconds of the quiet measurement
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
        seconds: u32,
        /// Kills of a follower, and of all control nodes
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Spread the agents' sessions over the voters; without it one voter has all of them
        #[arg(long)]
        spread: bool,
    },
    /// Overload: submissions to three times the knee, slow watchers, a stopped follower, a tenant that floods (not part of `all`)
    Overload {
        /// Clients of the first step; they double until the rate does not grow any more
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4_096))]
        clients: u64,
        /// Seconds of each step
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
        /// Seconds of each fault
        #[arg(long, default_value_t = 20.0)]
        fault_seconds: f64,
    },
    /// Q1, Q2: fractions of cards on a public trace, beside the published policies (not part of `all`: it needs the trace)
    Packing(Packing),
}

/// One run on given files, or all runs of a folder.
#[derive(Clone, Debug, Args)]
pub struct Packing {
    /// Nodes: sn,cpu_milli,memory_mib,gpu,model
    #[arg(long, value_name = "FILE", required_unless_present = "all")]
    pub nodes: Option<PathBuf>,
    /// Pods: name,cpu_milli,memory_mib,num_gpu,gpu_milli and optionally gpu_spec
    #[arg(long, value_name = "FILE", required_unless_present = "all")]
    pub pods: Option<PathBuf>,
    /// Arrivals: seed,pod; plain or gzip
    #[arg(long, value_name = "FILE", required_unless_present = "all")]
    pub arrivals: Option<PathBuf>,
    /// Which arrivals
    #[arg(long, required_unless_present = "all")]
    pub seed: Option<u64>,
    /// Shuffle the nodes by this seed first
    #[arg(long, value_name = "SEED")]
    pub node_order: Option<u64>,
    /// Planned moves allowed, in percent of the pods placed so far (policy muster)
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub moves: f64,
    /// Who decides
    #[arg(long, value_enum, default_value_t = PackingPolicy::Muster)]
    pub policy: PackingPolicy,
    /// Where the log goes that the referee reads; with --all a folder, a log for each run
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// The published table, when it is not beside the pods
    #[arg(long, value_name = "FILE")]
    pub published: Option<PathBuf>,
    /// Run every trace of this folder with every seed of its arrivals
    #[arg(long, value_name = "DIR", conflicts_with_all = ["nodes", "pods", "arrivals", "seed", "node_order"])]
    pub all: Option<PathBuf>,
    /// Shuffled node orders with --all; 0 for the order of the file
    #[arg(long, default_value_t = 3, requires = "all")]
    pub orders: u64,
}

/// Who decides where a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PackingPolicy {
    /// Our engine: demand learned online, no help from node names
    Muster,
    /// The whole of a shard's placement, with fractions as MPS shares
    Placement,
    /// The published FGD: knows the whole trace's mix, breaks ties by the order of the nodes
    Fgd,
    /// FGD without its rounding, so that names break no ties
    FgdPlain,
    /// The published best fit
    Bestfit,
    /// Any node that fits
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
        What::Passes { nodes: vec![625, 6_250], waiting: 10_000, seed: 1 }
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

//! Arguments of what tenants do: submit, look, read, end.

use crate::args::{Seconds, duration};
use crate::spec::job::JobText;
use crate::spec::needs::NeedsText;
use crate::spec::scalar::{OneOrMany, Scalar, Version};
use clap::{ArgGroup, Args, ValueEnum};
use std::path::PathBuf;

const SUBMIT_EXAMPLES: &str = "\
Examples:
  muster submit --tenant research/nlp --gpus 8 --tasks 4 --model h100 --topology leaf --time 4h -- torchrun train.py
  muster submit --tenant research/nlp --mig 1g.10gb --class interactive -- jupyter lab
  muster submit --tenant research/nlp --mps 30 --gpu-memory 20Gi --model a100-80,h100 -- ./serve
  muster submit --tenant research/nlp --needs memory=8Gi,compute=15 -- ./serve
  muster submit --tenant research/nlp --gpus 1 --count 100 -- ./sweep.sh
  muster submit -f job.yaml --wait
  muster submit -f job.yaml --time 8h                 a flag goes before the file

A job file is YAML with the same words; several documents are several jobs, accepted all or none:
  tenant: research/nlp
  gpus: 8
  tasks: 4
  model: h100
  topology: leaf
  time: 4h
  command: [torchrun, train.py]

Each task finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and CUDA_VISIBLE_DEVICES in its environment.";

/// `muster submit`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = SUBMIT_EXAMPLES)]
#[command(group(ArgGroup::new("devices").args(["gpus", "mig", "mps", "time_slice", "needs"])))]
pub struct Submit {
    /// The tenant whose quota is used: names from the root, joined by '/'
    #[arg(long, value_name = "PATH")]
    pub tenant: Option<String>,
    /// Who submits it, for people and for lists [default: your login name]
    #[arg(long, env = "MUSTER_USER", hide_env_values = true)]
    pub user: Option<String>,
    /// A name for people; the program's when absent
    #[arg(long)]
    pub name: Option<String>,
    /// Whole GPUs for each task
    #[arg(long, value_name = "N", help_heading = "Devices")]
    pub gpus: Option<u32>,
    /// One MIG instance, such as 1g.10gb
    #[arg(long, value_name = "PROFILE", help_heading = "Devices")]
    pub mig: Option<String>,
    /// A share of a card under MPS, in percent of its compute
    #[arg(long, value_name = "PERCENT", help_heading = "Devices")]
    pub mps: Option<u32>,
    /// A time-sliced share of a card
    #[arg(long, help_heading = "Devices")]
    pub time_slice: bool,
    /// What each task needs, and the system chooses: memory=8Gi,compute=15,isolation=strict,bursty,latency-critical
    #[arg(long, value_name = "NEEDS", help_heading = "Devices")]
    pub needs: Option<NeedsText>,
    /// Memory of the share, such as 20Gi; of whole GPUs or a MIG slice, what it must have at least
    #[arg(long, value_name = "SIZE", help_heading = "Devices")]
    pub gpu_memory: Option<String>,
    /// Acceptable models, the preferred first
    #[arg(long, value_name = "MODEL", value_delimiter = ',', help_heading = "Devices")]
    pub model: Vec<String>,
    /// Which GPUs will do, in CEL's syntax: device.memory_mib >= 40000 && node.labels["tier"] == "gold"
    #[arg(long, value_name = "SELECTOR", help_heading = "Devices")]
    pub selector: Option<String>,
    /// A selector that an admin has named
    #[arg(long, value_name = "CLASS", help_heading = "Devices")]
    pub device_class: Option<String>,
    /// Tasks of the gang: all start together or none does
    #[arg(long, value_name = "N")]
    pub tasks: Option<u32>,
    /// CPUs for each task: 4, 0.5, 500m
    #[arg(long, value_name = "CPUS")]
    pub cpus: Option<String>,
    /// Host memory for each task, such as 64Gi
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// The whole gang inside one of these: island, node, leaf, block, region
    #[arg(long, value_name = "LEVEL", help_heading = "Placement")]
    pub topology: Option<String>,
    /// Prefer the whole gang inside one of these
    #[arg(long, value_name = "LEVEL", help_heading = "Placement")]
    pub prefer: Option<String>,
    /// Put each group of this many consecutive tasks on one island; it must divide --tasks
    #[arg(long, value_name = "TASKS", help_heading = "Placement")]
    pub segment: Option<u32>,
    /// Require the tasks on different nodes, leaves, blocks or regions: node, leaf, block, region
    #[arg(long, value_name = "LEVEL", conflicts_with = "prefer_spread", help_heading = "Placement")]
    pub spread: Option<String>,
    /// Prefer the tasks on different ones, as far as there is room
    #[arg(long, value_name = "LEVEL", help_heading = "Placement")]
    pub prefer_spread: Option<String>,
    /// At most this many tasks on one of them [default: 1]
    #[arg(long, value_name = "TASKS", help_heading = "Placement")]
    pub spread_most: Option<u32>,
    /// How close each task's GPUs and CPUs must be: none, best-effort, restricted, single-numa-node
    #[arg(long, value_name = "POLICY", help_heading = "Placement")]
    pub numa: Option<String>,
    /// The oldest GPU driver it can run on, such as 550 or 550.54.15
    #[arg(long, value_name = "VERSION", help_heading = "Placement")]
    pub driver_min: Option<String>,
    /// The only pool it may run in
    #[arg(long, value_name = "POOL", help_heading = "Placement")]
    pub pool: Option<String>,
    /// training, inference, interactive or batch
    #[arg(long, value_name = "CLASS", help_heading = "Placement")]
    pub class: Option<String>,
    /// Jobs of a tenant with a higher priority start first
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Placement")]
    pub priority: Option<i32>,
    /// Stop it when it has run this long: 4h, 90m, 1d
    #[arg(long, value_name = "TIME", help_heading = "Life")]
    pub time: Option<String>,
    /// From SIGTERM to SIGKILL; 30s when absent
    #[arg(long, value_name = "TIME", help_heading = "Life")]
    pub grace: Option<String>,
    /// How long tasks may outlive contact with the control plane; 10m when absent
    #[arg(long, value_name = "TIME", help_heading = "Life")]
    pub disconnect_grace: Option<String>,
    /// Restart the job at most this many times when one of its tasks fails
    #[arg(long, value_name = "N", help_heading = "Life")]
    pub retries: Option<u32>,
    /// The job may be stopped and started again elsewhere in its cell to make room for others
    #[arg(long, help_heading = "Life")]
    pub movable: bool,
    /// A movable job saves its progress at least this often; without this a move loses all work since the start
    #[arg(long, value_name = "TIME", help_heading = "Life")]
    pub checkpoint_every: Option<String>,
    /// How long a movable job takes from its start to useful work; 5m when absent
    #[arg(long, value_name = "TIME", help_heading = "Life")]
    pub restart_time: Option<String>,
    /// A variable for the tasks
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Working directory, an absolute path
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Submit this many identical jobs
    #[arg(long, value_name = "N")]
    pub count: Option<u32>,
    /// Job files; - is standard input
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The client's id of this submission: the same id and content never run twice
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Wait until every job has ended; the exit status says whether all completed
    #[arg(long)]
    pub wait: bool,
    /// Program and arguments, after --
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

impl Submit {
    /// What the flags say of a job, in the words of a job file. A variable without `=` is taken from our own environment.
    #[must_use]
    pub fn text(&self) -> JobText {
        let scalar = |text: &Option<String>| text.clone().map(Scalar);
        let variable = |text: &String| match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), Scalar(value.to_owned())),
            None => (text.clone(), Scalar(std::env::var(text).unwrap_or_default())),
        };
        JobText {
            tenant: self.tenant.clone(),
            user: self.user.clone(),
            name: self.name.clone(),
            gpus: self.gpus,
            mig: self.mig.clone(),
            mps: self.mps,
            time_slice: self.time_slice.then_some(true),
            needs: self.needs.clone(),
            selector: self.selector.clone(),
            device_class: self.device_class.clone(),
            gpu_memory: scalar(&self.gpu_memory),
            tasks: self.tasks,
            model: (!self.model.is_empty()).then(|| OneOrMany::Many(self.model.clone())),
            cpus: scalar(&self.cpus),
            memory: scalar(&self.memory),
            topology: self.topology.clone(),
            prefer: self.prefer.clone(),
            segment: self.segment,
            spread: self.spread.clone(),
            prefer_spread: self.prefer_spread.clone(),
            spread_most: self.spread_most,
            numa: self.numa.clone(),
            driver_min: self.driver_min.clone().map(Version),
            time: scalar(&self.time),
            grace: scalar(&self.grace),
            disconnect_grace: scalar(&self.disconnect_grace),
            retries: self.retries,
            movable: self.movable.then_some(true),
            checkpoint_every: scalar(&self.checkpoint_every),
            restart_time: scalar(&self.restart_time),
            priority: self.priority,
            class: self.class.clone(),
            pool: self.pool.clone(),
            env: self.env.iter().map(variable).collect(),
            workdir: self.workdir.clone(),
            command: (!self.command.is_empty()).then(|| OneOrMany::Many(self.command.clone())),
            count: self.count,
        }
    }
}

/// `muster jobs`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  muster jobs                                   what waits and runs
  muster jobs --tenant research --state pending  what waits in research and below
  muster jobs --all --newest --limit 20         the last twenty, finished ones too
  muster jobs --user alice --sort waited        alice's, those that have waited longest first
  muster jobs --watch                           every two seconds, until Ctrl-C
  muster jobs -o wide                           with attempt, cell, times, and nothing cut

TIME is how long a pending job has waited and how long others have run. On a terminal, columns are cut to its width; `muster
explain` says more than REASON.")]
pub struct List {
    /// Of this tenant and those below it
    #[arg(long, value_name = "PATH")]
    pub tenant: Option<String>,
    /// In any of these states: pending, starting, running, completing, completed, failed, cancelled, timeout
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub state: Vec<String>,
    /// With exactly this name
    #[arg(long)]
    pub name: Option<String>,
    /// Of exactly this user
    #[arg(long)]
    pub user: Option<String>,
    /// Include finished jobs
    #[arg(long, short, conflicts_with = "state")]
    pub all: bool,
    /// Newest first
    #[arg(long)]
    pub newest: bool,
    /// Sort by this column: names ascending, figures descending
    #[arg(long, value_name = "KEY", conflicts_with = "newest")]
    pub sort: Option<SortKey>,
    /// Reverse the order of --sort
    #[arg(long, requires = "sort")]
    pub reverse: bool,
    /// Repeat the list every 2s, or at this interval
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "2s", value_parser = duration)]
    pub watch: Option<Seconds>,
    /// At most this many; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub limit: usize,
}

/// What jobs are put in order by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    /// The oldest first.
    Id,
    /// Tenants, as in the tree.
    Tenant,
    /// Users.
    User,
    /// Names.
    Name,
    /// States, in the order of a job's life.
    State,
    /// GPUs of the gang.
    Gpus,
    /// Nodes.
    Nodes,
    /// How long it has run, or ran.
    Time,
    /// How long it has waited, or waited.
    Waited,
    /// Priority.
    Priority,
}

/// A job.
#[derive(Clone, Debug, Args)]
pub struct One {
    /// Job id
    #[arg(value_name = "JOB")]
    pub id: u64,
}

/// Several jobs.
#[derive(Clone, Debug, Args)]
pub struct Several {
    /// Job ids
    #[arg(value_name = "JOB", required = true)]
    pub ids: Vec<u64>,
}

/// `muster logs`.
#[derive(Clone, Debug, Default, Args)]
pub struct Logs {
    /// Job id
    #[arg(value_name = "JOB")]
    pub id: u64,
    /// Go on as it writes, until it is over
    #[arg(long, short)]
    pub follow: bool,
    /// Which task of the gang
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// All tasks of the gang, each line behind its rank: one after another, or as they write with --follow
    #[arg(long, conflicts_with = "rank")]
    pub all_ranks: bool,
    /// Standard error instead of standard output
    #[arg(long)]
    pub stderr: bool,
    /// Which attempt; the last when absent
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub attempt: u32,
}

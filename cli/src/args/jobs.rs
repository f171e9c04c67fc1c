//! Arguments of what tenants do: submit, look, read, end.

use crate::args::{Seconds, duration};
use crate::spec::job::mount::MountText;
use crate::spec::job::{EnvValue, JobText};
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
  muster submit -f job.yaml --time 8h                 options override the fields of the file

A job file is YAML. Its keys are the names of the options. A file with several documents submits several jobs: all of
them are accepted, or none:
  tenant: research/nlp
  gpus: 8
  tasks: 4
  model: h100
  topology: leaf
  time: 4h
  command: [torchrun, train.py]

Muster sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and CUDA_VISIBLE_DEVICES in the environment of each task.";

/// `muster submit`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = SUBMIT_EXAMPLES)]
#[command(group(ArgGroup::new("devices").args(["gpus", "mig", "mps", "time_slice", "needs"])))]
pub struct Submit {
    /// Tenant whose quota the job uses: a path such as research/nlp
    #[arg(long, value_name = "PATH")]
    pub tenant: Option<String>,
    /// User name for lists of jobs; it is not verified [default: your login name]
    #[arg(long, env = "MUSTER_USER", hide_env_values = true)]
    pub user: Option<String>,
    /// Name of the job [default: name of the program]
    #[arg(long)]
    pub name: Option<String>,
    /// A note for people, such as a ticket; one line
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// Whole GPUs for each task, 1 to 16
    #[arg(long, value_name = "N", help_heading = "Devices")]
    pub gpus: Option<u32>,
    /// One MIG instance of this profile, such as 1g.10gb
    #[arg(long, value_name = "PROFILE", help_heading = "Devices")]
    pub mig: Option<String>,
    /// With --mig: so many equal compute instances in the MIG instance, which share its memory; the task sees one MIG device for each
    #[arg(long, value_name = "N", help_heading = "Devices")]
    pub compute_instances: Option<u32>,
    /// A share of one GPU under MPS, in percent of its compute, 1 to 100
    #[arg(long, value_name = "PERCENT", help_heading = "Devices")]
    pub mps: Option<u32>,
    /// A share of one GPU by time-slicing; needs --gpu-memory
    #[arg(long, help_heading = "Devices")]
    pub time_slice: bool,
    /// Needs of each task; Muster chooses the GPU or share. memory=SIZE (required), compute=PERCENT of a GPU, isolation=strict, trusted
    /// or best-effort, bursty, latency-critical; for example memory=8Gi,compute=15,isolation=strict
    #[arg(long, value_name = "NEEDS", help_heading = "Devices")]
    pub needs: Option<NeedsText>,
    /// With --mps or --time-slice: GPU memory of the share, such as 20Gi. Otherwise: the least memory of each GPU or MIG instance
    #[arg(long, value_name = "SIZE", help_heading = "Devices")]
    pub gpu_memory: Option<String>,
    /// Acceptable GPU models, the preferred one first [default: any]
    #[arg(long, value_name = "MODEL", value_delimiter = ',', help_heading = "Devices")]
    pub model: Vec<String>,
    /// Acceptable GPUs, as an expression in CEL syntax: device.memory_mib >= 40000 && node.labels["tier"] == "gold"
    #[arg(long, value_name = "SELECTOR", help_heading = "Devices")]
    pub selector: Option<String>,
    /// Acceptable GPUs, as a device class: see `muster device-classes list`
    #[arg(long, value_name = "CLASS", help_heading = "Devices")]
    pub device_class: Option<String>,
    /// Number of tasks, 1 to 32768; they start together or not at all (a gang) [default: 1]. A range, such as 4-16 (or 4:16), is an
    /// elastic job: it starts with the least, takes more while GPUs are idle, and gives them back when others need them
    #[arg(long, visible_alias = "workers", value_name = "N[-MAX]")]
    pub tasks: Option<String>,
    /// With a range of tasks: signal to the running tasks when their number has changed, such as WINCH or USR1 [default: none; the tasks
    /// find each other as those of torchrun do, or read the file $MUSTER_WORLD_FILE]
    #[arg(long, value_name = "SIGNAL", help_heading = "Time and restarts")]
    pub resize_signal: Option<String>,
    /// CPUs for each task: 4, 0.5 or 500m [default: 1 without GPUs or with --needs, otherwise 0]
    #[arg(long, value_name = "CPUS")]
    pub cpus: Option<String>,
    /// Host memory for each task, such as 64Gi [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Require all tasks inside one island (NVLink domain), node, leaf, block or region
    #[arg(long, value_name = "LEVEL", help_heading = "Placement")]
    pub topology: Option<String>,
    /// Prefer all tasks inside one island, node, leaf, block or region
    #[arg(long, value_name = "LEVEL", help_heading = "Placement")]
    pub prefer: Option<String>,
    /// Put each group of this many consecutive tasks on one island; --tasks must be a multiple of it
    #[arg(long, value_name = "TASKS", help_heading = "Placement")]
    pub segment: Option<u32>,
    /// Require at most --spread-most tasks on each node, leaf, block or region; the job waits until there is room
    #[arg(long, value_name = "LEVEL", conflicts_with = "prefer_spread", help_heading = "Placement")]
    pub spread: Option<String>,
    /// Prefer at most --spread-most tasks on each node, leaf, block or region; the job does not wait for it
    #[arg(long, value_name = "LEVEL", help_heading = "Placement")]
    pub prefer_spread: Option<String>,
    /// Tasks on each domain of --spread or --prefer-spread [default: 1]
    #[arg(long, value_name = "TASKS", help_heading = "Placement")]
    pub spread_most: Option<u32>,
    /// NUMA policy for the GPUs of each task: none, best-effort, restricted or single-numa-node [default: none]
    #[arg(long, value_name = "POLICY", help_heading = "Placement")]
    pub numa: Option<String>,
    /// Oldest acceptable GPU driver, such as 550 or 550.54.15 [default: any]
    #[arg(long, value_name = "VERSION", help_heading = "Placement")]
    pub driver_min: Option<String>,
    /// Run only on nodes of this pool [default: any]
    #[arg(long, value_name = "POOL", help_heading = "Placement")]
    pub pool: Option<String>,
    /// Workload class: training, inference, interactive or batch [default: batch]
    #[arg(long, value_name = "CLASS", help_heading = "Placement")]
    pub class: Option<String>,
    /// Priority among the jobs of the same tenant, -1000000 to 1000000; higher starts first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Placement")]
    pub priority: Option<i32>,
    /// Priority class, which sets the priority: see `muster priority-classes list` [default: default]
    #[arg(long, value_name = "CLASS", conflicts_with = "priority", help_heading = "Placement")]
    pub priority_class: Option<String>,
    /// Run on the nodes of this advance reservation only: see `muster reservations list`
    #[arg(long, value_name = "NAME", help_heading = "Placement")]
    pub reservation: Option<String>,
    /// Time limit: the job is stopped after it has run this long, such as 90m, 4h or 1d [default: none; at most 366d]
    #[arg(long, value_name = "TIME", help_heading = "Time and restarts")]
    pub time: Option<String>,
    /// Submit an array: one job for each index, such as 0-99, 1,3,7-9 or 0-20:4; %N after it: at most N of them at once
    #[arg(long, value_name = "INDICES", conflicts_with = "count")]
    pub array: Option<String>,
    /// Hold the job until `muster release`
    #[arg(long, help_heading = "When it may start")]
    pub hold: bool,
    /// Start no earlier than this: now+1h, 16:00, 2026-11-23T16:00, or with a time zone as in RFC 3339
    #[arg(long, value_name = "WHEN", help_heading = "When it may start")]
    pub begin: Option<String>,
    /// The job must have ended by then: it ends when it can no longer keep it, and is stopped at it
    #[arg(long, value_name = "WHEN", help_heading = "When it may start")]
    pub deadline: Option<String>,
    /// Wait for other jobs: afterok:JOB[:JOB...], afterany, afternotok, aftercorr, after:JOB[+MINUTES], singleton; all of them must be met
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "When it may start")]
    pub dependency: Vec<String>,
    /// Cancel the job when a dependency can never be met [default: it stays pending]
    #[arg(long, help_heading = "When it may start")]
    pub kill_on_invalid_dep: bool,
    /// Time between SIGTERM and SIGKILL when the job is stopped [default: 30s; at most 12h]
    #[arg(long, value_name = "TIME", help_heading = "Time and restarts")]
    pub grace: Option<String>,
    /// How long tasks run on after their node has lost the control plane [default: 10m; 10s to 12h]
    #[arg(long, value_name = "TIME", help_heading = "Time and restarts")]
    pub disconnect_grace: Option<String>,
    /// Restart the job at most this many times after a task has failed [default: 0; at most 1000]
    #[arg(long, value_name = "N", help_heading = "Time and restarts")]
    pub retries: Option<u32>,
    /// Allow Muster to stop the job and start it on other nodes of its cell, to make room for other jobs
    #[arg(long, help_heading = "Time and restarts")]
    pub movable: bool,
    /// With --movable: the job saves its progress at least this often [default: never: a move loses all its work]
    #[arg(long, value_name = "TIME", help_heading = "Time and restarts")]
    pub checkpoint_every: Option<String>,
    /// With --movable: time from a start of the job to useful work [default: 5m; at most 12h]
    #[arg(long, value_name = "TIME", help_heading = "Time and restarts")]
    pub restart_time: Option<String>,
    /// Signal to the tasks so many seconds before the time limit, such as USR1@120 [default: 60 seconds before]
    #[arg(long, value_name = "SIGNAL[@SECONDS]", help_heading = "Time and restarts")]
    pub signal: Option<String>,
    /// First signal to the tasks when the job is preempted: TERM, USR1, USR2, INT, HUP, CONT, ... [default: TERM]
    #[arg(long, value_name = "SIGNAL", help_heading = "Time and restarts")]
    pub preempt_signal: Option<String>,
    /// Time from that signal to SIGKILL [default: that of --grace; at most 1h]
    #[arg(long, value_name = "TIME", help_heading = "Time and restarts")]
    pub preempt_grace: Option<String>,
    /// Size of a checkpoint of the whole job, such as 80Gi: Muster warns if the grace is too short to write one
    #[arg(long, value_name = "SIZE", help_heading = "Time and restarts")]
    pub checkpoint_size: Option<String>,
    /// Cost of a restart as a time of the whole job: jobs with lower costs are preempted first [default: 0s; at most 12h]
    #[arg(long, value_name = "TIME", help_heading = "Time and restarts")]
    pub restart_cost: Option<String>,
    /// Environment variable of the tasks; NAME alone takes the value from your environment
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Environment variable with a secret of the tenant as its value (`muster secret`)
    #[arg(long, value_name = "NAME=SECRET")]
    pub secret_env: Vec<String>,
    /// Working directory on the node, an absolute path [default: a scratch folder of the task]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Container image: docker://REGISTRY/NAME[:TAG], oci:/PATH[:TAG] (an OCI layout on the node) or dir:/PATH (an unpacked root file system).
    /// Without a command the image's own runs
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Folder or file of the node that the tasks see, read-only unless :rw is added; repeat it for several
    #[arg(long, value_name = "SOURCE:TARGET[:ro|:rw]")]
    pub mount: Vec<String>,
    /// Submit this many identical jobs, 1 to 1000 [default: 1]
    #[arg(long, value_name = "N")]
    pub count: Option<u32>,
    /// Job file; - reads standard input; repeat it for several files
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Id of this submission, at most 128 bytes: the same jobs submitted again under the same id are not run twice
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Wait until all submitted jobs have ended; exit status 0 if all of them completed
    #[arg(long)]
    pub wait: bool,
    /// Program and its arguments, after --
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

impl Submit {
    /// What the flags say of a job, in the words of a job file. A variable without `=` is taken from our own environment.
    #[must_use]
    pub fn text(&self) -> JobText {
        let scalar = |text: &Option<String>| text.clone().map(Scalar);
        let variable = |text: &String| match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), EnvValue::Text(Scalar(value.to_owned()))),
            None => (text.clone(), EnvValue::Text(Scalar(std::env::var(text).unwrap_or_default()))),
        };
        // Without `=` the secret has the variable's name.
        let secret = |text: &String| {
            let (name, secret) = text.split_once('=').unwrap_or((text, text));
            (name.to_owned(), EnvValue::secret(secret))
        };
        JobText {
            tenant: self.tenant.clone(),
            user: self.user.clone(),
            name: self.name.clone(),
            comment: self.comment.clone(),
            gpus: self.gpus,
            mig: self.mig.clone(),
            mps: self.mps,
            time_slice: self.time_slice.then_some(true),
            needs: self.needs.clone(),
            selector: self.selector.clone(),
            device_class: self.device_class.clone(),
            gpu_memory: scalar(&self.gpu_memory),
            tasks: scalar(&self.tasks),
            resize_signal: scalar(&self.resize_signal),
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
            array: scalar(&self.array),
            hold: self.hold.then_some(true),
            begin: scalar(&self.begin),
            deadline: scalar(&self.deadline),
            dependency: (!self.dependency.is_empty()).then(|| OneOrMany::Many(self.dependency.clone())),
            kill_on_invalid_dep: self.kill_on_invalid_dep.then_some(true),
            grace: scalar(&self.grace),
            disconnect_grace: scalar(&self.disconnect_grace),
            retries: self.retries,
            movable: self.movable.then_some(true),
            checkpoint_every: scalar(&self.checkpoint_every),
            restart_time: scalar(&self.restart_time),
            signal: scalar(&self.signal),
            preempt_signal: scalar(&self.preempt_signal),
            preempt_grace: scalar(&self.preempt_grace),
            checkpoint_size: scalar(&self.checkpoint_size),
            restart_cost: scalar(&self.restart_cost),
            priority: self.priority,
            priority_class: self.priority_class.clone(),
            reservation: self.reservation.clone(),
            class: self.class.clone(),
            pool: self.pool.clone(),
            env: self.env.iter().map(variable).chain(self.secret_env.iter().map(secret)).collect(),
            workdir: self.workdir.clone(),
            image: self.image.clone(),
            compute_instances: self.compute_instances,
            mounts: (!self.mount.is_empty()).then(|| self.mount.iter().cloned().map(MountText::Line).collect()),
            command: (!self.command.is_empty()).then(|| OneOrMany::Many(self.command.clone())),
            count: self.count,
        }
    }
}

/// `muster jobs`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "\
Examples:
  muster jobs                                   pending and running jobs
  muster jobs --tenant research --state pending  pending jobs of research and the tenants below it
  muster jobs --all --newest --limit 20         the 20 newest jobs, finished jobs included
  muster jobs --user alice --sort waited        jobs of alice, those that have waited longest first
  muster jobs --watch                           list again every 2 seconds, until Ctrl-C
  muster jobs -o wide                           more columns: attempt, cell, times; nothing is cut

TIME is how long a pending job has waited, and how long any other job has run. On a terminal, columns are cut to its
width. `muster explain JOB` says more than the column REASON.")]
pub struct List {
    /// Only jobs of this tenant and the tenants below it
    #[arg(long, value_name = "PATH")]
    pub tenant: Option<String>,
    /// Only jobs in these states: pending, starting, running, completing, completed, failed, cancelled, timeout, deadline
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub state: Vec<String>,
    /// Only jobs with exactly this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only jobs of exactly this user
    #[arg(long)]
    pub user: Option<String>,
    /// Include finished jobs
    #[arg(long, short, conflicts_with = "state")]
    pub all: bool,
    /// Newest first
    #[arg(long)]
    pub newest: bool,
    /// Sort by this column: names ascending, numbers descending [default: by id]
    #[arg(long, value_name = "KEY", conflicts_with = "newest")]
    pub sort: Option<SortKey>,
    /// Reverse the order of --sort
    #[arg(long, requires = "sort")]
    pub reverse: bool,
    /// List again at this interval until Ctrl-C [default interval: 2s]
    #[arg(long, value_name = "EVERY", num_args = 0..=1, default_missing_value = "2s", value_parser = duration)]
    pub watch: Option<Seconds>,
    /// List at most this many jobs; 0: no limit
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub limit: usize,
}

/// What jobs are put in order by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    /// Job id, oldest first.
    Id,
    /// Path of the tenant.
    Tenant,
    /// User.
    User,
    /// Name of the job.
    Name,
    /// State: pending first, ended last.
    State,
    /// GPUs of all tasks.
    Gpus,
    /// Number of nodes.
    Nodes,
    /// Time that the job has run.
    Time,
    /// Time that the job has waited.
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

/// `muster update`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("changes").required(true).multiple(true).args(["time", "no_time_limit", "priority", "tenant", "name", "comment"])))]
#[command(after_help = "\
Examples:
  muster update 12 --time 8h                    the time limit, counted from the start; of a running job too
  muster update 12 --priority 10 --name retry
  muster update 12 --tenant research/vision     of a pending job only")]
pub struct Update {
    /// Job id
    #[arg(value_name = "JOB")]
    pub id: u64,
    /// Time limit; a running job that has run longer is stopped
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "no_time_limit")]
    pub time: Option<Seconds>,
    /// Remove the time limit
    #[arg(long)]
    pub no_time_limit: bool,
    /// Higher goes first inside a tenant, -1000000 to 1000000
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Tenant whose quota the job uses
    #[arg(long, value_name = "PATH")]
    pub tenant: Option<String>,
    /// Name of the job
    #[arg(long)]
    pub name: Option<String>,
    /// A note for people; an empty one removes it
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
}

/// `muster checkpoint`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Example, in the script of a job, in one of its tasks:
  ./save progress.pt && muster checkpoint \"step $STEP\"

Muster shows the time of the newest checkpoint and TEXT in `muster job JOB`, gives TEXT to the next attempt of the job as
MUSTER_CHECKPOINT_NOTE, and prefers to preempt jobs that lose little work. It needs no access to the control plane: it
replaces the file that MUSTER_CHECKPOINT_FILE names, as any program may do (write beside it, then rename).")]
pub struct Checkpoint {
    /// A note of one line, such as a step number or a path; at most 256 bytes are kept
    #[arg(value_name = "TEXT")]
    pub text: Option<String>,
}

/// `muster cancel`.
#[derive(Clone, Debug, Args)]
pub struct Cancel {
    /// Job ids
    #[arg(value_name = "JOB", required = true)]
    pub ids: Vec<u64>,
    /// Only these tasks of the array, such as 3-5,9
    #[arg(long, value_name = "INDICES")]
    pub tasks: Option<String>,
}

/// `muster array-limit`.
#[derive(Clone, Debug, Args)]
pub struct ArrayLimit {
    /// Id of the array
    #[arg(value_name = "JOB")]
    pub id: u64,
    /// At most so many tasks at once; 0: no limit
    #[arg(value_name = "N")]
    pub limit: u32,
}

/// `muster hold` and `muster release`.
#[derive(Clone, Debug, Args)]
pub struct Hold {
    /// Job ids
    #[arg(value_name = "JOB", required = true)]
    pub ids: Vec<u64>,
    /// As an administrator: only an administrator releases what an administrator holds
    #[arg(long)]
    pub admin: bool,
}

/// `muster logs`.
#[derive(Clone, Debug, Default, Args)]
pub struct Logs {
    /// Job id
    #[arg(value_name = "JOB")]
    pub id: u64,
    /// Print new output as it comes, until the task has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Rank of the task
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// Print the output of all tasks, with the rank before each line: one task after another, or mixed with --follow
    #[arg(long, conflicts_with = "rank")]
    pub all_ranks: bool,
    /// Print standard error instead of standard output
    #[arg(long)]
    pub stderr: bool,
    /// Attempt of the job [default: the last]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub attempt: u32,
    /// On a terminal, print control characters as they are: colours, but also whatever else a task makes the terminal do
    #[arg(long)]
    pub raw: bool,
}

//! What it costs a node to start and end a task: without isolation, in a user namespace, and isolated fully; one by one, and as many at once as a
//! host of eight cards with seven slices each has.
//!
//! No agent takes part: this process is the executor that an agent has, and its shims are those of production.

use crate::process;
use crate::table::{self, Row, Table};
use anyhow::{Context, Result};
use muster_agent::exec::process::{IsolationConfig, ProcessConfig, ProcessExecutor};
use muster_agent::exec::{Executor, Launch};
use muster_agent::sandbox::probe::{Findings, find_out, forget};
use muster_agent::shim_command::ShimCommand;
use muster_model::ids::{AllocationId, Epoch, Rank};
use muster_node_core::{Phase, TaskKey, TaskSpec, TaskUsers};
use muster_runtime::{Host, real};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Nobody waits longer for a task to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tasks of other users than those of this machine.
const USER_BASE: u32 = 2_000_000_000;
const FAR_NS: u64 = 3_600_000_000_000;

/// How many tasks.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// One after the other.
    pub rounds: u32,
    /// At once.
    pub at_once: u32,
}

/// An executor with its host.
struct Node {
    exec: ProcessExecutor,
    host: Host,
    changed: Arc<Notify>,
    _data: tempfile::TempDir,
}

/// Runs it and gives the table.
///
/// # Errors
/// When tasks do not start or end.
pub async fn run(muster: &Path, under: &Path, options: Options) -> Result<Vec<Table>> {
    let shim = ShimCommand { program: muster.to_owned(), arguments: vec!["shim".to_owned()] };
    let folder = tempfile::tempdir_in(under)?;
    let found = find_out(&shim, folder.path(), &format!("bench-{}", std::process::id()))?;
    let mut rows = Vec::new();
    for (what, isolation) in kinds(&found) {
        let node = Node::open(&shim, under, isolation).await?;
        rows.push(one_by_one(what, &node, options.rounds).await?);
        rows.push(at_once(what, &node, options.at_once).await?);
    }
    forget(&found);
    let columns = [
        "what",
        "from the order to running; from SIGKILL to nothing left",
        "compared with",
        "memory of all shims and inits",
    ];
    Ok(vec![Table::new("Tasks of one node", rows).with_columns(columns)])
}

fn kinds(found: &Findings) -> Vec<(&'static str, Option<IsolationConfig>)> {
    let isolation = |users, cgroups| IsolationConfig { users, cgroups, ..IsolationConfig::default() };
    let mut kinds = vec![("no isolation", None)];
    if found.has_sandboxes() {
        kinds.push(("user namespace", Some(isolation(TaskUsers::Agent, Vec::new()))));
    }
    if found.is_full {
        let users = TaskUsers::PerTenant { base: USER_BASE };
        kinds.push(("isolated fully", Some(isolation(users, found.cgroups.clone()))));
    }
    kinds
}

async fn one_by_one(what: &str, node: &Node, rounds: u32) -> Result<Row> {
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for id in 0..u64::from(rounds) {
        let begun = Instant::now();
        let key = node.start(id);
        node.until(|phase| matches!(phase, Phase::Running { .. }), &[key]).await.context("a task does not start")?;
        starts.push(begun.elapsed().as_micros() as u64);
        let begun = Instant::now();
        node.exec.kill(key);
        node.until(|phase| matches!(phase, Phase::Over { .. }), &[key]).await.context("a task does not end")?;
        ends.push(begun.elapsed().as_micros() as u64);
        node.exec.forget(key);
    }
    let anchor = "crun 15 ms, runc 28 ms for a container; a process 4.5 ms (measured on such a machine)";
    Ok(Row::new(
        format!("{what}, one by one, {rounds} tasks"),
        format!("{}; {}", times(starts), times(ends)),
        anchor,
        "",
    ))
}

async fn at_once(what: &str, node: &Node, count: u32) -> Result<Row> {
    let begun = Instant::now();
    let keys: Vec<TaskKey> = (0..u64::from(count)).map(|id| node.start(1_000_000 + id)).collect();
    node.until(|phase| matches!(phase, Phase::Running { .. }), &keys).await.context("not all tasks start")?;
    let started = begun.elapsed();
    let memory_kib: u64 = shims().into_iter().filter_map(|pid| process::own_share_kib(pid).ok()).sum();
    let begun = Instant::now();
    keys.iter().for_each(|key| node.exec.kill(*key));
    node.until(|phase| matches!(phase, Phase::Over { .. }), &keys).await.context("not all tasks end")?;
    let ended = begun.elapsed();
    keys.into_iter().for_each(|key| node.exec.forget(key));
    let all = |took: Duration| format!("all {}", table::time(took.as_micros() as u64));
    let memory = format!("{:.1} MiB", memory_kib as f64 / 1024.0);
    Ok(Row::new(format!("{what}, {count} at once"), format!("{}; {}", all(started), all(ended)), "", memory))
}

fn times(mut micros: Vec<u64>) -> String {
    micros.sort_unstable();
    let at = |share| table::time(table::percentile(&micros, share));
    format!("p50 {}, p99 {}", at(0.5), at(0.99))
}

/// Processes of this machine that are shims or inits of sandboxes.
fn shims() -> Vec<i32> {
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let is_shim = line.split(|byte| *byte == 0).nth(1) == Some(b"shim");
        is_shim.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    std::fs::read_dir("/proc").map(|all| all.filter_map(number).collect()).unwrap_or_default()
}

impl Node {
    async fn open(shim: &ShimCommand, under: &Path, isolation: Option<IsolationConfig>) -> Result<Self> {
        let data = tempfile::tempdir_in(under)?;
        let path = std::path::absolute(data.path())?;
        let config = ProcessConfig { isolation, ..ProcessConfig::new(shim.clone(), path.join("data"), "bench") };
        let (exec, host) = (ProcessExecutor::new(config), real::host("bench", path.join("host")));
        let changed = Arc::new(Notify::new());
        exec.attach(&host, changed.clone()).await?;
        Ok(Node { exec, host, changed, _data: data })
    }

    fn start(&self, id: u64) -> TaskKey {
        let spec = Arc::new(spec(id));
        let deadline_ns = self.host.clock.boottime_ns().saturating_add(FAR_NS);
        let key = spec.key;
        self.exec.start(Launch {
            spec,
            node_epoch: Epoch(1),
            env: Default::default(),
            deadline_ns,
            devices: Vec::new(),
        });
        key
    }

    async fn until(&self, is_so: impl Fn(&Phase) -> bool, keys: &[TaskKey]) -> Result<()> {
        let all = async {
            loop {
                let seen = self.exec.observe();
                if keys.iter().all(|key| seen.get(key).is_some_and(|task| is_so(&task.phase))) {
                    return;
                }
                self.changed.notified().await;
            }
        };
        Ok(tokio::time::timeout(PATIENCE, all).await?)
    }
}

fn spec(id: u64) -> TaskSpec {
    let key = TaskKey { allocation: AllocationId(id + 1), rank: Rank(0) };
    TaskSpec { cpu_milli: 1_000, memory_mib: 256, disconnect_grace_s: 60, ..TaskSpec::usual(key, &["sleep", "1000"]) }
}

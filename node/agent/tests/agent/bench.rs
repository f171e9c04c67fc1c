//! An executor with real shims in a folder of its own.

use muster_agent::exec::process::{ProcessConfig, ProcessExecutor, ShimCommand};
use muster_agent::exec::{DeviceNode, Executor, Launch, Stream};
use muster_model::Stop;
use muster_model::ids::{AllocationId, Epoch, Rank};
use muster_model::task::TaskState;
use muster_node_core::{ObservedTask, Phase, TaskKey, TaskSpec};
use muster_runtime::{Host, real};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// No test waits this long for anything that works; one that does not work ends here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const S: u64 = 1_000_000_000;

pub(crate) fn shim() -> ShimCommand {
    ShimCommand { program: PathBuf::from(env!("CARGO_BIN_EXE_muster-shim")), arguments: Vec::new() }
}

pub(crate) fn key(allocation: u64, rank: u32) -> TaskKey {
    TaskKey { allocation: AllocationId(allocation), rank: Rank(rank) }
}

/// Task `rank` of allocation and job `id`; the command is a shell script.
pub(crate) fn spec(id: u64, rank: u32, script: &str) -> TaskSpec {
    command(id, rank, &["sh", "-c", script])
}

pub(crate) fn command(id: u64, rank: u32, words: &[&str]) -> TaskSpec {
    TaskSpec {
        world_size: 2,
        local_rank: rank,
        local_world_size: 2,
        grace_s: 20,
        gpu_units: 7_000,
        ..TaskSpec::usual(key(id, rank), words)
    }
}

/// One life of an agent's executor. Dropping it leaves the shims as an agent that dies leaves them.
pub(crate) struct Bench {
    pub(crate) exec: ProcessExecutor,
    pub(crate) host: Host,
    changed: Arc<Notify>,
}

impl Bench {
    pub(crate) async fn open(dir: &Path) -> Bench {
        Self::open_with(dir, |_| ()).await
    }

    pub(crate) async fn open_with(dir: &Path, adjust: impl FnOnce(&mut ProcessConfig)) -> Bench {
        let mut config = ProcessConfig::new(shim(), dir, "boot-1");
        adjust(&mut config);
        let bench = Bench {
            exec: ProcessExecutor::new(config),
            host: real::host("test", dir.join("host")),
            changed: Arc::new(Notify::new()),
        };
        bench.exec.attach(&bench.host, bench.changed.clone()).await.expect("the folder can be read");
        bench
    }

    /// The agent dies.
    pub(crate) fn die(self) {
        self.host.tasks.abort_all();
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.host.clock.boottime_ns()
    }

    /// Starts a task whose fence is `fence_ns` away.
    pub(crate) fn start(&self, spec: TaskSpec, fence_ns: u64) -> TaskKey {
        self.start_with(spec, fence_ns, Vec::new())
    }

    /// The same with devices.
    pub(crate) fn start_with(&self, spec: TaskSpec, fence_ns: u64, devices: Vec<DeviceNode>) -> TaskKey {
        let key = spec.key;
        self.exec.start(Launch {
            env: spec.env.clone(),
            spec: Arc::new(spec),
            node_epoch: Epoch(1),
            deadline_ns: self.now_ns().saturating_add(fence_ns),
            devices,
        });
        key
    }

    /// As a job that is cancelled is stopped.
    pub(crate) fn stop(&self, key: TaskKey) {
        let grace_s = self.exec.observe()[&key].spec.grace_s;
        self.exec.stop(key, Stop::term(grace_s));
    }

    pub(crate) async fn wait(&self, key: TaskKey, until: impl Fn(&ObservedTask) -> bool) -> ObservedTask {
        let waiting = async {
            loop {
                if let Some(task) = self.exec.observe().remove(&key).filter(&until) {
                    return task;
                }
                self.changed.notified().await;
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(task) => task,
            Err(_) => panic!("still {:?}", self.exec.observe().get(&key)),
        }
    }

    pub(crate) async fn running(&self, key: TaskKey) -> u64 {
        let task = self.wait(key, |task| task.phase != Phase::Starting).await;
        match task.phase {
            Phase::Running { started_ns } => started_ns,
            other => panic!("{key} is {other:?}"),
        }
    }

    /// How it ended, with its times.
    pub(crate) async fn over(&self, key: TaskKey) -> (TaskState, Option<u64>, u64) {
        match self.wait(key, |task| !task.is_live()).await.phase {
            Phase::Over { state, started_ns, ended_ns } => (state, started_ns, ended_ns),
            other => panic!("{key} is {other:?}"),
        }
    }

    /// All that is kept of an output, and how many bytes are missing before its end.
    pub(crate) async fn output(&self, key: TaskKey, stream: Stream) -> (String, u64) {
        let (mut data, mut offset, mut missing) = (Vec::new(), 0, 0);
        loop {
            let slice = self.exec.read_log(key, stream, offset, 1 << 20).await.expect("there is output");
            missing += slice.offset - offset;
            offset = slice.offset + slice.data.len() as u64;
            if slice.data.is_empty() {
                return (String::from_utf8_lossy(&data).into_owned(), missing);
            }
            data.extend(slice.data);
        }
    }
}

pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    // A zombie that nobody has reaped yet is dead.
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Waits until a file has that many lines, and gives them.
pub(crate) async fn lines(path: &Path, count: usize) -> Vec<String> {
    let waiting = async {
        loop {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            if text.lines().count() >= count && text.ends_with('\n') {
                return text.lines().map(str::to_owned).collect();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{} has no {count} lines", path.display()))
}

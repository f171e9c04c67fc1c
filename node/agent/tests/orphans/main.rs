//! What the agent itself has started is not taken for the orphan of a task. In a process of its own, since it becomes the parent of all that its shims leave.

#[path = "../nvml/host.rs"]
#[allow(dead_code, reason = "shared with the tests of the backend")]
mod host;

use crate::host::{Host, START_MPS, state, take};
use muster_agent::exec::process::{ProcessConfig, ProcessExecutor, ShimCommand};
use muster_agent::exec::{Executor, Launch};
use muster_agent::gpu::GpuBackend;
use muster_gpu_double::Fleet;
use muster_model::ids::{AllocationId, Epoch, Rank};
use muster_model::request::SharingMode;
use muster_node_core::{CardStep, MpsLimits, Phase, TaskKey, TaskSpec};
use muster_runtime::real;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const KEY: TaskKey = TaskKey { allocation: AllocationId(1), rank: Rank(0) };

fn sleeper(id: u64) -> TaskSpec {
    let key = TaskKey { allocation: AllocationId(id), ..KEY };
    TaskSpec::usual(key, &["sh", "-c", "setsid sleep 1000 & exec sleep 1000"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_driver_s_helper_and_daemons_outlive_a_shim_that_is_killed() {
    let host = Host::new(&Fleet::h100(2));
    let shim = ShimCommand { program: PathBuf::from(env!("CARGO_BIN_EXE_muster-shim")), arguments: Vec::new() };
    let mut config = ProcessConfig::new(shim, host.folder.path(), "boot-1");
    config.reaps_orphans = true;
    let (exec, changed) = (ProcessExecutor::new(config), Arc::new(Notify::new()));
    let machine = real::host("test", host.folder.path().join("host"));
    exec.attach(&machine, changed.clone()).await.expect("the folder can be read");
    let gpus = Arc::new(host.gpus());
    take(&gpus, 1, START_MPS).await;
    let helper = gpus.helper_pid();
    // Commands come and go all the while, and none of them is reaped by somebody else.
    let asking = gpus.clone();
    let commands = tokio::spawn(async move {
        let limits = CardStep::SetMpsLimits(MpsLimits { percent: 50, memory_mib: 2_048 });
        let mut failures = Vec::new();
        for _ in 0..60 {
            failures.extend(asking.take(1, limits).await.err());
        }
        failures
    });
    for id in 1..=5 {
        let (spec, deadline_ns) = (Arc::new(sleeper(id)), u64::MAX);
        let key = spec.key;
        exec.start(Launch { spec, node_epoch: Epoch(1), env: Default::default(), deadline_ns, devices: Vec::new() });
        let is = |wanted: fn(&Phase) -> bool| exec.observe().get(&key).is_some_and(|task| wanted(&task.phase));
        host::until("it runs", || is(|phase| matches!(phase, Phase::Running { .. }))).await;
        let folder = host.folder.path().join("tasks").join(key.to_string());
        let record = std::fs::read_to_string(folder.join("shim")).expect("its shim");
        let digits: String =
            record.chars().skip_while(|one| !one.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        let shim = nix::unistd::Pid::from_raw(digits.parse().expect("a process"));
        nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL).expect("it is ours");
        host::until("it is over", || is(|phase| matches!(phase, Phase::Over { .. }))).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(gpus.helper_pid(), helper, "the helper was not ended");
    assert_eq!(state(&gpus, 1).await.mode, SharingMode::Mps, "the daemon was not ended");
    assert_eq!(commands.await.expect("it ends"), [], "no command was ended or reaped by another");
    take(&gpus, 1, CardStep::StopMps).await;
    assert_eq!(gpus.processes(1).await.expect("readable"), []);
}

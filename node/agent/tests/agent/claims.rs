//! One agent at a time: locks of folders and hosts, what a deleted folder leaves behind, and clusters that are not an agent's own.

use crate::bench::{Bench, PATIENCE, S, is_alive, key, lines, shim, spec};
use muster_agent::exec::process::{ProcessConfig, ProcessExecutor};
use muster_agent::exec::{ExecError, Executor, Owner};
use muster_model::TaskState;
use muster_node_core::TaskKey;
use muster_runtime::real;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tokio::sync::Notify;

const FAR: u64 = 3_600 * S;

/// An owner that no other test has: hosts are claimed by name.
fn owner(dir: &Path) -> Owner {
    Owner { cluster: 0xc1, node: format!("node-of-{}", dir.display()).replace('/', "-") }
}

async fn claim(bench: &Bench, owner: &Owner) -> BTreeSet<TaskKey> {
    bench.exec.claim(owner.clone()).await.expect("nobody else has the host")
}

/// The agent of tests that kill it: it starts one task, says so, and waits.
#[tokio::test]
async fn agent_that_will_be_killed() {
    let Ok(dir) = std::env::var("MUSTER_TEST_CLAIM_DIR") else { return };
    let dir = Path::new(&dir);
    let bench = Bench::open(&dir.join("data")).await;
    claim(&bench, &owner(dir)).await;
    let pids = dir.join("pids");
    let script = format!("echo $$ >> {0}; (setsid sleep 1000 & echo $! >> {0}); sleep 1000", pids.display());
    let task = bench.start(spec(1, 0, &script), FAR);
    bench.running(task).await;
    lines(&pids, 2).await;
    std::fs::write(dir.join("running"), "yes\n").expect("the sign");
    tokio::time::sleep(PATIENCE).await;
}

/// Starts that agent in a process of its own.
async fn start_agent(dir: &Path) -> std::process::Child {
    let agent = Command::new(std::env::current_exe().expect("this test"))
        .args(["claims::agent_that_will_be_killed", "--exact", "--nocapture"])
        .env("MUSTER_TEST_CLAIM_DIR", dir)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the agent runs");
    lines(&dir.join("running"), 1).await;
    agent
}

#[tokio::test]
async fn two_agents_do_not_use_one_folder() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut first = start_agent(dir.path()).await;
    let second = ProcessExecutor::new(ProcessConfig::new(shim(), dir.path().join("data"), "boot-1"));
    let host = real::host("second", dir.path().join("host"));
    let refused = second.attach(&host, Arc::new(Notify::new())).await.expect_err("the folder is in use");
    let said = refused.to_string();
    assert!(matches!(refused, ExecError::FolderInUse { .. }), "{said}");
    assert!(said.contains(&first.id().to_string()) && said.contains("stop that agent"), "{said}");
    first.kill().expect("SIGKILL");
    first.wait().expect("it is dead");
    // Its lock has gone with it: the next agent takes its tasks over.
    let bench = Bench::open(&dir.path().join("data")).await;
    bench.running(key(1, 0)).await;
    bench.exec.kill(key(1, 0));
    assert_eq!(bench.over(key(1, 0)).await.0, TaskState::Stopped);
}

#[tokio::test]
async fn two_agents_do_not_serve_one_node_of_one_cluster_on_one_host() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut first = start_agent(dir.path()).await;
    let bench = Bench::open(&dir.path().join("other")).await;
    let refused = bench.exec.claim(owner(dir.path())).await.expect_err("the host is claimed");
    let said = refused.to_string();
    assert!(matches!(refused, ExecError::HostInUse { .. }), "{said}");
    assert!(said.contains(&format!("process {}", first.id())) && said.contains("another name"), "{said}");
    let pids = lines(&dir.path().join("pids"), 2).await;
    assert!(pids.iter().all(|pid| is_alive(pid)), "the tasks of the first are none of its business");
    // Another node, and the same name in another cluster, are others.
    let mine = owner(dir.path());
    claim(&bench, &Owner { node: format!("{}-2", mine.node), ..mine.clone() }).await;
    let third = Bench::open(&dir.path().join("third")).await;
    claim(&third, &Owner { cluster: 0xc2, ..mine }).await;
    first.kill().expect("SIGKILL");
    first.wait().expect("it is dead");
}

#[tokio::test]
async fn what_a_deleted_folder_leaves_running_is_ended_and_never_started_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut first = start_agent(dir.path()).await;
    first.kill().expect("SIGKILL");
    first.wait().expect("it is dead");
    let pids = lines(&dir.path().join("pids"), 2).await;
    assert!(pids.iter().all(|pid| is_alive(pid)), "the task lives on");
    std::fs::remove_dir_all(dir.path().join("data")).expect("the folder is deleted");

    let bench = Bench::open(&dir.path().join("data")).await;
    assert!(bench.exec.observe().is_empty(), "there is no record");
    assert_eq!(claim(&bench, &owner(dir.path())).await, [key(1, 0)].into());
    for pid in pids {
        assert!(!is_alive(&pid), "{pid} outlives the claim");
    }
}

#[tokio::test]
async fn another_data_folder_of_a_dead_agent_is_cleared_as_well() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut first = start_agent(dir.path()).await;
    first.kill().expect("SIGKILL");
    first.wait().expect("it is dead");
    let pids = lines(&dir.path().join("pids"), 2).await;
    let bench = Bench::open(&dir.path().join("other")).await;
    // Another owner's tasks are left alone.
    let mine = owner(dir.path());
    assert_eq!(claim(&bench, &Owner { cluster: 0xc2, ..mine.clone() }).await, [].into());
    assert!(pids.iter().all(|pid| is_alive(pid)));
    let third = Bench::open(&dir.path().join("third")).await;
    assert_eq!(claim(&third, &mine).await, [key(1, 0)].into());
    assert!(!pids.iter().any(|pid| is_alive(pid)));
}

#[tokio::test]
async fn a_task_whose_folder_is_deleted_while_it_runs_is_over_when_it_ends() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let bench = Bench::open(dir.path()).await;
    claim(&bench, &owner(dir.path())).await;
    let go = dir.path().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
    let task = bench.start(muster_node_core::TaskSpec { workdir: Some("/".to_owned()), ..spec(1, 0, &script) }, FAR);
    bench.running(task).await;
    std::fs::remove_dir_all(dir.path().join("tasks/1.0")).expect("the folder is deleted");
    std::fs::write(go, "").expect("the sign");
    assert_eq!(bench.over(task).await.0, TaskState::Stopped, "how it ended is not known");
}

/// A task that kills its shim, with a child that has left its group and kept its session, and one that has left both and kept the
/// environment.
#[tokio::test]
async fn what_a_task_leaves_that_kills_its_own_shim_is_found_by_session_and_by_mark() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let bench = Bench::open(dir.path()).await;
    claim(&bench, &owner(dir.path())).await;
    let pids = dir.path().join("pids");
    let keeps_session = format!("env -i sh -c 'sleep 1000 & echo $! >> {}'", pids.display());
    let keeps_mark = format!("(setsid sh -c 'echo $$ >> {}; exec sleep 1000' &)", pids.display());
    let script = format!(
        "{keeps_session}; {keeps_mark}; while [ $(wc -l < {0}) -lt 2 ]; do sleep 0.02; done; kill -9 $PPID; sleep 1000",
        pids.display()
    );
    let task = bench.start(spec(1, 0, &script), FAR);
    assert_eq!(bench.over(task).await.0, TaskState::Signaled { signal: 9 });
    for pid in lines(&pids, 2).await {
        assert!(!is_alive(&pid), "{pid} outlives its task");
    }
}

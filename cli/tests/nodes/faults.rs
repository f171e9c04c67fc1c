//! Nodes that fail to start tasks, tasks that fail, and what is left of them.

use crate::site::Site;
use std::time::Duration;

#[test]
fn a_node_on_which_starts_keep_failing_is_quarantined_until_an_operator_lifts_it() {
    let site = Site::start();
    std::fs::write(site.path("node.yaml"), "name: node\n").expect("a file");
    let _agent = site.agent("agent", &["--data", "data", "--spec", "node.yaml"]);
    site.until_node("node", "ready");
    // Tasks' folders cannot be made any more.
    site.delete("data/node/tasks");
    std::fs::write(site.path("data/node/tasks"), "in the way").expect("a file");
    let jobs: Vec<String> = (0..4).map(|_| site.submit(&["--gpus", "1", "--", "true"])).collect();
    let node = site.until_node("node", "quarantined");
    let reason = node["reason"].as_str().expect("a reason");
    site.until_metric("muster_nodes_quarantined 1");
    assert!(reason.contains("could not be started") && reason.contains("muster undrain node"), "{reason}");
    std::thread::sleep(Duration::from_secs(1));
    for id in &jobs {
        let job = site.job(id);
        assert_eq!(job["state"], "pending", "a node's fault is not the job's: {job}");
    }
    std::fs::remove_file(site.path("data/node/tasks")).expect("the file");
    site.said(&["undrain", "node"]);
    site.until_metric("muster_nodes_quarantined 0");
    for id in &jobs {
        site.until_job(id, "completed");
    }
    assert!(site.until_node("node", "ready").get("reason").is_none());
}

#[test]
fn a_misspelt_command_takes_no_node_away() {
    let site = Site::start();
    std::fs::write(site.path("node.yaml"), "name: node\n").expect("a file");
    let _agent = site.agent("agent", &["--data", "data", "--spec", "node.yaml"]);
    for _ in 0..4 {
        let id = site.submit(&["--gpus", "1", "--", "no-such-program"]);
        site.until_job(&id, "failed");
    }
    assert_eq!(site.nodes()[0]["state"], "ready");
}

#[test]
fn exit_codes_and_signals_are_kept_with_the_job() {
    let site = Site::start();
    let _agent = site.agent("agent", &["--data", "data"]);
    let script = "case $RANK in 0) sleep 30;; 1) sleep 1; kill -9 $$;; 2) sleep 0.2; exit 3;; esac";
    let id = site.submit(&["--gpus", "1", "--tasks", "3", "--", "sh", "-c", script]);
    let job = site.until_job(&id, "failed");
    let attempt = &job["attempts"][0];
    assert!(attempt["reason"].as_str().expect("a reason").starts_with("rank 2 exited with 3 on "), "{attempt}");
    assert_eq!((&attempt["failures"][0]["rank"], &attempt["failures"][0]["code"]), (&2.into(), &3.into()), "{attempt}");
    let ends = attempt["ends"].as_array().expect("a list");
    assert_eq!(ends.iter().map(|end| end["ranks"].as_u64().expect("a number")).sum::<u64>(), 3, "{attempt}");
    // By itself, so that nothing stops it first.
    let id = site.submit(&["--gpus", "1", "--", "sh", "-c", "kill -9 $$"]);
    let job = site.until_job(&id, "failed");
    assert_eq!(job["attempts"][0]["failures"][0]["signal"], 9, "{job}");
    let shown = site.said(&["job", &id]);
    assert!(shown.contains("signal 9 (SIGKILL)"), "{shown}");
    let id = site.submit(&["--gpus", "1", "--", "true"]);
    let job = site.until_job(&id, "completed");
    assert_eq!(job["attempts"][0]["ends"][0]["code"], 0, "{job}");
}

/// A task that kills its own shim and leaves a process without its environment, its session and its group.
#[test]
fn nothing_outlives_a_task_that_kills_its_own_shim() {
    let site = Site::start();
    // An isolated task cannot see its shim (`escapes.rs`).
    let _agent = site.agent("agent", &["--data", "data", "--isolation", "none", "--allow-system-users"]);
    let pid_file = site.path("pid").display().to_string();
    let script = format!(
        "env -i setsid sh -c 'echo $$ > {pid_file}; exec sleep 1000' & \
         while [ ! -s {pid_file} ]; do sleep 0.02; done; kill -9 $PPID; sleep 1000"
    );
    let id = site.submit(&["--gpus", "1", "--", "sh", "-c", &script]);
    site.until_job(&id, "failed");
    let pid = std::fs::read_to_string(site.path("pid")).expect("it ran");
    assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "{pid} outlives its task");
}

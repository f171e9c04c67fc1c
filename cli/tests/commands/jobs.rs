//! Lists of jobs, one job, and waiting for jobs.

use crate::common::{Dev, signal};
use crate::waiting::wait_for;
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// A cluster of one node of eight cards: two jobs of alice's hold it, and others wait.
fn busy() -> (Dev, Vec<String>) {
    // In a cluster that asks who calls, jobs belong to that user alone.
    let dev = Dev::start(&["--nodes", "1", "--plaintext"]);
    let tree = dev.file("tree.yaml", "dev: {teams: {small: {max: {h100: 1}}, other: {}}}\n");
    dev.ok(&["tenants", "apply", "-f", &tree]);
    let submit = |args: &[&str]| dev.ok(&[&["submit"], args, &["--", "sleep", "600"]].concat());
    let ids = vec![
        submit(&["--gpus", "7", "--user", "alice", "--name", "big"]),
        submit(&["--gpus", "1", "--user", "alice", "--tenant", "dev/small"]),
        submit(&["--gpus", "1", "--user", "bob", "--tenant", "dev/small", "--name", "capped"]),
        // Of a tenant of its own: inside one tenant a higher priority preempts.
        submit(&["--gpus", "2", "--user", "bob", "--tenant", "dev/other", "--priority", "5"]),
    ];
    dev.until(&ids[0], &["running"]);
    dev.until(&ids[1], &["running"]);
    (dev, ids)
}

#[test]
fn lists_are_filtered_by_the_server_sorted_and_say_why_jobs_wait() {
    let (dev, ids) = busy();
    let listed = |args: &[&str]| -> Vec<String> {
        let json = dev.run(&[&["jobs", "-o", "json"], args].concat()).json();
        json.as_array().expect("a list").iter().map(|job| job["id"].to_string()).collect()
    };
    assert_eq!(listed(&[]), ids);
    assert_eq!(listed(&["--user", "bob"]), ids[2..]);
    assert_eq!(listed(&["--user", "alice", "--tenant", "dev/small"]), [ids[1].clone()]);
    assert_eq!(listed(&["--name", "big"]), [ids[0].clone()]);
    assert_eq!(listed(&["--state", "pending", "--sort", "gpus"]), [ids[3].clone(), ids[2].clone()]);
    assert_eq!(listed(&["--sort", "priority", "--limit", "4"])[0], ids[3]);
    assert_eq!(listed(&["--sort", "gpus", "--reverse"]).last(), Some(&ids[0]));

    // Each pending job with the first reason that an explanation gives.
    let json = dev.run(&["jobs", "--state", "pending", "-o", "json"]).json();
    for (job, code) in json.as_array().expect("a list").iter().zip(["over_max", "no_free_gpus"]) {
        let explained = dev.run(&["explain", &job["id"].to_string(), "-o", "json"]).json();
        assert_eq!(job["reason"], explained["reasons"][0]["text"], "{job}");
        assert_eq!(job["reason_code"], code, "{job}");
        assert!(job["waited_s"].is_u64(), "{job}");
    }
    let table = dev.ok(&["jobs", "--state", "pending"]);
    assert!(table.contains("capped") && table.lines().count() == 3, "{table}");
    dev.refused(&["jobs", "--tenant", "nobody"], 3, &["tenant nobody does not exist"]);
}

#[test]
fn a_watched_list_comes_again_until_its_reader_goes() {
    let (dev, ids) = busy();
    let mut child = dev.command(&["jobs", "--watch", "1s"]).stdout(Stdio::piped()).spawn().expect("muster");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut count = 0;
    while count < 2 {
        let line = lines.next().expect("it goes on").expect("text");
        count += usize::from(line.contains(&format!("{} ", ids[0])) && line.contains("running"));
    }
    drop(lines);
    let status = child.wait().expect("its end");
    assert_eq!(status.code(), Some(0), "it ends quietly when nobody reads");
}

#[test]
fn one_job_says_what_was_asked_and_where_it_runs_and_ran() {
    let dev = Dev::start(&["--nodes", "2", "--plaintext"]);
    let id = dev.ok(&[
        "submit",
        "--gpus",
        "8",
        "--tasks",
        "2",
        "--user",
        "alice",
        "--time",
        "1h",
        "--prefer",
        "leaf",
        "--retries",
        "3",
        "--pool",
        "default",
        "--",
        "sh",
        "-c",
        "sleep 1",
    ]);
    dev.until(&id, &["running", "completed"]);
    dev.until(&id, &["completed"]);
    let text = dev.ok(&["job", &id]);
    for words in [
        "user       alice",
        "each       8 GPUs",
        "topology   preferably inside one leaf",
        "pool       default",
        "limit      1:00:00",
        "attempt    1 (0 failed of 3 allowed)",
        "cell       cell-0",
        "command    sh -c 'sleep 1'",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains("ran on     node-000") && text.contains("(0)") && text.contains("(1)"), "{text}");
    let json = dev.run(&["job", &id, "-o", "json"]).json();
    assert_eq!(json["devices"], serde_json::json!({"kind": "gpus", "count": 8}));
    assert_eq!(json["ran_on"].as_array().map(Vec::len), Some(2));
}

/// Sixteen cards are on two nodes, however much one node is preferred; eight are on one.
#[test]
fn a_job_that_lies_wider_than_it_prefers_says_so() {
    let dev = Dev::start(&["--nodes", "2"]);
    for (tasks, said) in [("2", true), ("1", false)] {
        let id =
            dev.ok(&["submit", "--gpus", "8", "--tasks", tasks, "--prefer", "node", "--", "sh", "-c", "sleep 600"]);
        dev.until(&id, &["running"]);
        let text = dev.ok(&["explain", &id]);
        let words = "it prefers topology node, but no node had room for it when it started; it runs inside one ";
        assert_eq!(text.contains(words), said, "{text}");
        let json = dev.run(&["explain", &id, "-o", "json"]).json();
        let codes: Vec<&str> =
            json["reasons"].as_array().expect("reasons").iter().filter_map(|reason| reason["code"].as_str()).collect();
        assert_eq!(codes.contains(&"preference_not_met"), said, "{json}");
        dev.ok(&["cancel", &id]);
        dev.until(&id, &["cancelled"]);
    }
}

#[test]
fn waiting_says_how_jobs_ended_and_ctrl_c_ends_the_waiting_alone() {
    let dev = Dev::start(&["--nodes", "1"]);
    let said = dev.run(&["submit", "--gpus", "1", "--wait", "--", "false"]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("1 of 1 jobs failed: "), "{}", said.err);

    let child = dev
        .command(&["submit", "--gpus", "1", "--wait", "--", "sleep", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("muster");
    let mut id = String::new();
    wait_for("the job runs", || {
        let running = dev.run(&["jobs", "--state", "running", "-o", "json"]).json();
        id = running[0]["id"].to_string();
        id != "null"
    });
    // It listens for Ctrl-C as soon as it waits, which is a moment after it has said the id.
    let child = std::cell::RefCell::new(child);
    wait_for("the interrupted command has ended", || {
        signal(&child.borrow(), Signal::SIGINT);
        std::thread::sleep(std::time::Duration::from_millis(100));
        child.borrow_mut().try_wait().expect("its state").is_some()
    });
    let output = child.into_inner().wait_with_output().expect("its output");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{text}");
    for words in [format!("job {id} continues"), format!("muster wait {id}"), format!("muster cancel {id}")] {
        assert!(text.contains(&words), "{words}: {text}");
    }
    assert_eq!(dev.state(&id), "running");

    // And the waiting is taken up again.
    let again = dev.command(&["wait", &id]).stderr(Stdio::piped()).spawn().expect("muster");
    dev.ok(&["cancel", &id]);
    let output = again.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&format!("1 of 1 jobs were cancelled: {id}")), "{text}");
    dev.refused(&["wait", "999"], 3, &["job 999 does not exist"]);
}

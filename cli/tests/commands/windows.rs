//! Maintenance, advance reservations and drains by a deadline, as operators plan them and tenants meet them.

use crate::common::Dev;
use crate::waiting::wait_for;
use serde_json::Value;

const TREE: &str = "\
research: {}
product: {}
";

fn submit(dev: &Dev, tenant: &str, more: &[&str]) -> String {
    let size = ["submit", "--tenant", tenant, "--gpus", "2", "--grace", "1s"];
    dev.ok(&[&size[..], more, &["--", "sleep", "600"]].concat())
}

fn node_state(dev: &Dev, node: &str) -> String {
    let nodes = dev.run(&["nodes", "-o", "json"]).json();
    let found = nodes.as_array().expect("a list").iter().find(|one| one["name"] == node).cloned();
    found.unwrap_or_default()["state"].as_str().unwrap_or_default().to_owned()
}

fn windows(dev: &Dev, command: &str) -> usize {
    dev.run(&[command, "list", "-o", "json"]).json().as_array().expect("a list").len()
}

#[test]
fn windows_keep_others_off_and_open_and_end_by_themselves() {
    let dev = Dev::start(&["--nodes", "2", "--gpus-per-node", "2"]);
    let tree = dev.file("tree.yaml", TREE);
    dev.ok(&["tenants", "apply", "-f", &tree]);
    let maintain = |name: &str, node: &str, start: &str, end: &str, more: &[&str]| {
        let what = ["maintenance", "create", name, "--nodes", node, "--start", start, "--end", end];
        dev.run(&[&what[..], more].concat())
    };
    // A new cluster reaches the feature level of its voters within a second.
    wait_for("the window", || {
        maintain("kernel", "node-0000", "now+2h", "now+3h", &["--reason", "new kernel"]).code == 0
    });

    // Until the start, what ends before it runs there, and what does not, or has no limit, runs elsewhere or waits.
    let endless = submit(&dev, "research", &[]);
    dev.until(&endless, &["running"]);
    let long = submit(&dev, "research", &["--time", "8h"]);
    wait_for("the reason", || dev.ok(&["explain", &long]).contains("maintenance kernel"));
    let why = dev.ok(&["explain", &long]);
    assert!(why.contains("node-0000") && why.contains("begins before the job's time limit of 8 h ends"), "{why}");
    assert!(why.contains("set a time limit of at most"), "{why}");
    let short = submit(&dev, "research", &["--time", "1h"]);
    dev.until(&short, &["running"]);
    let listed = dev.ok(&["nodes"]);
    assert!(listed.contains("node-0000") && dev.ok(&["nodes", "-o", "json"]).contains("new kernel"), "{listed}");
    dev.refused(&["update", &short, "--time", "9h"], 2, &["leads into maintenance kernel"]);
    dev.ok(&["cancel", &short]);
    dev.ok(&["maintenance", "delete", "kernel"]);
    dev.until(&long, &["running"]);

    // One that begins while jobs run there: without --preempt they are told of and run on, and the node opens again by itself.
    let said = maintain("fans", "node-0000", "now", "now+4", &[]);
    assert!(said.code == 0 && said.out.contains(&format!("run on into it: {long}")), "{} {}", said.out, said.err);
    wait_for("the maintenance", || node_state(&dev, "node-0000") == "maintenance");
    assert_eq!(dev.state(&long), "running");
    wait_for("its end", || windows(&dev, "maintenance") == 0 && node_state(&dev, "node-0000") == "ready");

    // A reservation that cannot be held is refused with the figures.
    let reserve = |name: &str, start: &str, end: &str| {
        let what = ["reservations", "create", name, "--tenant", "research", "--gpus", "2", "--model", "h100"];
        dev.run(&[&what[..], &["--start", start, "--end", end]].concat())
    };
    let said = reserve("launch", "now+1h", "now+2h");
    assert!(said.code == 2 && said.err.contains("of 4 in the fleet") && said.err.contains(&endless), "{}", said.err);
    dev.ok(&["cancel", &long]);
    wait_for("the reservation", || reserve("launch", "now+8", "now+1h").code == 0);
    let named = ["--reservation", "launch", "--time", "10m"];
    let size = ["submit", "--gpus", "2", "--tenant"];
    dev.refused(&[&size[..], &["product"], &named, &["--", "true"]].concat(), 2, &["is not for tenant product"]);
    let mine = submit(&dev, "research", &named);
    let theirs = submit(&dev, "product", &["--time", "10m"]);
    dev.until(&mine, &["running"]);
    assert_eq!((dev.state(&theirs).as_str(), node_state(&dev, "node-0000").as_str()), ("pending", "reserved"));
    let why = dev.ok(&["explain", &theirs]);
    assert!(!why.contains("it can start"), "{why}");
    let late = submit(&dev, "research", &["--reservation", "launch", "--time", "2h"]);
    wait_for("the reason", || dev.ok(&["explain", &late]).contains("reservation launch, which it names, ends at"));
    dev.ok(&["cancel", &late]);
    dev.ok(&["reservations", "delete", "launch"]);
    assert_eq!(dev.state(&mine), "running", "whoever has been placed goes on");
    dev.ok(&["cancel", &mine]);
    dev.until(&theirs, &["running"]);

    // A drain by a deadline: what would still run is asked to leave in time, and is pending again.
    let answer = dev.run(&["what-if", "-o", "json", "--drain", "node-0000", "--by", "now+10m", "--for", "1h"]).json();
    assert_eq!(answer["evicted"][0]["job"].to_string(), theirs, "{answer}");
    let said = dev.ok(&["drain", "node-0000", "--by", "now+14", "--reason", "new cables"]);
    assert!(said.contains("node node-0000 is drained by"), "{said}");
    assert_eq!(node_state(&dev, "node-0000"), "ready");
    dev.until(&theirs, &["pending"]);
    let victim = dev.run(&["job", &theirs, "-o", "json"]).json();
    assert_eq!(victim["reason"], "preempted (drain): drain drain-node-0000 of its nodes", "{victim}");
    wait_for("the drain", || node_state(&dev, "node-0000") == "drained");
    assert_eq!((windows(&dev, "maintenance"), dev.state(&endless).as_str()), (0, "running"));
    dev.ok(&["undrain", "node-0000"]);
    dev.until(&theirs, &["running"]);
    what_is_answered_about_maintenance_is_what_happens(&dev, &theirs);
}

/// `running` stands on node-0000, and no other node gets free.
fn what_is_answered_about_maintenance_is_what_happens(dev: &Dev, running: &str) {
    let waits = submit(dev, "research", &["--time", "20m"]);
    let file = dev.file(
        "kernel.yaml",
        "name: kernel\nkind: maintenance\nnodes: [node-0000]\nstart: now+5m\nend: now+30m\npreempt: true\n",
    );
    let ask = |more: &[&str]| {
        let said = dev.run(&[&["what-if", "-o", "json", "--for", "2h"], more].concat());
        assert_eq!(said.code, 0, "{more:?}: {}", said.err);
        said.json()
    };
    let has = |answer: &Value, list: &str, job: &str| {
        let lines = answer[list].as_array().expect("a list");
        lines.iter().any(|line| line["job"].as_u64() == job.parse().ok())
    };
    let answer = ask(&["--windows", &file]);
    assert!(has(&answer, "evicted", running) && has(&answer, "loses", &waits), "{answer}");
    assert_eq!((&answer["evicted"][0]["reason"], windows(dev, "maintenance")), (&Value::from("maintenance"), 0));
    let said = dev.ok(&["what-if", "--windows", &file, "--for", "2h"]);
    assert!(said.contains("what if: maintenance kernel of node node-0000 from"), "{said}");
    dev.refused(&["what-if", "--delete-window", "kernel"], 3, &["kernel"]);

    // Planned, it may be given up or put off.
    let plan = |name: &str, start: &str, end: &str| {
        let when = ["--start", start, "--end", end, "--preempt"];
        dev.ok(&[&["maintenance", "create", name, "--nodes", "node-0000"], &when[..]].concat())
    };
    plan("kernel", "now+5m", "now+30m");
    dev.refused(&["what-if", "--windows", &file], 2, &["there is a maintenance of that name", "delete that one first"]);
    let answer = ask(&["--delete-window", "kernel"]);
    assert!(has(&answer, "spared", running) && has(&answer, "gains", &waits), "{answer}");
    let off = dev.file("off.yaml", "name: kernel\nkind: maintenance\nplace: ''\nstart: now+1h\nend: now+2h\n");
    let answer = ask(&["--delete-window", "kernel", "--windows", &off]);
    assert!(has(&answer, "spared", running) && answer["evicted"] == Value::Array(Vec::new()), "{answer}");

    dev.ok(&["maintenance", "delete", "kernel"]);
    plan("kernel", "now+14", "now+1h");
    dev.until(running, &["pending"]);
    assert_eq!(dev.state(&waits), "pending");
    dev.ok(&["maintenance", "delete", "kernel"]);
    dev.until(running, &["running"]);
}

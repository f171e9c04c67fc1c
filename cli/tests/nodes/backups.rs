//! Backups of a control plane, and clusters that are made from them, with real tasks that run on meanwhile.

use crate::site::Site;
use serde_json::{Value, json};
use std::time::Duration;

/// Says that it was started, and runs until `$SHARED/end-NAME` is there.
const RUNS: &str = r#"echo started >> "$SHARED/$NAME"; until [ -e "$SHARED/end-$NAME" ]; do echo >> "$SHARED/$NAME.beats"; sleep 0.1; done"#;

fn submit(site: &Site, name: &str) -> String {
    let variables = [format!("SHARED={}", site.path("").display()), format!("NAME={name}")];
    let words = ["--gpus", "1", "--name", name, "--env", &variables[0], "--env", &variables[1], "--", "sh", "-c", RUNS];
    site.submit(&words)
}

/// How often tasks of that job were started.
fn starts(site: &Site, name: &str) -> usize {
    std::fs::read_to_string(site.path(name)).map_or(0, |text| text.lines().count())
}

fn end(site: &Site, name: &str) {
    std::fs::write(site.path(&format!("end-{name}")), "").expect("a file");
}

fn id(text: &str) -> Value {
    json!(text.parse::<u64>().expect("an id"))
}

#[test]
fn a_restored_cluster_stops_and_starts_nothing_before_an_operator_confirms_it() {
    let mut site = Site::start();
    std::fs::write(site.path("node.yaml"), "name: n1\nmodel: h100\ngpus: 4\n").expect("a file");
    let _agent = site.agent("agent", &["--data", "data", "--spec", "node.yaml", "--usage-period", "1s"]);
    let (stays, ends) = (submit(&site, "stays"), submit(&site, "ends"));
    site.until_job(&stays, "running");
    site.until_job(&ends, "running");
    let made = site.json(&["backup", "create", "--data", "control", "state.backup"]);
    assert_eq!(made["members"], json!([format!("1={}", site.endpoint())]), "{made:#}");
    // What comes after the backup.
    end(&site, "ends");
    site.until_job(&ends, "completed");
    // An agent that still knew the task would tell its end again.
    let folder = site.path("data/n1/tasks/2.0");
    site.until("the agent to forget the task", || (!folder.exists()).then_some(()));
    let later = submit(&site, "later");
    site.until_job(&later, "running");

    site.restore_cluster("state.backup");
    let review = site.until("the node to be back", || {
        let review = site.json(&["machine", "confirm", "--dry-run"]);
        (review["nodes"][0]["is_back"] == true).then_some(review)
    });
    let node = &review["nodes"][0];
    assert_eq!(
        (&node["kept"], &node["unknown"], &node["gone"]),
        (&json!([id(&stays)]), &json!([id(&later)]), &json!([id(&ends)]))
    );
    let shown = &site.nodes()[0];
    assert_eq!(shown["state"], "restored");
    assert!(shown["reason"].as_str().expect("a text").contains("muster machine confirm node:n1"), "{shown:#}");
    let pending = submit(&site, "new");
    assert!(pending.parse::<u64>().expect("an id") > 1_000_000, "no number of before is given out again: {pending}");
    let why = site.until("an explanation", || {
        let why = site.said(&["explain", &pending]);
        why.contains("not confirmed after a restore from a backup").then_some(why)
    });
    assert!(why.contains("muster machine confirm"), "{why}");
    let counts = |site: &Site| ["stays", "ends", "later", "new"].map(|name| starts(site, name));
    assert_eq!(counts(&site), [1, 1, 1, 0], "nothing was started");
    let runs = |name: &str| {
        let beats = || std::fs::metadata(site.path(&format!("{name}.beats"))).map_or(0, |file| file.len());
        let before = beats();
        std::thread::sleep(Duration::from_secs(2));
        beats() > before
    };
    assert!(runs("stays") && runs("later"), "nothing was stopped");

    site.said(&["machine", "confirm", "--all"]);
    site.until("the unknown task to be stopped", || (!runs("later")).then_some(()));
    site.until_job(&pending, "running");
    let ends_again = site.until_job(&ends, "completed");
    assert_eq!(ends_again["attempt"], 2, "nobody knows how its first attempt ended: {ends_again:#}");
    assert_eq!(counts(&site), [1, 2, 1, 1], "what ran on was not started again");
    end(&site, "stays");
    let kept = site.until_job(&stays, "completed");
    assert_eq!(kept["attempt"], 1, "{kept:#}");
    assert!(!site.muster(&["job", &later]).status.success(), "the backup does not know it");
    assert_eq!(site.nodes()[0]["state"], "ready");
    let said = site.said(&["machine", "confirm", "--dry-run"]);
    assert!(said.contains("nothing waits to be confirmed"), "{said}");
    site.add_control("2");
    let members = site.json(&["raft", "status"]);
    assert_eq!(members.as_array().map(Vec::len), Some(2), "{members:#}");
}

#[test]
fn what_is_no_whole_backup_or_no_empty_folder_is_refused_and_nothing_is_touched() {
    let site = Site::start();
    site.said(&["backup", "create", "--data", "control", "state.backup"]);
    let refused = |words: &[&str], why: &str| {
        let output = site.muster(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "muster {words:?}: {said}");
    };
    let restore = |file: &'static str, data: &'static str| {
        ["backup", "restore", file, "--data", data, "--id", "1", "--advertise", "127.0.0.1:1"]
    };
    refused(&restore("state.backup", "control"), "data: control is not empty");
    let whole = std::fs::read(site.path("state.backup")).expect("a backup");
    std::fs::write(site.path("cut.backup"), &whole[..whole.len() - 1]).expect("a file");
    refused(&["backup", "verify", "cut.backup"], "it was cut");
    refused(&restore("cut.backup", "new"), "it was cut");
    let mut changed = whole;
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    std::fs::write(site.path("changed.backup"), &changed).expect("a file");
    refused(&restore("changed.backup", "new"), "damaged at byte");
    refused(&restore("tenants.yaml", "new"), "this file is no backup of Muster");
    assert!(!site.path("new").exists(), "nothing was made");
    refused(&["backup", "create", "--data", "nowhere", "state.backup"], "asking the control node");
    site.said(&["backup", "verify", "state.backup"]);
    // A restore that was cut off: its log is written last.
    site.said(&restore("state.backup", "half"));
    std::fs::remove_dir_all(site.path("half/stores/log")).expect("a log");
    let control = ["control", "--id", "1", "--data", "half", "--listen", "127.0.0.1:0"];
    refused(&control, "`muster backup restore` did not come to its end here");
    let beyond = [&restore("state.backup", "other")[..], &["--incarnation-above", "18446744073709551615"]].concat();
    refused(&beyond, "incarnation_above");
    let above = [&restore("state.backup", "above")[..], &["--incarnation-above", "99999999999"]].concat();
    assert_eq!(site.json(&above)["incarnation"], 100_000_000_000_u64);
}

#[test]
fn a_host_that_is_gone_holds_no_other_up_once_an_operator_says_so() {
    let mut site = Site::start();
    for name in ["n1", "n2"] {
        std::fs::write(site.path(&format!("{name}.yaml")), format!("name: {name}\nmodel: h100\ngpus: 4\n"))
            .expect("a file");
    }
    let _agent = site.agent("agent-1", &["--data", "data-1", "--spec", "n1.yaml"]);
    let gone = site.agent("agent-2", &["--data", "data-2", "--spec", "n2.yaml"]);
    site.until("two nodes", || (site.nodes().len() == 2).then_some(()));
    site.said(&["backup", "create", "--data", "control", "state.backup"]);
    drop(gone);
    site.restore_cluster("state.backup");
    site.said(&["machine", "confirm", "--all"]);
    let job = submit(&site, "waits");
    let output = site.muster(&["remove-node", "n2"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("muster machine confirm --gone node:n2"), "{said}");
    assert_eq!(starts(&site, "waits"), 0, "n2 may run something that nobody here knows");
    site.said(&["machine", "confirm", "--gone", "node:n2"]);
    site.until_job(&job, "running");
    site.said(&["remove-node", "n2"]);
    end(&site, "waits");
    site.until_job(&job, "completed");
}

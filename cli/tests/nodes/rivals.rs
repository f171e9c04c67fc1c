//! Several agents of one node name, agents whose folder is gone, agents of another cluster, and nodes that were removed.

use crate::site::{Agent, Site};
use std::collections::BTreeMap;
use std::time::Duration;

/// A node named `node` with eight cards.
fn agent(site: &Site, log: &str, words: &[&str]) -> Agent {
    std::fs::write(site.path("node.yaml"), "name: node\n").expect("a file");
    site.agent(log, &[&["--spec", "node.yaml"], words].concat())
}

/// A job that leaves a line five times a second: its attempt, its process, the time.
fn beating(site: &Site, words: &[&str]) -> String {
    let beats = site.path("beats").display().to_string();
    let script = format!(
        "me=$(date +%N); while :; do echo $MUSTER_ATTEMPT $me $(cut -d' ' -f1 /proc/uptime) >> {beats}; sleep 0.2; done"
    );
    site.submit(&[words, &["--gpus", "1", "--", "/bin/sh", "-c", &script]].concat())
}

/// First and last sign of each copy, by attempt and process.
fn copies(site: &Site) -> BTreeMap<(u32, u32), (f64, f64)> {
    let text = std::fs::read_to_string(site.path("beats")).unwrap_or_default();
    let mut copies: BTreeMap<(u32, u32), (f64, f64)> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [attempt, pid, at] = words[..] else { continue };
        let key = (attempt.parse().expect("an attempt"), pid.parse().expect("a process"));
        let at: f64 = at.parse().expect("seconds");
        copies.entry(key).and_modify(|seen| seen.1 = at).or_insert((at, at));
    }
    copies
}

/// Law 6 as the tasks themselves tell it.
fn assert_no_overlap(copies: &BTreeMap<(u32, u32), (f64, f64)>) {
    let mut spans: Vec<(f64, f64)> = copies.values().copied().collect();
    spans.sort_by(|one, other| one.0.total_cmp(&other.0));
    assert!(spans.windows(2).all(|pair| pair[0].1 < pair[1].0), "copies ran at once: {copies:?}");
}

fn until_beats(site: &Site, attempt: u32) {
    site.until(&format!("attempt {attempt} to run"), || copies(site).keys().find(|(at, _)| *at == attempt).copied());
}

#[test]
fn a_second_host_of_one_name_is_refused_and_both_sides_say_so() {
    let site = Site::start();
    let first = agent(&site, "first", &["--data", "one"]);
    let job = beating(&site, &[]);
    until_beats(&site, 1);
    // As if it were another machine: of another boot, with a folder of its own.
    let second = agent(&site, "second", &["--data", "two", "--boot", "1"]);
    site.until("the refusal in its log", || second.log().contains("has another agent").then_some(()));
    std::thread::sleep(Duration::from_secs(8));
    let copies = copies(&site);
    assert_eq!(copies.len(), 1, "one copy of one attempt: {copies:?}");
    assert_eq!(site.job(&job)["attempt"], 1);
    let node = site.until_node("node", "ready");
    let reason = node["reason"].as_str().expect("a reason");
    assert!(reason.contains("another agent asks to be this node") && reason.contains(".1)"), "{reason}");
    assert!(site.said(&["nodes"]).contains("another agent asks"), "people see it too");
    drop((first, second));
}

#[test]
fn a_second_agent_on_the_same_host_does_not_start() {
    let site = Site::start();
    let _first = agent(&site, "first", &["--data", "one"]);
    beating(&site, &[]);
    until_beats(&site, 1);
    let (succeeded, said) = agent(&site, "second", &["--data", "two"]).ended();
    assert!(!succeeded && said.contains("another agent on this machine serves node node"), "{said}");
    let (succeeded, said) = agent(&site, "third", &["--data", "one"]).ended();
    assert!(!succeeded && said.contains("is in use by another agent"), "{said}");
    assert_eq!(copies(&site).len(), 1);
}

#[test]
fn an_agent_whose_folder_was_deleted_ends_what_lives_before_the_job_starts_again() {
    let site = Site::start();
    let first = agent(&site, "first", &["--data", "data"]);
    let job = beating(&site, &[]);
    until_beats(&site, 1);
    first.kill();
    site.delete("data");
    let _second = agent(&site, "second", &["--data", "data"]);
    until_beats(&site, 2);
    let copies = copies(&site);
    assert_eq!(
        copies.keys().map(|(attempt, _)| *attempt).collect::<Vec<_>>(),
        [1, 2],
        "an attempt ran twice: {copies:?}"
    );
    assert_no_overlap(&copies);
    let attempts = site.job(&job)["attempts"].clone();
    assert_eq!(attempts[0]["ends"][0]["end"], "node-lost", "{attempts}");
}

#[test]
fn an_agent_of_another_cluster_is_refused_with_the_remedy() {
    let mut site = Site::start();
    let first = agent(&site, "first", &["--data", "data"]);
    let id = site.submit(&["--gpus", "1", "--", "sh", "-c", "exit 7"]);
    site.until_job(&id, "failed");
    site.replace_cluster();
    site.until("the refusal in its log", || first.log().contains("this node belongs to cluster").then_some(()));
    // The first job of the new cluster has the number of the old one, and waits: the old exit is not its own.
    let id = site.submit(&["--gpus", "1", "--", "true"]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(site.job(&id)["state"], "pending");
    assert!(site.nodes().is_empty(), "{:?}", site.nodes());
    let log = first.log();
    assert!(log.contains("delete its data folder") && log.contains("correct --endpoints"), "{log}");
    first.kill();
    site.delete("data");
    let _second = agent(&site, "second", &["--data", "data"]);
    site.until_job(&id, "completed");
}

#[test]
fn a_node_that_was_removed_comes_back_drained() {
    let site = Site::start();
    let _agent = agent(&site, "agent", &["--data", "data"]);
    site.until_node("node", "ready");
    site.said(&["drain", "node", "--reason", "new cables"]);
    assert_eq!(site.until_node("node", "drained")["reason"], "new cables");
    let said = site.said(&["remove-node", "node"]);
    assert!(said.contains("the node joins again as drained"), "{said}");
    let node = site.until_node("node", "drained");
    let reason = node["reason"].as_str().expect("a reason");
    assert!(reason.contains("was removed from the fleet") && reason.contains("muster undrain node"), "{reason}");
    let id = site.submit(&["--gpus", "1", "--", "true"]);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(site.job(&id)["state"], "pending");
    site.said(&["undrain", "node"]);
    site.until_job(&id, "completed");
}

//! Floors on a fleet of two kinds of hosts: lending by model, and floors of CPU and memory that lost hardware cannot meet.

use crate::site::{Agent, Site};
use serde_json::Value;

/// Starts an agent of a host with this description, and waits for its node.
fn host(site: &Site, name: &str, rest: &str) -> Agent {
    let file = format!("{name}.yaml");
    std::fs::write(site.path(&file), format!("name: {name}\n{rest}")).expect("a file");
    let agent = site.agent(name, &["--data", name, "--spec", &file]);
    site.until_node(name, "ready");
    agent
}

fn apply(site: &Site, tree: &str) {
    std::fs::write(site.path("tree.yaml"), tree).expect("a file");
    // A new cluster reaches the feature level of its voters within a second.
    site.until("the tree", || site.muster(&["tenants", "apply", "-f", "tree.yaml"]).status.success().then_some(()));
}

/// The rows of a table, word by word.
fn rows(table: &str) -> Vec<String> {
    table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_tenant_lends_one_model_and_keeps_another() {
    let site = Site::start();
    let _first = host(&site, "h", "model: h100\ngpus: 2\n");
    let _second = host(&site, "a", "model: a100-80\ngpus: 2\n");
    apply(&site, "owner:\n  guarantee: {h100: 2, a100-80: 2}\n  lend: {h100: no}\n  weight: {default: 2, h100: 5}\n");
    let listed: Value = site.json(&["tenants", "list", "owner"])[0].clone();
    assert_eq!((&listed["lend"], &listed["lends"]["h100"]), (&Value::Bool(true), &Value::Bool(false)), "{listed}");
    assert!(rows(&site.said(&["tenants", "list", "owner"]))[1].ends_with("2, h100 5 trusted yes, h100 no"));

    // `research` has no guarantee: what it uses is burst.
    let submit = |model| site.submit(&["--gpus", "1", "--model", model, "--", "sleep", "600"]);
    let (kept, lent) = (submit("h100"), submit("a100-80"));
    site.until_job(&lent, "running");
    assert_eq!(site.job(&kept)["state"], "pending");
    let told = site.said(&["explain", &kept]);
    assert!(told.contains("not_lent"), "{told}");
    let accounts = rows(&site.said(&["tree", "owner", "--accounts"]));
    assert_eq!(accounts[0], "TENANT RESOURCE SIZE BUSY IDLE LENT UNMET");
    assert_eq!(accounts[1..], ["owner a100-80 2 - 2 1 -", "h100 2 - 2 - -"], "{accounts:?}");
    site.until_metric("muster_floor_account_gpus{tenant=\"owner\",model=\"a100-80\",state=\"lent\"} 1");
    site.until_metric("muster_floor_account_gpus{tenant=\"owner\",model=\"h100\",state=\"idle\"} 2");

    // One word is for all: it lends everything from then on.
    apply(&site, "owner: {lend: yes}\n");
    site.until_job(&kept, "running");
    assert_eq!(site.json(&["tenants", "list", "owner"])[0]["lends"], Value::Null);
    assert_eq!(rows(&site.said(&["tree", "owner", "--accounts"]))[1..], ["owner a100-80 2 - 2 1 -", "h100 2 - 2 1 -"]);
    let account = &site.json(&["tree", "owner"])[0]["account"];
    assert_eq!(
        (&account["lent"]["gpus"]["h100"], &account["busy"]),
        (&1.0.into(), &serde_json::json!({})),
        "{account}"
    );

    // What the owner uses itself is busy.
    let own = site.said(&["submit", "--tenant", "owner", "--gpus", "1", "--model", "h100", "--", "sleep", "600"]);
    site.until_job(own.trim(), "running");
    assert_eq!(rows(&site.said(&["tree", "owner", "--accounts"]))[2], "h100 2 1 1 1 -");
}

#[test]
fn lost_hardware_leaves_floors_of_cpu_and_memory_unmet_and_the_tree_says_so() {
    let site = Site::start();
    let size = "model: h100\ngpus: 1\ncpus: 32\nmemory: 128Gi\n";
    let _first = host(&site, "one", size);
    let second = host(&site, "two", size);
    apply(&site, "owner: {guarantee: {cpus: 48, memory: 192Gi}}\n");
    let tree = site.said(&["tree", "owner"]);
    assert!(!tree.contains("UNMET"), "{tree}");
    site.said(&["drain", "two"]);
    site.until_node("two", "drained");
    assert!(!site.said(&["tree", "owner"]).contains("UNMET"), "a drained node is there");
    second.kill();
    site.said(&["remove-node", "two"]);
    let tree = rows(&site.said(&["tree", "owner"]));
    assert_eq!(tree[0], "TENANT RESOURCE GUARANTEE MAX USED GUARANTEED BORROWED LENT WAITING UNMET");
    assert_eq!(tree[1..], ["owner cpus 48 - - - - - - 16", "memory 192Gi - - - - - - 64Gi"]);
    let stands = &site.json(&["tree", "owner"])[0];
    assert_eq!(stands["unmet"], serde_json::json!({"cpu_milli": 16_000, "memory_mib": 65_536}), "{stands}");
    let accounts = rows(&site.said(&["tree", "owner", "--accounts"]));
    assert_eq!(accounts[1..], ["owner cpus 48 - 32 - 16", "memory 192Gi - 128Gi - 64Gi"]);
    site.until_metric("muster_floor_account_cpus{tenant=\"owner\",state=\"unmet\"} 16");
    // The hardware comes back, and with it the floor.
    let _again = host_again(&site);
    site.until("a floor that is met", || (!site.said(&["tree", "owner"]).contains("UNMET")).then_some(()));
}

/// The host that was removed joins again, as drained; its hardware counts.
fn host_again(site: &Site) -> Agent {
    let agent = site.agent("two-again", &["--data", "two", "--spec", "two.yaml"]);
    site.until_node("two", "drained");
    agent
}

/// Jobs without GPUs: burst uses a floor of CPUs that is idle, its owner takes it back from as many as it needs, and nobody else is touched.
#[test]
fn a_floor_of_cpus_is_lent_and_taken_back() {
    let site = Site::start();
    let _host = host(&site, "one", "model: h100\ngpus: 1\ncpus: 12\nmemory: 64Gi\n");
    apply(&site, "owner: {guarantee: {cpus: 8, memory: 16Gi}}\n");
    let submit = |tenant, cpus| site.submit_as(tenant, &["--cpus", cpus, "--memory", "2Gi", "--", "sleep", "600"]);
    let burst: Vec<String> = (0..3).map(|_| submit("research", "4")).collect();
    burst.iter().for_each(|id| drop(site.until_job(id, "running")));
    assert_eq!(rows(&site.said(&["tree", "owner", "--accounts"]))[1], "owner cpus 8 - 8 8 -");

    // Two of three have to go.
    let covered = submit("owner", "8");
    site.until_job(&covered, "running");
    assert_eq!(site.job(&covered)["quota"], "guaranteed by owner");
    let in_state = |state: &str| burst.iter().filter(|id| site.job(id)["state"] == state).collect::<Vec<_>>();
    let (victims, untouched) = (in_state("pending"), in_state("running"));
    assert_eq!((victims.len(), untouched.len()), (2, 1));
    for id in &victims {
        let told = site.said(&["explain", id]);
        assert!(told.contains(&format!("by job {covered} of owner (reclaim")), "{told}");
    }
    assert_eq!(site.job(untouched[0])["attempt"], 1);
    assert_eq!(rows(&site.said(&["tree", "owner", "--accounts"]))[1], "owner cpus 8 8 - - -");

    // What is beyond the floor waits like everybody's.
    let more = submit("owner", "4");
    let told = site.said(&["explain", &more]);
    assert!(told.contains("pending"), "{told}");
    assert_eq!(site.job(untouched[0])["state"], "running");

    // The floor is idle again: what was preempted goes on.
    [&more, &covered].iter().for_each(|id| drop(site.said(&["cancel", id])));
    victims.iter().for_each(|id| drop(site.until_job(id, "running")));
}

//! Resets of GPUs in a drain, through the real binary on the double of NVIDIA's driver.

use crate::site::{Agent, Site};
use muster_gpu_double::Faults;
use serde_json::Value;

fn site(model: &str) -> (Site, Agent, Faults) {
    let site = Site::start();
    std::fs::write(site.path("node.yaml"), format!("{{name: gpu-1, model: {model}, gpus: 2}}\n")).expect("a file");
    let agent = site.agent("agent", &["--data", "data", "--spec", "node.yaml", "--gpus", "double"]);
    site.until("the node", || (!site.nodes().is_empty()).then_some(()));
    let faults = Faults::open(&site.path("data/gpu-1/gpu-double")).expect("the agent has made it");
    (site, agent, faults)
}

/// The withheld GPUs of the node, once that is so.
fn until_gpus(site: &Site, what: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    site.until(what, || {
        let gpus = site.json(&["gpus"]);
        let gpus = gpus.as_array().cloned().unwrap_or_else(|| panic!("a list: {gpus}"));
        is_so(&gpus).then_some(gpus)
    })
}

fn repair(gpu: &Value) -> &str {
    gpu["repair"].as_str().unwrap_or_default()
}

#[test]
fn a_gpu_that_asks_for_a_reset_gets_it_in_a_drain_when_nobody_uses_the_node() {
    let (site, _agent, faults) = site("h100");
    let other = site.submit(&["--gpus", "1", "--", "sleep", "98811"]);
    site.until_job(&other, "running");
    let used = site.job(&other)["placement"]["nodes"][0]["gpus"][0].as_u64().unwrap_or_default() as u32;
    let faulty = 1 - used;
    faults.xid(faulty, None, None, 95).expect("an Xid");
    let is_withheld = |gpus: &[Value]| gpus.iter().any(|gpu| repair(gpu) == "reset");
    until_gpus(&site, "the GPU to be withheld", is_withheld);
    site.said(&["drain", "gpu-1", "--reason", "a reset"]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    until_gpus(&site, "the GPU to wait for the job on the other one", is_withheld);
    site.said(&["cancel", &other]);
    until_gpus(&site, "the reset", |gpus| gpus.iter().all(|gpu| repair(gpu).is_empty()));
    assert_eq!(faults.fleet().expect("readable").cards[faulty as usize].health.recovery_action, 0, "it was reset");
    site.said(&["undrain", "gpu-1"]);
    let both = site.submit(&["--gpus", "2", "--", "true"]);
    site.until_job(&both, "completed");
}

#[test]
fn a_layout_that_takes_a_reset_is_made_in_a_drain() {
    let (site, _agent, _faults) = site("a100-80");
    let pool = "name: default\nmodes: [whole, mig]\nmig-layouts:\n  - {model: a100-80, slices: {1g.10gb: 7}}\n";
    std::fs::write(site.path("pool.yaml"), pool).expect("a file");
    site.said(&["pools", "apply", "-f", "pool.yaml"]);
    let asks = |gpus: &[Value]| gpus.iter().filter(|gpu| repair(gpu) == "reset").count() == 2;
    let gpus = until_gpus(&site, "the GPUs to ask for a reset", asks);
    let said = gpus[0].to_string();
    assert!(said.contains("a change of the MIG mode needs a reset of the GPU; drain the node"), "{said}");
    site.said(&["drain", "gpu-1", "--reason", "MIG"]);
    until_gpus(&site, "the resets", |gpus| gpus.iter().all(|gpu| repair(gpu).is_empty()));
    site.said(&["undrain", "gpu-1"]);
    let id = site.submit(&["--mig", "1g.10gb", "--", "true"]);
    site.until_job(&id, "completed");
}

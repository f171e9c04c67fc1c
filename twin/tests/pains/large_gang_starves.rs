//! A large gang waits for ever, because small jobs take every GPU that gets free. Here it gets a place and a time, short jobs run there meanwhile,
//! longer ones do not, and it starts in time.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::H100;
use muster_model::{JobId, JobSpec};

#[test]
fn a_gang_of_the_whole_fleet_starts_when_it_was_promised_while_small_jobs_keep_coming() {
    let mut scenario = Scenario::new("4x8:h100", vec![tenant("org", &[], &[])], 0);
    let limited = |gpus, min: u64| JobSpec { time_limit_s: Some(60 * min), ..gang("org", 1, gpus, H100) };
    let small: Vec<JobId> = (1..=4).map(|n| scenario.submit(&format!("small {n}"), limited(8, 30 * n), None)).collect();
    scenario.pass(300);
    let large = scenario.submit("large", gang("org", 4, 8, H100), Some(3_600));
    scenario.pass(60);
    scenario.explain(large);
    let promised_ms = scenario.state.jobs[&large].reserved.as_ref().expect("a reservation").start_ms;
    // One job comes every ten minutes: half of them short, half of them too long to be over in time.
    let mut came = Vec::new();
    for n in 0..12 {
        scenario.pass(600);
        let minutes = if n % 2 == 0 { 20 } else { 300 };
        came.push(scenario.submit(&format!("later {n}, {minutes} min"), limited(8, minutes), None));
    }
    scenario.pass(3_600);
    let job = &scenario.state.jobs.get(&large);
    let started_ms = job.map_or(0, |job| job.started_ms.expect("it runs"));
    assert!(started_ms <= promised_ms, "started at {started_ms}, promised at {promised_ms}");
    assert!(small.iter().all(|job| !scenario.runs(*job)));
    insta::assert_snapshot!(scenario.text());
}

#[test]
fn a_floor_waits_for_nobodys_reserved_burst() {
    let tenants = vec![tenant("research", &[(H100, 16)], &[]), tenant("product", &[], &[])];
    let mut scenario = Scenario::new("4x8:h100", tenants, 0);
    let limited = |gpus, min: u64| JobSpec { time_limit_s: Some(60 * min), ..gang("product", 1, gpus, H100) };
    for n in 1..=3 {
        scenario.submit(&format!("small {n}"), limited(8, 60 * n), None);
    }
    scenario.pass(60);
    let large = scenario.submit("large", gang("product", 4, 8, H100), Some(3_600));
    scenario.pass(60);
    scenario.explain(large);
    // One node is free and kept for the gang, and what runs elsewhere stands on nodes that are kept for it as well.
    // Nothing bounds its time: it could not be lent the node.
    let first = scenario.submit("first of the floor", gang("research", 1, 8, H100), Some(1_800));
    scenario.pass(60);
    assert!(scenario.runs(first), "it takes the free node, and nobody is preempted:\n{}", scenario.so_far());
    let second = scenario.submit("second of the floor", gang("research", 1, 8, H100), Some(1_800));
    scenario.pass(120);
    assert!(scenario.runs(second), "it takes a node from what would be missed least:\n{}", scenario.so_far());
    scenario.explain(large);
    scenario.pass(4 * 3_600);
    insta::assert_snapshot!(scenario.text());
}

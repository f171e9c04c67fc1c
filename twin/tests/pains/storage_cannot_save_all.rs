//! Many jobs are stopped at once, and the storage cannot take all their checkpoints in time; and a job is stopped again and again. Here an operator says
//! what the storage takes, and how often a job may be stopped.

use crate::scenario::{Scenario, gang, tenant};
use muster_control_core::quota::floor_waits;
use muster_model::GpuModel::{A100_40, H100};
use muster_model::{JobSpec, Preemption};

/// Checkpoints of 200 GiB; a pool's storage takes 10 GiB/s, so that one is written in 20 s.
fn saves() -> JobSpec {
    let preemption = Preemption { grace_s: Some(30), checkpoint_bytes: 200 << 30, ..Preemption::default() };
    JobSpec { preemption, ..gang("a", 1, 8, H100) }
}

#[test]
fn preemptions_wait_for_the_storage_of_checkpoints() {
    let tenants = vec![tenant("a", &[], &[]), tenant("b", &[(H100, 24)], &[])];
    let mut scenario = Scenario::new("3x8:h100", tenants, 0);
    scenario.pool(|pool| pool.checkpoint_mib_per_s = Some(10 << 10));
    for name in ["one", "two", "three"] {
        scenario.submit(name, saves(), None);
    }
    scenario.pass(600);
    // Published: what the owner of a floor waits at most, the storage included.
    let wait = floor_waits(&scenario.state)["default"];
    assert_eq!((wait.grace_s, wait.stop_s, wait.stagger_s), (30, 10, 4 * 41));
    let owners = ["first", "second", "third"].map(|name| scenario.submit(name, gang("b", 1, 8, H100), None));
    assert_eq!(scenario.preemptions, (1, 1), "two at once would need 40 s of a grace of 30 s");
    scenario.pass(40);
    assert_eq!(scenario.preemptions, (2, 2));
    scenario.pass(120);
    assert_eq!(scenario.preemptions, (3, 3));
    assert!(owners.iter().all(|job| scenario.runs(*job)));
    insta::assert_snapshot!(scenario.text());
}

/// Small victims that could be saved at once do not keep the storage from a large preemption that came first.
#[test]
fn a_preemption_that_waits_for_the_storage_is_not_overtaken() {
    let tenants = vec![tenant("a", &[], &[]), tenant("b", &[(H100, 16)], &[]), tenant("c", &[(A100_40, 64)], &[])];
    let mut scenario = Scenario::new("2x8:h100,8x8:a100-40", tenants, 0);
    scenario.pool(|pool| pool.checkpoint_mib_per_s = Some(10 << 10));
    let saves = |model, gib: u64| {
        let preemption = Preemption { grace_s: Some(30), checkpoint_bytes: gib << 30, ..Preemption::default() };
        JobSpec { preemption, ..gang("a", 1, 8, model) }
    };
    (0..2).for_each(|n| _ = scenario.submit(&format!("large-{n}"), saves(H100, 150), None));
    (0..8).for_each(|n| _ = scenario.submit(&format!("small-{n}"), saves(A100_40, 50), None));
    scenario.pass(600);
    scenario.submit("small owner 0", gang("c", 1, 8, A100_40), None);
    scenario.pass(5);
    let large = scenario.submit("large owner", gang("b", 2, 8, H100), None);
    for n in 1..8 {
        scenario.pass(5);
        scenario.submit(&format!("small owner {n}"), gang("c", 1, 8, A100_40), None);
    }
    scenario.pass(45);
    assert!(scenario.runs(large), "one grace for those before it, and one for its own victims");
    scenario.pass(300);
    assert_eq!(scenario.preemptions.0, 9, "everybody has their floor in the end");
}

#[test]
fn a_pool_bounds_how_often_a_job_is_preempted() {
    let tenants = vec![tenant("a", &[], &[]), tenant("b", &[(H100, 8)], &[])];
    let mut scenario = Scenario::new("1x8:h100", tenants, 0);
    scenario.pool(|pool| pool.preemptions_max = Some(2));
    let often = scenario.submit("often", gang("a", 1, 8, H100), None);
    for name in ["first", "second"] {
        scenario.pass(60);
        let owner = scenario.submit(name, gang("b", 1, 8, H100), None);
        scenario.pass(60);
        assert!(scenario.runs(owner));
        scenario.cancel(owner);
        scenario.pass(60);
        assert!(scenario.runs(often));
    }
    let third = scenario.submit("third", gang("b", 1, 8, H100), None);
    scenario.pass(3_600);
    assert!(scenario.runs(often) && !scenario.runs(third), "the bound is reached");
    insta::assert_snapshot!(scenario.text());
}

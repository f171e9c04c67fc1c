//! Many jobs are stopped at once, and the storage cannot take all their checkpoints in time; and a job is stopped again and again. Here an operator says
//! what the storage takes, and how often a job may be stopped.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::H100;
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
    let owners = ["first", "second", "third"].map(|name| scenario.submit(name, gang("b", 1, 8, H100), None));
    assert_eq!(scenario.preemptions, (1, 1), "two at once would need 40 s of a grace of 30 s");
    scenario.pass(40);
    assert_eq!(scenario.preemptions, (2, 2));
    scenario.pass(120);
    assert_eq!(scenario.preemptions, (3, 3));
    assert!(owners.iter().all(|job| scenario.runs(*job)));
    insta::assert_snapshot!(scenario.text());
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

//! Many jobs are stopped at once, and the storage cannot take all their checkpoints in time; and a job is stopped again and again. Here an operator says
//! what the storage takes, and how often a job may be stopped.

use crate::story::{Story, gang, tenant};
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
    let mut story = Story::new("3x8:h100", tenants, 0);
    story.pool(|pool| pool.checkpoint_mib_per_s = Some(10 << 10));
    for name in ["one", "two", "three"] {
        story.submit(name, saves(), None);
    }
    story.pass(600);
    let owners = ["first", "second", "third"].map(|name| story.submit(name, gang("b", 1, 8, H100), None));
    assert_eq!(story.preemptions, (1, 1), "two at once would need 40 s of a grace of 30 s");
    story.pass(40);
    assert_eq!(story.preemptions, (2, 2));
    story.pass(120);
    assert_eq!(story.preemptions, (3, 3));
    assert!(owners.iter().all(|job| story.runs(*job)));
    insta::assert_snapshot!(story.text());
}

#[test]
fn a_pool_bounds_how_often_a_job_is_preempted() {
    let tenants = vec![tenant("a", &[], &[]), tenant("b", &[(H100, 8)], &[])];
    let mut story = Story::new("1x8:h100", tenants, 0);
    story.pool(|pool| pool.preemptions_max = Some(2));
    let often = story.submit("often", gang("a", 1, 8, H100), None);
    for name in ["first", "second"] {
        story.pass(60);
        let owner = story.submit(name, gang("b", 1, 8, H100), None);
        story.pass(60);
        assert!(story.runs(owner));
        story.cancel(owner);
        story.pass(60);
        assert!(story.runs(often));
    }
    let third = story.submit("third", gang("b", 1, 8, H100), None);
    story.pass(3_600);
    assert!(story.runs(often) && !story.runs(third), "the bound is reached");
    insta::assert_snapshot!(story.text());
}

//! A job is pending and nobody says why, or until when. Here there is a reason with figures, who is in the way, the smallest change that starts it,
//! its position, and an estimate with what it rests on.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::H100;
use muster_model::JobSpec;

#[test]
fn every_pending_job_has_a_reason_a_change_that_starts_it_and_an_estimate() {
    let tenants = vec![tenant("org", &[], &[]), tenant("org/train", &[], &[]), tenant("org/small", &[], &[(H100, 4)])];
    let mut scenario = Scenario::new("3x8:h100", tenants, 0);
    let hour = |tenant, gpus| JobSpec { time_limit_s: Some(3_600), ..gang(tenant, 1, gpus, H100) };
    scenario.say("org/train has run eighteen jobs of a time limit of an hour, for 24 minutes each");
    scenario.quiet = true;
    for _ in 0..9 {
        scenario.submit("before", hour("org/train", 8), Some(24 * 60));
        scenario.submit("before", hour("org/train", 8), Some(24 * 60));
        scenario.pass(25 * 60);
    }
    scenario.quiet = false;
    scenario.submit("one", hour("org/train", 8), Some(24 * 60));
    scenario.submit("two", hour("org/train", 6), Some(24 * 60));
    scenario.submit("small", gang("org/small", 1, 3, H100), None);
    scenario.pass(60);
    let waits = scenario.submit("waits", hour("org/train", 8), Some(60));
    let behind = scenario.submit("behind it", hour("org/train", 8), Some(60));
    let over = scenario.submit("over its max", gang("org/small", 1, 3, H100), None);
    for job in [waits, behind, over] {
        scenario.explain(job);
    }
    scenario.explain_tenant("org/small");
    scenario.pass(24 * 60);
    assert!(scenario.state.jobs.get(&waits).is_none_or(|job| job.attempt.0 > 0), "it started when it was expected");
    insta::assert_snapshot!(scenario.text());
}

//! The victim is whoever started last, whatever work that loses. Here it is the one that loses least since its last checkpoint, and it is told what it lost.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::H100;
use muster_model::{JobSpec, Preemption};

#[test]
fn the_job_that_has_just_saved_its_work_is_the_one_that_stops() {
    let tenants = vec![tenant("a", &[], &[]), tenant("b", &[(H100, 8)], &[])];
    let mut scenario = Scenario::new("3x8:h100", tenants, 0);
    let saves = scenario.submit("saves", gang("a", 1, 8, H100), None);
    scenario.pass(36_000);
    let unsaved = scenario.submit("never saves", gang("a", 1, 8, H100), None);
    let costly = Preemption { restart_cost_s: 7_200, ..Preemption::default() };
    scenario.pass(3_600);
    let restarts = scenario.submit("slow to restart", JobSpec { preemption: costly, ..gang("a", 1, 8, H100) }, None);
    scenario.pass(600);
    scenario.checkpoint(saves);
    scenario.pass(60);
    let owner = scenario.submit("owner", gang("b", 1, 8, H100), None);
    scenario.pass(60);
    assert!(scenario.runs(owner) && scenario.runs(unsaved) && scenario.runs(restarts) && !scenario.runs(saves));
    let record =
        scenario.state.jobs[&saves].attempts.last().and_then(|record| record.preempted).expect("it was preempted");
    let lost_s = record.lost_gpu_unit_ms / (8 * 7_000 * 1_000);
    scenario.say(&format!("it lost {lost_s} s of work on 8 GPUs, of more than ten hours"));
    scenario.explain(saves);
    insta::assert_snapshot!(scenario.text());
}

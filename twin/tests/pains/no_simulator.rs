//! Nobody can say what a change of quotas does to what runs and waits now, so it is tried on the users. Here the question is asked of a copy
//! of the live state: the answer names who starts and who is stopped, nothing changes, and the change that is then made does just that.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::H100;
use muster_model::tenant_edit::{AmountsEdit, TenantEdit};
use muster_model::{GpuUnits, JobSpec, Object};
use muster_twin::what_if::{Edit, Start};

const HOUR_S: u64 = 3_600;

#[test]
fn a_floor_is_asked_about_on_the_live_state_and_then_does_what_was_said() {
    let mut scenario = Scenario::new("2x8:h100", vec![tenant("research", &[], &[]), tenant("product", &[], &[])], 0);
    let limited = |tenant: &str, hours: u64| JobSpec { time_limit_s: Some(hours * HOUR_S), ..gang(tenant, 1, 8, H100) };
    let old = scenario.submit("old", limited("research", 10), None);
    scenario.pass(HOUR_S);
    let young = scenario.submit("young", limited("research", 10), None);
    scenario.pass(600);
    let waits = scenario.submit("waits", limited("product", 1), None);
    scenario.pass(60);
    assert!(scenario.runs(old) && scenario.runs(young) && !scenario.runs(waits));

    // The question changes nothing.
    let gpu = [(H100, Some(GpuUnits::cards(8)))].into();
    let guarantee = AmountsEdit { gpu, ..AmountsEdit::default() };
    let floor = vec![TenantEdit { guarantee, path: "product".to_owned(), ..TenantEdit::default() }];
    let copy: Vec<Object> = scenario.state.objects().collect();
    let edit = Edit::Tenants { edits: floor.clone(), prune: false, half_life_s: None };
    let answer = scenario.what_if(edit, HOUR_S);
    assert!(scenario.state.objects().eq(copy), "a question changed the state");
    let [gain] = &answer.gains[..] else { panic!("{:?}", answer.gains) };
    let [evicted] = &answer.evicted[..] else { panic!("{:?}", answer.evicted) };
    assert_eq!((gain.job, &gain.before), (Some(waits), &Start::Waits));
    let Start::Starts { in_s } = gain.after else { panic!("{gain:?}") };
    let victim = evicted.job.job.expect("a job of the fleet");

    // The change does what was said, and to nobody else.
    scenario.edit_tenants(floor);
    scenario.pass(in_s);
    assert!(scenario.runs(waits), "it starts within {in_s} s:\n{}", scenario.so_far());
    for job in [old, young] {
        assert_eq!(scenario.runs(job), job != victim, "job {job}:\n{}", scenario.so_far());
    }
    assert_eq!(scenario.preemptions, (1, 1));
    insta::assert_snapshot!(scenario.text());
}

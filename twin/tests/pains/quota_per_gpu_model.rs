//! GPUs of all models are one number, so a team's idle old cards count against its new ones. Here each model is a resource of its own: guaranteed,
//! limited, borrowed and taken back by itself.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::{A100_80, H100};

#[test]
fn each_model_is_guaranteed_borrowed_and_taken_back_by_itself() {
    let tenants = vec![tenant("a", &[(H100, 8)], &[(A100_80, 8)]), tenant("b", &[(A100_80, 8)], &[])];
    let mut scenario = Scenario::new("2x8:h100,1x8:a100-80", tenants, 0);
    let new = scenario.submit("on its floor", gang("a", 1, 8, H100), None);
    let burst = scenario.submit("borrows h100", gang("a", 1, 8, H100), None);
    let old = scenario.submit("borrows a100", gang("a", 1, 8, A100_80), None);
    let over = scenario.submit("one a100 too many", gang("a", 1, 1, A100_80), None);
    scenario.pass(60);
    scenario.explain(over);
    let owner = scenario.submit("owner", gang("b", 1, 8, A100_80), None);
    scenario.pass(60);
    assert!(scenario.runs(new) && scenario.runs(burst) && scenario.runs(owner) && !scenario.runs(old));
    scenario.explain_tenant("a");
    insta::assert_snapshot!(scenario.text());
}

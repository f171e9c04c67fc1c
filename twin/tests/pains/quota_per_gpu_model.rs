//! GPUs of all models are one number, so a team's idle old cards count against its new ones. Here each model is a resource of its own: guaranteed,
//! limited, borrowed and taken back by itself.

use crate::story::{Story, gang, tenant};
use muster_model::GpuModel::{A100_80, H100};

#[test]
fn each_model_is_guaranteed_borrowed_and_taken_back_by_itself() {
    let tenants = vec![tenant("a", &[(H100, 8)], &[(A100_80, 8)]), tenant("b", &[(A100_80, 8)], &[])];
    let mut story = Story::new("2x8:h100,1x8:a100-80", tenants, 0);
    let new = story.submit("on its floor", gang("a", 1, 8, H100), None);
    let burst = story.submit("borrows h100", gang("a", 1, 8, H100), None);
    let old = story.submit("borrows a100", gang("a", 1, 8, A100_80), None);
    let over = story.submit("one a100 too many", gang("a", 1, 1, A100_80), None);
    story.pass(60);
    story.explain(over);
    let owner = story.submit("owner", gang("b", 1, 8, A100_80), None);
    story.pass(60);
    assert!(story.runs(new) && story.runs(burst) && story.runs(owner) && !story.runs(old));
    story.explain_tenant("a");
    insta::assert_snapshot!(story.text());
}

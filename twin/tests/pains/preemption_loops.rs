//! Two teams evict each other again and again. Here a floor takes back once what it is guaranteed, and the evicted job waits for something that is free.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::H100;

#[test]
fn a_floor_takes_back_once_and_nobody_takes_it_again() {
    let tenants = vec![tenant("a", &[(H100, 8)], &[]), tenant("b", &[(H100, 8)], &[])];
    let mut scenario = Scenario::new("2x8:h100", tenants, 60);
    scenario.submit("own", gang("a", 1, 8, H100), None);
    let borrowed = scenario.submit("borrowed", gang("a", 1, 8, H100), None);
    scenario.pass(10);
    // It is in its cool-down: the owner waits, and knows how long at most.
    let owner = scenario.submit("owner", gang("b", 1, 8, H100), Some(7_200));
    scenario.explain(owner);
    scenario.pass(120);
    assert!(scenario.runs(owner) && !scenario.runs(borrowed));
    scenario.explain(borrowed);
    // An hour in which anybody could have evicted anybody, with more demand on both sides.
    scenario.submit("more of a", gang("a", 1, 8, H100), None);
    scenario.submit("more of b", gang("b", 1, 8, H100), None);
    scenario.pass(3_600);
    assert_eq!(scenario.preemptions, (1, 1), "nothing else was taken");
    scenario.explain_tenant("a");
    scenario.explain_tenant("b");
    scenario.pass(3_600);
    assert_eq!(scenario.preemptions, (1, 1));
    insta::assert_snapshot!(scenario.text());
}

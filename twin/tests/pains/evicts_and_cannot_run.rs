//! Jobs are evicted for a gang that then does not fit after all, or whose place somebody else takes. Here nothing is evicted before the whole gang
//! has a place, and what is freed is kept for it.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::H100;

#[test]
fn nothing_is_evicted_without_a_place_and_what_is_freed_is_kept() {
    let tenants = vec![tenant("a", &[(H100, 8)], &[]), tenant("b", &[(H100, 8)], &[]), tenant("c", &[], &[])];
    let mut scenario = Scenario::new("2x8:h100", tenants, 0);
    // Each node: four GPUs that a is guaranteed, four that it has borrowed.
    let own =
        [scenario.submit("own 1", gang("a", 1, 4, H100), None), scenario.submit("own 2", gang("a", 1, 4, H100), None)];
    let borrowed: Vec<_> =
        (1..=2).map(|n| scenario.submit(&format!("borrowed {n}"), gang("a", 1, 4, H100), None)).collect();
    scenario.pass(60);
    // Which of them stand together is the scheduler's choice: the floor pays for those that came first.
    let node_of = |scenario: &Scenario, job: &muster_model::JobId| scenario.state.jobs[job].nodes[0];
    let split = node_of(&scenario, &own[0]) != node_of(&scenario, &own[1]);
    if !split {
        // They fill one node: one borrowed job changes places with one of them.
        scenario.cancel(own[1]);
        scenario.pass(1);
    }
    let whole = scenario.submit("whole node", gang("b", 1, 8, H100), Some(3_600));
    scenario.pass(30);
    scenario.explain(whole);
    assert_eq!(scenario.preemptions, (0, 0), "what is borrowed is enough, but not on one node");
    scenario.submit("newcomer", gang("c", 1, 4, H100), None);
    scenario.pass(60);
    // With the end of a guaranteed job there is a place for the whole gang: only who stands there is evicted, and nobody else gets it.
    scenario.cancel(own[0]);
    scenario.pass(1);
    // The shard tries again within a minute; until then what is free is lent.
    scenario.submit("lent meanwhile", gang("c", 1, 4, H100), None);
    scenario.pass(40);
    assert_eq!(scenario.preemptions, (1, 2), "only who stands there");
    let late = scenario.submit("late", gang("c", 1, 4, H100), None);
    scenario.pass(60);
    assert!(scenario.runs(whole) && !scenario.runs(late), "it has what was freed for it:\n{}", scenario.so_far());
    assert!(borrowed.iter().all(|job| scenario.runs(*job)), "both stand on a floor by now");
    scenario.pass(4_000);
    insta::assert_snapshot!(scenario.text());
}

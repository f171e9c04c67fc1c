//! Jobs are evicted for a gang that then does not fit after all, or whose place somebody else takes. Here nothing is evicted before the whole gang
//! has a place, and what is freed is kept for it.

use crate::story::{Story, gang, tenant};
use muster_model::GpuModel::H100;

#[test]
fn nothing_is_evicted_without_a_place_and_what_is_freed_is_kept() {
    let tenants = vec![tenant("a", &[(H100, 8)], &[]), tenant("b", &[(H100, 8)], &[]), tenant("c", &[], &[])];
    let mut story = Story::new("2x8:h100", tenants, 0);
    // Each node: four GPUs that a is guaranteed, four that it has borrowed.
    let own = [story.submit("own 1", gang("a", 1, 4, H100), None), story.submit("own 2", gang("a", 1, 4, H100), None)];
    let borrowed: Vec<_> =
        (1..=2).map(|n| story.submit(&format!("borrowed {n}"), gang("a", 1, 4, H100), None)).collect();
    story.pass(60);
    // Which of them stand together is the scheduler's choice: the floor pays for those that came first.
    let node_of = |story: &Story, job: &muster_model::JobId| story.state.jobs[job].nodes[0];
    let split = node_of(&story, &own[0]) != node_of(&story, &own[1]);
    if !split {
        // They fill one node: one borrowed job changes places with one of them.
        story.cancel(own[1]);
        story.pass(1);
    }
    let whole = story.submit("whole node", gang("b", 1, 8, H100), Some(3_600));
    story.pass(30);
    story.explain(whole);
    assert_eq!(story.preemptions, (0, 0), "what is borrowed is enough, but not on one node");
    story.submit("newcomer", gang("c", 1, 4, H100), None);
    story.pass(60);
    // With the end of a guaranteed job there is a place for the whole gang: only who stands there is evicted, and nobody else gets it.
    story.cancel(own[0]);
    story.pass(1);
    // The shard tries again within a minute; until then what is free is lent.
    story.submit("lent meanwhile", gang("c", 1, 4, H100), None);
    story.pass(40);
    assert_eq!(story.preemptions, (1, 2), "only who stands there");
    let late = story.submit("late", gang("c", 1, 4, H100), None);
    story.pass(60);
    assert!(story.runs(whole) && !story.runs(late), "it has what was freed for it:\n{}", story.so_far());
    assert!(borrowed.iter().all(|job| story.runs(*job)), "both stand on a floor by now");
    story.pass(4_000);
    insta::assert_snapshot!(story.text());
}

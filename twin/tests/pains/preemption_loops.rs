//! Two teams evict each other again and again. Here a floor takes back once what it is guaranteed, and the evicted job waits for something that is free.

use crate::story::{Story, gang, tenant};
use muster_model::GpuModel::H100;

#[test]
fn a_floor_takes_back_once_and_nobody_takes_it_again() {
    let tenants = vec![tenant("a", &[(H100, 8)], &[]), tenant("b", &[(H100, 8)], &[])];
    let mut story = Story::new("2x8:h100", tenants, 60);
    story.submit("own", gang("a", 1, 8, H100), None);
    let borrowed = story.submit("borrowed", gang("a", 1, 8, H100), None);
    story.pass(10);
    // It is in its cool-down: the owner waits, and knows how long at most.
    let owner = story.submit("owner", gang("b", 1, 8, H100), Some(7_200));
    story.explain(owner);
    story.pass(120);
    assert!(story.runs(owner) && !story.runs(borrowed));
    story.explain(borrowed);
    // An hour in which anybody could have evicted anybody, with more demand on both sides.
    story.submit("more of a", gang("a", 1, 8, H100), None);
    story.submit("more of b", gang("b", 1, 8, H100), None);
    story.pass(3_600);
    assert_eq!(story.preemptions, (1, 1), "nothing else was taken");
    story.explain_tenant("a");
    story.explain_tenant("b");
    story.pass(3_600);
    assert_eq!(story.preemptions, (1, 1));
    insta::assert_snapshot!(story.text());
}

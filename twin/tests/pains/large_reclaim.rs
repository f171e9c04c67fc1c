//! Taking back many GPUs takes minutes, or never ends. Here it is one decision, whatever the number of victims; how long it takes is measured by the
//! benchmarks.

use crate::story::{Story, gang, tenant};
use muster_model::GpuModel::H100;

#[test]
fn a_gang_of_512_gpus_takes_back_its_floor_from_512_jobs_in_one_decision() {
    let tenants = vec![tenant("a", &[(H100, 512)], &[]), tenant("b", &[(H100, 512)], &[])];
    let mut story = Story::new("128x8:h100", tenants, 0);
    story.say("a starts 1,024 jobs of one GPU: 512 on its floor, 512 borrowed");
    story.quiet = true;
    for _ in 0..1_024 {
        story.submit("one", gang("a", 1, 1, H100), None);
    }
    story.pass(60);
    assert_eq!(story.used("a"), 1_024);
    story.quiet = false;
    story.say("b submits a gang of 64 x 8 h100");
    story.quiet = true;
    let large = story.submit("large", gang("b", 64, 8, H100), Some(3_600));
    story.quiet = false;
    let (preemptions, victims) = story.preemptions;
    story.say(&format!("{preemptions} preemption of {victims} jobs"));
    assert_eq!((preemptions, victims), (1, 512), "one decision, and no more than it needs");
    story.quiet = true;
    story.pass(30);
    story.quiet = false;
    assert!(story.runs(large));
    story.say("the last victim has stopped, and the gang runs");
    story.explain_tenant("b");
    insta::assert_snapshot!(story.text());
}

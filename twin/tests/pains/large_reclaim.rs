//! Taking back many GPUs takes minutes, or never ends. Here it is one decision, whatever the number of victims; how long it takes is measured by the
//! benchmarks.

use crate::scenario::{Scenario, gang, tenant};
use muster_model::GpuModel::H100;

#[test]
fn a_gang_of_512_gpus_takes_back_its_floor_from_512_jobs_in_one_decision() {
    let tenants = vec![tenant("a", &[(H100, 512)], &[]), tenant("b", &[(H100, 512)], &[])];
    let mut scenario = Scenario::new("128x8:h100", tenants, 0);
    scenario.say("a starts 1,024 jobs of one GPU: 512 on its floor, 512 borrowed");
    scenario.quiet = true;
    for _ in 0..1_024 {
        scenario.submit("one", gang("a", 1, 1, H100), None);
    }
    scenario.pass(60);
    assert_eq!(scenario.used("a"), 1_024);
    scenario.quiet = false;
    scenario.say("b submits a gang of 64 x 8 h100");
    scenario.quiet = true;
    let large = scenario.submit("large", gang("b", 64, 8, H100), Some(3_600));
    scenario.quiet = false;
    let (preemptions, victims) = scenario.preemptions;
    scenario.say(&format!("{preemptions} preemption of {victims} jobs"));
    assert_eq!((preemptions, victims), (1, 512), "one decision, and no more than it needs");
    scenario.quiet = true;
    scenario.pass(30);
    scenario.quiet = false;
    assert!(scenario.runs(large));
    scenario.say("the last victim has stopped, and the gang runs");
    scenario.explain_tenant("b");
    insta::assert_snapshot!(scenario.text());
}

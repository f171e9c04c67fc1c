//! A large gang waits for ever, because small jobs take every GPU that gets free. Here it gets a place and a time, short jobs run there meanwhile,
//! longer ones do not, and it starts in time.

use crate::story::{Story, gang, tenant};
use muster_model::GpuModel::H100;
use muster_model::{JobId, JobSpec};

#[test]
fn a_gang_of_the_whole_fleet_starts_when_it_was_promised_while_small_jobs_keep_coming() {
    let mut story = Story::new("4x8:h100", vec![tenant("org", &[], &[])], 0);
    let limited = |gpus, min: u64| JobSpec { time_limit_s: Some(60 * min), ..gang("org", 1, gpus, H100) };
    let small: Vec<JobId> = (1..=4).map(|n| story.submit(&format!("small {n}"), limited(8, 30 * n), None)).collect();
    story.pass(300);
    let large = story.submit("large", gang("org", 4, 8, H100), Some(3_600));
    story.pass(60);
    story.explain(large);
    let promised_ms = story.state.jobs[&large].reserved.as_ref().expect("a reservation").start_ms;
    // One job comes every ten minutes: half of them short, half of them too long to be over in time.
    let mut came = Vec::new();
    for n in 0..12 {
        story.pass(600);
        let minutes = if n % 2 == 0 { 20 } else { 300 };
        came.push(story.submit(&format!("later {n}, {minutes} min"), limited(8, minutes), None));
    }
    story.pass(3_600);
    let job = &story.state.jobs.get(&large);
    let started_ms = job.map_or(0, |job| job.started_ms.expect("it runs"));
    assert!(started_ms <= promised_ms, "started at {started_ms}, promised at {promised_ms}");
    assert!(small.iter().all(|job| !story.runs(*job)));
    insta::assert_snapshot!(story.text());
}

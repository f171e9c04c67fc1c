//! What-if with other assumptions and other rules: predicted run times, ways of choosing places, classes of jobs and devices.

use crate::cluster::{Cluster, at_once, pool, tenant, whole};
use muster_model::request::SharingMode;
use muster_model::{Asked, DeviceClass, JobSpec, PriorityClass};
use muster_twin::PlacementPolicy;
use muster_twin::what_if::{Answer, Edit, Question, RunTimeBasis, Start, ask};
use std::collections::BTreeSet;

const HOUR_S: u64 = 3_600;

fn cluster(shape: &str) -> Cluster {
    let mut cluster = Cluster::new(shape, pool(&[SharingMode::Whole]));
    cluster.tenants(vec![tenant("research", 0, 0)]);
    cluster
}

/// In how many seconds the only job that waits starts, with its run times assumed so.
fn starts_in_s(cluster: &Cluster, run_times: RunTimeBasis) -> (u64, String) {
    let mut question = cluster.question(vec![Edit::Placement(PlacementPolicy::Topology)], Vec::new(), 2 * HOUR_S);
    question.options.run_times = run_times;
    let answer = ask(&question).expect("an answer");
    let starts = answer.unchanged.iter().find_map(|line| match line.after {
        Start::Starts { in_s } => Some(in_s),
        _ => None,
    });
    (starts.unwrap_or_else(|| panic!("it never starts: {answer:?}")), answer.basis[0].clone())
}

#[test]
fn predicted_run_times_are_nearer_to_what_then_happens_than_time_limits() {
    let mut cluster = cluster("1x8:h100");
    cluster.limit_percent = 7;
    let none = starts_in_s_basis(&cluster);
    assert!(none.contains("no run time can be predicted, since too few jobs of their tenants have ended"), "{none}");
    for _ in 0..20 {
        cluster.submit(whole("research", 1, 8, 2_000));
    }
    let end_ms = cluster.now_ms + 20 * 150_000;
    cluster.run_until(end_ms);
    cluster.submit(whole("research", 1, 8, 2_000));
    let waits = cluster.submit(whole("research", 1, 8, 2_000));
    let now_ms = cluster.now_ms + 40_000;
    cluster.run_until(now_ms);

    let (by_limits_s, _) = starts_in_s(&cluster, RunTimeBasis::Limits);
    let (predicted_s, basis) = starts_in_s(&cluster, RunTimeBasis::Predicted);
    assert!(basis.starts_with("2 run times are predicted from earlier jobs of their tenants (half of such predictions were off by a factor of at most 1.50)"), "{basis}");
    cluster.run_until(now_ms + 1_000_000);
    let started_s = (cluster.starts[&waits][0] - now_ms) / 1_000;
    assert!(by_limits_s > 1_900, "{by_limits_s}");
    // A prediction is as exact as a twentieth of the time limit.
    assert!(started_s.abs_diff(predicted_s) <= 100, "predicted {predicted_s} s, started after {started_s} s");
}

/// What is said of run times where nothing runs.
fn starts_in_s_basis(cluster: &Cluster) -> String {
    let mut question = cluster.question(Vec::new(), at_once([whole("research", 1, 8, 2_000)]), HOUR_S);
    question.options.run_times = RunTimeBasis::Predicted;
    ask(&question).expect("an answer").basis[0].clone()
}

/// A job of four cards on the second of two nodes, the first is free; then four and eight cards come.
fn beside_four(policy: PlacementPolicy) -> Answer {
    let mut cluster = cluster("2x8:h100");
    let first = cluster.submit(whole("research", 1, 8, 60));
    cluster.submit(whole("research", 1, 4, 100 * HOUR_S));
    let later_ms = cluster.now_ms + 120_000;
    cluster.run_until(later_ms);
    assert!(!cluster.state.jobs.contains_key(&first), "the first has ended");
    let workload = at_once([whole("research", 1, 4, HOUR_S), whole("research", 1, 8, HOUR_S)]);
    cluster.ask(vec![Edit::Placement(policy)], workload, HOUR_S / 2)
}

#[test]
fn another_way_of_choosing_places_is_compared_with_the_fleets() {
    let answer = beside_four(PlacementPolicy::FirstFit);
    assert_eq!(answer.edits, ["places are chosen first-fit: nodes in the order of their ids, the network unseen"]);
    let loses: Vec<_> = answer.loses.iter().map(|line| (line.workload, &line.before, &line.after)).collect();
    assert_eq!(loses, [(Some(2), &Start::Starts { in_s: 0 }, &Start::Waits)]);
    let answer = beside_four(PlacementPolicy::BestFit);
    assert!(answer.loses.is_empty() && answer.gains.is_empty(), "{answer:?}");
}

#[test]
fn a_priority_class_lets_its_jobs_preempt_and_sets_what_is_submitted_then() {
    let mut cluster = cluster("1x8:h100");
    let batch = cluster.submit(whole("research", 1, 8, 10 * HOUR_S));
    let later_ms = cluster.now_ms + 60_000;
    cluster.run_until(later_ms);
    let urgent = JobSpec { priority_class: Some("production".to_owned()), ..whole("research", 1, 8, HOUR_S) };
    let class = PriorityClass {
        name: "production".to_owned(),
        priority: 1_000,
        preempts: ["default".to_owned()].into(),
        tenants: BTreeSet::new(),
    };
    let answer = cluster.ask(vec![Edit::PriorityClass(class)], at_once([urgent]), HOUR_S / 2);
    assert_eq!(answer.edits, ["priority class production as in the file"]);
    let evicted: Vec<_> = answer.evicted.iter().map(|evicted| evicted.job.job).collect();
    assert_eq!(evicted, [Some(batch)]);
    let [gains] = &answer.gains[..] else { panic!("{:?}", answer.gains) };
    assert!(matches!(&gains.before, Start::Refused { why } if why.contains("production")), "{:?}", gains.before);
    assert!(matches!(gains.after, Start::Starts { .. }), "{:?}", gains.after);
}

#[test]
fn a_device_class_counts_for_what_is_submitted_then() {
    let cluster = cluster("1x8:h100");
    let asks = Asked { device_class: Some("large".to_owned()), ..Asked::default() };
    let job = JobSpec { asked: asks, ..whole("research", 1, 1, HOUR_S) };
    let class = DeviceClass {
        name: "large".to_owned(),
        selector: "device.memory_mib >= 80000".parse().expect("a selector"),
        tenants: BTreeSet::new(),
    };
    let Question { edits, .. } = cluster.question(vec![Edit::DeviceClass(class)], Vec::new(), HOUR_S);
    let answer = cluster.ask(edits, at_once([job]), HOUR_S);
    let [gains] = &answer.gains[..] else { panic!("{:?}", answer.gains) };
    assert!(matches!(&gains.before, Start::Refused { why } if why.contains("large")), "{:?}", gains.before);
    assert_eq!(gains.after, Start::Starts { in_s: 0 });
}

//! Quota trees from training days, draws of whole days, queues to compare with, and what is measured of floors.

mod common;

use common::job;
use muster_model::GpuModel;
use muster_model::tenant::TenantSpec;
use muster_twin::bootstrap::{Bootstrap, bootstrap};
use muster_twin::fleet::Fleet;
use muster_twin::import::{Trace, TraceJob};
use muster_twin::queue::QueueChoice;
use muster_twin::report::Report;
use muster_twin::shape::ShapeOptions;
use muster_twin::training::{NODE_GPUS, Trained, Training};
use muster_twin::{Options, ReplayInput, replay_under};
use proptest::prelude::*;

const DAY_S: u64 = 86_400;

fn trace(mut jobs: Vec<TraceJob>) -> Trace {
    jobs.sort_by_key(|job| job.submit_s);
    Trace { jobs, ..Trace::default() }
}

const TRAINING: Training =
    Training { from_day: 0, days: 4, quantile_permille: 750, fill_percent: 85, max_factor: 3, organisations: 2 };

#[test]
fn a_tree_follows_from_the_training_days_alone() {
    // a holds 24 cards all the time, b 8, c comes only afterwards.
    let training = [job("a", 0, 4 * DAY_S, 24), job("b", 0, 4 * DAY_S, 8)];
    let late = |gpus| job("c", 5 * DAY_S, DAY_S, gpus);
    let learn = |gpus| Trained::of(&trace(training.iter().cloned().chain([late(gpus)]).collect()), &TRAINING);
    let trained = learn(8);
    assert_eq!(trained, learn(64), "what comes after the training days changes the tree");
    // 32 cards fill 85 % of 5 nodes: 8 to each tenant, the other 16 by 24 to 8 to 0.
    assert_eq!(trained.nodes, 5);
    let found: Vec<_> =
        trained.teams.iter().map(|team| (team.path.as_str(), team.guarantee_gpus, team.max_gpus)).collect();
    assert_eq!(found, [("org-1/a", 20, 40), ("org-1/c", 8, 24), ("org-2/b", 12, 36)]);
    let tree = trained.tree(GpuModel::H100);
    let organisations = tree.iter().filter(|spec| !spec.path.contains('/'));
    let sum: f64 = organisations.map(|spec| spec.guarantee.gpu_total().as_cards()).sum();
    assert!((sum - (5 * NODE_GPUS) as f64).abs() < 1e-9, "{sum}");
}

/// Who holds a fleet of one node with two tenants of four cards each: a takes all of it, b comes for its floor an hour later.
fn lent(queue: QueueChoice, tree: &[TenantSpec]) -> Report {
    let mut jobs: Vec<TraceJob> = (0..8).map(|n| job("org-1/a", n, 10 * 3_600, 1)).collect();
    jobs.push(job("org-2/b", 3_600, 3_600, 4));
    let options = Options {
        queue,
        shape: ShapeOptions { grace_s: Some(60), ..ShapeOptions::default() },
        cool_down_s: 600,
        checkpoint_s: 1_800,
        ..Options::default()
    };
    let fleet = Fleet::parse_shorthand("1x8:h100").expect("a fleet");
    let input = ReplayInput { title: "lent".to_owned(), trace: trace(jobs), fleet, options };
    replay_under(&input, tree, None, &mut |_, _| {}).expect("a report")
}

fn two_teams() -> Trained {
    let jobs = vec![job("a", 0, 4 * DAY_S, 4), job("b", 0, 4 * DAY_S, 4)];
    let mut trained = Trained::of(&trace(jobs), &TRAINING);
    for team in &mut trained.teams {
        (team.guarantee_gpus, team.max_gpus) = (4, 8);
    }
    trained
}

fn longest_below(report: &Report, path: &str) -> f64 {
    let floors = &report.fairness.as_ref().expect("there are guarantees").floors;
    floors.iter().find(|row| row.path == path).expect("it has a floor").waited_longest_s
}

#[test]
fn a_floor_is_lent_and_taken_back_within_the_grace() {
    let report = lent(QueueChoice::Tree, &two_teams().tree(GpuModel::H100));
    // Burst has run for longer than its cool-down: the grace and a second to stop.
    assert!((longest_below(&report, "org-2/b") - 61.0).abs() < 1e-9, "{report:?}");
    assert_eq!(report.usage.preempted_attempts, 4);
    assert_eq!(report.jobs.completed, 9);
    // Each of the four had run for an hour (but for seconds) with a checkpoint each half hour; the last half hour and the grace are lost.
    assert!((1.9..2.1).contains(&report.usage.lost_to_preemption_gpu_h), "{:?}", report.usage);
}

#[test]
fn without_quota_the_floor_waits_and_without_borrowing_half_of_the_fleet_is_idle() {
    let trained = two_teams();
    let fifo = lent(QueueChoice::Fifo, &trained.tree(GpuModel::H100));
    assert!(longest_below(&fifo, "org-2/b") > 8.0 * 3_600.0, "{:?}", fifo.fairness);
    assert_eq!((fifo.usage.preempted_attempts, fifo.jobs.completed), (0, 9));

    let split = lent(QueueChoice::Tree, &trained.tree_without_borrowing(GpuModel::H100));
    assert_eq!(longest_below(&split, "org-2/b"), 0.0);
    assert_eq!(split.usage.preempted_attempts, 0);
    assert!((split.usage.peak_gpus - 8.0).abs() < 1e-9);
    assert!(split.usage.makespan_h.expect("all ended") > fifo.usage.makespan_h.expect("all ended"));
}

#[test]
fn strict_priority_serves_the_largest_guarantee_first() {
    let mut trained = two_teams();
    for team in &mut trained.teams {
        team.guarantee_gpus = if team.path == "org-2/b" { 5 } else { 3 };
    }
    let report = lent(QueueChoice::StrictPriority, &trained.tree(GpuModel::H100));
    assert_eq!((report.usage.preempted_attempts, report.jobs.completed), (4, 9));
    // The other way round b waits until a has ended.
    for team in &mut trained.teams {
        team.guarantee_gpus = if team.path == "org-2/b" { 3 } else { 5 };
    }
    let report = lent(QueueChoice::StrictPriority, &trained.tree(GpuModel::H100));
    assert_eq!(report.usage.preempted_attempts, 0);
}

proptest! {
    #[test]
    fn a_draw_keeps_jobs_whole_and_grows_with_the_load(
        jobs in prop::collection::vec((0..3_usize, 0..10 * DAY_S, 1..100_000_u64, 1..64_u32), 1..60),
        seed in 0..1_000_u64,
    ) {
        let names = ["a", "b", "c"];
        let jobs = jobs.into_iter().map(|(tenant, at_s, length_s, gpus)| job(names[tenant], at_s, length_s, gpus));
        let recorded = trace(jobs.collect());
        let draw = |load_permille| bootstrap(&recorded, &Bootstrap { from_day: 2, from_days: 5, days: 6, load_permille, seed });
        let (one, two) = (draw(1_000), draw(2_000));
        prop_assert_eq!(&draw(1_000).jobs, &one.jobs);
        let what = |job: &TraceJob| (job.tenant.clone(), job.duration_s, job.gpu_milli());
        let first_day = recorded.jobs[0].submit_s / DAY_S;
        let test_days = first_day + 2..first_day + 7;
        for job in &two.jobs {
            prop_assert!(job.submit_s < 6 * DAY_S);
            let same = |there: &&TraceJob| what(there) == what(job) && test_days.contains(&(there.submit_s / DAY_S));
            prop_assert!(recorded.jobs.iter().any(|there| same(&there)), "{:?} was never recorded in the test days", job);
        }
        let mut left: Vec<_> = two.jobs.iter().map(|job| (job.submit_s, what(job))).collect();
        for job in &one.jobs {
            let at = left.iter().position(|there| *there == (job.submit_s, what(job)));
            prop_assert!(at.is_some(), "drawn at once the load and not at twice");
            left.swap_remove(at.unwrap_or(0));
        }
    }
}

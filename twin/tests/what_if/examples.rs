//! The worked examples of what-if, each with its numbers: buy or pack.

use crate::cluster::{Cluster, at_once, needs, pool, tenant, whole};
use muster_model::request::SharingMode;
use muster_model::{JobSpec, Pool, WorkloadClass};
use muster_twin::what_if::{Answer, Edit, ModelState, Start, Submission};

const HOUR_S: u64 = 3_600;
const ALL: [SharingMode; 4] = [SharingMode::Whole, SharingMode::Mig, SharingMode::Mps, SharingMode::TimeSlice];

/// A fleet whose pool gives whole cards only.
fn whole_cards_only(shape: &str) -> Cluster {
    let mut cluster = Cluster::new(shape, pool(&[SharingMode::Whole]));
    cluster.tenants(vec![tenant("research", 0, 0)]);
    cluster
}

/// What becomes of the workload when the pool has these rules instead.
fn packed(cluster: &Cluster, pool: Pool, workload: &[Submission]) -> Answer {
    cluster.ask(vec![Edit::Pool(pool)], workload.to_vec(), HOUR_S)
}

fn waiting_without(answer: &Answer) -> usize {
    let lines = answer.gains.iter().chain(&answer.loses).chain(&answer.unchanged);
    lines.filter(|line| line.before == Start::Waits).count()
}

fn needed(answer: &Answer) -> (u64, u64) {
    (answer.models[0].before.needed, answer.models[0].after.needed)
}

#[test]
fn five_jobs_of_fifteen_percent_five_cards_before_one_h100_after() {
    let cluster = whole_cards_only("1x8:h100");
    let workload = at_once((0..5).map(|_| needs("research", 8_192, 15, false)));
    let answer = packed(&cluster, pool(&ALL), &workload);
    assert_eq!(needed(&answer), (5, 1));
    // Five cards are allocated for three quarters of one.
    let state = |needed, allocated| ModelState { cards: 8, needed, allocated, used: 0.75 };
    assert_eq!(answer.models[0].before, state(5, 5.0));
    assert_eq!(answer.models[0].after, state(1, 1.0));
    assert!(answer.gains.is_empty() && answer.loses.is_empty() && answer.waiting.is_empty(), "all start in both");
    assert_eq!(answer.unchanged.len(), 5);
}

#[test]
fn jobs_that_run_on_whole_cards_need_one_card_under_the_other_rules_and_keep_theirs_until_then() {
    let mut cluster = whole_cards_only("1x8:h100");
    for _ in 0..5 {
        cluster.submit(needs("research", 8_192, 15, false));
    }
    cluster.run_until(cluster.now_ms + 60_000);
    let answer = packed(&cluster, pool(&ALL), &[]);
    assert_eq!((answer.models[0].in_use, needed(&answer)), (5, (5, 1)));
    assert!((answer.models[0].after.allocated - 5.0).abs() < 0.01, "nobody is moved: {:?}", answer.models);
    assert!(answer.evicted.is_empty());
}

#[test]
fn ten_a100_hold_four_trainings_twenty_models_and_thirty_notebooks() {
    let cluster = whole_cards_only("1x10:a100-80");
    let training = JobSpec { class: WorkloadClass::Training, ..whole("research", 1, 4, 86_400) };
    let models = |count| (0..count).map(|_| needs("research", 10_240, 0, false));
    // Ten of them with their contexts, and the driver, fill a card.
    let notebooks = (0..30).map(|_| needs("research", 7_680, 5, true));
    let jobs: Vec<JobSpec> = std::iter::once(training).chain(models(20)).chain(notebooks).collect();
    let rules = Pool { time_slice_replicas: 10, ..pool(&ALL) };
    let answer = packed(&cluster, rules.clone(), &at_once(jobs.clone()));
    assert_eq!(needed(&answer), (54, 10));
    assert_eq!((waiting_without(&answer), answer.waiting.len()), (44, 0));
    // Three cards have twenty-one sevenths: one is spare, and the next model waits.
    for (more, waits) in [(1, 0), (2, 1)] {
        let workload = at_once(jobs.clone().into_iter().chain(models(more)));
        assert_eq!(packed(&cluster, rules.clone(), &workload).waiting.len(), waits, "{more} more");
    }
}

/// Sixteen trainings, twelve inferences at 15 % and eight notebooks at 5 %.
fn thirty_six() -> Vec<JobSpec> {
    let training = (0..16).map(|_| whole("research", 1, 1, 86_400));
    let inference = (0..12).map(|_| needs("research", 8_192, 15, false));
    training.chain(inference).chain((0..8).map(|_| needs("research", 4_096, 5, true))).collect()
}

#[test]
fn of_thirty_six_requests_on_thirty_two_cards_four_wait_and_packed_they_need_twenty() {
    let cluster = whole_cards_only("4x8:h100");
    let answer = packed(&cluster, pool(&ALL), &at_once(thirty_six()));
    assert_eq!((waiting_without(&answer), answer.waiting.len()), (4, 0));
    assert_eq!(needed(&answer), (36, 20));
    assert_eq!(answer.gains.len(), 4);
    // Buying helps too: one node more, and the four start.
    let bought = Edit::AddNodes("1x8:h100".parse().expect("nodes"));
    let answer = cluster.ask(vec![bought], at_once(thirty_six()), HOUR_S);
    assert_eq!((needed(&answer), answer.gains.len(), answer.waiting.len()), ((36, 36), 4, 0));
    assert_eq!((answer.models[0].before.cards, answer.models[0].after.cards), (32, 40));
}

#[test]
fn the_four_that_wait_say_why_and_a_policy_changes_nothing_for_what_was_accepted() {
    let mut cluster = whole_cards_only("4x8:h100");
    for job in thirty_six() {
        cluster.submit(job);
    }
    cluster.run_until(cluster.now_ms + 60_000);
    let answer = packed(&cluster, pool(&ALL), &[]);
    assert_eq!((needed(&answer), answer.models[0].in_use), ((36, 20), 32));
    assert_eq!(answer.waiting.len(), 4, "an accepted job keeps what was chosen for it");
    let why = answer.waiting[0].why.as_ref().expect("a reason");
    assert_eq!(why.code, "no_free_gpus");
    assert!(why.text.contains("0 of 32 h100 are free"), "{}", why.text);
}

#[test]
fn a_workload_alone_is_the_change() {
    let mut cluster = whole_cards_only("1x8:h100");
    cluster.submit(whole("research", 1, 8, 1_000));
    let waits = cluster.submit(whole("research", 1, 8, 1_000));
    cluster.run_until(cluster.now_ms + 100_000);
    let answer = cluster.ask(Vec::new(), at_once([whole("research", 1, 8, 1_000)]), HOUR_S);
    assert_eq!(answer.edits, ["1 job submitted"]);
    // The one that waits has its place reserved: nobody loses, and the new one comes after it.
    assert!(answer.gains.is_empty() && answer.loses.is_empty(), "{answer:?}");
    let [old, new] = &answer.unchanged[..] else { panic!("{:?}", answer.unchanged) };
    assert_eq!((old.job, &old.after), (Some(waits), &Start::Starts { in_s: 901 }));
    assert_eq!((new.workload, &new.before), (Some(1), &Start::Absent));
    assert_eq!(new.after, Start::Starts { in_s: 1_902 }, "{:?}", new.after);
}

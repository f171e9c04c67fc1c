//! The whole system under faults, seed by seed. Spread over several tests so that they share the cores.

use muster_chaos::coverage::Coverage;
use muster_chaos::fleet::{self, Planted};
use muster_chaos::seeds;
use muster_control_core::events::{Header, Line};
use std::cell::RefCell;

/// The independent judge of fairness, as the random histories of the simulator use it.
#[path = "../../twin/tests/histories/referee.rs"]
mod referee;

/// A log as text.
fn text(header: &Header, lines: &[Line]) -> String {
    let mut text = serde_json::to_string(header).expect("JSON");
    for line in lines {
        text.push('\n');
        text.push_str(&serde_json::to_string(line).expect("JSON"));
    }
    text.push('\n');
    text
}

/// Every run keeps the laws, and the referee accepts the event logs that an operator exported while it went on.
fn check_and_judge(test: &str, first: u64, usual: u64) -> Coverage {
    let logs = RefCell::new(Vec::new());
    let coverage = seeds::check(test, first, usual, |seed, trace| {
        let outcome = fleet::run_seed(seed, trace);
        let records = outcome.event_logs.iter();
        let texts = records.filter_map(|record| Some(text(record.header.as_ref()?, &record.lines)));
        logs.borrow_mut().extend(texts.map(|text| (seed, text)));
        outcome
    });
    let (of_seeds, logs): (Vec<u64>, Vec<String>) = logs.into_inner().into_iter().unzip();
    assert!(!logs.is_empty(), "no run exported its events");
    let found = referee::judge(&logs).unwrap_or_default();
    let unfair: Vec<(&u64, &Vec<String>)> =
        of_seeds.iter().zip(&found).filter(|(_, found)| !found.is_empty()).collect();
    if let Some((seed, _)) = unfair.first() {
        let which = found.iter().position(|found| !found.is_empty()).expect("its log is there");
        let file = std::env::temp_dir().join(format!("muster-events-of-seed-{seed}.jsonl"));
        std::fs::write(&file, &logs[which]).expect("a file for the log");
        panic!("{test}: the referee finds (the log of the first is in {}): {unfair:#?}", file.display());
    }
    coverage
}

#[test]
fn the_fleet_keeps_the_laws_a() {
    let coverage = check_and_judge("the_fleet_keeps_the_laws_a", 0, 40);
    if !seeds::are_fewer_than(40) {
        assert_eq!(coverage.missing(), [] as [&str; 0], "the runs never came across these");
    }
}

#[test]
fn the_fleet_keeps_the_laws_b() {
    check_and_judge("the_fleet_keeps_the_laws_b", 100_000, 16);
}

#[test]
fn the_fleet_goes_on_from_a_backup() {
    seeds::check("the_fleet_goes_on_from_a_backup", 0, 24, fleet::restored::run_seed);
}

/// The provider is away for longer than a session lasts, and nothing else is wrong: then no node is given up, and no task ends but by itself, by its
/// limit, for another job or because its client asked.
#[test]
fn no_task_ends_while_the_identity_provider_is_away() {
    let closed = |seed: &u64| fleet::is_closed(*seed);
    let mut coverage = Coverage::default();
    for seed in (0..).filter(closed).take(3) {
        let outcome = fleet::run_calm(seed, false);
        assert!(outcome.is_good(), "{outcome}");
        println!("{outcome}");
        coverage.add(&outcome.coverage);
    }
    println!("{:?}", coverage.0);
    for never in ["tasks fenced", "stops for a lost node", "nodes silent", "agents turned away", "machines suspended"] {
        assert_eq!(coverage.0.get(never), None, "{never}");
    }
    for always in ["jobs completed", "sessions refused after their end while the provider was away"] {
        assert!(coverage.0.contains_key(always), "{always}: {:?}", coverage.0);
    }
}

#[test]
fn a_seed_of_the_fleet_runs_the_same_again() {
    for seed in [1, 2, 3] {
        let (one, other) = (fleet::run_seed(seed, true), fleet::run_seed(seed, true));
        let parts = one.trace.iter().zip(&other.trace).position(|(one, other)| one != other);
        if let Some(at) = parts {
            panic!("seed {seed} parts at event {at}:\n  {}\n  {}", one.trace[at], other.trace[at]);
        }
        assert_eq!(one.trace_hash, other.trace_hash);
    }
}

/// A planted bug is found when a run breaks the law that forbids it, or panics over it.
fn check_found(planted: Planted, law: &str) {
    let found = (0..40).find(|seed| {
        let run = std::panic::catch_unwind(|| fleet::run_planted(*seed, planted));
        run.map_or(true, |outcome| outcome.violations.iter().any(|violation| violation.law == law))
    });
    assert!(found.is_some(), "{planted:?} stays unseen");
}

#[test]
fn syncs_that_lie_are_found() {
    check_found(Planted::LyingDisks, "law 5");
}

#[test]
fn tasks_that_outlive_their_fence_are_found() {
    check_found(Planted::NoFences, "law 6");
}

#[test]
fn two_agents_that_cannot_be_told_apart_are_found() {
    check_found(Planted::ForgedAgents, "law 6");
}

#[test]
fn what_a_deleted_folder_leaves_running_is_found() {
    check_found(Planted::StraysLive, "law 6");
}

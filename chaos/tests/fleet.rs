//! The whole system under faults, seed by seed. Spread over several tests so that they share the cores.

use muster_chaos::fleet::{self, Planted};
use muster_chaos::seeds;

#[test]
fn the_fleet_keeps_the_laws_a() {
    let coverage = seeds::check("the_fleet_keeps_the_laws_a", 0, 40, fleet::run_seed);
    if !seeds::are_fewer_than(40) {
        assert_eq!(coverage.missing(), [] as [&str; 0], "the runs never came across these");
    }
}

#[test]
fn the_fleet_keeps_the_laws_b() {
    seeds::check("the_fleet_keeps_the_laws_b", 100_000, 40, fleet::run_seed);
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

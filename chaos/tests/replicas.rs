//! Three voters alone under faults: the laws of consensus and of the state machine, seed by seed.

use muster_chaos::{replicas, seeds};

#[test]
fn three_voters_keep_the_laws() {
    seeds::check("three_voters_keep_the_laws", 0, 120, replicas::run_seed);
}

#[test]
fn voters_are_replaced_under_faults() {
    seeds::check("voters_are_replaced_under_faults", 0, 60, replicas::run_seed_with_replacements);
}

#[test]
fn a_seed_of_three_voters_runs_the_same_again() {
    for seed in [1, 2, 3] {
        let (one, other) = (replicas::run_seed(seed, true), replicas::run_seed(seed, true));
        let parts = one.trace.iter().zip(&other.trace).position(|(one, other)| one != other);
        if let Some(at) = parts {
            panic!("seed {seed} parts at event {at}:\n  {}\n  {}", one.trace[at], other.trace[at]);
        }
        assert_eq!(one.trace_hash, other.trace_hash);
    }
}

/// A planted bug: acknowledged before it is durable. A run that panics has found it as well.
#[test]
fn syncs_that_lie_are_found() {
    let found = (0..20).find(|seed| {
        let run = std::panic::catch_unwind(|| replicas::run_on_lying_disks(*seed));
        run.map_or(true, |outcome| outcome.violations.iter().any(|violation| violation.law == "law 5"))
    });
    assert!(found.is_some(), "lost acknowledgements stay unseen");
}

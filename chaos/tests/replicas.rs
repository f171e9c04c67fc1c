//! Three voters alone under faults: the laws of consensus and of the state machine, seed by seed.

use muster_chaos::{replicas, seeds};
use muster_control_server::PlantedBug;

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

/// Seeds in which a planted bug breaks `law`; stops at the first.
fn finds(bug: PlantedBug, law: &str, seeds: u64) -> Option<u64> {
    (0..seeds).find(|seed| {
        let outcome = replicas::run_planted(*seed, bug);
        let found = outcome.violations.iter().find(|violation| violation.law == law);
        found.inspect(|violation| println!("seed {seed}: {violation}")).is_some()
    })
}

/// A planted bug: a leader that lost power leads on in its old term, and serves reads by a commit mark that lies behind.
#[test]
fn leadership_that_is_resumed_is_found() {
    assert!(
        finds(PlantedBug::LeadershipResumed, "linearizable operations", 60).is_some(),
        "reads that miss acknowledged jobs stay unseen"
    );
}

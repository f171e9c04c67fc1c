//! The whole system under faults, seed by seed. Spread over several tests so that they share the cores.

use muster_chaos::{fleet, seeds};

#[test]
fn the_fleet_keeps_the_laws_a() {
    seeds::check("the_fleet_keeps_the_laws_a", 0, 60, fleet::run_seed);
}

#[test]
fn the_fleet_keeps_the_laws_b() {
    seeds::check("the_fleet_keeps_the_laws_b", 100_000, 60, fleet::run_seed);
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

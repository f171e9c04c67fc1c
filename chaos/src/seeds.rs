//! Many seeds as one test, and one seed again.
//!
//! `MUSTER_SIM_SEEDS=1000` runs so many seeds in each test instead of its usual number; `MUSTER_SIM_SEED=7` runs that one only,
//! with `MUSTER_SIM_TRACE=1` its trace is printed as well.

use crate::Outcome;
use crate::coverage::Coverage;

/// Whether the environment asks for fewer seeds than usual, so that what those come across cannot be expected.
#[must_use]
pub fn are_fewer_than(usual: u64) -> bool {
    from_env("MUSTER_SIM_SEED").is_some() || from_env("MUSTER_SIM_SEEDS").is_some_and(|seeds| seeds < usual)
}

/// A number from the environment.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs `usual` seeds from `first` on (or what the environment asks for).
///
/// # Panics
/// When a run breaks a law: with what it broke, and the command that runs that seed again.
pub fn check(test: &str, first: u64, usual: u64, run_seed: impl Fn(u64, bool) -> Outcome) -> Coverage {
    let (seeds, trace) = match from_env("MUSTER_SIM_SEED") {
        Some(seed) => (seed..seed + 1, from_env("MUSTER_SIM_TRACE") == Some(1)),
        None => (first..first + from_env("MUSTER_SIM_SEEDS").unwrap_or(usual), false),
    };
    let (mut acknowledged, mut tasks, mut coverage) = (0, 0, Coverage::default());
    for seed in seeds.clone() {
        let again = Again { test, seed };
        let outcome = run_seed(seed, trace);
        std::mem::forget(again);
        outcome.trace.iter().for_each(|line| println!("{line}"));
        assert!(outcome.is_good(), "{outcome}\nrun it again: {}", command(test, seed));
        println!("{outcome}");
        acknowledged += outcome.acknowledged;
        tasks += outcome.runs;
        coverage.add(&outcome.coverage);
    }
    println!("{test}: seeds {seeds:?}, {acknowledged} submissions, {tasks} tasks: every law held");
    println!("{test} came across {:?}", coverage.0);
    coverage
}

/// Names the seed when the run itself panics.
struct Again<'a> {
    test: &'a str,
    seed: u64,
}

impl Drop for Again<'_> {
    fn drop(&mut self) {
        eprintln!("seed {} panicked; run it again: {}", self.seed, command(self.test, self.seed));
    }
}

fn command(test: &str, seed: u64) -> String {
    format!("MUSTER_SIM_SEED={seed} cargo test -p muster-chaos {test} -- --nocapture")
}

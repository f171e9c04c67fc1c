//! `muster bench`: hands the flags to the benchmarks.

use crate::args::bench::{Bench, What};
use crate::failure::Failure;
use muster_bench::{decisions, failover, lifecycle, stall, submissions};

/// Runs one benchmark.
///
/// # Errors
/// When the cluster cannot be started or answers unexpectedly.
pub async fn run(bench: &Bench) -> Result<(), Failure> {
    let muster = std::env::current_exe().map_err(|error| Failure::io("finding this binary", error))?;
    let under = &bench.under;
    let done = match &bench.what {
        What::Decisions { nodes, decisions, seed } => {
            let options = decisions::Options { nodes: nodes.clone(), decisions: *decisions, seed: *seed };
            decisions::run(&options, bench.json)
        }
        What::Submissions { clients, seconds, batch } => {
            let options = submissions::Options { clients: clients.clone(), seconds: *seconds, batch: *batch };
            submissions::run(&muster, under, &options, bench.json).await
        }
        What::Lifecycle { nodes, jobs, rate, seconds } => {
            let options =
                lifecycle::Options { nodes: *nodes, jobs: *jobs, rate_per_s: *rate, seconds: *seconds };
            lifecycle::run(&muster, under, &options, bench.json).await
        }
        What::Failover { rounds } => failover::run(&muster, under, *rounds, bench.json).await,
        What::Stall { jobs } => stall::run(&muster, under, *jobs, bench.json).await,
    };
    done.map_err(Failure::Role)
}

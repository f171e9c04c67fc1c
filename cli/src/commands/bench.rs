//! `muster bench`: hands the flags to the benchmarks.

use crate::args::bench::{Bench, Packing, What};
use crate::failure::Failure;
use anyhow::Context;
use muster_bench::{decisions, failover, lifecycle, packing, passes, plans, stall, submissions};
use std::path::Path;

/// Runs one benchmark, or all of them.
///
/// # Errors
/// When the cluster cannot be started or answers unexpectedly.
pub fn run(bench: &Bench) -> Result<(), Failure> {
    let muster = std::env::current_exe().map_err(|error| Failure::io("finding this binary", error))?;
    // The clients of a load run beside the fleet's own processes: two threads, as the machine that figures are quoted for has cores.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::io("starting", error))?;
    let all =
        [What::decisions(), What::passes(), What::submissions(), What::lifecycle(), What::failover(), What::stall()];
    let chosen = match &bench.what {
        What::All => &all[..],
        one => std::slice::from_ref(one),
    };
    for what in chosen {
        runtime.block_on(one(&muster, bench, what)).map_err(Failure::Role)?;
    }
    Ok(())
}

async fn one(muster: &Path, bench: &Bench, what: &What) -> anyhow::Result<()> {
    let under = &bench.under;
    match what {
        What::All => Ok(()),
        What::Decisions { nodes, decisions, seed, mix } => {
            let options =
                decisions::Options { nodes: nodes.clone(), decisions: *decisions, seed: *seed, mixes: mix.clone() };
            decisions::run(&options, bench.json)
        }
        What::Passes { nodes, waiting, seed } => {
            passes::run(&passes::Options { nodes: nodes.clone(), waiting: *waiting, seed: *seed }, bench.json)
        }
        What::Plans { nodes, share } => plans::run(nodes, *share, bench.json),
        What::Submissions { clients, seconds, batch } => {
            let options = submissions::Options { clients: clients.clone(), seconds: *seconds, batch: *batch };
            submissions::run(muster, under, &options, bench.json).await
        }
        What::Lifecycle { nodes, jobs, rate, seconds } => {
            let options = lifecycle::Options { nodes: *nodes, jobs: *jobs, rate_per_s: *rate, seconds: *seconds };
            lifecycle::run(muster, under, &options, bench.json).await
        }
        What::Failover { rounds } => failover::run(muster, under, *rounds, bench.json).await,
        What::Stall { jobs } => stall::run(muster, under, *jobs, bench.json).await,
        What::Packing(flags) => packing(flags, bench.json),
    }
}

fn packing(flags: &Packing, json: bool) -> anyhow::Result<()> {
    let flags = flags.clone();
    let (moves_percent, policy) = (flags.moves, flags.policy.into());
    if let Some(folder) = flags.all {
        let Packing { orders, out: logs, published, .. } = flags;
        return packing::sweep::run(
            &packing::sweep::Sweep { folder, orders, moves_percent, policy, logs, published },
            json,
        );
    }
    let given = "the command line asks for it without --all";
    let options = packing::Options {
        nodes: flags.nodes.context(given)?,
        pods: flags.pods.context(given)?,
        arrivals: flags.arrivals.context(given)?,
        seed: flags.seed.context(given)?,
        node_order: flags.node_order,
        moves_percent,
        policy,
        out: flags.out,
        published: flags.published,
    };
    packing::run(&options, json)
}

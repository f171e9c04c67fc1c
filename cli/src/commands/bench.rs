//! `muster bench`: hands the flags to the benchmarks.

use crate::args::bench::{Bench, BenchTenants, Packing, Quotas, What};
use crate::failure::Failure;
use crate::output::{Colour, Format, Out};
use anyhow::Context;
use muster_bench::table::Table;
use muster_bench::{
    decisions, failover, lifecycle, node, overload, packing, passes, plans, quotas, reclaim, reconnect, scale,
    searches, secure, stall, submissions, tasks, timeline, wan,
};
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
    if bench.secured {
        muster_bench::secured::choose();
    }
    let out = Out::new(Format::Table, Colour::Never);
    let mut found = Vec::new();
    for what in chosen {
        let tables = runtime.block_on(one(&muster, &bench.under, what)).map_err(Failure::Role)?;
        if !bench.json {
            // As they come: the next one may take minutes.
            tables.iter().try_for_each(|table| out.line(&table.text()))?;
        }
        found.extend(tables);
    }
    if bench.json { Out { format: Format::Json, ..out }.show(&found, |_| Vec::new()) } else { Ok(()) }
}

async fn one(muster: &Path, under: &Path, what: &What) -> anyhow::Result<Vec<Table>> {
    match what {
        What::All => Ok(Vec::new()),
        What::Decisions { nodes, decisions, seed, mix } => {
            let options =
                decisions::Options { nodes: nodes.clone(), decisions: *decisions, seed: *seed, mixes: mix.clone() };
            decisions::run(&options)
        }
        What::Passes { nodes, waiting, seed, tenants } => {
            let BenchTenants { teams, users } = *tenants;
            let tenants = decisions::Tenants { teams, users };
            passes::run(&passes::Options { nodes: nodes.clone(), waiting: *waiting, seed: *seed, tenants })
        }
        What::Reclaim { nodes, tasks, rounds, seed, tenants } => {
            let BenchTenants { teams, users } = *tenants;
            let tenants = decisions::Tenants { teams, users };
            let (nodes, tasks) = (nodes.clone(), *tasks);
            reclaim::run(&reclaim::Options { nodes, tasks, rounds: *rounds, seed: *seed, tenants })
        }
        What::Plans { nodes, share } => plans::run(nodes, *share),
        What::Submissions { clients, seconds, batch } => {
            let options = submissions::Options { clients: clients.clone(), seconds: *seconds, batch: *batch };
            submissions::run(muster, under, &options).await
        }
        What::Wan { round_trips, rate, seconds, rounds } => {
            let (round_trips_ms, rate_per_s) = (round_trips.clone(), *rate);
            wan::run(muster, under, &wan::Options { round_trips_ms, rate_per_s, seconds: *seconds, rounds: *rounds })
                .await
        }
        What::Lifecycle { nodes, jobs, rate, seconds } => {
            let options = lifecycle::Options { nodes: *nodes, jobs: *jobs, rate_per_s: *rate, seconds: *seconds };
            lifecycle::run(muster, under, &options).await
        }
        What::TraceOne { nodes, rate, seconds } => {
            let options = timeline::Options { nodes: *nodes, rates_per_s: rate.clone(), seconds: *seconds };
            timeline::run(muster, under, &options).await
        }
        What::Failover { rounds } => failover::run(muster, under, *rounds).await,
        What::Secure { handshakes, connections, agents } => {
            let mut tables = secure::run(secure::Options { handshakes: *handshakes, connections: *connections })?;
            tables.extend(reconnect::run(*agents).await?);
            Ok(tables)
        }
        What::Stall { jobs } => stall::run(muster, under, *jobs).await,
        What::Tasks { rounds, at_once } => {
            tasks::run(muster, under, tasks::Options { rounds: *rounds, at_once: *at_once }).await
        }
        What::Node { rounds, seconds } => {
            node::run(muster, under, node::Options { rounds: *rounds, seconds: *seconds }).await
        }
        What::Searches { nodes, callers, seconds } => {
            let options = searches::Options { nodes: *nodes, callers: *callers, seconds: *seconds };
            searches::run(muster, under, options).await
        }
        What::Scale { nodes, waiting, finished, teams, users, seconds, rounds, spread } => {
            let options = scale::Options {
                nodes: *nodes,
                waiting: *waiting,
                finished: *finished,
                teams: *teams,
                users: *users,
                seconds: *seconds,
                rounds: *rounds,
                spread: *spread,
            };
            scale::run(muster, under, &options).await
        }
        What::Overload { clients, seconds, fault_seconds } => {
            let options = overload::Options { clients: *clients, seconds: *seconds, fault_seconds: *fault_seconds };
            overload::run(muster, under, &options).await
        }
        What::Packing(flags) => packing(flags),
        What::Quotas(flags) => quotas(flags),
    }
}

fn quotas(flags: &Quotas) -> anyhow::Result<Vec<Table>> {
    let flags = flags.clone();
    quotas::run(&quotas::Options {
        traces: flags.traces,
        sources: flags.trace,
        loads_permille: flags.loads,
        seeds: flags.seeds,
        policies: flags.policies,
        days: flags.days,
        warm_days: flags.warm_days,
        drain_days: flags.drain_days,
        limit_percent: flags.time_limits,
        grace_s: flags.grace.0,
        checkpoint_s: flags.checkpoint.0,
        cool_down_s: flags.cool_down.0,
        estimates_every: flags.estimates,
        threads: flags.threads,
        referee: flags.referee,
        logs: flags.logs,
        html: flags.html,
        resume: flags.resume,
        out: flags.out,
    })
}

fn packing(flags: &Packing) -> anyhow::Result<Vec<Table>> {
    let flags = flags.clone();
    let (moves_percent, policy) = (flags.moves, flags.policy.into());
    if let Some(folder) = flags.all {
        let Packing { orders, out: logs, published, .. } = flags;
        return packing::sweep::run(&packing::sweep::Sweep { folder, orders, moves_percent, policy, logs, published });
    }
    let given = "clap requires it without --all";
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
    packing::run(&options)
}

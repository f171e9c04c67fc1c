//! Submissions from more and more clients: where the rate stops growing (the knee), and what becomes of it at three times that.

use super::load::{Found, Running, Work, open_loop};
use super::{Options, Target};
use crate::cluster;
use crate::process::{self, Used};
use crate::table::{Row, Table};
use anyhow::Result;
use std::time::Duration;

/// The knee: doubling the clients brings less than this.
const GROWS: f64 = 1.10;
/// The sweep ends here even when the rate still grows.
const CLIENTS_MAX: u64 = 4_096;
/// Tenants of each step: the bound of a tenant's waiting jobs is far away.
const TENANTS: usize = 64;

pub(super) async fn run(target: &Target, options: &Options) -> Result<Table> {
    let mut rows = Vec::new();
    let mut step = 0;
    let (mut clients, mut best) = (options.clients, 0.0_f64);
    let (mut knee, mut peak) = (options.clients, 0.0_f64);
    loop {
        step += 1;
        let found = closed(target, clients, options.seconds, step).await?;
        rows.push(row(format!("{clients} clients"), &found, target)?);
        let rate = found.per_second();
        let grows = rate > best * GROWS;
        if grows {
            (knee, peak) = (clients, rate);
        }
        best = best.max(rate);
        if !grows || clients >= CLIENTS_MAX {
            break;
        }
        clients *= 2;
    }
    for times in [2, 3] {
        step += 1;
        let found = closed(target, knee * times, options.seconds, step).await?;
        rows.push(row(format!("{} clients: {times} times the knee", knee * times), &found, target)?);
    }
    for times in [1, 2, 3] {
        step += 1;
        let rate = peak * f64::from(times);
        let tenants = tenants(target, step).await?;
        let channels = target.channels(u64::MAX)?;
        let (found, unsent) = open_loop(&channels, &tenants, rate, options.seconds).await;
        let what = format!("{rate:.0} calls/s offered, whatever is answered: {times} times the knee's rate");
        let mut row = row(what, &found, target)?;
        if unsent > 0 {
            row.target = format!("{}; {unsent} not sent", row.target);
        }
        rows.push(row);
    }
    step += 1;
    let found = closed(target, knee, options.seconds, step).await?;
    rows.push(row(format!("{knee} clients again: the knee, on the queue that is there now"), &found, target)?);
    let title =
        "Overload by submissions of one job, 3 replicas with fsync; clients share the processor with the voters";
    Ok(Table::new(title, rows).with_columns([
        "load",
        "accepted",
        "refused, and what was said",
        "leader's memory after",
    ]))
}

async fn tenants(target: &Target, step: u32) -> Result<Vec<String>> {
    let paths: Vec<String> = (0..TENANTS).map(|tenant| format!("bench/s{step}-t{tenant}")).collect();
    let names: Vec<&str> = paths.iter().map(String::as_str).collect();
    cluster::apply_tenants(cluster::channel(&target.endpoint)?, &names).await?;
    Ok(paths)
}

async fn closed(target: &Target, clients: u64, seconds: f64, step: u32) -> Result<Found> {
    let work = Work { tenants: tenants(target, step).await?, jobs: 1, pause: Duration::ZERO, obeys: true };
    let running = Running::start(&target.channels(clients)?, clients, &work);
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    Ok(running.finish().await)
}

fn row(what: String, found: &Found, target: &Target) -> Result<Row> {
    let accepted = format!("{:.0}/s, {}", found.per_second(), found.latency());
    let refused = match found.told() {
        told if told.is_empty() => found.refusals(),
        told => format!("{}: {told}", found.refusals()),
    };
    Ok(Row::new(what, accepted, refused, process::memory(Used::of(target.pid)?.rss_kib)))
}

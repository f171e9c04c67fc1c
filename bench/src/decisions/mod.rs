//! S1 and S2: decisions of one shard core, over fleets of several sizes.
//!
//! S1: at 90 % occupancy with departures mixed in. One decision is: a job arrives, one pass of `plan` binds it, the binding is committed to
//! the view. What leaves makes room for what comes, so every decision is a success (one that finds no room is not counted, its time
//! is). The rate counts everything the view does, departures included; making the objects that the view is handed is not its work
//! and is not counted. S2: a gang of 512 cards on the fleet that S1 leaves behind, and whether a look at every domain finds a tighter one.

mod churn;
pub(crate) mod fleet;
mod gang;

use crate::table::{self, Row, Table};
use anyhow::Result;
use churn::Found;
pub use churn::Mix;
pub use fleet::Tenants;

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fleet sizes, in nodes of eight cards.
    pub nodes: Vec<u32>,
    /// Decisions measured at each size.
    pub decisions: u32,
    /// Seed of the mix.
    pub seed: u64,
    /// What the jobs ask for; each mix is measured at each size. Gangs follow the mix of all.
    pub mixes: Vec<Mix>,
}

const S1_ANCHOR: &str = "Slurm 22-28 jobs/s at 6,250 nodes; YuniKorn 204/s at 2,000; Nomad C1M 3,750/s on 5,000";
const S1_TARGET: &str = ">= 100,000/s, p99 <= 100 µs, cost < 1.5x from 625 to 6,250 nodes";

/// Runs every size and gives the tables.
///
/// # Errors
/// When the mix is refused or nothing is bound.
pub fn run(options: &Options) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    let mut gangs = Vec::new();
    for &mix in &options.mixes {
        let mut smallest: Option<f64> = None;
        for &nodes in &options.nodes {
            let (found, bench) = churn::measure(nodes, mix, options.decisions, options.seed)?;
            let cost = 1.0 / found.per_second;
            let ratio = cost / *smallest.get_or_insert(cost);
            rows.push(s1(nodes, mix, &found, ratio, options.decisions));
            if mix == Mix::All && nodes >= gang::NODES_MIN {
                gangs.extend(gang::measure(bench, nodes)?);
            }
        }
    }
    let mut tables =
        vec![Table::new("Scheduling decisions of one shard at 90 % of the GPUs allocated, while jobs end", rows)];
    if !gangs.is_empty() {
        tables.push(Table::new("Placement of a gang of 512 GPUs on the same fleet", gangs));
    }
    Ok(tables)
}

fn s1(nodes: u32, mix: Mix, found: &Found, ratio: f64, asked: u32) -> Row {
    let us = |sorted: &[u64], share| format!("{:.1}", table::percentile(sorted, share) as f64 / 1e3);
    let of = |sorted: &[u64]| format!("{} / {} / {}", us(sorted, 0.5), us(sorted, 0.99), us(sorted, 1.0));
    let refused =
        if found.no_room > 0 { format!("; {} of {asked} found no room", found.no_room) } else { String::new() };
    // Only the first mix fills fresh memory; later ones are given what it has left.
    let memory = if mix == Mix::All { format!("; view {} MiB", found.memory_mib) } else { String::new() };
    Row::new(
        format!("S1 {}, {nodes} nodes × 8, {:.0} % allocated", mix.name(), found.held_share * 100.0),
        format!(
            "{:.0}/s ({ratio:.2}x the cost of the first size); p50/p99/max µs: pass {}, arrival to commit {}{memory}{refused}",
            found.per_second,
            of(&found.passes),
            of(&found.wholes),
        ),
        S1_ANCHOR,
        S1_TARGET,
    )
}

//! Q1 and Q2: the fractional packing experiment of Weng et al. (USENIX ATC'23), with our engine and with the baselines.
//!
//! Pods of a trace arrive in a given order until 130 % of the fleet's GPU capacity has; none leaves, none is tried again. After every
//! arrival the allocated share is sampled into the bin of the arrived one; a cell of the curve is the mean of its bin. What must stay
//! true: a pod fails only when it fits nowhere (but for moves, that is what every policy does); every event is in the log, from
//! which an independent referee can repeat the whole; only the policies called `fgd` and `fgd-plain` know the trace in advance.

pub mod bound;
mod placement;
pub mod play;
pub mod policy;
pub mod published;
pub mod sweep;
pub mod trace;

use crate::table::{Row, Table};
use anyhow::{Context, Result};
use policy::Policy;

use std::path::PathBuf;

/// Shares of the capacity, in percent, at which the curve is printed.
pub const CURVE_PERCENT: [u32; 7] = [80, 90, 95, 100, 110, 120, 130];

/// One run.
#[derive(Clone, Debug)]
pub struct Options {
    /// `sn,cpu_milli,memory_mib,gpu,model`.
    pub nodes: PathBuf,
    /// `name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec,…]`.
    pub pods: PathBuf,
    /// `seed,pod`, plain or gzip.
    pub arrivals: PathBuf,
    /// Which arrivals.
    pub seed: u64,
    /// Shuffles the nodes first; the file's order without it.
    pub node_order: Option<u64>,
    /// Moves allowed, in percent of the pods placed so far.
    pub moves_percent: f64,
    /// Who decides.
    pub policy: Policy,
    /// Where the log goes.
    pub out: Option<PathBuf>,
    /// The published table; otherwise the one beside the pods, if there.
    pub published: Option<PathBuf>,
}

/// Runs once and prints the curve.
///
/// # Errors
/// When a file cannot be read or written.
pub fn run(options: &Options) -> Result<Vec<Table>> {
    let fleet = trace::nodes(&options.nodes)?;
    let pods = trace::pods(&options.pods, &fleet)?;
    let arrivals = trace::arrivals(&options.arrivals, options.seed, &pods)?;
    let order = trace::order(fleet.nodes.len(), options.node_order);
    let found = play::play(&fleet, &order, &pods, &arrivals, options.policy, options.moves_percent)?;
    if let Some(out) = &options.out {
        play::write_log(out, &found, &fleet, &pods, &arrivals).with_context(|| format!("writing {}", out.display()))?;
    }
    let bounds = bound::curve(&fleet, &pods, &arrivals);
    let published = published::beside(options.published.as_deref(), &options.pods)?;
    let name = trace::name_of(&options.pods);
    let mut rows = Vec::new();
    for percent in CURVE_PERCENT {
        let Some(allocated) = found.curve.at(percent) else { continue };
        let anchor =
            published.as_ref().and_then(|table| table.at(&name, policy::published_row(options.policy), percent));
        let fgd = published.as_ref().and_then(|table| table.at(&name, "06-FGD", percent));
        let show = |cell: Option<f64>| cell.map_or_else(|| "-".to_owned(), |cell| format!("{cell:.2} %"));
        rows.push(Row::new(
            format!("{name}, seed {}: allocated at {percent} % arrived", options.seed),
            format!("{allocated:.2} %"),
            format!("published: same policy {}, FGD {}", show(anchor), show(fgd)),
            format!("no packing exceeds {}", show(bounds.at(percent))),
        ));
    }
    let title = format!(
        "Fractional packing, {}, node order {}: {} placed, {} failed, {} moves, {:.1} s",
        options.policy.name(),
        options.node_order.map_or_else(|| "of the file".to_owned(), |seed| seed.to_string()),
        found.placed,
        found.failed,
        found.moves,
        found.seconds,
    );
    Ok(vec![Table::new(title, rows)])
}

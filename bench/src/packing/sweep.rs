//! Every trace of a folder, every seed of its arrivals, several orders of the nodes: the table of Q1.
//!
//! What must stay true: each run is exactly the one that a single command with its trace, seed and order makes, and with a folder for
//! logs each leaves the log from which a referee can repeat it, `NAME.SEED.ORDER.csv`.

use super::policy::{self, Policy};
use super::trace::{self, Nodes, Pod};
use super::{bound, play, published};
use crate::table::{Row, Table};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs at once: what the machine has that figures are quoted for.
const THREADS: usize = 2;
/// The arrived share that policies are compared at.
const COMPARED_PERCENT: u32 = 100;

/// What to run.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Holds `*node_list*.csv`, `*pod_list_NAME.csv` and `arrivals_NAME.*.csv[.gz]`.
    pub folder: PathBuf,
    /// Shuffled node orders to run each seed under, `1..=orders`; 0 runs the order of the file.
    pub orders: u64,
    /// As for one run.
    pub moves_percent: f64,
    /// Who decides.
    pub policy: Policy,
    /// Where the logs go, one per run, if anywhere.
    pub logs: Option<PathBuf>,
    /// As for one run.
    pub published: Option<PathBuf>,
}

/// A trace with its seeds.
struct Trace {
    name: String,
    pods: Vec<Pod>,
    seeds: Vec<(u64, Vec<usize>)>,
}

/// One run's result.
struct Cell {
    trace: usize,
    allocated: f64,
    bound: f64,
    moves: u64,
}

/// Runs all and prints one row per trace.
///
/// # Errors
/// When the folder lacks a file, or a file cannot be read or written.
pub fn run(sweep: &Sweep) -> Result<Vec<Table>> {
    let files = listing(&sweep.folder)?;
    let named = |part: &str| files.iter().find(|path| file_name(path).contains(part));
    let nodes = named("node_list").with_context(|| format!("no node list in {}", sweep.folder.display()))?;
    let fleet = trace::nodes(nodes)?;
    let traces = traces(&files, &fleet)?;
    ensure!(!traces.is_empty(), "no trace with arrivals in {}", sweep.folder.display());
    let cells = cells(sweep, &fleet, &traces)?;
    let table = published::beside(sweep.published.as_deref(), nodes)?;
    let mut rows = Vec::new();
    let mut gains = Vec::new();
    for (index, trace) in traces.iter().enumerate() {
        let of: Vec<&Cell> = cells.iter().filter(|cell| cell.trace == index).collect();
        let mean = |value: fn(&Cell) -> f64| of.iter().map(|cell| value(cell)).sum::<f64>() / of.len() as f64;
        let (allocated, bound) = (mean(|cell| cell.allocated), mean(|cell| cell.bound));
        let worst = of.iter().map(|cell| cell.allocated).fold(f64::INFINITY, f64::min);
        let row = policy::published_row(sweep.policy);
        let anchor = table.as_ref().and_then(|table| table.at(&trace.name, row, COMPARED_PERCENT));
        gains.extend(anchor.map(|anchor| allocated - anchor));
        let beside =
            |anchor: f64| format!("{row} {anchor:.2} % ({:+.2}, worst {:+.2})", allocated - anchor, worst - anchor);
        let moves = of.iter().map(|cell| cell.moves).max().unwrap_or(0);
        let moved = if moves > 0 { format!("; at most {moves} moves") } else { String::new() };
        rows.push(Row::new(
            format!("{}: {} seeds, {} node orders", trace.name, trace.seeds.len(), sweep.orders.max(1)),
            format!("mean {allocated:.2} %, worst {worst:.2} %{moved}"),
            anchor.map_or_else(|| "not published here".to_owned(), beside),
            format!("no packing exceeds {bound:.2} %"),
        ));
    }
    let mean = gains.iter().sum::<f64>() / gains.len().max(1) as f64;
    let title = format!(
        "Fractional packing at {COMPARED_PERCENT} % arrived, {}: {mean:+.2} points on average against the published row",
        sweep.policy.name()
    );
    Ok(vec![Table::new(title, rows)])
}

fn cells(sweep: &Sweep, fleet: &Nodes, traces: &[Trace]) -> Result<Vec<Cell>> {
    let orders: Vec<Option<u64>> = if sweep.orders == 0 { vec![None] } else { (1..=sweep.orders).map(Some).collect() };
    let mut jobs = Vec::new();
    for (index, trace) in traces.iter().enumerate() {
        for seed in &trace.seeds {
            jobs.extend(orders.iter().map(|order| (index, seed, *order)));
        }
    }
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Result<(usize, Cell)>>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((at, (index, (seed, arrivals), order))) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(at).map(|job| (at, job))
                } {
                    let cell = cell(sweep, fleet, &traces[*index], (*seed, arrivals), *order);
                    let cell = cell.map(|cell| (at, Cell { trace: *index, ..cell }));
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(cell);
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut done = done.into_iter().collect::<Result<Vec<_>>>()?;
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, cell)| cell).collect())
}

fn cell(
    sweep: &Sweep,
    fleet: &Nodes,
    trace: &Trace,
    (seed, arrivals): (u64, &[usize]),
    order: Option<u64>,
) -> Result<Cell> {
    let places = trace::order(fleet.nodes.len(), order);
    let found = play::play(fleet, &places, &trace.pods, arrivals, sweep.policy, sweep.moves_percent)?;
    if let Some(logs) = &sweep.logs {
        let path = logs.join(format!("{}.{seed}.{}.csv", trace.name, order.unwrap_or(0)));
        play::write_log(&path, &found, fleet, &trace.pods, arrivals)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let allocated =
        found.curve.at(COMPARED_PERCENT).context("the arrivals end before the fleet's capacity has come")?;
    let bound = bound::curve(fleet, &trace.pods, arrivals).at(COMPARED_PERCENT).unwrap_or(100.0);
    Ok(Cell { trace: 0, allocated, bound, moves: found.moves })
}

fn traces(files: &[PathBuf], fleet: &Nodes) -> Result<Vec<Trace>> {
    let mut found = Vec::new();
    for pods_file in files.iter().filter(|path| file_name(path).contains("pod_list_")) {
        let name = trace::name_of(pods_file);
        let Some(arrivals) = files.iter().find(|path| file_name(path).starts_with(&format!("arrivals_{name}."))) else {
            continue;
        };
        let pods = trace::pods(pods_file, fleet)?;
        let seeds = trace::seeds(arrivals)?;
        let seeds = seeds.into_iter().map(|seed| Ok((seed, trace::arrivals(arrivals, seed, &pods)?)));
        let seeds = seeds.collect::<Result<Vec<_>>>()?;
        found.push(Trace { name, pods, seeds });
    }
    Ok(found)
}

fn listing(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

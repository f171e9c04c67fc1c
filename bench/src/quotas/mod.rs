//! Q3 and Q5: what quotas with borrowing and reclaim are worth, on public traces, beside policies that know no quota or no borrowing.
//!
//! Each trace is cut into training days and later test days. The training days give the fleet and the quota tree. The test days are drawn with
//! replacement, tenant by tenant, at several loads and with several seeds; each draw is replayed by the simulator of [`muster_twin`] under every
//! policy. What must stay true: no figure of the test days plays a part in a tree; every policy gets the same jobs, fleet, time limits and checkpoints;
//! the event log of every run goes to the referee where one is given.

mod chart;
mod figures;
mod page;
mod referee;
mod resume;
mod runs;
mod summary;

use crate::table::Table;
use anyhow::{Context, Result, ensure};
use muster_twin::queue::QueueChoice;
use muster_twin::training::{Trained, Training};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

pub use figures::Figures;

/// The traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Microsoft ITP, eight clusters as tenants.
    Itp,
    /// Microsoft Philly, its virtual clusters as tenants.
    Philly,
}

impl Source {
    /// Both.
    pub const ALL: [Source; 2] = [Source::Itp, Source::Philly];

    /// Which days train and which test. Both traces begin slowly, and Philly fades after its tenth week; the test days follow the training days.
    fn days(self) -> (Training, (u32, u32)) {
        let usual = Training {
            from_day: 0,
            days: 30,
            quantile_permille: 750,
            fill_percent: 85,
            max_factor: 3,
            organisations: 3,
        };
        match self {
            Source::Itp => (usual, (30, 26)),
            Source::Philly => (Training { from_day: 21, days: 28, organisations: 4, ..usual }, (49, 21)),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Itp => "itp",
            Source::Philly => "philly",
        })
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Source::ALL.into_iter().find(|source| source.to_string() == text);
        known.ok_or_else(|| format!("{text:?} is not itp or philly"))
    }
}

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The tree: guarantees, borrowing up to max, reclaim.
    Muster,
    /// The same guarantees, each also the max: nobody borrows, nobody is preempted.
    Static,
    /// One queue, the oldest first.
    Fifo,
    /// One queue, tenants ranked by their guarantee, higher ones preempt.
    StrictPriority,
}

impl Policy {
    /// All of them, Muster first.
    pub const ALL: [Policy; 4] = [Policy::Muster, Policy::Static, Policy::Fifo, Policy::StrictPriority];

    const fn queue(self) -> QueueChoice {
        match self {
            Policy::Muster | Policy::Static => QueueChoice::Tree,
            Policy::Fifo => QueueChoice::Fifo,
            Policy::StrictPriority => QueueChoice::StrictPriority,
        }
    }

    /// In words.
    const fn title(self) -> &'static str {
        match self {
            Policy::Muster => "Muster",
            Policy::Static => "static quotas",
            Policy::Fifo => "FIFO",
            Policy::StrictPriority => "strict priority",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Muster => "muster",
            Policy::Static => "static",
            Policy::Fifo => "fifo",
            Policy::StrictPriority => "strict-priority",
        })
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Policy::ALL.into_iter().find(|policy| policy.to_string() == text);
        known.ok_or_else(|| format!("{text:?} is not muster, static, fifo or strict-priority"))
    }
}

/// What to run.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// Holds `itp/` and `philly/`.
    pub traces: PathBuf,
    /// Which traces.
    pub sources: Vec<Source>,
    /// Offered loads, in thousandths of what the test days bring.
    pub loads_permille: Vec<u32>,
    /// Seeds `1..=seeds`.
    pub seeds: u64,
    /// Who decides.
    pub policies: Vec<Policy>,
    /// Days that are measured.
    pub days: u32,
    /// Days before, made alike, so that the window begins with what still runs of them.
    pub warm_days: u32,
    /// Days after, in which what was submitted may end.
    pub drain_days: u32,
    /// Time limits, in percent of what a job takes; none where 0.
    pub limit_percent: u32,
    /// Grace of a preempted job.
    pub grace_s: u64,
    /// Between two checkpoints.
    pub checkpoint_s: u64,
    /// Least run time of burst.
    pub cool_down_s: u64,
    /// Of one in so many jobs that still wait after a minute it is asked when they will start; 0: of none.
    pub estimates_every: u32,
    /// Runs at once.
    pub threads: usize,
    /// The program that judges event logs: it takes the log's path and `--json`.
    pub referee: Option<PathBuf>,
    /// Event logs are kept here.
    pub logs: Option<PathBuf>,
    /// The page.
    pub html: Option<PathBuf>,
    /// Finished runs are appended to this file, and those that are in it are not made again.
    pub resume: Option<PathBuf>,
    /// All figures of all runs.
    pub out: Option<PathBuf>,
}

/// One trace, made ready.
struct Prepared {
    source: Source,
    training: Training,
    /// First day and number.
    test_days: (u32, u32),
    trace: muster_twin::import::Trace,
    trained: Trained,
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// What was run.
    pub options: Options,
    /// The quota trees.
    pub trees: Vec<(Source, Training, Trained)>,
    /// Each run.
    pub runs: Vec<Figures>,
    /// What the simulator took for granted in the first run of each trace.
    pub assumptions: Vec<(Source, Vec<String>)>,
    /// Why no referee judged, if none did.
    pub not_judged: Option<String>,
}

/// Runs all, writes the page and the figures, and prints a table for each trace and load.
///
/// # Errors
/// When a trace is not there, a file cannot be written, or a run fails.
pub fn run(options: &Options) -> Result<Vec<Table>> {
    let began = Instant::now();
    ensure!(options.seeds > 0 && !options.loads_permille.is_empty(), "name at least one seed and one load");
    let prepared = options.sources.iter().map(|source| runs::prepare(options, *source)).collect::<Result<Vec<_>>>()?;
    let not_judged = referee::unusable(options.referee.as_deref());
    let (runs, assumptions) = runs::all(options, &prepared, not_judged.is_none())?;
    let found = Found {
        options: options.clone(),
        trees: prepared.into_iter().map(|one| (one.source, one.training, one.trained)).collect(),
        runs,
        assumptions,
        not_judged,
    };
    if let Some(path) = &options.out {
        let json = serde_json::to_string(&found)?;
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &options.html {
        std::fs::write(path, page::render(&found)).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(summary::tables(&found, began.elapsed().as_secs_f64()))
}

//! The figures of all seeds together, as tables for a terminal.

use super::figures::{Figures, Spread};
use super::{Found, Policy, Source};
use crate::table::{Row, Table};
use muster_twin::html::words::{percent, span};
use muster_twin::report::EstimateRow;
use std::collections::BTreeSet;

/// The runs of one trace, load and policy.
pub(super) fn of(found: &Found, source: Source, load: u32, policy: Policy) -> Vec<&Figures> {
    let same = |run: &&Figures| (run.source, run.load_permille, run.policy) == (source, load, policy);
    found.runs.iter().filter(same).collect()
}

/// `97.1 % (96.0–98.2)`.
fn share(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |s| format!("{:.2} % ({:.2}–{:.2})", s.mean * 100.0, s.low * 100.0, s.high * 100.0),
    )
}

fn time(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "-".to_owned(), |s| format!("{} ({}–{})", span(s.mean), span(s.low), span(s.high)))
}

fn plain(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "-".to_owned(), |s| format!("{:.2} ({:.2}–{:.2})", s.mean, s.low, s.high))
}

/// One figure of each run, as text.
type Of<'a> = (&'a str, fn(&[&Figures]) -> String, &'a str);

/// What is shown, with its target.
const SHOWN: [Of<'static>; 11] = [
    ("goodput, of the capacity", |runs| share(Spread::of(runs.iter().map(|run| run.goodput))), "bound below"),
    ("goodput, of its bound (Q3)", |runs| share(Spread::of(runs.iter().map(|run| run.of_bound()))), "97 %"),
    (
        "effective use: with the saved part of preempted attempts, of the bound",
        |runs| share(Spread::of(runs.iter().map(|run| run.effective_of_bound()))),
        "97 %",
    ),
    ("allocated, of the capacity", |runs| share(Spread::of(runs.iter().map(|run| run.allocated))), ""),
    (
        "lost to preemption, of what was held (Q3)",
        |runs| share(Spread::of(runs.iter().map(|run| run.lost_of_held()))),
        "1 %",
    ),
    ("preempted attempts", |runs| plain(Spread::of(runs.iter().map(|run| run.preempted as f64))), ""),
    (
        "longest time that a tenant below its floor waited",
        |runs| time(Spread::of(runs.iter().map(|run| run.floor_longest_s))),
        "",
    ),
    (
        "the same, counted anew whenever a job of it started",
        |runs| time(Spread::of(runs.iter().map(|run| run.floor_unserved_s))),
        "cool-down + grace + stop",
    ),
    ("Jain's index of burst", |runs| plain(Spread::of(runs.iter().filter_map(|run| run.jain))), "1"),
    ("wait of all jobs, p99", |runs| time(Spread::of(runs.iter().map(|run| run.all_waits_p99_s))), ""),
    (
        "refused jobs (a max can never hold them)",
        |runs| plain(Spread::of(runs.iter().map(|run| run.refused as f64))),
        "0",
    ),
];

/// A table for each trace and load.
pub(super) fn tables(found: &Found, seconds: f64) -> Vec<Table> {
    let options = &found.options;
    let mut tables = Vec::new();
    for source in &options.sources {
        for load in &options.loads_permille {
            let main = options.policies.first().copied().unwrap_or(Policy::Muster);
            let mut rows = Vec::new();
            for (what, show, target) in SHOWN {
                let others = options.policies.iter().skip(1);
                let beside =
                    others.map(|policy| format!("{} {}", policy.title(), show(&of(found, *source, *load, *policy))));
                let beside: Vec<String> = beside.collect();
                rows.push(Row::new(what, show(&of(found, *source, *load, main)), beside.join("; "), target));
            }
            rows.extend(of_one(found, *source, *load, main));
            let title = format!(
                "Quotas on {source} at {:.1}×, {} seeds: {} (mean, least to most)",
                f64::from(*load) / 1000.0,
                options.seeds,
                main.title()
            );
            tables.push(Table::new(title, rows));
        }
    }
    tables.push(verdicts(found, seconds));
    tables
}

/// Figures that only one policy has.
fn of_one(found: &Found, source: Source, load: u32, policy: Policy) -> Vec<Row> {
    let runs = of(found, source, load, policy);
    let sum = |value: fn(&Figures) -> u64| runs.iter().map(|run| value(run)).sum::<u64>();
    let bound = share(Spread::of(runs.iter().map(|run| run.bound)));
    let offered = share(Spread::of(runs.iter().map(|run| run.offered)));
    let latest = runs.iter().map(|run| run.latest_s).fold(0.0, f64::max);
    let estimate = |at: usize| Spread::of(runs.iter().filter(|run| run.reserved > 0).map(|run| run.estimate_s[at]));
    let signed = |spread: Option<Spread>| spread.map_or_else(|| "-".to_owned(), |s| signed(s.mean));
    let by_size: Vec<String> = sizes(found, source)
        .into_iter()
        .filter_map(|size| wait_of(&runs, &size).map(|text| format!("{size}: {text}")))
        .collect();
    let mut rows = vec![
        Row::new("bound of goodput; offered in the window", bound, offered, ""),
        Row::new("waits by size of the gang, p50 / p99", by_size.join("; "), "", ""),
        Row::new(
            "reservations: given; later than first told (Q5)",
            format!(
                "{}, of which a floor covered {} all the time; {} of those later, {} that a floor covered when they began but not all the time, {} of burst; the latest by {}",
                sum(|run| run.reserved),
                sum(|run| run.covered_throughout),
                sum(|run| run.late_covered_throughout),
                sum(|run| run.late_covered - run.late_covered_throughout),
                sum(|run| run.late - run.late_covered),
                span(latest)
            ),
            "reserved nodes of burst yield to floors",
            "0 of those that a floor covered all the time",
        ),
        Row::new(
            "error of the first time told: p10, p50, p90",
            format!("{}, {}, {}", signed(estimate(0)), signed(estimate(1)), signed(estimate(2))),
            "negative: began earlier",
            "",
        ),
    ];
    rows.extend(estimates(&runs));
    rows
}

/// The error of estimated starts, of each basis.
fn estimates(runs: &[&Figures]) -> Vec<Row> {
    let all = || runs.iter().flat_map(|run| &run.estimates);
    let bases: BTreeSet<&str> = all().map(|row| row.basis.as_str()).collect();
    let of = |basis: &str| {
        let rows: Vec<&EstimateRow> = all().filter(|row| row.basis == basis).collect();
        let asked: u64 = rows.iter().map(|row| row.asked).sum();
        let near: u64 = rows.iter().map(|row| row.within_factor_2).sum();
        // Weighed by their number, so that a run with few says little.
        let mean = |value: fn(&EstimateRow) -> f64| {
            rows.iter().map(|row| value(row) * row.asked as f64).sum::<f64>() / asked.max(1) as f64
        };
        Row::new(
            format!("estimated starts, basis {basis}: error p10, p50, p90"),
            format!(
                "{} jobs, told {} ahead (p50): {}, {}, {}; {:.0} % within a factor of 2",
                asked,
                span(mean(|row| row.ahead_s.p50)),
                signed(mean(|row| row.error.p10_s)),
                signed(mean(|row| row.error.p50_s)),
                signed(mean(|row| row.error.p90_s)),
                100.0 * near as f64 / asked.max(1) as f64
            ),
            "negative: began earlier",
            "",
        )
    };
    bases.into_iter().map(of).collect()
}

/// `-2.1 h`.
pub(super) fn signed(seconds: f64) -> String {
    if seconds < 0.0 { format!("−{}", span(-seconds)) } else { span(seconds) }
}

/// Sizes of gangs in a trace, smallest first.
pub(super) fn sizes(found: &Found, source: Source) -> Vec<String> {
    let mut sizes: Vec<(u32, String)> = Vec::new();
    for wait in found.runs.iter().filter(|run| run.source == source).flat_map(|run| &run.waits) {
        if sizes.iter().all(|(_, name)| *name != wait.size) {
            let most = wait.size.rsplit('-').next().and_then(|most| most.parse().ok()).unwrap_or(0);
            sizes.push((most, wait.size.clone()));
        }
    }
    sizes.sort();
    sizes.into_iter().map(|(_, name)| name).collect()
}

/// Means over the seeds of the median and the 99th percentile.
pub(super) fn wait_of(runs: &[&Figures], size: &str) -> Option<String> {
    let rows = || runs.iter().flat_map(|run| &run.waits).filter(|wait| wait.size == size);
    let (p50, p99) = (Spread::of(rows().map(|row| row.p50_s))?, Spread::of(rows().map(|row| row.p99_s))?);
    Some(format!("{} / {}", span(p50.mean), span(p99.mean)))
}

/// What the referee said.
fn verdicts(found: &Found, seconds: f64) -> Table {
    let judged: Vec<&Figures> = found.runs.iter().filter(|run| run.verdict.is_some()).collect();
    let mut rows = Vec::new();
    for policy in &found.options.policies {
        let of_policy: Vec<_> =
            judged.iter().filter(|run| run.policy == *policy).filter_map(|run| run.verdict.as_ref()).collect();
        let fair = of_policy.iter().filter(|verdict| verdict.violations == 0).count();
        let warnings: u64 = of_policy.iter().map(|verdict| verdict.warnings).sum();
        let violations: u64 = of_policy.iter().map(|verdict| verdict.violations).sum();
        rows.push(Row::new(
            format!("event logs of {}", policy.title()),
            format!("{fair} of {} accepted", of_policy.len()),
            format!("{violations} violations, {warnings} warnings"),
            "all accepted",
        ));
    }
    let rejected = judged.iter().filter(|run| run.verdict.as_ref().is_some_and(|verdict| verdict.violations > 0));
    for run in rejected.take(REJECTED_SHOWN_MAX) {
        let verdict = run.verdict.clone().unwrap_or_default();
        let checks: Vec<String> = verdict.checks.iter().map(|(name, found)| format!("{found} × {name}")).collect();
        rows.push(Row::new(
            format!(
                "{} at {:.1}×, seed {}, {}",
                run.source,
                f64::from(run.load_permille) / 1000.0,
                run.seed,
                run.policy
            ),
            checks.join(", "),
            verdict.findings.join("; "),
            "",
        ));
    }
    if let Some(why) = &found.not_judged {
        rows.push(Row::new("not judged", why.clone(), "", ""));
    }
    let preempted = found.runs.iter().map(|run| run.preempted).sum::<u64>();
    let title = format!(
        "Fairness referee: {} of {} logs judged, {preempted} preempted attempts; all of it took {seconds:.0} s",
        judged.len(),
        found.runs.len()
    );
    Table::new(title, rows)
}

/// Rejected logs that are shown.
const REJECTED_SHOWN_MAX: usize = 12;

/// `93.1 %`, or a dash.
pub(super) fn mean_share(spread: Option<Spread>) -> String {
    spread.map_or_else(|| "–".to_owned(), |s| percent(s.mean))
}

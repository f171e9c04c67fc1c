//! The report as one HTML page that stands by itself: styles and plots inside, no script, nothing fetched.
//!
//! What must stay true: everything drawn comes from the [`Report`]; text from a trace is escaped; same report, same bytes.

mod closeness;
mod plot;
mod sections;
pub mod words;

use crate::report::Report;
use std::fmt::Write;
use words::{amount, count, escape, percent, span};

/// The page.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut page = opening(&report.title);
    head(&mut page, report);
    sections::allocation(&mut page, report);
    sections::waits(&mut page, report);
    closeness::closeness(&mut page, report);
    sections::tenants(&mut page, report);
    sections::fragmentation(&mut page, report);
    sections::counts(&mut page, report);
    sections::bad_rows(&mut page, report);
    sections::assumptions(&mut page, report);
    page.push_str("<footer>Made by <code>muster replay</code>: the scheduler and the state machine that run the fleet, on virtual time.</footer>\n");
    page.push_str("</main></body></html>\n");
    page
}

/// The beginning of a page of this look, up to where its content goes; it ends with `</main></body></html>`.
#[must_use]
pub fn opening(title: &str) -> String {
    let mut page = String::with_capacity(128 * 1024);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{}</title>\n<style>{}</style></head>\n<body><main>\n",
        escape(title),
        include_str!("style.css")
    );
    page
}

fn head(page: &mut String, report: &Report) {
    let (fleet, window) = (&report.fleet, &report.window);
    let models: Vec<String> =
        fleet.gpus_by_model.iter().map(|(model, gpus)| format!("{} × {model}", count(*gpus))).collect();
    let _ = writeln!(
        page,
        "<header><h1>{}</h1><p>{} of trace format {} from day {} · {} GPUs on {} nodes ({}) · {} leaves, {} blocks, {} {}</p></header>",
        escape(&report.title),
        days(window.days),
        escape(&report.format),
        window.from_day,
        count(fleet.gpus),
        count(fleet.nodes),
        escape(&models.join(", ")),
        fleet.leaves,
        fleet.blocks,
        fleet.cells,
        if fleet.cells == 1 { "cell" } else { "cells" }
    );
    let _ = writeln!(page, "<p class=\"lead\">{}</p>", lead(report));
    let all = all_waits(report);
    let makespan = report.usage.makespan_h.map_or("not reached".to_owned(), |hours| span(hours * 3600.0));
    let tiles = [
        (count(report.jobs.submitted), "jobs submitted"),
        (percent(report.usage.allocated_share), "of GPU time held"),
        (amount(report.usage.peak_gpus), "GPUs held at the peak"),
        (percent(all.at_once), "of jobs bound at once"),
        (span(all.longest_s), "longest wait"),
        (percent(report.fragmentation.unusable_share_mean), "of free GPUs useless to an 8-GPU gang"),
        (makespan, "first submission to last end"),
    ];
    page.push_str("<div class=\"tiles\">");
    for (figure, what) in tiles {
        let _ = write!(page, "<div class=\"tile\"><b>{figure}</b><span>{what}</span></div>");
    }
    page.push_str("</div>\n");
}

/// Waits of all sizes together.
struct AllWaits {
    at_once: f64,
    longest_s: f64,
}

fn all_waits(report: &Report) -> AllWaits {
    let sum = |of: fn(&crate::report::WaitRow) -> u64| report.waits.iter().map(of).sum::<u64>();
    let jobs = sum(|row| row.jobs).max(1);
    AllWaits {
        at_once: sum(|row| row.at_once) as f64 / jobs as f64,
        longest_s: report.waits.iter().map(|row| row.wait_s.max).fold(0.0, f64::max),
    }
}

fn days(days: f64) -> String {
    if (days - 1.0).abs() < 1e-9 { "1 day".to_owned() } else { format!("{} days", (days * 100.0).round() / 100.0) }
}

/// What happened, in two sentences.
fn lead(report: &Report) -> String {
    let (usage, jobs) = (&report.usage, &report.jobs);
    let left = jobs.running_at_stop + jobs.waiting_at_stop;
    let ended = if left == 0 && jobs.refused == 0 {
        "all of them were served to their end".to_owned()
    } else {
        format!("{} were refused and {} were left when the replay stopped", count(jobs.refused), count(left))
    };
    let offered = usage.offered_gpu_h / usage.capacity_gpu_h.max(1e-9);
    let pressure = match offered {
        share if share < 0.7 => "the fleet was large for this trace, so waits are short by construction",
        share if share < 0.95 => "the fleet was well filled",
        _ => "more was asked for than the fleet has, so a queue had to form",
    };
    format!(
        "{} jobs were submitted ({} more already ran when the window began); {ended}. Their GPU time is {} of what the fleet had in the window: {pressure}.",
        count(jobs.submitted),
        count(jobs.warm),
        percent(offered)
    )
}

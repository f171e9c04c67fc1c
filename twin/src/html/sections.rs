//! The sections of the page, one function each.

use super::plot::{Layer, Mark, Range, TimePlot, ranges};
use super::words::{amount, count, escape, percent, span};
use crate::report::{Percentiles, Report, WaitRow};
use std::fmt::Write;

/// Rows of the table of tenants; the JSON has all.
const TENANT_ROWS_MAX: usize = 40;

/// Times the fleet up to which the demand of waiting jobs is drawn; above, the line runs along the top, and the page says so.
const QUEUE_DRAWN_MAX: f64 = 2.5;

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn key(page: &mut String, entries: &[(&str, Mark, &str)]) {
    page.push_str("<div class=\"key\">");
    for (class, mark, name) in entries {
        let line = if *mark == Mark::Line { " k-l" } else { "" };
        let _ = write!(page, "<span><i class=\"{class}{line}\"></i>{}</span>", escape(name));
    }
    page.push_str("</div>");
}

pub(super) fn allocation(page: &mut String, report: &Report) {
    let (series, usage) = (&report.series, &report.usage);
    let capacity = report.fleet.gpus as f64;
    let _ = write!(
        page,
        "<section><h2>Allocation over time</h2><p>Means over {}. Held: from binding until the last task is gone; running: every task of the gang has started. {} of the fleet's GPU time was held, {} ran; {} was free while waiting jobs asked for as much.</p>",
        span(series.bin_s),
        percent(usage.allocated_share),
        percent(usage.running_share),
        percent(usage.idle_while_waiting_gpu_h / usage.capacity_gpu_h.max(1e-9))
    );
    key(
        page,
        &[
            ("ca", Mark::Area, "GPUs held"),
            ("c1", Mark::Line, "GPUs running"),
            ("c2", Mark::Line, "GPUs that waiting jobs ask for"),
        ],
    );
    let layers = [
        Layer { mark: Mark::Area, class: "ca", values: &series.allocated_gpus },
        Layer { mark: Mark::Line, class: "c1", values: &series.running_gpus },
        Layer { mark: Mark::Line, class: "c2", values: &series.waiting_gpus },
    ];
    let plot = TimePlot {
        title: "GPUs held, running and asked for over time",
        y_label: "GPUs",
        height: 320.0,
        bin_s: series.bin_s,
        // A queue many times the fleet would flatten everything else; the next plot shows its length.
        y_max: capacity.max(most(&series.waiting_gpus).min(QUEUE_DRAWN_MAX * capacity)),
        mark_at: Some((capacity, "capacity")),
        layers: &layers,
        stacked: false,
        percent: false,
    };
    page.push_str(&plot.svg());
    let (most_waiting, drawn_max) = (most(&series.waiting_gpus), plot.top());
    if most_waiting > drawn_max {
        let _ = write!(
            page,
            "<p>Waiting jobs asked for up to {} GPUs. The plot ends at {}: above it, their line runs along the top.</p>",
            amount(most_waiting),
            amount(drawn_max)
        );
    }
    page.push_str("<h3>Jobs that wait</h3>");
    if usage.peak_waiting_jobs == 0 {
        page.push_str("<p>None did for any length of time.</p></section>\n");
        return;
    }
    let layers = [Layer { mark: Mark::Area, class: "c2", values: &series.waiting_jobs }];
    let plot = TimePlot {
        title: "Waiting jobs over time",
        y_label: "jobs",
        height: 180.0,
        bin_s: series.bin_s,
        y_max: most(&series.waiting_jobs),
        mark_at: None,
        layers: &layers,
        stacked: false,
        percent: false,
    };
    page.push_str(&plot.svg());
    page.push_str("</section>\n");
}

fn wait_cells(page: &mut String, wait: &Percentiles) {
    for seconds in [wait.mean, wait.p50, wait.p90, wait.p99, wait.max] {
        let _ = write!(page, "<td>{}</td>", span(seconds));
    }
}

pub(super) fn waits(page: &mut String, report: &Report) {
    page.push_str("<section><h2>Waits by size of the gang</h2><p>From submission to binding, for jobs submitted in the window. A job that was still waiting when the replay stopped counts with its wait so far.</p>");
    let names: Vec<String> = report.waits.iter().map(|row| size_name(&row.size)).collect();
    if report.usage.peak_waiting_jobs > 0 {
        wait_ranges(page, report, &names);
    }
    page.push_str("<div class=\"scroll\"><table><tr><th>gang</th><th>jobs</th><th>GPU-hours</th><th>bound at once</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th><th>longest</th><th>never bound</th>");
    let recorded = report.waits.iter().any(|row| row.recorded_wait_s.is_some());
    if recorded {
        page.push_str("<th>p50 in the trace</th><th>p99 in the trace</th>");
    }
    page.push_str("</tr>");
    for (row, name) in report.waits.iter().zip(&names) {
        let share = row.at_once as f64 / row.jobs.max(1) as f64;
        let _ = write!(
            page,
            "<tr><td>{name}</td><td>{}</td><td>{}</td><td>{}</td>",
            count(row.jobs),
            amount(row.gpu_h),
            percent(share)
        );
        wait_cells(page, &row.wait_s);
        let _ = write!(page, "<td>{}</td>", count(row.never_bound));
        if recorded {
            match &row.recorded_wait_s {
                Some(there) => {
                    let _ = write!(page, "<td>{}</td><td>{}</td>", span(there.p50), span(there.p99));
                }
                None => page.push_str("<td>–</td><td>–</td>"),
            }
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></div></section>\n");
}

fn wait_ranges(page: &mut String, report: &Report, names: &[String]) {
    page.push_str(concat!(
        "<div class=\"key\"><span>○ median</span><span>● 90th percentile</span>",
        "<span>┃ 99th percentile</span></div>"
    ));
    let range = |(row, name): (&WaitRow, &String)| Range {
        name: name.clone(),
        p50: row.wait_s.p50,
        p90: row.wait_s.p90,
        p99: row.wait_s.p99,
    };
    let rows: Vec<Range> = report.waits.iter().zip(names).map(range).collect();
    page.push_str(&ranges("Waits by size of the gang", &rows));
}

pub(super) fn size_name(size: &str) -> String {
    match size {
        "no GPU" => "no GPU".to_owned(),
        "share" => "share of a card".to_owned(),
        "1" => "1 GPU".to_owned(),
        other => format!("{} GPUs", other.replace('-', "–")),
    }
}

pub(super) fn tenants(page: &mut String, report: &Report) {
    page.push_str(
        "<section><h2>Use by tenant</h2><p>GPUs held by the tenants that used most, one above the other.</p>",
    );
    let classes = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];
    let series = &report.series;
    let class_of = |index: usize, path: &str| if path == "others" { "c9" } else { classes[index % classes.len()] };
    let entries: Vec<(&str, Mark, &str)> = series
        .tenants
        .iter()
        .enumerate()
        .map(|(i, tenant)| (class_of(i, &tenant.path), Mark::Area, tenant.path.as_str()))
        .collect();
    key(page, &entries);
    let layers: Vec<Layer<'_>> = series
        .tenants
        .iter()
        .enumerate()
        .map(|(i, tenant)| Layer { mark: Mark::Area, class: class_of(i, &tenant.path), values: &tenant.gpus })
        .collect();
    let plot = TimePlot {
        title: "GPUs held by tenant over time",
        y_label: "GPUs",
        height: 280.0,
        bin_s: series.bin_s,
        y_max: most(&series.allocated_gpus),
        mark_at: None,
        layers: &layers,
        stacked: true,
        percent: false,
    };
    page.push_str(&plot.svg());
    page.push_str("<div class=\"scroll\"><table><tr><th>tenant</th><th>jobs</th><th>GPU-hours held</th><th>share</th><th>peak GPUs</th><th>max GPUs</th><th>mean wait</th><th>p50</th><th>p90</th><th>p99</th><th>longest</th></tr>");
    for row in report.tenants.iter().take(TENANT_ROWS_MAX) {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
            escape(&row.path),
            count(row.jobs),
            amount(row.gpu_h),
            percent(row.share),
            amount(row.peak_gpus),
            row.max_gpus.map_or("none".to_owned(), amount)
        );
        wait_cells(page, &row.wait_s);
        page.push_str("</tr>");
    }
    page.push_str("</table></div>");
    if report.tenants.len() > TENANT_ROWS_MAX {
        let _ = write!(page, "<p>{} more are in the JSON.</p>", report.tenants.len() - TENANT_ROWS_MAX);
    }
    page.push_str("</section>\n");
}

pub(super) fn fragmentation(page: &mut String, report: &Report) {
    let fragmentation = &report.fragmentation;
    let float = |values: &[u64]| values.iter().map(|v| *v as f64).collect::<Vec<f64>>();
    let (free, leaf, block) =
        (float(&fragmentation.free_gpus), float(&fragmentation.largest_leaf), float(&fragmentation.largest_block));
    let _ = write!(
        page,
        "<section><h2>Fragmentation</h2><p>Wholly free GPUs and where they stand, at the end of each bin. Over the window {} of them stood where no {}-GPU gang fits on one island.</p>",
        percent(fragmentation.unusable_share_mean),
        fragmentation.gang_gpus
    );
    key(
        page,
        &[
            ("ca", Mark::Area, "free GPUs"),
            ("c3", Mark::Line, "in the block with most"),
            ("c4", Mark::Line, "in the leaf with most"),
        ],
    );
    let layers = [
        Layer { mark: Mark::Area, class: "ca", values: &free },
        Layer { mark: Mark::Line, class: "c3", values: &block },
        Layer { mark: Mark::Line, class: "c4", values: &leaf },
    ];
    let bin_s = report.series.bin_s;
    let plot = TimePlot {
        title: "Free GPUs, in all and in the largest block and leaf",
        y_label: "free GPUs",
        height: 260.0,
        bin_s,
        y_max: most(&free),
        mark_at: None,
        layers: &layers,
        stacked: false,
        percent: false,
    };
    page.push_str(&plot.svg());
    let _ = write!(
        page,
        "<h3>Share of the free GPUs that no {}-GPU gang on one island can use</h3>",
        fragmentation.gang_gpus
    );
    let layers = [Layer { mark: Mark::Area, class: "c5", values: &fragmentation.unusable_share }];
    let plot = TimePlot {
        title: "Unusable share of free GPUs over time",
        y_label: "of free GPUs",
        height: 200.0,
        bin_s,
        y_max: 1.0,
        mark_at: None,
        layers: &layers,
        stacked: false,
        percent: true,
    };
    page.push_str(&plot.svg());
    let islands = &fragmentation.largest_island;
    let (fewest, shared) =
        (islands.iter().min().copied().unwrap_or(0), fragmentation.partly_held.iter().max().copied().unwrap_or(0));
    let _ = writeln!(
        page,
        "<p>The island with most free GPUs had at least {fewest} at every bin's end. At most {} cards were held in part.</p></section>",
        count(shared)
    );
}

fn pairs(page: &mut String, rows: &[(&str, String)]) {
    page.push_str("<table>");
    for (name, value) in rows {
        let _ = write!(page, "<tr><td class=\"t\">{}</td><td>{}</td></tr>", escape(name), escape(value));
    }
    page.push_str("</table>");
}

pub(super) fn counts(page: &mut String, report: &Report) {
    let (jobs, usage, work) = (&report.jobs, &report.usage, &report.work);
    page.push_str("<section><h2>Counts</h2><div class=\"two\">");
    pairs(
        page,
        &[
            ("submitted in the window", count(jobs.submitted)),
            ("running when it began", count(jobs.warm)),
            ("refused", count(jobs.refused)),
            ("completed", count(jobs.completed)),
            ("failed", count(jobs.failed)),
            ("cancelled", count(jobs.cancelled)),
            ("timed out", count(jobs.timed_out)),
            ("running when the replay stopped", count(jobs.running_at_stop)),
            ("waiting when the replay stopped", count(jobs.waiting_at_stop)),
            ("gangs split into tasks", count(jobs.gangs_split)),
            ("GPUs gained by splitting", count(jobs.gpus_added)),
        ],
    );
    pairs(
        page,
        &[
            ("GPU-hours of capacity", amount(usage.capacity_gpu_h)),
            ("GPU-hours submitted", amount(usage.offered_gpu_h)),
            ("GPU-hours held in the window", amount(usage.allocated_gpu_h)),
            ("GPU-hours running in the window", amount(usage.running_gpu_h)),
            ("GPU-hours free while as much waited", amount(usage.idle_while_waiting_gpu_h)),
            ("GPU-hours held beyond what was asked for", amount(usage.rounded_up_gpu_h)),
            ("GPU-hours held until the stop", amount(usage.allocated_gpu_h_to_stop)),
            ("most jobs waiting at once", count(usage.peak_waiting_jobs)),
            ("log entries / commands", format!("{} / {}", count(work.entries), count(work.commands))),
            ("scheduling passes / decisions", format!("{} / {}", count(work.passes), count(work.decisions))),
            ("gangs bound / handed on", format!("{} / {}", count(work.bound), count(work.handed_over))),
            ("submissions repeated (queue full)", count(work.repeated_submissions)),
            ("checks of every law", count(work.checks)),
        ],
    );
    page.push_str("</div>");
    for (title, map) in [("Refused submissions", &report.refused), ("Refused proposals", &work.rejected)] {
        if !map.is_empty() {
            let rows: Vec<(&str, String)> = map.iter().map(|(why, n)| (why.as_str(), count(*n))).collect();
            let _ = write!(page, "<h3>{title}</h3>");
            pairs(page, &rows);
        }
    }
    page.push_str("</section>\n");
}

pub(super) fn bad_rows(page: &mut String, report: &Report) {
    let bad = &report.bad_rows;
    let _ = write!(page, "<section><h2>Rows that were not used</h2><p>{} bad rows.", count(bad.count));
    if bad.count > bad.kept.len() as u64 {
        let _ = write!(page, " The first {} are shown.", bad.kept.len());
    }
    for (why, n) in &report.skipped_rows {
        let _ = write!(page, " Skipped: {} × {}.", count(*n), escape(why));
    }
    page.push_str("</p>");
    if !bad.kept.is_empty() {
        page.push_str("<div class=\"scroll\"><table><tr><th>file</th><th>line</th><th class=\"t\">why</th><th class=\"t\">row</th></tr>");
        for row in &bad.kept {
            let (source, why, text) = (escape(&row.source), escape(&row.why), escape(&row.text));
            let _ = write!(
                page,
                "<tr><td>{source}</td><td>{}</td><td class=\"t\">{why}</td><td class=\"t\"><code>{text}</code></td></tr>",
                row.line
            );
        }
        page.push_str("</table></div>");
    }
    page.push_str("</section>\n");
}

pub(super) fn assumptions(page: &mut String, report: &Report) {
    page.push_str("<section><h2>What was assumed</h2><ul>");
    for line in &report.assumptions {
        let _ = write!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul></section>\n");
}

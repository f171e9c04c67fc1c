//! `muster replay`: reads the trace, runs the twin, writes the report and prints its figures.

use crate::args::replay::{FromDay, Replay};
use crate::event_file::EventFile;
use crate::failure::Failure;
use crate::output::{Block, Columns, Out, note};
use crate::spec::tenants;
use crate::units::show_seconds;
use indicatif::{ProgressBar, ProgressStyle};
use muster_model::tenant_edit::TenantEdit;
use muster_twin::fleet::{Fleet, FleetError};
use muster_twin::import::{ImportError, Trace};
use muster_twin::mix::{MixError, MixSpec, TraceSpec, mixed};
use muster_twin::report::{ClosenessRow, Report};
use muster_twin::shape::ShapeOptions;
use muster_twin::window::WindowChoice;
use muster_twin::{NodeModel, Options, ReplayError, ReplayInput, html, replay_logged};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

/// Largest fleet file that is read.
const FLEET_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Replays on virtual time.
///
/// # Errors
/// When a file cannot be read or written, the fleet is none, or nothing is in the window.
pub fn run(out: &Out, args: &Replay) -> Result<(), Failure> {
    let began = Instant::now();
    let Loaded { trace, window, name } = load(args)?;
    let fleet = fleet(args.fleet.as_deref().unwrap_or_default())?;
    let title = args.title.clone().unwrap_or_else(|| format!("{name} on {}", fleet.name));
    let (tree, half_life_s) = tree(args)?;
    let options = Options { half_life_s, ..options(args, window) };
    let input = ReplayInput { title, trace, fleet, options };
    let read_s = began.elapsed().as_secs_f64();
    let progress = progress();
    let mut events = args.events.as_deref().map(EventFile::create).transpose()?;
    let log = events.as_mut().map(|file| file as &mut dyn Write);
    let report = replay_logged(&input, &tree, log, &mut |done_ms, window_ms| {
        progress.set_length(window_ms / 1000);
        progress.set_position((done_ms / 1000).min(window_ms / 1000));
        progress.set_message(if done_ms > window_ms {
            "after the last day: waiting for jobs to end"
        } else {
            "of the days"
        });
    })
    .map_err(failed)?;
    progress.finish_and_clear();
    if let (Some(file), Some(path)) = (events, &args.events) {
        file.finish().map_err(|error| Failure::io(format!("writing {}", path.display()), error))?;
    }
    let replayed_s = began.elapsed().as_secs_f64() - read_s;
    write(args, &report)?;
    note(&format!("read in {read_s:.2} s, replayed in {replayed_s:.2} s ({} commands decided)", report.work.commands));
    out.show(&report, |_| summary(&report))
}

/// The tree that the flags name, and its half-life of past use.
fn tree(args: &Replay) -> Result<(Vec<TenantEdit>, u64), Failure> {
    let Some(path) = &args.tenants else { return Ok((Vec::new(), 0)) };
    let name = path.display().to_string();
    let mut yaml = String::new();
    open(path)?
        .take(FLEET_BYTES_MAX)
        .read_to_string(&mut yaml)
        .map_err(|error| Failure::io(format!("reading {name}"), error))?;
    let tree = tenants::parse(&yaml, &name)?;
    let edits = tree.edits.into_iter().map(TenantEdit::try_from).collect::<Result<_, _>>();
    let edits = edits.map_err(|error| Failure::Usage(format!("--tenants {name}: {error}")))?;
    Ok((edits, tree.half_life_s.unwrap_or(0)))
}

/// What is replayed.
pub struct Loaded {
    /// Its jobs.
    pub trace: Trace,
    /// Which part of it.
    pub window: WindowChoice,
    /// What it is called.
    pub name: String,
}

/// The trace's files, read to their end, or the mixed day. What could not be used is said on standard error.
///
/// # Errors
/// When one cannot be read, its header does not fit the format, or the mix's description is wrong.
pub fn load(args: &Replay) -> Result<Loaded, Failure> {
    let loaded = match &args.mix {
        Some(path) => {
            let mix = mix_spec(path)?;
            let trace = mixed_trace(args, &mix)?;
            let name = if mix.name.is_empty() { path.display().to_string() } else { mix.name };
            Loaded { trace, window: WindowChoice::Days { from: mix.warm_days, days: 1 }, name }
        }
        None => {
            let trace = read(args)?;
            let name = format!("Replay of {}", trace.sources.join(", "));
            Loaded { trace, window: window(args), name }
        }
    };
    tell_unused(&loaded.trace);
    Ok(loaded)
}

fn read(args: &Replay) -> Result<Trace, Failure> {
    let format =
        args.format.ok_or_else(|| Failure::Usage("--format is missing: openb, itp, philly or sacct".to_owned()))?;
    let mut trace = Trace::default();
    for path in &args.files {
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let added = if path == Path::new("-") {
            trace.add(format, std::io::stdin().lock(), "standard-input")
        } else {
            trace.add(format, open(path)?, &name)
        };
        added.map_err(|error| match error {
            ImportError::Unreadable { .. } => Failure::Refused(error.to_string()),
            wrong => Failure::Usage(wrong.to_string()),
        })?;
    }
    Ok(trace)
}

/// The description of a mixed day.
fn mix_spec(path: &Path) -> Result<MixSpec, Failure> {
    let mut yaml = String::new();
    open(path)?
        .take(FLEET_BYTES_MAX)
        .read_to_string(&mut yaml)
        .map_err(|error| Failure::io(format!("reading {}", path.display()), error))?;
    serde_yaml_ng::from_str(&yaml).map_err(|error| Failure::Usage(format!("--mix {}: {error}", path.display())))
}

/// The jobs of a mixed day.
fn mixed_trace(args: &Replay, mix: &MixSpec) -> Result<Trace, Failure> {
    let beside = args.mix.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new("."));
    let folder = args.traces.as_deref().unwrap_or(beside);
    let read = |from: &TraceSpec| {
        let mut trace = Trace::default();
        for name in &from.files {
            let path = folder.join(name);
            let unreadable = |error: std::io::Error| ImportError::Unreadable {
                source_name: path.display().to_string(),
                why: error.to_string(),
            };
            trace.add(from.format, File::open(&path).map_err(unreadable)?, name)?;
        }
        Ok(trace)
    };
    mixed(mix, read).map_err(|error| match error {
        MixError::Trace(error @ ImportError::Unreadable { .. }) => Failure::NotFound(error.to_string()),
        wrong => Failure::Usage(format!("--mix: {wrong}")),
    })
}

fn tell_unused(trace: &Trace) {
    if trace.bad.count > 0 {
        note(&format!("skipped {} invalid rows:", trace.bad.count));
        for row in &trace.bad.kept {
            note(&format!("  {}, line {}: {}", row.source, row.line, row.why));
        }
    }
    for (why, count) in &trace.skipped {
        note(&format!("skipped: {count} × {why}"));
    }
}

/// What the flags say of the window.
fn window(args: &Replay) -> WindowChoice {
    match (args.days, args.from_day) {
        (None, _) => WindowChoice::Whole,
        (Some(days), FromDay::Day(from)) => WindowChoice::Days { from, days },
        (Some(days), FromDay::Busiest) => WindowChoice::Busiest { days },
    }
}

/// What the flags say of how jobs are asked for.
#[must_use]
pub fn shape(args: &Replay) -> ShapeOptions {
    ShapeOptions {
        any_model: args.any_model,
        preferred: args.prefer,
        required: args.require,
        limit_percent: args.time_limits,
        grace_s: args.grace_s,
    }
}

fn options(args: &Replay, window: WindowChoice) -> Options {
    Options {
        window,
        policy: args.policy,
        warm_start: !args.cold,
        quota: args.quota,
        shape: shape(args),
        nodes: NodeModel { start_delay_ms: args.start_delay.0 * 1000, stop_delay_ms: args.stop_delay.0 * 1000 },
        drain_days_max: args.drain_days,
        checkpoint_s: args.checkpoint_s,
        queue: args.queue,
        cool_down_s: args.cool_down.0,
        estimates_every: args.estimates,
        ..Options::default()
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::NotFound(format!("file {} does not exist", path.display())),
        _ => Failure::io(format!("reading {}", path.display()), error),
    })
}

/// Shorthand, openb's list of nodes (`.csv`, `.csv.gz`), or a YAML or JSON file.
fn fleet(text: &str) -> Result<Fleet, Failure> {
    let wrong = |error: FleetError| Failure::Usage(format!("--fleet: {error}"));
    let path = Path::new(text);
    if !path.is_file() {
        return Fleet::parse_shorthand(text).map_err(|error| match error {
            FleetError::Shorthand { .. } if text.contains(['/', '.']) => {
                Failure::NotFound(format!("--fleet: file {text} does not exist"))
            }
            error => wrong(error),
        });
    }
    if text.ends_with(".csv") || text.ends_with(".csv.gz") {
        return Fleet::from_openb_nodes(open(path)?, text).map_err(wrong);
    }
    let mut yaml = String::new();
    open(path)?
        .take(FLEET_BYTES_MAX)
        .read_to_string(&mut yaml)
        .map_err(|error| Failure::io(format!("reading {text}"), error))?;
    let fleet: Fleet =
        serde_yaml_ng::from_str(&yaml).map_err(|error| Failure::Usage(format!("--fleet {text}: {error}")))?;
    fleet.validate().map_err(wrong)?;
    let name = if fleet.name.is_empty() { text.to_owned() } else { fleet.name };
    Ok(Fleet { name, ..fleet })
}

fn failed(error: ReplayError) -> Failure {
    match error {
        ReplayError::Empty { .. } | ReplayError::Fleet(_) | ReplayError::SetUp(_) => Failure::Usage(error.to_string()),
        fault => Failure::Role(anyhow::Error::new(fault)),
    }
}

fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed} [{bar:40}] {percent} % {msg}");
    ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn write(args: &Replay, report: &Report) -> Result<(), Failure> {
    let save = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|error| Failure::io(format!("writing {}", path.display()), error))
    };
    if let Some(path) = &args.json {
        let json = serde_json::to_string(report);
        save(path, json.map_err(|error| Failure::Server { what: "report".to_owned(), why: error.to_string() })?)?;
    }
    if let Some(path) = &args.html {
        save(path, html::render(report))?;
    }
    Ok(())
}

/// One line on how close together gangs stood.
fn closeness(report: &Report) -> String {
    let sum = |of: fn(&ClosenessRow) -> u64| report.closeness.iter().map(of).sum::<u64>();
    let beyond = |there: u64, fewest: u64| format!("{:.2}", there as f64 / fewest.max(1) as f64);
    format!(
        "{} jobs of 2 GPUs or more used {} times the least possible number of nodes, {} times the leaves, {} times the blocks",
        sum(|row| row.gangs),
        beyond(sum(|row| row.nodes), sum(|row| row.nodes_fewest)),
        beyond(sum(|row| row.leaves), sum(|row| row.leaves_fewest)),
        beyond(sum(|row| row.blocks), sum(|row| row.blocks_fewest)),
    )
}

/// The figures that a terminal shows; the files have all.
fn summary(report: &Report) -> Vec<Block> {
    let (jobs, usage) = (&report.jobs, &report.usage);
    let left = jobs.running_at_stop + jobs.waiting_at_stop;
    let share = |share: f64| format!("{:.1} %", share * 100.0);
    let lines = [
        report.title.clone(),
        format!(
            "{} jobs submitted, {} running at the start: {} completed, {} failed, {} cancelled, {} timeout, {} refused, {left} not ended",
            jobs.submitted, jobs.warm, jobs.completed, jobs.failed, jobs.cancelled, jobs.timed_out, jobs.refused
        ),
        format!(
            "{} GPUs: {} of their time allocated, {} running, at most {:.0} at once; {} of the free GPUs useless for a gang of {}",
            report.fleet.gpus,
            share(usage.allocated_share),
            share(usage.running_share),
            usage.peak_gpus,
            share(report.fragmentation.unusable_share_mean),
            report.fragmentation.gang_gpus
        ),
        closeness(report),
        format!("{} invalid rows; the report lists {} assumptions", report.bad_rows.count, report.assumptions.len()),
        String::new(),
    ];
    let heads = ["GANG", "JOBS", "AT ONCE", "P50", "P90", "P99", "LONGEST", "NOT STARTED"];
    let mut table = Columns::new(&heads).right(&heads[1..]);
    let wait = |seconds: f64| show_seconds(seconds.ceil() as u64);
    for row in &report.waits {
        table.row(vec![
            row.size.clone(),
            row.jobs.to_string(),
            share(row.at_once as f64 / row.jobs.max(1) as f64),
            wait(row.wait_s.p50),
            wait(row.wait_s.p90),
            wait(row.wait_s.p99),
            wait(row.wait_s.max),
            row.never_bound.to_string(),
        ]);
    }
    vec![Block::Text(lines.join("\n")), table.block()]
}

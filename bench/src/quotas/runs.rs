//! Makes the traces and trees ready and plays every run, several at once.

use super::figures::Figures;
use super::{Options, Policy, Prepared, Source, referee, resume};
use anyhow::{Context, Result, bail};
use muster_model::GpuModel;
use muster_twin::bootstrap::{Bootstrap, bootstrap};
use muster_twin::fleet::{Fleet, NodeGroup};
use muster_twin::import::{Format, Trace};
use muster_twin::shape::ShapeOptions;
use muster_twin::training::{NODE_GPUS, Trained};
use muster_twin::window::{DAY_S, WindowChoice};
use muster_twin::{Options as ReplayOptions, ReplayInput, replay_under};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The model of all cards: these traces name none.
const MODEL: GpuModel = GpuModel::H100;

/// One run to make.
type Case = (usize, u32, u64, Policy);

/// Reads a trace and learns from its training days.
pub(super) fn prepare(options: &Options, source: Source) -> Result<Prepared> {
    let (format, folder) = match source {
        Source::Itp => (Format::Itp, "itp"),
        Source::Philly => (Format::Philly, "philly"),
    };
    let folder = options.traces.join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .with_context(|| {
            format!("no trace in {}; name the folder of the public traces with --traces", folder.display())
        })?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    let mut trace = Trace::default();
    for path in files.iter().filter(|path| path.to_string_lossy().contains(".csv")) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let file = File::open(path).with_context(|| format!("reading {}", path.display()))?;
        trace.add(format, file, &name)?;
    }
    if trace.jobs.is_empty() {
        bail!("no job in {}", folder.display());
    }
    let (training, test_days) = source.days();
    let trained = Trained::of(&trace, &training);
    let trace = trained.renamed(trace);
    Ok(Prepared { source, training, test_days, trace, trained })
}

type Said = Vec<(Source, Vec<String>)>;

/// Plays every run. Answers the figures in the order of traces, loads, seeds and policies, and the assumptions of each trace's first run.
pub(super) fn all(options: &Options, prepared: &[Prepared], judged: bool) -> Result<(Vec<Figures>, Said)> {
    let mut cases: Vec<Case> = Vec::new();
    for index in 0..prepared.len() {
        for load in &options.loads_permille {
            for seed in 1..=options.seeds {
                cases.extend(options.policies.iter().map(|policy| (index, *load, seed, *policy)));
            }
        }
    }
    let logs = match &options.logs {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
            None
        }
        None => Some(tempfile::tempdir().context("a folder for event logs")?),
    };
    let folder = options.logs.clone().or_else(|| logs.as_ref().map(|folder| folder.path().to_owned()));
    let folder = folder.context("a folder for event logs")?;
    let finished = match &options.resume {
        Some(path) => resume::read(path, options, judged)?,
        None => Vec::new(),
    };
    let finished = |case: &Case| {
        let run = (prepared[case.0].source, case.1, case.2, case.3);
        finished.iter().find(|(figures, _)| resume::is_of(figures, run)).cloned()
    };
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                while let Some((at, case)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(at).map(|case| (at, *case))
                } {
                    let before = finished(&case);
                    let again = before.is_none();
                    let played = before.map_or_else(|| play(options, &prepared[case.0], case, &folder, judged), Ok);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    let played = match (played, options.resume.as_deref().filter(|_| again)) {
                        (Ok(run), Some(path)) => resume::append(path, options, judged, &run).map(|()| run),
                        (played, _) => played,
                    };
                    let failed = played.is_err();
                    done.push((at, played));
                    tell(done.len(), cases.len());
                    if failed {
                        // The others would only delay the answer.
                        next.store(cases.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    let (mut figures, mut said) = (Vec::new(), Said::new());
    for (_, played) in done {
        let (one, assumptions) = played?;
        if said.iter().all(|(source, _)| *source != one.source) {
            said.push((one.source, assumptions));
        }
        figures.push(one);
    }
    Ok((figures, said))
}

/// Progress on a terminal's standard error.
fn tell(done: usize, all: usize) {
    if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        eprint!("\r{done} of {all} runs");
        if done == all {
            eprintln!();
        }
    }
}

fn play(
    options: &Options,
    prepared: &Prepared,
    (_, load_permille, seed, policy): Case,
    logs: &Path,
    judged: bool,
) -> Result<(Figures, Vec<String>)> {
    let name = format!("{}-{load_permille}-{seed}-{policy}", prepared.source);
    let began = Instant::now();
    let input = input(options, prepared, (load_permille, seed, policy), &name);
    let tree = match policy {
        Policy::Static => prepared.trained.tree_without_borrowing(MODEL),
        Policy::Muster | Policy::Fifo | Policy::StrictPriority => prepared.trained.tree(MODEL),
    };
    let path = logs.join(format!("{name}.jsonl"));
    let logged = judged || options.logs.is_some();
    let mut log = match logged {
        true => {
            let file = File::create(&path).with_context(|| format!("writing {}", path.display()))?;
            Some(BufWriter::new(file))
        }
        false => None,
    };
    let to = log.as_mut().map(|file| file as &mut dyn Write);
    let report = replay_under(&input, &tree, to, &mut |_, _| {}).with_context(|| name.clone())?;
    drop(log);
    let replay_s = began.elapsed().as_secs_f64();
    let verdict = match options.referee.as_deref().filter(|_| judged) {
        Some(program) => Some(referee::judge(program, &path).with_context(|| name.clone())?),
        None => None,
    };
    let referee_s = began.elapsed().as_secs_f64() - replay_s;
    if logged && options.logs.is_none() {
        std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    let figures = Figures::of((prepared.source, load_permille, seed, policy), &report, verdict, (replay_s, referee_s));
    Ok((figures, report.assumptions))
}

fn input(
    options: &Options,
    prepared: &Prepared,
    (load_permille, seed, policy): (u32, u64, Policy),
    name: &str,
) -> ReplayInput {
    let (from_day, from_days) = prepared.test_days;
    let days = options.warm_days + options.days;
    let trace = bootstrap(&prepared.trace, &Bootstrap { from_day, from_days, days, load_permille, seed });
    let first_day = trace.jobs.first().map_or(0, |job| job.submit_s / DAY_S);
    let nodes = prepared.trained.nodes;
    let fleet = Fleet {
        name: format!("{nodes} nodes of {NODE_GPUS} {MODEL}"),
        groups: vec![NodeGroup::of(nodes as u32, NODE_GPUS as u32, MODEL)],
    };
    let replay = ReplayOptions {
        // A window counts from the day of the first submission.
        window: WindowChoice::Days { from: options.warm_days.saturating_sub(first_day as u32), days: options.days },
        shape: ShapeOptions {
            limit_percent: (options.limit_percent > 0).then_some(options.limit_percent),
            grace_s: Some(options.grace_s),
            ..ShapeOptions::default()
        },
        drain_days_max: options.drain_days,
        checkpoint_s: options.checkpoint_s,
        cool_down_s: options.cool_down_s,
        estimates_every: options.estimates_every,
        queue: policy.queue(),
        ..ReplayOptions::default()
    };
    ReplayInput { title: name.to_owned(), trace, fleet, options: replay }
}

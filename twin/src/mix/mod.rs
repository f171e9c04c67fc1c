//! A day of mixed work, put together from traces: whole recorded days drawn with replacement, and gangs made up by rule where no
//! public trace has them.
//!
//! What must stay true: durations are never stretched and stay with their size; jobs of one second stay together; the same
//! description with the same files gives the same jobs; what was drawn and what was made up is said in the assumptions.

pub(crate) mod draw;
mod spec;

pub use spec::{GangsSpec, MixSpec, Only, ShareKind, SourceSpec, TraceSpec};

use crate::import::{EndState, ImportError, Trace, TraceDevices, TraceJob};
use crate::window::DAY_S;
use draw::Draw;
use std::collections::BTreeMap;

/// Seconds by which bursts are moved at most, beyond the offset of their day.
const JITTER_S: u64 = 30;
/// Teams of one organisation: tenants are dealt out so.
const TEAMS: u64 = 10;

/// Why a mix cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MixError {
    /// The description is wrong.
    #[error("{field}: {why}")]
    Field {
        /// Which field.
        field: String,
        /// What is wrong and how to mend it.
        why: String,
    },
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] ImportError),
}

/// Makes the jobs of `mix`. `open` gives the trace of a source's files.
///
/// # Errors
/// What is wrong with the description, or with a file.
pub fn mixed(mix: &MixSpec, mut open: impl FnMut(&TraceSpec) -> Result<Trace, ImportError>) -> Result<Trace, MixError> {
    mix.validate()?;
    let mut out = Trace { kind: "mix".to_owned(), ..Trace::default() };
    for (index, source) in mix.sources.iter().enumerate() {
        let field = |name: &str| format!("sources[{index}].{name}");
        let mut draw = Draw::seeded(mix.seed, index as u64);
        let made = match (&source.trace, &source.gangs) {
            (Some(from), _) => {
                let trace = open(from)?;
                let days = days_of(&trace, from);
                if days.is_empty() {
                    return Err(MixError::Field {
                        field: field("trace"),
                        why: "no job of it is left to draw from; loosen `only` or `tenants`".to_owned(),
                    });
                }
                note_trace(&mut out, source, from, &days);
                out.bad.absorb(trace.bad);
                out.sources.extend(trace.sources);
                out.assume(trace.assumptions);
                resampled(mix, source, from, &days, &mut draw)
            }
            (None, Some(gangs)) => {
                note_gangs(&mut out, source, gangs);
                made_up(mix, source, gangs, &mut draw)
            }
            (None, None) => Vec::new(),
        };
        out.jobs.extend(made);
    }
    out.assume([format!(
        "The day is day {} of the mix, seed {}; the {} days before it are made alike, so that it begins with what still runs of them, as if each job had begun when it was submitted. Jobs that would have run for longer than that are missing at its beginning.",
        mix.warm_days, mix.seed, mix.warm_days
    )]);
    out.jobs.sort_by_key(|job| job.submit_s);
    Ok(out)
}

/// The jobs of a trace by file of origin (its tenant) and recorded day, with the second of the day.
fn days_of(trace: &Trace, from: &TraceSpec) -> Vec<Vec<(u64, TraceJob)>> {
    let mut days: BTreeMap<(String, u64), Vec<(u64, TraceJob)>> = BTreeMap::new();
    let wanted = |job: &&TraceJob| from.tenants.is_empty() || from.tenants.contains(&job.tenant);
    for job in trace.jobs.iter().filter(wanted).filter(|job| from.only.is_none_or(|only| only.admits(job.devices))) {
        days.entry((job.tenant.clone(), job.submit_s / DAY_S)).or_default().push((job.submit_s % DAY_S, job.clone()));
    }
    days.into_values().collect()
}

/// Whole days drawn with replacement until each day of the mix has its number of jobs; each drawn day has its own tenant and offset.
fn resampled(
    mix: &MixSpec,
    source: &SourceSpec,
    from: &TraceSpec,
    days: &[Vec<(u64, TraceJob)>],
    draw: &mut Draw,
) -> Vec<TraceJob> {
    let mut jobs = Vec::new();
    for day in 0..=u64::from(mix.warm_days) {
        let mut left = source.jobs_per_day as usize;
        while left > 0 {
            let drawn = &days[draw.below(days.len() as u64) as usize];
            let tenant = tenant(source, draw);
            let offset_s = draw.below(DAY_S);
            let mut burst = (u64::MAX, 0);
            for (second, job) in drawn.iter().take(left) {
                if burst.0 != *second {
                    burst = (*second, draw.below(JITTER_S));
                }
                let time_s = (second + offset_s + burst.1) % DAY_S;
                jobs.push(TraceJob {
                    name: format!("{}-{}", source.name, jobs.len()),
                    tenant: tenant.clone(),
                    submit_s: day * DAY_S + time_s,
                    recorded_wait_s: None,
                    devices: from.shares.map_or(job.devices, |shares| shares.of(job.devices)),
                    cpu_milli: 0,
                    memory_mib: 0,
                    models: Vec::new(),
                    ..job.clone()
                });
            }
            left -= drawn.len().min(left);
        }
    }
    jobs
}

/// Gangs whose size and length are drawn from the given ones.
fn made_up(mix: &MixSpec, source: &SourceSpec, gangs: &GangsSpec, draw: &mut Draw) -> Vec<TraceJob> {
    let (from_s, to_s) = (u64::from(gangs.hours[0]) * 3600, u64::from(gangs.hours[1]) * 3600);
    let days = 0..=u64::from(mix.warm_days);
    days.flat_map(|day| (0..source.jobs_per_day).map(move |number| (day, number)))
        .map(|(day, number)| TraceJob {
            name: format!("{}-{day}-{number}", source.name),
            tenant: tenant(source, draw),
            submit_s: day * DAY_S + draw.below(DAY_S),
            duration_s: from_s + draw.below(to_s - from_s + 1),
            recorded_wait_s: None,
            time_limit_s: None,
            tasks: 1,
            devices: TraceDevices::Whole { gpus_per_task: gangs.gpus[draw.below(gangs.gpus.len() as u64) as usize] },
            cpu_milli: 0,
            memory_mib: 0,
            models: Vec::new(),
            end: EndState::Completed,
        })
        .collect()
}

/// One of the source's tenants: ten teams to an organisation, which is the domain inside which cards are shared.
fn tenant(source: &SourceSpec, draw: &mut Draw) -> String {
    let number = draw.below(u64::from(source.tenants));
    format!("{}-{}/team-{}", source.name, number / TEAMS, number % TEAMS)
}

fn note_trace(out: &mut Trace, source: &SourceSpec, from: &TraceSpec, days: &[Vec<(u64, TraceJob)>]) {
    let jobs: usize = days.iter().map(Vec::len).sum();
    let shares = match from.shares {
        None => "",
        Some(ShareKind::Mig) => {
            " A share becomes the smallest MIG instance with that part of a card's compute, or a whole card where only the largest profile has it."
        }
        Some(ShareKind::Mps) => {
            " A share becomes an MPS share of that compute percentage and that part of the card's memory."
        }
    };
    out.assume([format!(
        "{}: {} jobs a day, drawn as whole recorded days ({} of them, {jobs} jobs, format {}) with replacement; each drawn day has one of {} tenants, its own offset within the day and up to {JITTER_S} s of jitter for each burst; durations stay with their sizes. CPU, memory and models that the trace names are not asked for.{shares}",
        source.name, source.jobs_per_day, days.len(), from.format, source.tenants
    )]);
}

fn note_gangs(out: &mut Trace, source: &SourceSpec, gangs: &GangsSpec) {
    out.assume([format!(
        "{}: {} gangs a day, made up: as many GPUs as one of {:?}, each as likely; {} to {} hours, evenly; any second of the day; one of {} tenants.",
        source.name, source.jobs_per_day, gangs.gpus, gangs.hours[0], gangs.hours[1], source.tenants
    )]);
}

//! Whole recorded days of each tenant, drawn with replacement: many test windows from one, at any offered load.
//!
//! What must stay true: durations are never stretched and stay with their size; jobs of one second stay together and keep their tenant; days without a
//! job are drawn like all others; a seed draws at a greater load what it draws at a smaller one, and more.

use crate::import::{Trace, TraceJob};
use crate::mix::draw::Draw;
use crate::window::DAY_S;
use std::collections::BTreeMap;

/// Seconds by which bursts are moved at most, beyond the offset of their day.
const JITTER_S: u64 = 30;
/// Streams of random numbers of one tenant: one for each copy of a day, so that copies do not depend on each other.
const COPIES_MAX: u64 = 64;

/// What to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// First recorded day to draw from, counted from the day of the trace's first submission.
    pub from_day: u32,
    /// How many recorded days to draw from.
    pub from_days: u32,
    /// How many days to make.
    pub days: u32,
    /// Days of each tenant for one day that is made, in thousandths: 1,500 is one and every other time another.
    pub load_permille: u32,
    /// Of everything that is drawn.
    pub seed: u64,
}

/// Draws. The days that are made count from 0; a tenant of the trace keeps its name.
#[must_use]
pub fn bootstrap(trace: &Trace, how: &Bootstrap) -> Trace {
    let first_day = trace.jobs.first().map_or(0, |job| job.submit_s / DAY_S) + u64::from(how.from_day);
    let recorded = first_day..first_day + u64::from(how.from_days);
    let mut by_tenant: BTreeMap<&str, BTreeMap<u64, Vec<&TraceJob>>> = BTreeMap::new();
    for job in trace.jobs.iter().filter(|job| recorded.contains(&(job.submit_s / DAY_S))) {
        by_tenant.entry(&job.tenant).or_default().entry(job.submit_s / DAY_S).or_default().push(job);
    }
    let (whole, part) = (how.load_permille / 1000, u64::from(how.load_permille % 1000));
    let mut jobs = Vec::new();
    for (number, days) in (0..).zip(by_tenant.values()) {
        for copy in 0..=u64::from(whole).min(COPIES_MAX - 1) {
            let mut draw = Draw::seeded(how.seed, number * COPIES_MAX + copy);
            for day in 0..u64::from(how.days) {
                let drawn = first_day + draw.below(u64::from(how.from_days));
                let (offset_s, chance) = (draw.below(DAY_S), draw.below(1000));
                if copy < u64::from(whole) || chance < part {
                    let of_day = days.get(&drawn).map_or(&[][..], Vec::as_slice);
                    place(of_day, (day, offset_s), &mut draw, &mut jobs);
                }
            }
        }
    }
    jobs.sort_by_key(|job: &TraceJob| job.submit_s);
    for (number, job) in jobs.iter_mut().enumerate() {
        job.name = format!("{number}-{}", job.name).chars().take(48).collect();
    }
    let mut out = Trace { jobs, ..trace.clone() };
    out.assume([format!(
        "Drawn from days {} to {} of the trace, seed {}: each of {} days has, of each tenant, {:.1} of its recorded days on average, drawn with replacement (days without a job included), each moved round by its own offset within the day, with up to {JITTER_S} s of jitter for each burst.",
        how.from_day, how.from_day + how.from_days - 1, how.seed, how.days, f64::from(how.load_permille) / 1000.0
    )]);
    out
}

/// One recorded day as day `day`, moved round by an offset.
fn place(recorded: &[&TraceJob], (day, offset_s): (u64, u64), draw: &mut Draw, jobs: &mut Vec<TraceJob>) {
    let mut burst = (u64::MAX, 0);
    for job in recorded {
        let second = job.submit_s % DAY_S;
        if burst.0 != second {
            burst = (second, draw.below(JITTER_S));
        }
        let time_s = (second + offset_s + burst.1) % DAY_S;
        jobs.push(TraceJob { submit_s: day * DAY_S + time_s, recorded_wait_s: None, ..(*job).clone() });
    }
}

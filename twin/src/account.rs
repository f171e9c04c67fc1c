//! Draws up the report from what a finished replay has gathered.

use crate::assumptions::assumptions;
use crate::bound::{Work as Bounded, goodput_bound};
use crate::estimates;
use crate::gathered::Account;
use crate::ledger::{Ended, JobAccount, cards};
use crate::report::{
    EstimateRow, JobCounts, Percentiles, REPORT_VERSION, Report, Reservations, Series, TenantRow, TenantSeries, Usage,
    WaitRow, WindowFacts,
};
use crate::reservations::reservations;
use crate::window::DAY_S;
use muster_model::GpuUnits;
use std::collections::BTreeMap;

/// Tenants drawn by name; the others are drawn together.
const TENANTS_DRAWN_MAX: usize = 8;
/// Milliseconds of an hour.
const HOUR_MS: f64 = 3_600_000.0;

fn gpu_h(unit_ms: u128) -> f64 {
    unit_ms as f64 / GpuUnits::CARD.0 as f64 / HOUR_MS
}

impl JobAccount {
    /// From submission to binding, or until `stopped_ms` when it was never bound.
    fn wait_ms(&self, stopped_ms: u64) -> u64 {
        self.bound_ms.unwrap_or(stopped_ms.max(self.submit_ms)) - self.submit_ms
    }

    /// Held beyond what was asked for, from its binding to its end, or nothing while it has not ended.
    fn rounded_up_unit_ms(&self) -> u128 {
        let (Some(bound_ms), Some((ended_ms, _))) = (self.bound_ms, self.ended) else { return 0 };
        let held = u128::from(self.held_units.0) * u128::from(ended_ms - bound_ms);
        let asked = u128::from(self.asked_milli) * u128::from(GpuUnits::CARD.0) / 1000;
        held.saturating_sub(asked * u128::from(self.duration_ms.min(ended_ms - bound_ms)))
    }

    fn asked_unit_ms(&self) -> u128 {
        u128::from(self.units.0) * u128::from(self.duration_ms)
    }
}

impl Account<'_> {
    /// The report.
    pub(crate) fn report(mut self) -> Report {
        let fairness = self.watch.take().map(|watch| watch.result(&self.ledger.tenants));
        let input = self.input;
        Report {
            version: REPORT_VERSION,
            title: input.title.clone(),
            format: input.trace.kind.clone(),
            sources: input.trace.sources.clone(),
            window: WindowFacts {
                from_day: self.window.from_day,
                days: self.window.length_s() as f64 / DAY_S as f64,
                from_s: self.window.from_s,
                to_s: self.window.to_s,
            },
            jobs: self.counts(),
            usage: self.usage(),
            waits: self.waits(),
            waits_all_s: self.wait_of(self.counted()),
            closeness: self.measure.closeness.rows(),
            tenants: self.tenants(),
            series: self.series(),
            fragmentation: self.measure.fragmentation(),
            bad_rows: input.trace.bad.clone(),
            skipped_rows: input.trace.skipped.clone(),
            assumptions: assumptions(&self),
            fairness,
            reservations: self.reservations(),
            estimates: self.estimates(),
            fleet: self.fleet,
            refused: self.refused,
            work: self.work,
        }
    }

    fn counts(&self) -> JobCounts {
        let mut counts = JobCounts {
            gangs_split: self.ledger.gangs_split,
            gpus_added: self.ledger.gpus_added,
            ..JobCounts::default()
        };
        for job in &self.ledger.jobs {
            *(if job.warm { &mut counts.warm } else { &mut counts.submitted }) += 1;
            *match job.ended {
                _ if job.refused => &mut counts.refused,
                Some((_, Ended::Completed)) => &mut counts.completed,
                Some((_, Ended::Failed)) => &mut counts.failed,
                Some((_, Ended::Cancelled)) => &mut counts.cancelled,
                Some((_, Ended::TimedOut)) => &mut counts.timed_out,
                None if job.waits || job.bound_ms.is_none() => &mut counts.waiting_at_stop,
                None => &mut counts.running_at_stop,
            } += 1;
        }
        counts
    }

    fn usage(&self) -> Usage {
        let capacity_gpu_h = self.fleet.gpus as f64 * self.window.length_s() as f64 / 3600.0;
        let allocated_gpu_h = gpu_h(self.measure.allocated.integral());
        let running_gpu_h = gpu_h(self.measure.running.integral());
        let jobs = || self.ledger.jobs.iter().filter(|job| !job.refused);
        let left = jobs().any(|job| job.ended.is_none());
        let first_ms = jobs().map(|job| job.submit_ms).min().unwrap_or(0);
        let last_ms = jobs().filter_map(|job| job.ended).map(|(at_ms, _)| at_ms).max().unwrap_or(first_ms);
        Usage {
            capacity_gpu_h,
            offered_gpu_h: gpu_h(self.ledger.jobs.iter().filter(|job| !job.warm).map(JobAccount::asked_unit_ms).sum()),
            allocated_gpu_h,
            running_gpu_h,
            allocated_share: allocated_gpu_h / capacity_gpu_h,
            running_share: running_gpu_h / capacity_gpu_h,
            idle_while_waiting_gpu_h: gpu_h(self.measure.idle_unit_ms),
            rounded_up_gpu_h: gpu_h(jobs().map(JobAccount::rounded_up_unit_ms).sum()),
            peak_gpus: GpuUnits(self.measure.allocated.most()).as_cards(),
            peak_waiting_jobs: self.measure.waiting_jobs.most(),
            allocated_gpu_h_to_stop: gpu_h(self.measure.unit_ms_to_stop),
            preempted_attempts: self.kept.victims,
            lost_to_preemption_gpu_h: gpu_h(self.kept.lost),
            goodput_share: gpu_h(self.kept.finished) / capacity_gpu_h,
            saved_share: gpu_h(self.kept.saved) / capacity_gpu_h,
            lost_share: gpu_h(self.kept.lost_in_window) / capacity_gpu_h,
            unfinished_share: gpu_h(self.unfinished()) / capacity_gpu_h,
            goodput_bound_share: self.bound(),
            makespan_h: (!left).then(|| (last_ms - first_ms) as f64 / HOUR_MS),
        }
    }

    /// Held within the window by attempts that still ran when the replay stopped.
    fn unfinished(&self) -> u128 {
        let window_ms = self.window.length_s() * 1000;
        let held =
            self.ledger.holds.values().map(|index| &self.ledger.jobs[*index]).filter(|job| job.kept_ms.is_none());
        held.map(|job| u128::from(job.held_units.0) * u128::from(window_ms.saturating_sub(job.attempt_ms))).sum()
    }

    fn bound(&self) -> f64 {
        // Devices are held from the binding, so the time of starting counts as it does in what is measured.
        let start_ms = self.input.options.nodes.start_delay_ms;
        let work = self.ledger.jobs.iter().map(|job| Bounded {
            from_ms: job.submit_ms,
            length_ms: job.duration_ms + start_ms,
            units: job.units.0,
        });
        goodput_bound(work, GpuUnits::cards(self.fleet.gpus).0, self.window.length_s() * 1000)
    }

    fn estimates(&self) -> Vec<EstimateRow> {
        let jobs = self.ledger.jobs.iter();
        estimates::rows(jobs.filter_map(|job| Some((job.estimated.as_ref()?, job.bound_ms))), self.stopped_ms)
    }

    fn reservations(&self) -> Option<Reservations> {
        let told: Vec<_> =
            self.ledger.jobs.iter().filter_map(|job| Some((job.told?, job.bound_ms, job.bound_covered))).collect();
        (!told.is_empty()).then(|| reservations(told.into_iter(), self.stopped_ms))
    }

    /// Jobs whose waits count: submitted in the window, not refused.
    fn counted(&self) -> impl Iterator<Item = &JobAccount> {
        self.ledger.jobs.iter().filter(|job| !job.warm && !job.refused)
    }

    fn wait_of<'j>(&self, jobs: impl Iterator<Item = &'j JobAccount>) -> Percentiles {
        Percentiles::of_ms(jobs.map(|job| job.wait_ms(self.stopped_ms)).collect())
    }

    fn waits(&self) -> Vec<WaitRow> {
        let mut by_size: BTreeMap<SizeClass, Vec<&JobAccount>> = BTreeMap::new();
        for job in self.counted() {
            by_size.entry(SizeClass::of(job)).or_default().push(job);
        }
        let row = |(size, jobs): (SizeClass, Vec<&JobAccount>)| {
            let recorded: Vec<u64> = jobs.iter().filter_map(|job| job.recorded_wait_ms).collect();
            WaitRow {
                size: size.name(),
                jobs: jobs.len() as u64,
                at_once: jobs.iter().filter(|job| job.bound_ms == Some(job.submit_ms)).count() as u64,
                never_bound: jobs.iter().filter(|job| job.bound_ms.is_none()).count() as u64,
                gpu_h: gpu_h(jobs.iter().map(|job| job.asked_unit_ms()).sum()),
                wait_s: self.wait_of(jobs.iter().copied()),
                recorded_wait_s: (!recorded.is_empty()).then(|| Percentiles::of_ms(recorded)),
            }
        };
        by_size.into_iter().map(row).collect()
    }

    fn tenants(&self) -> Vec<TenantRow> {
        let mut jobs: Vec<Vec<&JobAccount>> = vec![Vec::new(); self.ledger.tenants.len()];
        for job in self.counted() {
            jobs[job.tenant].push(job);
        }
        let whole = self.measure.allocated.integral().max(1) as f64;
        let row = |(index, path): (usize, &String)| {
            let gauge = &self.measure.tenants[index];
            TenantRow {
                path: path.clone(),
                jobs: jobs[index].len() as u64,
                gpu_h: gpu_h(gauge.integral()),
                share: gauge.integral() as f64 / whole,
                peak_gpus: GpuUnits(gauge.most()).as_cards(),
                max_gpus: self.ledger.max_gpus[index],
                wait_s: self.wait_of(jobs[index].iter().copied()),
            }
        };
        let rows = self.ledger.tenants.iter().enumerate().map(row);
        // Parents that submit nothing themselves are only there for the tree.
        let mut rows: Vec<TenantRow> = rows.filter(|row| row.jobs > 0 || row.gpu_h > 0.0).collect();
        rows.sort_by(|a, b| b.gpu_h.total_cmp(&a.gpu_h).then_with(|| a.path.cmp(&b.path)));
        rows
    }

    fn series(&self) -> Series {
        let measure = &self.measure;
        let mut order: Vec<usize> = (0..self.ledger.tenants.len()).collect();
        order.retain(|index| measure.tenants[*index].integral() > 0);
        order.sort_by_key(|index| (std::cmp::Reverse(measure.tenants[*index].integral()), *index));
        let (drawn, others) = order.split_at(order.len().min(TENANTS_DRAWN_MAX));
        let mut tenants: Vec<TenantSeries> = drawn
            .iter()
            .map(|index| TenantSeries {
                path: self.ledger.tenants[*index].clone(),
                gpus: cards(&measure.tenants[*index]),
            })
            .collect();
        if !others.is_empty() {
            let mut sum = vec![0.0; measure.bins().count];
            for index in others {
                for (total, gpus) in sum.iter_mut().zip(cards(&measure.tenants[*index])) {
                    *total += gpus;
                }
            }
            tenants.push(TenantSeries { path: "others".to_owned(), gpus: sum });
        }
        Series {
            bin_s: measure.bins().bin_ms as f64 / 1000.0,
            allocated_gpus: cards(&measure.allocated),
            running_gpus: cards(&measure.running),
            waiting_gpus: cards(&measure.waiting_units),
            waiting_jobs: measure.waiting_jobs.means(1),
            tenants,
        }
    }
}

/// Classes of gangs by the cards they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SizeClass {
    NoGpu,
    Share,
    /// Up to this many cards, a power of two.
    UpTo(u64),
}

impl SizeClass {
    fn of(job: &JobAccount) -> Self {
        if job.units.0 == 0 {
            SizeClass::NoGpu
        } else if job.share {
            SizeClass::Share
        } else {
            SizeClass::UpTo(job.units.0.div_ceil(GpuUnits::CARD.0).next_power_of_two())
        }
    }

    fn name(self) -> String {
        match self {
            SizeClass::NoGpu => "no GPU".to_owned(),
            SizeClass::Share => "share".to_owned(),
            SizeClass::UpTo(most @ 1..=2) => most.to_string(),
            SizeClass::UpTo(most) => format!("{}-{most}", most / 2 + 1),
        }
    }
}

//! Draws up the report from what a finished replay has gathered.

use crate::follow::Kept;
use crate::input::{Options, ReplayInput};
use crate::ledger::{Ended, JobAccount, Ledger, cards, models_in_words};
use crate::measure::Measure;
use crate::quota::QuotaChoice;
use crate::report::{
    FleetFacts, JobCounts, Percentiles, REPORT_VERSION, Report, Series, TenantRow, TenantSeries, Usage, WaitRow,
    WindowFacts, Work,
};
use crate::window::{DAY_S, Window};
use muster_model::GpuUnits;
use muster_scheduler_core::PlacementPolicy;
use std::collections::BTreeMap;

/// Tenants drawn by name; the others are drawn together.
const TENANTS_DRAWN_MAX: usize = 8;
/// Milliseconds of an hour.
const HOUR_MS: f64 = 3_600_000.0;

/// Everything that the report is made of.
pub(crate) struct Account<'a> {
    pub(crate) input: &'a ReplayInput,
    pub(crate) window: &'a Window,
    pub(crate) fleet: FleetFacts,
    pub(crate) ledger: Ledger,
    pub(crate) measure: Measure,
    pub(crate) kept: Kept,
    pub(crate) work: Work,
    pub(crate) refused: BTreeMap<String, u64>,
    /// When the replay stopped.
    pub(crate) stopped_ms: u64,
}

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
    pub(crate) fn report(self) -> Report {
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
            closeness: self.measure.closeness.rows(),
            tenants: self.tenants(),
            series: self.series(),
            fragmentation: self.measure.fragmentation(),
            bad_rows: input.trace.bad.clone(),
            skipped_rows: input.trace.skipped.clone(),
            assumptions: self.assumptions(),
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
            makespan_h: (!left).then(|| (last_ms - first_ms) as f64 / HOUR_MS),
        }
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

    fn assumptions(&self) -> Vec<String> {
        let (input, options) = (self.input, &self.input.options);
        let mut lines = input.trace.assumptions.clone();
        lines.push(fleet_line(input));
        lines.push(window_line(self.window, options));
        lines.push(shape_line(self, options));
        lines.push(quota_line(options.quota));
        lines.push(format!(
            "Nodes never fail. Tasks start {} ms after binding and are gone {} ms after they are told to stop; a job works for its recorded duration from its start, wherever it lands, whatever else runs beside it.",
            options.nodes.start_delay_ms, options.nodes.stop_delay_ms
        ));
        lines.push(policy_line(options.policy).to_owned());
        lines.push("One shard holds every cell, and every binding is decided at the millisecond at which it is proposed: delays of network, log and agents are left out.".to_owned());
        lines.push("Users are not re-enacted: jobs are submitted when they were, whatever the queue is like; nobody gives up or waits for another job.".to_owned());
        lines.push(format!(
            "All jobs have one priority and no guarantee: order among tenants is by use. After the window nothing more is submitted; the replay goes on for up to {} days so that what was submitted can end, and what is left then is counted as such.",
            options.drain_days_max
        ));
        lines
    }
}

fn fleet_line(input: &ReplayInput) -> String {
    let groups: Vec<String> = input
        .fleet
        .groups
        .iter()
        .map(|group| {
            format!(
                "{} nodes of {} × {} ({} nodes per leaf, {} leaves per block, {})",
                group.nodes,
                group.gpus,
                group.model,
                group.nodes_per_leaf,
                group.leaves_per_block,
                match group.nodes_per_nvlink_domain {
                    Some(nodes) => format!("NVLink domains of {nodes} nodes"),
                    None => {
                        let islands = group.gpus.div_ceil(group.gpus_per_island.unwrap_or(group.gpus));
                        format!("{islands} NVLink island(s) per node")
                    }
                }
            )
        })
        .collect();
    format!(
        "The fleet is described, not the one the trace was recorded on: {}. Work runs as fast on it as it ran there.",
        groups.join("; ")
    )
}

fn window_line(window: &Window, options: &Options) -> String {
    let warm = if options.warm_start {
        "Jobs submitted before it that would still run then, had each begun when it was submitted, are bound first with what was left of them; they use GPUs but do not count in the waits."
    } else {
        "The fleet is empty when it begins, so its first days look better than they would have been."
    };
    format!(
        "Replayed: the submissions from second {} to {} of the trace's clock (day {} and the following, counted from midnight before its first submission). Times and durations are not scaled. {warm}",
        window.from_s, window.to_s, window.from_day
    )
}

fn shape_line(account: &Account<'_>, options: &Options) -> String {
    let gang = match (options.shape.required, options.shape.preferred) {
        (Some(level), _) => format!("gangs of several tasks insist on one {level}"),
        (None, Some(level)) => format!("gangs of several tasks prefer one {level}"),
        (None, None) => "no gang asks for closeness".to_owned(),
    };
    let models = if options.shape.any_model {
        format!(
            "models that the trace names are not asked for; any of {} serves",
            models_in_words(account.input.fleet.gpus_by_model().into_keys())
        )
    } else {
        "models that the trace names are insisted on".to_owned()
    };
    let limits = match options.shape.limit_percent {
        Some(percent) => {
            format!("; a job whose time limit the trace does not say has one of {percent} % of what it takes")
        }
        None => String::new(),
    };
    format!(
        "A gang larger than the fleet's largest acceptable node becomes equal tasks, the fewest that divide its GPUs exactly (up to twice the fewest possible), else rounded up: {} gangs were split and gained {} GPUs in all; {gang}; {models}{limits}.",
        account.ledger.gangs_split, account.ledger.gpus_added
    )
}

fn policy_line(policy: PlacementPolicy) -> &'static str {
    match policy {
        PlacementPolicy::Topology => "Places are chosen by the network and by what is left of cards, as a fleet does.",
        PlacementPolicy::FirstFit => {
            "To compare: nodes are taken in the order of their ids and cards by their index; the network is not looked at."
        }
        PlacementPolicy::BestFit => "To compare: the fullest node and card first; the network is not looked at.",
    }
}

fn quota_line(quota: QuotaChoice) -> String {
    match quota {
        QuotaChoice::None => "No quota is imposed: any tenant may use the whole fleet.".to_owned(),
        QuotaChoice::Equal { percent } => format!(
            "Imposed quota: every organisation may hold at most {percent} % of an equal share of each GPU model (rounded up to cards)."
        ),
        QuotaChoice::Quantile { permille, training_days } => format!(
            "Imposed quota: every organisation may hold at most the {:.1} % quantile of its hourly demand in the {training_days} days before the window (each job counted from its submission for its duration), as the same part of each GPU model, at least one card of each.",
            f64::from(permille) / 10.0
        ),
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

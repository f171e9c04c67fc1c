//! Ceilings imposed on a trace's organisations, for traces bring none.
//!
//! What must stay true: a ceiling comes from the fleet alone or from days before the replayed window, never from the window
//! itself; whatever is imposed is named as such in the report.

use crate::fleet::Fleet;
use crate::import::TraceJob;
use crate::window::{DAY_S, Window};
use muster_model::tenant::TenantSpec;
use muster_model::{GpuUnits, Limits, ResourceVec, Tenant, Trust};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Which ceilings to impose on organisations (first parts of tenant paths).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaChoice {
    /// None.
    #[default]
    None,
    /// The same for each: this percentage of an equal share of the fleet.
    Equal {
        /// 100 is an equal share.
        percent: u32,
    },
    /// A quantile of what each had running, by the hour, in the days before the window.
    Quantile {
        /// 900 is the ninth decile.
        permille: u32,
        /// How many days before the window count.
        training_days: u32,
    },
}

/// The tenants of `jobs` with their ceilings, parents first.
#[must_use]
pub fn tenants(
    choice: QuotaChoice,
    fleet: &Fleet,
    window: &Window,
    all_jobs: &[TraceJob],
    replayed: &[&TraceJob],
) -> Vec<TenantSpec> {
    let mut paths = BTreeSet::new();
    for job in replayed {
        let mut path = Some(job.tenant.as_str());
        while let Some(at) = path {
            if !paths.insert(at.to_owned()) {
                break; // its ancestors are in already
            }
            path = Tenant::parent_path(at);
        }
    }
    let organisations: BTreeSet<&str> = paths.iter().map(|path| Tenant::domain_of(path)).collect();
    let max = ceilings(choice, fleet, window, all_jobs, &organisations);
    // In order of their paths, a parent stands before its children.
    let spec = |path: &String| TenantSpec {
        path: path.clone(),
        guarantee: ResourceVec::default(),
        max: max.get(path.as_str()).cloned().unwrap_or_default(),
        weight: 1,
        trust: Trust::Trusted,
        anti_affinity: Vec::new(),
        lend: true,
        weights: BTreeMap::new(),
        lends: BTreeMap::new(),
        run_as: None,
    };
    paths.iter().map(spec).collect()
}

fn ceilings<'a>(
    choice: QuotaChoice,
    fleet: &Fleet,
    window: &Window,
    jobs: &[TraceJob],
    organisations: &BTreeSet<&'a str>,
) -> BTreeMap<&'a str, Limits> {
    // A part of every model of the fleet, in thousandths of a card of the whole fleet, rounded up to cards.
    let part = |milli: u64| {
        let whole = fleet.gpus() * 1000;
        let of_model = |cards: u64| GpuUnits::cards((cards * milli.min(whole)).div_ceil(whole).max(1));
        Limits {
            gpu: fleet.gpus_by_model().into_iter().map(|(model, cards)| (model, of_model(cards))).collect(),
            ..Limits::default()
        }
    };
    match choice {
        QuotaChoice::None => BTreeMap::new(),
        QuotaChoice::Equal { percent } => {
            let milli = fleet.gpus() * 10 * u64::from(percent) / organisations.len().max(1) as u64;
            organisations.iter().map(|organisation| (*organisation, part(milli))).collect()
        }
        QuotaChoice::Quantile { permille, training_days } => {
            let from_s = window.from_s.saturating_sub(u64::from(training_days) * DAY_S);
            let demand = demand_by_hour(jobs, from_s, window.from_s, Tenant::domain_of);
            let of = |organisation: &str| demand.get(organisation).map_or(0, |hours| quantile(hours.clone(), permille));
            organisations.iter().map(|organisation| (*organisation, part(of(organisation)))).collect()
        }
    }
}

/// Seconds of an hour.
const HOUR_S: u64 = 3600;

/// Thousandths of a card that each part of the tenants would have held at every full hour, had each job begun when it was submitted; `whose` names
/// the part that a tenant belongs to.
pub(crate) fn demand_by_hour<'a>(
    jobs: &'a [TraceJob],
    from_s: u64,
    to_s: u64,
    whose: impl Fn(&'a str) -> &'a str,
) -> BTreeMap<&'a str, Vec<u64>> {
    let hours = ((to_s - from_s) / HOUR_S) as usize;
    let mut steps: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for job in jobs {
        let end_s = (job.submit_s + job.duration_s).min(to_s);
        if job.submit_s >= to_s || end_s <= from_s {
            continue;
        }
        // Held at hour h when it began at or before and ended after.
        let hour = |s: u64| (s.saturating_sub(from_s).div_ceil(HOUR_S) as usize).min(hours);
        let step = steps.entry(whose(&job.tenant)).or_insert_with(|| vec![0; hours + 1]);
        step[hour(job.submit_s)] += job.gpu_milli() as i64;
        step[hour(end_s)] -= job.gpu_milli() as i64;
    }
    let summed = |step: Vec<i64>| {
        let mut held = 0;
        step.into_iter()
            .take(hours)
            .map(|change| {
                held += change;
                held.max(0) as u64
            })
            .collect()
    };
    steps.into_iter().map(|(organisation, step)| (organisation, summed(step))).collect()
}

/// The smallest value that at least `permille` of the values do not pass.
pub(crate) fn quantile(mut values: Vec<u64>, permille: u32) -> u64 {
    values.sort_unstable();
    let rank = (values.len() as u64 * u64::from(permille)).div_ceil(1000).max(1) as usize;
    values.get(rank - 1).or(values.last()).copied().unwrap_or(0)
}

//! A quota tree and a fleet for a trace that has neither, from its training days alone.
//!
//! What must stay true: nothing that was submitted after the training days plays a part; guarantees sum to the whole fleet, so that a fleet that is
//! split statically by them is used as far as it can be.

use crate::import::{Trace, TraceJob};
use crate::quota::{demand_by_hour, quantile};
use crate::window::DAY_S;
use muster_model::tenant::TenantSpec;
use muster_model::{GpuModel, GpuUnits, Limits, ResourceVec, Tenant};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Cards of a node of the fleet, and the least guarantee.
pub const NODE_GPUS: u64 = 8;

/// How to make a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Training {
    /// First training day, counted from the day of the trace's first submission.
    pub from_day: u32,
    /// How many.
    pub days: u32,
    /// The quantile of each tenant's hourly demand that its guarantee follows.
    pub quantile_permille: u32,
    /// The mean demand of the training days fills this part of the fleet, in percent.
    pub fill_percent: u32,
    /// A tenant's max is its guarantee times this, or the largest gang of the training days if that is more.
    pub max_factor: u32,
    /// Organisations that the tenants are dealt to, the largest first.
    pub organisations: u32,
}

/// One tenant of the trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Team {
    /// Its name in the trace.
    pub tenant: String,
    /// Its path in the tree.
    pub path: String,
    /// The quantile of its demand, in cards.
    pub quantile_gpus: u64,
    /// Its guarantee, in cards.
    pub guarantee_gpus: u64,
    /// Its max, in cards.
    pub max_gpus: u64,
}

/// What the training days gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trained {
    /// Nodes of [`NODE_GPUS`] cards.
    pub nodes: u64,
    /// In the order of their paths.
    pub teams: Vec<Team>,
}

impl Trained {
    /// Learns from the training days of `trace`. Every tenant of the trace is in the tree; one that is not in the training days has the least
    /// guarantee.
    #[must_use]
    pub fn of(trace: &Trace, how: &Training) -> Self {
        let first_day = trace.jobs.first().map_or(0, |job| job.submit_s / DAY_S) + u64::from(how.from_day);
        let (from_s, to_s) = (first_day * DAY_S, (first_day + u64::from(how.days)) * DAY_S);
        let of_training: Vec<TraceJob> = trace.jobs.iter().filter(|job| job.submit_s < to_s).cloned().collect();
        let demand = demand_by_hour(&of_training, from_s, to_s, |tenant| tenant);
        let hours: u64 = u64::from(how.days) * 24;
        let mean_milli = demand.values().flatten().sum::<u64>() / hours.max(1);
        let largest_gang = of_training.iter().map(|job| job.gpu_milli().div_ceil(1000)).max().unwrap_or(1);
        let tenants: BTreeSet<&str> = trace.jobs.iter().map(|job| job.tenant.as_str()).collect();
        let nodes = (mean_milli * 100 / u64::from(how.fill_percent.max(1)))
            .div_ceil(NODE_GPUS * 1000)
            .max(tenants.len() as u64)
            .max(1);
        let quantiles: BTreeMap<&str, u64> = tenants
            .iter()
            .map(|tenant| {
                let hours = demand.get(tenant).cloned().unwrap_or_default();
                (*tenant, quantile(hours, how.quantile_permille).div_ceil(1000))
            })
            .collect();
        let guarantees = handed_out(&quantiles, nodes * NODE_GPUS);
        let mut by_size: Vec<&str> = tenants.into_iter().collect();
        by_size.sort_by_key(|tenant| (Reverse(quantiles[tenant]), *tenant));
        let team = |(rank, tenant): (usize, &str)| {
            let guarantee_gpus = guarantees[tenant];
            let most = (guarantee_gpus * u64::from(how.max_factor)).max(largest_gang);
            Team {
                tenant: tenant.to_owned(),
                path: format!("org-{}/{tenant}", rank as u32 % how.organisations.max(1) + 1),
                quantile_gpus: quantiles[tenant],
                guarantee_gpus,
                max_gpus: most.min(nodes * NODE_GPUS).max(guarantee_gpus),
            }
        };
        let mut teams: Vec<Team> = by_size.into_iter().enumerate().map(team).collect();
        teams.sort_by(|a, b| a.path.cmp(&b.path));
        Trained { nodes, teams }
    }

    /// The tree: organisations guarantee what their teams are guaranteed, and no max.
    #[must_use]
    pub fn tree(&self, model: GpuModel) -> Vec<TenantSpec> {
        self.specs(model, |team| team.max_gpus)
    }

    /// The tree without borrowing: nobody uses more than its guarantee.
    #[must_use]
    pub fn tree_without_borrowing(&self, model: GpuModel) -> Vec<TenantSpec> {
        self.specs(model, |team| team.guarantee_gpus)
    }

    fn specs(&self, model: GpuModel, max: impl Fn(&Team) -> u64) -> Vec<TenantSpec> {
        let cards = |cards: u64| ResourceVec::of_gpu(model, GpuUnits::cards(cards));
        let mut specs: BTreeMap<String, TenantSpec> = BTreeMap::new();
        for team in &self.teams {
            let domain = Tenant::domain_of(&team.path);
            let organisation = specs.entry(domain.to_owned()).or_insert_with(|| TenantSpec::usual(domain));
            organisation.guarantee.add(&cards(team.guarantee_gpus));
            let max = Limits { gpu: [(model, GpuUnits::cards(max(team)))].into(), ..Limits::default() };
            let spec = TenantSpec { guarantee: cards(team.guarantee_gpus), max, ..TenantSpec::usual(&team.path) };
            specs.insert(team.path.clone(), spec);
        }
        specs.into_values().collect()
    }

    /// The trace with its tenants at their places in the tree.
    #[must_use]
    pub fn renamed(&self, mut trace: Trace) -> Trace {
        let paths: BTreeMap<&str, &str> =
            self.teams.iter().map(|team| (team.tenant.as_str(), team.path.as_str())).collect();
        for job in &mut trace.jobs {
            if let Some(path) = paths.get(job.tenant.as_str()) {
                (*path).clone_into(&mut job.tenant);
            }
        }
        trace
    }
}

/// Hands out all `gpus`: one node to each, the rest by `shares`, by largest remainders.
fn handed_out<'a>(shares: &BTreeMap<&'a str, u64>, gpus: u64) -> BTreeMap<&'a str, u64> {
    let rest = gpus.saturating_sub(NODE_GPUS * shares.len() as u64);
    let sum = shares.values().sum::<u64>().max(1);
    let mut out: BTreeMap<&str, u64> =
        shares.iter().map(|(tenant, share)| (*tenant, NODE_GPUS + rest * share / sum)).collect();
    let mut by_remainder: Vec<(Reverse<u64>, &str)> =
        shares.iter().map(|(tenant, share)| (Reverse(rest * share % sum), *tenant)).collect();
    by_remainder.sort_unstable();
    let left = gpus.saturating_sub(out.values().sum());
    for (_, tenant) in by_remainder.iter().cycle().take(left as usize) {
        if let Some(cards) = out.get_mut(tenant) {
            *cards += 1;
        }
    }
    out
}

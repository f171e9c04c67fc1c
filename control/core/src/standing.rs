//! Why a tenant gets more or less than its neighbours, and since when.
//!
//! Everything is counted from the state when somebody asks. What must stay true: shares are those by which the scheduler orders siblings (floors first, then
//! the dominant share of burst use over weight, and where a half-life is set the mean of present and average past use); a time is that of the newest entry that made it so, taken from the objects themselves; the same state
//! gives the same answer.

mod words;

pub use words::Sentence;

use crate::plan::charge_of;
use crate::quota::{first_model, waiting};
use crate::state::State;
use muster_model::capacity::OverMax;
use muster_model::ids::TenantId;
use muster_model::resources::Resource;
use muster_model::tenant::value_for;
use muster_model::use_history::counted;
use muster_model::{GpuModel, Job, JobPhase, Limits, ResourceVec, Tenant};
use std::collections::BTreeMap;

/// Shares are told in millionths.
pub const MILLION: u64 = 1_000_000;
/// Neighbours that one answer names: those with the largest use.
pub const NEIGHBOURS_MAX: usize = 100;
/// Resources for which neighbours are compared.
const RESOURCES_MAX: usize = 4;

/// How one tenant stands, its descendants included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub id: TenantId,
    /// Its path.
    pub path: String,
    /// Its floor.
    pub guarantee: ResourceVec,
    /// Its ceiling.
    pub max: Limits,
    /// Its share among siblings.
    pub weight: u32,
    /// Weights of resources that have one of their own.
    pub weights: BTreeMap<Resource, u32>,
    /// Whether others' burst may use its idle floor.
    pub lend: bool,
    /// The same for resources of which something else is said.
    pub lends: BTreeMap<Resource, bool>,
    /// In use.
    pub used: ResourceVec,
    /// The part of it that floor accounts at or below it pay.
    pub covered: ResourceVec,
    /// What pending jobs ask for.
    pub waiting: ResourceVec,
    /// The largest part of a guarantee that is in use, in millionths; none without a guarantee.
    pub floor_share: Option<u64>,
    /// Of burst use: the resource that counts, and the part of the fleet's healthy capacity of it, in millionths.
    pub burst: Option<(Resource, u64)>,
    /// Where a half-life is set: the part of that capacity that its average burst use of the past is, in millionths.
    pub historic_share: Option<u64>,
    /// When what it uses changed last: the newest binding or promotion that is still there.
    pub used_since_ms: Option<u64>,
    /// When what floor accounts pay changed last: the newest binding or promotion of it that is still there.
    pub covered_since_ms: Option<u64>,
    /// Since when its guarantee is what it is, and its weights are; none where that is longer ago than is known.
    pub set_since_ms: SetSince,
    /// When the oldest of its jobs that only waits for devices was submitted.
    pub waiting_since_ms: Option<u64>,
    /// The max, of itself or of a tenant above or below it, that keeps most of its jobs waiting.
    pub limit: Option<Limit>,
}

/// Since when limits of a tenant are what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetSince {
    /// The guarantee.
    pub guarantee_ms: Option<u64>,
    /// The weight, and those of resources.
    pub weight_ms: Option<u64>,
}

impl SetSince {
    fn of(state: &State, id: TenantId) -> Self {
        let Some(history) = state.tenant_histories.get(&id) else { return SetSince::default() };
        SetSince {
            guarantee_ms: history.holds_since(|version| version.guarantee),
            weight_ms: history.holds_since(|version| (version.weight, version.weights.clone())),
        }
    }
}

/// A max that keeps jobs waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Of which tenant.
    pub path: String,
    /// Of what.
    pub resource: Resource,
    /// In use there.
    pub used: u64,
    /// The max.
    pub max: u64,
    /// Jobs that it keeps.
    pub jobs: u64,
    /// Since when: the newest binding below that tenant, or the oldest of those jobs if that is later.
    pub since_ms: u64,
}

/// Why one of two neighbours uses more than the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The other asks for no more.
    NoDemand {
        /// When what the other uses changed last; none where it uses nothing.
        since_ms: Option<u64>,
    },
    /// A max keeps the other.
    AtMax(Limit),
    /// Its floor pays for what it has.
    Floor {
        /// When the last of that was bound or promoted.
        since_ms: Option<u64>,
        /// Since when its guarantee is what it is.
        guarantee_ms: Option<u64>,
    },
    /// It has more burst, but not more for its weight.
    Weight {
        /// Since when the weights of the two are what they are.
        since_ms: Option<u64>,
    },
    /// It used less over the past, so what gets free goes to it first.
    PastUse {
        /// Average past burst use of the two over the fleet's capacity, in millionths.
        more: u64,
        /// Of the one that uses less now.
        less: u64,
    },
    /// It borrowed what was idle; burst does not take burst back.
    Borrowed {
        /// When its use changed last.
        since_ms: Option<u64>,
    },
}

/// Two neighbours compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Path of the neighbour.
    pub neighbour: String,
    /// What is compared.
    pub resource: Resource,
    /// What the tenant uses, and what the neighbour uses.
    pub used: (u64, u64),
    /// Why; none where they use the same.
    pub cause: Option<Cause>,
}

/// A tenant among its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantExplanation {
    /// The tenant.
    pub tenant: Standing,
    /// Its siblings, those that the scheduler lets go first of those with burst demand first.
    pub neighbours: Vec<Standing>,
    /// How many more there are.
    pub more: usize,
    /// It and each of these neighbours.
    pub comparisons: Vec<Comparison>,
    /// In how many seconds past use comes to count half; 0: it does not count.
    pub half_life_s: u64,
}

/// Explains the tenant at `path`; none when there is no such tenant.
#[must_use]
pub fn explain(state: &State, path: &str) -> Option<TenantExplanation> {
    let id = *state.index().tenant_ids.get(path)?;
    let parent = state.tenants.get(&id)?.parent;
    let counted = Counted::of(state);
    let stand = |tenant: &Tenant| counted.standing(state, tenant);
    let tenant = state.tenants.get(&id).map(stand)?;
    let beside = state.tenants.values().filter(|other| other.parent == parent && other.id != id);
    let mut neighbours: Vec<Standing> = beside.map(stand).collect();
    neighbours.sort_by_key(|other| (std::cmp::Reverse(other.used.gpu_total()), other.id));
    let more = neighbours.len().saturating_sub(NEIGHBOURS_MAX);
    neighbours.truncate(NEIGHBOURS_MAX);
    neighbours.sort_by_key(|other| (other.burst_over_weight(), other.id));
    let resources = compared(&tenant);
    let pairs = neighbours.iter().flat_map(|other| resources.iter().map(move |resource| (other, *resource)));
    let comparisons = pairs.map(|(other, resource)| compare(&tenant, other, resource)).collect();
    Some(TenantExplanation { tenant, neighbours, more, comparisons, half_life_s: state.meta.half_life_s })
}

impl Standing {
    /// In use beyond what floors pay.
    #[must_use]
    pub fn burst_use(&self) -> ResourceVec {
        self.used.less(&self.covered)
    }

    /// The share by which siblings are ordered above guarantees, in millionths.
    #[must_use]
    pub fn burst_over_weight(&self) -> u64 {
        let Some((resource, present)) = self.burst else { return 0 };
        let counts = self.historic_share.map_or(present, |past| counted(present, past));
        counts / u64::from(self.weight_of(resource))
    }

    /// Its share among siblings of one resource.
    #[must_use]
    pub fn weight_of(&self, resource: Resource) -> u32 {
        value_for(self.weight, &self.weights, resource).max(1)
    }
}

/// What is counted once for all tenants.
struct Counted {
    waiting: BTreeMap<TenantId, ResourceVec>,
    used_since_ms: BTreeMap<TenantId, u64>,
    covered_since_ms: BTreeMap<TenantId, u64>,
    waiting_since_ms: BTreeMap<TenantId, u64>,
    limits: BTreeMap<TenantId, BTreeMap<(TenantId, Resource), Kept>>,
}

/// Jobs of a tenant that one max keeps.
struct Kept {
    over: OverMax,
    jobs: u64,
    oldest_ms: u64,
}

impl Counted {
    fn of(state: &State) -> Self {
        let capacity = state.capacity();
        let mut used_since_ms: BTreeMap<TenantId, u64> = BTreeMap::new();
        let mut covered_since_ms: BTreeMap<TenantId, u64> = BTreeMap::new();
        for held in state.allocations.values().filter(|held| held.pays()) {
            let changed_ms = held.classes.segments.last().map_or(0, |segment| segment.from_ms).max(held.bound_ms);
            for (id, _) in capacity.line_of(held.tenant) {
                let newest = used_since_ms.entry(id).or_default();
                *newest = changed_ms.max(*newest);
                if held.account().is_some() {
                    let newest = covered_since_ms.entry(id).or_default();
                    *newest = changed_ms.max(*newest);
                }
            }
        }
        let mut waiting_since_ms: BTreeMap<TenantId, u64> = BTreeMap::new();
        let mut limits: BTreeMap<TenantId, BTreeMap<(TenantId, Resource), Kept>> = BTreeMap::new();
        let any = capacity.healthy().gpus().next().map(|(model, _)| model);
        let waits = |job: &&std::sync::Arc<Job>| {
            matches!(job.phase, JobPhase::Queued) && job.claim.is_none() && job.is_eligible()
        };
        for job in state.jobs.values().filter(waits) {
            let charge = charge_of(&job.spec, first_model(&job.spec, any));
            let over = capacity.max_allows(job.tenant, &charge).err();
            for (id, _) in capacity.line_of(job.tenant) {
                let oldest = waiting_since_ms.entry(id).or_insert(job.submitted_ms);
                *oldest = job.submitted_ms.min(*oldest);
                let Some(over) = &over else { continue };
                let of = limits.entry(id).or_default().entry((over.tenant, over.resource));
                let kept = of.or_insert_with(|| Kept { over: over.clone(), jobs: 0, oldest_ms: job.submitted_ms });
                kept.jobs += 1;
                kept.oldest_ms = kept.oldest_ms.min(job.submitted_ms);
            }
        }
        Counted { waiting: waiting(state), used_since_ms, covered_since_ms, waiting_since_ms, limits }
    }

    fn limit_of(&self, state: &State, id: TenantId) -> Option<Limit> {
        let most =
            self.limits.get(&id)?.values().max_by_key(|kept| (kept.jobs, std::cmp::Reverse(kept.over.tenant)))?;
        let Kept { over, jobs, oldest_ms } = most;
        let used = state.capacity().tenants().get(&over.tenant).map_or(0, |at| at.used.get(over.resource));
        let bound_ms = self.used_since_ms.get(&over.tenant).copied().unwrap_or(0);
        let (path, resource, max) = (over.path.clone(), over.resource, over.max);
        Some(Limit { path, resource, used, max, jobs: *jobs, since_ms: bound_ms.max(*oldest_ms) })
    }

    fn standing(&self, state: &State, tenant: &Tenant) -> Standing {
        let id = tenant.id;
        let at = state.capacity().tenants().get(&id);
        let used = at.map(|at| at.used).unwrap_or_default();
        let covered = at.map(|at| at.floor_use).unwrap_or_default();
        let waiting = self.waiting.get(&id).copied().unwrap_or_default();
        let burst = used.less(&covered);
        let whole = state.capacity().healthy();
        // As the scheduler: only what is asked for counts. Where nothing is, everything does.
        let counts = |resource: &Resource| waiting.is_empty() || waiting.get(*resource) > 0;
        let now_ms = state.meta.now_ms;
        let past = state.use_histories.get(&id).map(|record| record.burst_at(now_ms)).unwrap_or_default();
        let both = burst.plus(&past);
        let used_ever = both.nonzero().map(|(resource, _)| resource).filter(counts);
        let share = |amount: &ResourceVec, resource| millionths(amount.get(resource), whole.get(resource));
        let weighted = |resource| {
            u128::from(share(&both, resource)) * u128::from(MILLION) / u128::from(tenant.weight_of(resource).max(1))
        };
        let rank = |resource: &Resource| (weighted(*resource), std::cmp::Reverse(*resource));
        let counting = used_ever.max_by_key(rank);
        let floored = tenant.guarantee.nonzero().map(|(resource, floor)| millionths(used.get(resource), floor));
        Standing {
            id,
            path: tenant.path.clone(),
            guarantee: tenant.guarantee,
            max: tenant.max.clone(),
            weight: tenant.weight,
            weights: tenant.weights.clone(),
            lend: tenant.lend,
            lends: tenant.lends.clone(),
            used,
            covered,
            waiting,
            floor_share: floored.max(),
            burst: counting.map(|resource| (resource, share(&burst, resource))),
            historic_share: counting.filter(|_| state.meta.half_life_s > 0).map(|resource| share(&past, resource)),
            used_since_ms: self.used_since_ms.get(&id).copied(),
            covered_since_ms: self.covered_since_ms.get(&id).copied(),
            set_since_ms: SetSince::of(state, id),
            waiting_since_ms: self.waiting_since_ms.get(&id).copied(),
            limit: self.limit_of(state, id),
        }
    }
}

fn millionths(part: u64, whole: u64) -> u64 {
    (u128::from(part) * u128::from(MILLION) / u128::from(whole.max(1))).min(u128::from(u64::MAX)) as u64
}

/// GPU models that the tenant has to do with; CPUs where it has none.
fn compared(tenant: &Standing) -> Vec<Resource> {
    let any = |model: &GpuModel| {
        [&tenant.used, &tenant.waiting, &tenant.guarantee].iter().any(|amount| amount.gpu(*model).0 > 0)
    };
    let models: Vec<Resource> = GpuModel::ALL.into_iter().filter(any).take(RESOURCES_MAX).map(Resource::Gpu).collect();
    if models.is_empty() { vec![Resource::Cpu] } else { models }
}

fn compare(tenant: &Standing, other: &Standing, resource: Resource) -> Comparison {
    let used = (tenant.used.get(resource), other.used.get(resource));
    let cause = match used.0.cmp(&used.1) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(cause(tenant, other, resource)),
        std::cmp::Ordering::Less => Some(cause(other, tenant, resource)),
    };
    Comparison { neighbour: other.path.clone(), resource, used, cause }
}

/// Why `more` uses more than `less`.
fn cause(more: &Standing, less: &Standing, resource: Resource) -> Cause {
    if less.waiting.get(resource) == 0 {
        return Cause::NoDemand { since_ms: less.used_since_ms };
    }
    if let Some(limit) = less.limit.clone().filter(|limit| limit.resource == resource) {
        return Cause::AtMax(limit);
    }
    let burst = |of: &Standing| of.burst_use().get(resource);
    if burst(more) <= burst(less) {
        return Cause::Floor { since_ms: more.covered_since_ms, guarantee_ms: more.set_since_ms.guarantee_ms };
    }
    let by_weight = |of: &Standing| burst(of) / u64::from(of.weight_of(resource));
    if by_weight(more) <= by_weight(less) {
        // Of one that is older than what is known of it, the other's time is known at least.
        return Cause::Weight { since_ms: more.set_since_ms.weight_ms.max(less.set_since_ms.weight_ms) };
    }
    if let (Some(more_before), Some(less_before)) = (more.historic_share, less.historic_share)
        && less.burst_over_weight() > more.burst_over_weight()
    {
        return Cause::PastUse { more: more_before, less: less_before };
    }
    Cause::Borrowed { since_ms: more.used_since_ms }
}

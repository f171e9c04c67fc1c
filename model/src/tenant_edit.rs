//! Changes of tenants: what an admin names changes, the rest stays.
//!
//! What must stay true: an edit that names nothing changes nothing of a tenant that exists; removing is said, never implied by leaving
//! out. What comes of an edit is checked like a description that was written whole.

use crate::gpu::GpuModel;
use crate::resources::{GpuUnits, Limits, Resource, ResourceVec};
use crate::tenant::{AntiAffinity, AntiAffinityLevel, Tenant, TenantSpec, Trust};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The weight of a tenant that has none of its own.
pub const WEIGHT_DEFAULT: u32 = 1;

/// What becomes of one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edit<T> {
    /// It stays.
    #[default]
    Keep,
    /// It is this from now on.
    Set(T),
    /// It is removed: what is usual holds from now on.
    Remove,
}

impl<T: Copy> Edit<T> {
    /// The value after the edit; `usual` where there is none.
    fn on(self, before: T, usual: T) -> T {
        match self {
            Edit::Keep => before,
            Edit::Set(value) => value,
            Edit::Remove => usual,
        }
    }

    /// The value after the edit where it may be absent.
    fn on_optional(self, before: Option<T>) -> Option<T> {
        match self {
            Edit::Keep => before,
            Edit::Set(value) => Some(value),
            Edit::Remove => None,
        }
    }
}

/// What becomes of a guarantee or a max.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AmountsEdit {
    /// Whatever there is is removed first.
    pub clear: bool,
    /// Units by model; none: removed.
    pub gpu: BTreeMap<GpuModel, Option<GpuUnits>>,
    /// Milli-CPUs.
    pub cpu_milli: Edit<u64>,
    /// MiB of host memory.
    pub memory_mib: Edit<u64>,
}

impl AmountsEdit {
    /// A guarantee after the edit.
    fn on_guarantee(&self, before: ResourceVec) -> ResourceVec {
        let mut after = if self.clear { ResourceVec::default() } else { before };
        for (model, units) in &self.gpu {
            after.set_gpu(*model, units.unwrap_or_default());
        }
        after.cpu_milli = self.cpu_milli.on(after.cpu_milli, 0);
        after.memory_mib = self.memory_mib.on(after.memory_mib, 0);
        after
    }

    /// A max after the edit.
    fn on_max(&self, before: Limits) -> Limits {
        let mut after = if self.clear { Limits::default() } else { before };
        for (model, units) in &self.gpu {
            match units {
                Some(units) => drop(after.gpu.insert(*model, *units)),
                None => drop(after.gpu.remove(model)),
            }
        }
        after.cpu_milli = self.cpu_milli.on_optional(after.cpu_milli);
        after.memory_mib = self.memory_mib.on_optional(after.memory_mib);
        after
    }
}

/// What becomes of whom a tenant is kept apart from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AntiAffinityEdit {
    /// Whoever there is is removed first.
    pub clear: bool,
    /// What may not be shared, by the path of the other; none: removed.
    pub levels: BTreeMap<String, Option<AntiAffinityLevel>>,
}

impl AntiAffinityEdit {
    fn on(&self, before: Vec<AntiAffinity>) -> Vec<AntiAffinity> {
        let before = if self.clear { Vec::new() } else { before };
        let kept = before.into_iter().filter(|apart| !self.levels.contains_key(&apart.tenant));
        let set = self.levels.iter().filter_map(|(tenant, level)| {
            let level = (*level)?;
            Some(AntiAffinity { tenant: tenant.clone(), level })
        });
        let mut after: Vec<AntiAffinity> = kept.chain(set).collect();
        after.sort_unstable();
        after
    }
}

/// `before` with what is set or, where there is none, removed; with `clear` nothing of `before` stays.
fn by_resource<T: Copy>(
    clear: bool,
    edits: &BTreeMap<Resource, Option<T>>,
    before: BTreeMap<Resource, T>,
) -> BTreeMap<Resource, T> {
    let mut after = if clear { BTreeMap::new() } else { before };
    for (resource, value) in edits {
        match value {
            Some(value) => drop(after.insert(*resource, *value)),
            None => drop(after.remove(resource)),
        }
    }
    after
}

/// What becomes of weights of single resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsEdit {
    /// Whatever there is is removed first.
    pub clear: bool,
    /// Weights; none: that of the tenant holds.
    pub of: BTreeMap<Resource, Option<u32>>,
}

/// What becomes of the lending of single resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LendsEdit {
    /// Whatever there is is removed first.
    pub clear: bool,
    /// Whether it is lent; none: what holds for the tenant.
    pub of: BTreeMap<Resource, Option<bool>>,
}

/// What becomes of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantEdit {
    /// `research/nlp`; a tenant that does not exist is added.
    pub path: String,
    /// The floor.
    pub guarantee: AmountsEdit,
    /// The ceiling.
    pub max: AmountsEdit,
    /// Its share among siblings.
    pub weight: Edit<u32>,
    /// Trust.
    pub trust: Edit<Trust>,
    /// Whom its work is kept apart from.
    pub anti_affinity: AntiAffinityEdit,
    /// Whether its idle guarantee may be lent.
    #[serde(default)]
    pub lend: Edit<bool>,
    /// Weights of single resources.
    #[serde(default)]
    pub weights: WeightsEdit,
    /// Lending of single resources.
    #[serde(default)]
    pub lends: LendsEdit,
    /// The user that its tasks run as.
    #[serde(default)]
    pub run_as: Edit<u32>,
}

impl TenantEdit {
    /// The tenant after the edit; a new one begins with what is usual.
    #[must_use]
    pub fn on(&self, before: Option<&Tenant>) -> TenantSpec {
        let before = before.map(TenantSpec::from).unwrap_or_else(|| TenantSpec::usual(&self.path));
        TenantSpec {
            path: self.path.clone(),
            guarantee: self.guarantee.on_guarantee(before.guarantee),
            max: self.max.on_max(before.max),
            weight: self.weight.on(before.weight, WEIGHT_DEFAULT),
            trust: self.trust.on(before.trust, Trust::default()),
            anti_affinity: self.anti_affinity.on(before.anti_affinity),
            lend: self.lend.on(before.lend, true),
            weights: by_resource(self.weights.clear, &self.weights.of, before.weights),
            lends: by_resource(self.lends.clear, &self.lends.of, before.lends),
            run_as: self.run_as.on_optional(before.run_as),
        }
    }
}

impl TenantSpec {
    /// A tenant of which nothing but the path is said.
    #[must_use]
    pub fn usual(path: &str) -> Self {
        TenantSpec {
            path: path.to_owned(),
            guarantee: ResourceVec::default(),
            max: Limits::default(),
            weight: WEIGHT_DEFAULT,
            trust: Trust::default(),
            anti_affinity: Vec::new(),
            lend: true,
            weights: BTreeMap::new(),
            lends: BTreeMap::new(),
            run_as: None,
        }
    }
}

impl From<&Tenant> for TenantSpec {
    fn from(tenant: &Tenant) -> Self {
        TenantSpec {
            path: tenant.path.clone(),
            guarantee: tenant.guarantee,
            max: tenant.max.clone(),
            weight: tenant.weight,
            trust: tenant.trust,
            anti_affinity: tenant.anti_affinity.clone(),
            lend: tenant.lend,
            weights: tenant.weights.clone(),
            lends: tenant.lends.clone(),
            run_as: tenant.run_as,
        }
    }
}

/// What applying did to one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantChange {
    /// As it was; none: it is new.
    pub before: Option<TenantSpec>,
    /// As it is now.
    pub after: TenantSpec,
}

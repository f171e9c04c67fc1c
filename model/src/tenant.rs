//! Tenants: the quota tree.
//!
//! What must stay true (law 3): no tenant at any level uses more than its max, and the guarantees of children sum to at
//! most the parent's, per GPU model. Guarantee, max, weight and lending are per resource (each GPU model, CPU, memory); trust is one
//! level of the whole tenant, because isolation is not an amount (decision 0049).

use crate::ids::TenantId;
use crate::resources::{Limits, Resource, ResourceVec};
use crate::words::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether a tenant's code may share a card with others of its trust domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Trust {
    /// May share cards under MPS or time-slicing inside its trust domain.
    #[default]
    Trusted,
    /// Only whole cards and MIG instances.
    Untrusted,
}

words!(Trust, "trust level", Trust::Trusted => "trusted", Trust::Untrusted => "untrusted");

/// What two tenants that are kept apart may not share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AntiAffinityLevel {
    /// A card.
    Card,
    /// A host.
    Node,
    /// An NVLink domain of several hosts; a host that is in none counts as one.
    Island,
}

words!(AntiAffinityLevel, "level",
    AntiAffinityLevel::Card => "card", AntiAffinityLevel::Node => "node", AntiAffinityLevel::Island => "island");

/// A tenant that another is kept apart from, because they were measured to disturb each other. It holds both ways, and for all tenants
/// below the two.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AntiAffinity {
    /// Path of the other.
    pub tenant: String,
    /// What they may not share.
    pub level: AntiAffinityLevel,
}

/// Whether the tenant at `path` is the one at `top` or below it.
#[must_use]
pub fn lies_under(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A tenant of which nothing is said lends its idle guarantee.
pub(crate) fn lends() -> bool {
    true
}

/// The value for one resource: its own, or that of all resources which have none of their own.
#[must_use]
pub fn value_for<T: Copy>(usual: T, own: &BTreeMap<Resource, T>, resource: Resource) -> T {
    own.get(&resource).copied().unwrap_or(usual)
}

/// Stores a flag that is usually set as its opposite: in a stored form every default is zeros, so that older forms can leave it out.
pub(crate) mod negated {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub(crate) fn serialize<S: Serializer>(flag: &bool, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(!flag)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
        bool::deserialize(deserializer).map(|stored| !stored)
    }
}

/// A node of the quota tree: organisation, team, project or user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// Names from the top, joined by `/`: `research/nlp`.
    pub path: String,
    /// Who it belongs to; `None` for an organisation.
    pub parent: Option<TenantId>,
    /// The floor: what it can always have.
    pub guarantee: ResourceVec,
    /// The ceiling; what is not named is not limited.
    pub max: Limits,
    /// Its share among siblings of what is above guarantees, from 1.
    pub weight: u32,
    /// Trust.
    pub trust: Trust,
    /// Whom its work is kept apart from, in order of path.
    pub anti_affinity: Vec<AntiAffinity>,
    /// Whether burst of other tenants may use the part of its guarantee that is idle.
    #[serde(default = "lends", with = "negated")]
    pub lend: bool,
    /// Weights of resources that have one of their own.
    #[serde(default)]
    pub weights: BTreeMap<Resource, u32>,
    /// Whether it lends, for resources of which something else is said than of the others.
    #[serde(default)]
    pub lends: BTreeMap<Resource, bool>,
    /// The user of the nodes that its tasks run as, and those of the tenants below it; none: what is above says it, or the node makes one up.
    #[serde(default)]
    pub run_as: Option<u32>,
}

impl Tenant {
    /// Its share among siblings of one resource.
    #[must_use]
    pub fn weight_of(&self, resource: Resource) -> u32 {
        value_for(self.weight, &self.weights, resource)
    }

    /// Whether it lends what is idle of its guarantee of one resource.
    #[must_use]
    pub fn lends(&self, resource: Resource) -> bool {
        value_for(self.lend, &self.lends, resource)
    }

    /// The organisation at the top of `path`: shares of one card belong to one such domain.
    #[must_use]
    pub fn domain_of(path: &str) -> &str {
        path.split('/').next().unwrap_or(path)
    }

    /// The path of the parent, if there is one.
    #[must_use]
    pub fn parent_path(path: &str) -> Option<&str> {
        path.rsplit_once('/').map(|(parent, _)| parent)
    }
}

/// What an admin writes for one tenant; ids are the state's own business.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantSpec {
    /// `research/nlp`.
    pub path: String,
    /// The floor.
    pub guarantee: ResourceVec,
    /// The ceiling.
    pub max: Limits,
    /// From 1.
    pub weight: u32,
    /// Trust.
    pub trust: Trust,
    /// Whom its work is kept apart from.
    pub anti_affinity: Vec<AntiAffinity>,
    /// Whether burst of other tenants may use the part of its guarantee that is idle.
    #[serde(default = "lends", with = "negated")]
    pub lend: bool,
    /// Weights of resources that have one of their own.
    #[serde(default)]
    pub weights: BTreeMap<Resource, u32>,
    /// Whether it lends, for resources of which something else is said than of the others.
    #[serde(default)]
    pub lends: BTreeMap<Resource, bool>,
    /// The user of the nodes that its tasks run as, and those of the tenants below it; none: what is above says it, or the node makes one up.
    #[serde(default)]
    pub run_as: Option<u32>,
}

//! Floor accounts, and what healthy hardware there is for them.
//!
//! A floor *account* is the part of a tenant's guarantee that it has not handed down to its children: the tenant and its descendants charge
//! it. Healthy capacity is what the nodes of the fleet have that are not down, without withheld cards. When hardware is lost and the
//! accounts exceed it, the missing part is marked at some of them as *unmet*. What must stay true: for each resource the parts that are met sum to at most
//! healthy capacity, and to all of it where something is unmet; the marks follow from the tree and the healthy capacity alone, in whatever order those came about.

use super::Capacity;
use crate::ids::TenantId;
use crate::node::{Node, NodeHealth};
use crate::resources::{GpuUnits, Resource, ResourceVec};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// What is kept of the tree and the fleet for this.
#[derive(Clone, Debug, Default)]
pub(super) struct Floors {
    healthy: ResourceVec,
    /// Guarantees of the organisations together.
    guaranteed_total: ResourceVec,
    /// Guarantees of the children together, of each tenant that has handed down some. Apart from the tenants, since on loading a child
    /// may come before its parent.
    handed_down: BTreeMap<TenantId, ResourceVec>,
    /// Found when it is first asked for after a change: a fleet that starts makes thousands of changes that nobody asks between.
    unmet: OnceLock<BTreeMap<TenantId, ResourceVec>>,
}

/// Where a guarantee counts: with the parent, or with the organisations.
pub(super) type Guarantee = (Option<TenantId>, ResourceVec);

impl Floors {
    /// Whether more is guaranteed than there is.
    pub(super) fn is_short(&self) -> bool {
        self.guaranteed_total.first_excess_over(&self.healthy).is_some()
    }

    /// What a tenant's children are guaranteed of one resource.
    pub(super) fn handed_down_of(&self, tenant: TenantId, resource: Resource) -> u64 {
        self.handed_down.get(&tenant).map_or(0, |sum| sum.get(resource))
    }

    /// A tenant came, went, moved, or has another guarantee.
    pub(super) fn change_tenant(&mut self, old: Option<Guarantee>, new: Option<Guarantee>) {
        if old == new {
            return;
        }
        self.unmet.take();
        if let Some((parent, guarantee)) = old {
            match parent.map(|parent| (parent, self.handed_down.get_mut(&parent))) {
                None => self.guaranteed_total.sub(&guarantee),
                Some((parent, Some(sum))) => {
                    sum.sub(&guarantee);
                    if *sum == ResourceVec::default() {
                        self.handed_down.remove(&parent);
                    }
                }
                Some((_, None)) => {}
            }
        }
        if let Some((parent, guarantee)) = new.filter(|(_, guarantee)| *guarantee != ResourceVec::default()) {
            match parent {
                None => self.guaranteed_total.add(&guarantee),
                Some(parent) => self.handed_down.entry(parent).or_default().add(&guarantee),
            }
        }
    }

    /// A node came, went, or has other hardware or health.
    pub(super) fn change_node(&mut self, old: Option<&Node>, new: Option<&Node>) {
        let (old, new) = (old.map(healthy_of), new.map(healthy_of));
        if old != new {
            self.unmet.take();
            self.healthy.add(&new.unwrap_or_default());
            self.healthy.sub(&old.unwrap_or_default());
        }
    }
}

/// What a node adds to healthy capacity. A silent node counts until it is given up, and a drained one counts: its hardware is there.
#[must_use]
pub fn healthy_of(node: &Node) -> ResourceVec {
    if node.health == NodeHealth::Down {
        return ResourceVec::default();
    }
    let mut healthy = ResourceVec::of_host(node.spec.cpu_milli, node.spec.memory_mib);
    for gpu in node.spec.gpus.iter().filter(|gpu| gpu.withheld.is_none()) {
        healthy.set_gpu(gpu.model, GpuUnits(healthy.gpu(gpu.model).0 + GpuUnits::CARD.0));
    }
    healthy
}

/// What is missing of each account when `healthy` is all there is. Accounts are met in the order given, one after the other, and each
/// resource by itself; the first that cannot be met whole gets what is left.
pub fn unmet(
    healthy: &ResourceVec,
    accounts: impl IntoIterator<Item = (TenantId, ResourceVec)>,
) -> BTreeMap<TenantId, ResourceVec> {
    let mut left = *healthy;
    let mut unmet = BTreeMap::new();
    for (tenant, account) in accounts {
        let missing = account.less(&left);
        left = left.less(&account);
        if missing != ResourceVec::default() {
            unmet.insert(tenant, missing);
        }
    }
    unmet
}

impl Capacity {
    /// What the nodes have that are not down, without withheld cards.
    #[must_use]
    pub fn healthy(&self) -> &ResourceVec {
        &self.floors.healthy
    }

    /// The guarantees of all organisations together, which is what all floor accounts hold.
    #[must_use]
    pub fn guaranteed_total(&self) -> &ResourceVec {
        &self.floors.guaranteed_total
    }

    /// The guarantees of the tenant's children together.
    #[must_use]
    pub fn handed_down(&self, tenant: TenantId) -> ResourceVec {
        self.floors.handed_down.get(&tenant).copied().unwrap_or_default()
    }

    /// What the floor account of the tenant holds by the tree.
    #[must_use]
    pub fn account_of(&self, tenant: TenantId) -> ResourceVec {
        let guarantee = self.tenants.get(&tenant).map(|at| at.guarantee).unwrap_or_default();
        guarantee.less(&self.handed_down(tenant))
    }

    /// What the floor account of the tenant holds, without what is marked as unmet: so much may be charged to it.
    #[must_use]
    pub fn met_account_of(&self, tenant: TenantId) -> ResourceVec {
        let unmet = self.unmet_floors().get(&tenant).copied().unwrap_or_default();
        self.account_of(tenant).less(&unmet)
    }

    /// The parts of floor accounts that exceed healthy capacity. The account of the tenant that was created first is met first, so that
    /// a loss marks as few accounts as it must, and the same ones as long as it lasts. Nothing is marked while the fleet has no node.
    #[must_use]
    pub fn unmet_floors(&self) -> &BTreeMap<TenantId, ResourceVec> {
        self.floors.unmet.get_or_init(|| {
            if self.nodes.is_empty() || self.floors.guaranteed_total.first_excess_over(&self.floors.healthy).is_none() {
                return BTreeMap::new();
            }
            unmet(&self.floors.healthy, self.tenants.keys().map(|id| (*id, self.account_of(*id))))
        })
    }
}

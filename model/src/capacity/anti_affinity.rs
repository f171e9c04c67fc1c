//! Which tenants are on a node, and which of them admins keep apart.
//!
//! What must stay true: a rule holds both ways and for all tenants below the two; it refuses bindings from now on and touches nothing that
//! runs; who is where is right whenever it is asked. It is counted only while somebody asks: the owner of the capacity ledger begins with
//! [`Capacity::count_tenants`] over all that is charged, and every charge and release goes on from there. Fleets that keep nobody apart
//! and have no work that suffers from neighbours pay nothing: a charge would touch one more cold line for each node.

use super::{Capacity, Misfit, NodeUse, TenantUse, Tenants};
use crate::allocation::Allocation;
use crate::ids::{NodeId, TenantId};
use crate::node::Node;
use crate::tenant::{AntiAffinityLevel, lies_under};
use std::collections::BTreeMap;

/// Tenants that are kept apart, and where one of them is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The tenant that is there.
    pub other: TenantId,
    /// What the two may not share.
    pub level: AntiAffinityLevel,
    /// Where the other is.
    pub node: NodeId,
}

/// The nodes of NVLink domains that span several, by the domain's path.
pub(super) type Spans = BTreeMap<String, Vec<NodeId>>;

impl Capacity {
    /// Whether any tenants are kept apart.
    #[must_use]
    pub fn has_anti_affinity(&self) -> bool {
        self.occupancy.rules > 0
    }

    /// Somebody wants to know who is where, rules or not.
    pub fn watch_tenants(&mut self) {
        self.occupancy.watched = true;
    }

    /// Whether it has become of interest who is where since it was last counted: [`Capacity::count_tenants`] is due.
    #[must_use]
    pub fn wants_tenants_counted(&self) -> bool {
        self.occupancy.of_interest() && !self.occupancy.counting
    }

    /// Counts who is where; `held` is everything that is charged.
    pub fn count_tenants<'a>(&mut self, held: impl Iterator<Item = &'a Allocation>) {
        self.nodes.values_mut().for_each(|there| there.tenants = Tenants::default());
        self.occupancy.counting = true;
        for allocation in held {
            for task in &allocation.tasks {
                if let Some(there) = self.nodes.get_mut(&task.node) {
                    super::each_hold(task, |gpu| there.tenants.add(allocation.tenant, gpu));
                }
            }
        }
    }

    /// A tenant has so many rules now and had so many before.
    pub(super) fn recount_rules(&mut self, had: bool, has: bool) {
        self.occupancy.rules = self.occupancy.rules - usize::from(had) + usize::from(has);
        if !self.occupancy.of_interest() && self.occupancy.counting {
            self.occupancy.counting = false;
            self.nodes.values_mut().for_each(|there| there.tenants = Tenants::default());
        }
    }

    /// What `one` and `other` may not share, the widest of what is said of them.
    fn anti_affinity_at(&self, one: TenantId, other: TenantId) -> Option<AntiAffinityLevel> {
        let path = |id: TenantId| self.tenants.get(&id).map_or("", |at| at.path.as_str());
        let said = |of: TenantId, about: TenantId| {
            let rules = self.line_of(of).flat_map(|(_, at)| &at.anti_affinity);
            rules.filter(|rule| lies_under(path(about), &rule.tenant)).map(|rule| rule.level).max()
        };
        said(one, other).max(said(other, one))
    }

    /// Who on `there`, or in its NVLink domain, may not share that with `tenant`.
    #[must_use]
    pub fn kept_off_node(&self, tenant: TenantId, there: &NodeUse) -> Option<Kept> {
        if !self.has_anti_affinity() {
            return None;
        }
        debug_assert!(self.occupancy.counting, "whoever adds a rule counts who is where");
        let found = |at: &NodeUse, least: AntiAffinityLevel| {
            let kept = |other| {
                self.anti_affinity_at(tenant, other).filter(|level| *level >= least).map(|level| (other, level))
            };
            at.tenants.on(None).find_map(kept).map(|(other, level)| Kept { other, level, node: at.node.id })
        };
        found(there, AntiAffinityLevel::Node).or_else(|| {
            let near = self.near(&there.node).filter(|id| *id != there.node.id);
            near.filter_map(|id| self.nodes.get(&id)).find_map(|at| found(at, AntiAffinityLevel::Island))
        })
    }

    /// Who on card `gpu` of `there` may not share it with `tenant`.
    #[must_use]
    pub fn kept_off_card(&self, tenant: TenantId, there: &NodeUse, gpu: u16) -> Option<Kept> {
        if !self.has_anti_affinity() {
            return None;
        }
        let kept = |other| self.anti_affinity_at(tenant, other).map(|level| Kept { other, level, node: there.node.id });
        there.tenants.on(Some(gpu)).find_map(kept)
    }

    /// Whether gangs that come together may share an NVLink domain of several nodes: what they share of one node shows on the node.
    pub(super) fn kept_off_each_other(&self, gang: &Allocation, others: &[&Allocation]) -> Result<(), Misfit> {
        if !self.has_anti_affinity() {
            return Ok(());
        }
        let path = |id| self.tenants.get(&id).map_or_else(String::new, |at: &TenantUse| at.path.clone());
        for other in others {
            let level = self.anti_affinity_at(gang.tenant, other.tenant);
            let Some(level) = level.filter(|level| *level >= AntiAffinityLevel::Island) else { continue };
            let mut near =
                gang.tasks.iter().filter_map(|task| self.nodes.get(&task.node)).flat_map(|at| self.near(&at.node));
            if let Some(node) = near.find(|near| other.tasks.iter().any(|task| task.node == *near)) {
                let (tenant, other) = (path(gang.tenant), path(other.tenant));
                return Err(Misfit::AntiAffinityConflict { tenant, other, level, node });
            }
        }
        Ok(())
    }

    /// The nodes that share an NVLink domain with `node`, itself among them; none when its NVLink ends at the host.
    pub fn near(&self, node: &Node) -> impl Iterator<Item = NodeId> + '_ {
        let spans = node.spec.place.spanning_island().and_then(|path| self.spans.get(&path));
        spans.into_iter().flatten().copied()
    }

    pub(super) fn join_span(&mut self, node: &Node) {
        if let Some(path) = node.spec.place.spanning_island() {
            self.spans.entry(path).or_default().push(node.id);
        }
    }

    pub(super) fn leave_span(&mut self, node: &Node) {
        let Some(path) = node.spec.place.spanning_island() else { return };
        if let Some(nodes) = self.spans.get_mut(&path) {
            nodes.retain(|id| *id != node.id);
            if nodes.is_empty() {
                self.spans.remove(&path);
            }
        }
    }
}

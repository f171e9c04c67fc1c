//! Which tenants are on a node, and which of them admins keep apart.
//!
//! What must stay true: a rule holds both ways and for all tenants below the two; it refuses bindings from now on and touches nothing that
//! runs; who is where is right whenever it is asked. It is counted only while somebody asks: the owner of the capacity ledger begins with
//! [`Capacity::count_tenants`] over all that is charged, and every charge and release goes on from there. Fleets that keep nobody apart
//! and have no work that suffers from neighbours pay nothing: a charge would touch one more cold line for each node.

use super::{Capacity, NodeUse};
use crate::allocation::Allocation;
use crate::ids::{NodeId, TenantId};
use crate::node::Node;
use crate::tenant::{ApartLevel, lies_under};
use std::collections::BTreeMap;

/// Stands for the host itself, for tasks that hold no card.
const HOST: u16 = u16::MAX;

/// The tenants that hold something of a node: of which card, and how often.
///
/// One word while there are none, since every node has it and few fleets ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenants(Option<Box<Held>>);

/// In order of tenant and card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held(Vec<(TenantId, u16, u32)>);

/// How far a node is free of other tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SoleHolder {
    /// Nobody is on it.
    Nobody,
    /// One tenant is.
    One(TenantId),
}

impl Tenants {
    fn held(&self) -> &[(TenantId, u16, u32)] {
        self.0.as_ref().map_or(&[], |held| &held.0)
    }

    /// A task of `tenant` begins to hold card `gpu`, or, without one, a part of the host.
    pub(super) fn add(&mut self, tenant: TenantId, gpu: Option<u16>) {
        let gpu = gpu.unwrap_or(HOST);
        let held = &mut self.0.get_or_insert_default().0;
        match held.binary_search_by_key(&(tenant, gpu), |(tenant, gpu, _)| (*tenant, *gpu)) {
            Ok(at) => held[at].2 += 1,
            Err(at) => held.insert(at, (tenant, gpu, 1)),
        }
    }

    /// It holds it no longer.
    pub(super) fn remove(&mut self, tenant: TenantId, gpu: Option<u16>) {
        let gpu = gpu.unwrap_or(HOST);
        let Some(Held(held)) = self.0.as_deref_mut() else { return };
        if let Ok(at) = held.binary_search_by_key(&(tenant, gpu), |(tenant, gpu, _)| (*tenant, *gpu)) {
            held[at].2 -= 1;
            if held[at].2 == 0 {
                held.remove(at);
            }
        }
        if held.is_empty() {
            self.0 = None;
        }
    }

    /// Whether nobody or one tenant alone is there; none when there are several.
    #[must_use]
    pub fn sole(&self) -> Option<SoleHolder> {
        match self.held() {
            [] => Some(SoleHolder::Nobody),
            [(first, ..), .., (last, ..)] if first != last => None,
            [(first, ..), ..] => Some(SoleHolder::One(*first)),
        }
    }

    /// Whether a tenant other than `tenant` holds a part of card `gpu`.
    #[must_use]
    pub fn others_on(&self, gpu: u16, tenant: TenantId) -> bool {
        self.held().iter().any(|(other, card, _)| *card == gpu && *other != tenant)
    }

    /// Those on card `gpu`, or on the whole node.
    fn on(&self, gpu: Option<u16>) -> impl Iterator<Item = TenantId> + '_ {
        self.held().iter().filter(move |(_, card, _)| gpu.is_none_or(|gpu| *card == gpu)).map(|(tenant, ..)| *tenant)
    }
}

/// Tenants that are kept apart, and where one of them is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The tenant that is there.
    pub other: TenantId,
    /// What the two may not share.
    pub level: ApartLevel,
    /// Where the other is.
    pub node: NodeId,
}

/// Whether it is counted who is where, and why.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Occupancy {
    /// Tenants that are kept apart from others.
    rules: usize,
    watched: bool,
    pub(super) counting: bool,
}

impl Occupancy {
    fn of_interest(self) -> bool {
        self.rules > 0 || self.watched
    }
}

/// The nodes of NVLink domains that span several, by the domain's path.
pub(super) type Spans = BTreeMap<String, Vec<NodeId>>;

impl Capacity {
    /// Whether any tenants are kept apart.
    #[must_use]
    pub fn keeps_apart(&self) -> bool {
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
    fn apart_at(&self, one: TenantId, other: TenantId) -> Option<ApartLevel> {
        let path = |id: TenantId| self.tenants.get(&id).map_or("", |at| at.path.as_str());
        let said = |of: TenantId, about: TenantId| {
            let rules = self.line_of(of).flat_map(|(_, at)| &at.apart_from);
            rules.filter(|rule| lies_under(path(about), &rule.tenant)).map(|rule| rule.level).max()
        };
        said(one, other).max(said(other, one))
    }

    /// Who on `there`, or in its NVLink domain, may not share that with `tenant`.
    #[must_use]
    pub fn kept_off_node(&self, tenant: TenantId, there: &NodeUse) -> Option<Kept> {
        if !self.keeps_apart() {
            return None;
        }
        debug_assert!(self.occupancy.counting, "whoever adds a rule counts who is where");
        let found = |at: &NodeUse, least: ApartLevel| {
            let kept = |other| self.apart_at(tenant, other).filter(|level| *level >= least).map(|level| (other, level));
            at.tenants.on(None).find_map(kept).map(|(other, level)| Kept { other, level, node: at.node.id })
        };
        found(there, ApartLevel::Node).or_else(|| {
            let near = self.near(&there.node).filter(|id| *id != there.node.id);
            near.filter_map(|id| self.nodes.get(&id)).find_map(|at| found(at, ApartLevel::Island))
        })
    }

    /// Who on card `gpu` of `there` may not share it with `tenant`.
    #[must_use]
    pub fn kept_off_card(&self, tenant: TenantId, there: &NodeUse, gpu: u16) -> Option<Kept> {
        if !self.keeps_apart() {
            return None;
        }
        let kept = |other| self.apart_at(tenant, other).map(|level| Kept { other, level, node: there.node.id });
        there.tenants.on(Some(gpu)).find_map(kept)
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

//! Which tenants are on a node, and which of them admins keep apart.
//!
//! What must stay true: who is where is counted by every charge and release, whether anybody is kept apart or not, so that a rule that
//! comes later finds the books right; a rule holds both ways and for all tenants below the two; it refuses bindings from now on and
//! touches nothing that runs. Without rules nothing here costs more than the counting.

use super::{Capacity, NodeUse};
use crate::ids::{NodeId, TenantId};
use crate::node::Node;
use crate::tenant::{ApartLevel, lies_under};
use std::collections::BTreeMap;

/// Stands for the host itself, for tasks that hold no card.
const HOST: u16 = u16::MAX;

/// The tenants that hold something of a node: of which card, and how often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenants(Vec<(TenantId, u16, u32)>);

/// How far a node is free of other tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sole {
    /// Nobody is on it.
    Nobody,
    /// One tenant is.
    One(TenantId),
}

impl Tenants {
    /// A task of `tenant` begins to hold card `gpu`, or, without one, a part of the host.
    pub(super) fn add(&mut self, tenant: TenantId, gpu: Option<u16>) {
        let gpu = gpu.unwrap_or(HOST);
        match self.0.binary_search_by_key(&(tenant, gpu), |(tenant, gpu, _)| (*tenant, *gpu)) {
            Ok(at) => self.0[at].2 += 1,
            Err(at) => self.0.insert(at, (tenant, gpu, 1)),
        }
    }

    /// It holds it no longer.
    pub(super) fn remove(&mut self, tenant: TenantId, gpu: Option<u16>) {
        let gpu = gpu.unwrap_or(HOST);
        if let Ok(at) = self.0.binary_search_by_key(&(tenant, gpu), |(tenant, gpu, _)| (*tenant, *gpu)) {
            self.0[at].2 -= 1;
            if self.0[at].2 == 0 {
                self.0.remove(at);
            }
        }
    }

    /// Whether nobody or one tenant alone is there; none when there are several.
    #[must_use]
    pub fn sole(&self) -> Option<Sole> {
        match (self.0.first(), self.0.last()) {
            (Some((first, ..)), Some((last, ..))) => (first == last).then_some(Sole::One(*first)),
            _ => Some(Sole::Nobody),
        }
    }

    /// Whether a tenant other than `tenant` holds a part of card `gpu`.
    #[must_use]
    pub fn others_on(&self, gpu: u16, tenant: TenantId) -> bool {
        self.0.iter().any(|(other, card, _)| *card == gpu && *other != tenant)
    }

    /// Those on card `gpu`, or on the whole node.
    fn on(&self, gpu: Option<u16>) -> impl Iterator<Item = TenantId> + '_ {
        self.0.iter().filter(move |(_, card, _)| gpu.is_none_or(|gpu| *card == gpu)).map(|(tenant, ..)| *tenant)
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

/// The nodes of NVLink domains that span several, by the domain's path.
pub(super) type Spans = BTreeMap<String, Vec<NodeId>>;

impl Capacity {
    /// Whether any tenants are kept apart.
    #[must_use]
    pub fn keeps_apart(&self) -> bool {
        self.apart > 0
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

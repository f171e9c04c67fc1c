//! Who is next, over the whole quota tree.
//!
//! At every level of the tree, children whose next job their guarantee covers go first, the one with the lowest share of its
//! guarantee in use before the others; then the child with the smallest weighted dominant share of what it uses above its
//! guarantee. Inside one tenant: priority, then age. Each step down the tree is decided by the books of that level, so a
//! team's guarantee serves its projects. What must stay true: the same books and queue give the same order; ids come last.

use crate::queue::{CellQueue, Shape, Turn};
use crate::view::View;
use muster_model::capacity::TenantUse;
use muster_model::resources::Resource;
use muster_model::{ResourceVec, TenantId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Shares are compared in billionths.
const BILLION: u128 = 1_000_000_000;

/// The next job of one tenant.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) tenant: TenantId,
    pub(crate) turn: Turn,
    pub(crate) shape: Arc<Shape>,
    demand: ResourceVec,
}

impl Head {
    /// The head of `tenant`'s queue. Its demand is what it would be charged on the model it prefers.
    pub(crate) fn of(queue: &CellQueue, tenant: TenantId) -> Option<Self> {
        let (turn, shape) = queue.head(tenant)?;
        Some(Head::new(tenant, turn, shape.clone()))
    }

    pub(crate) fn new(tenant: TenantId, turn: Turn, shape: Arc<Shape>) -> Self {
        let demand = shape.charge_on(shape.models().first().copied().flatten());
        Head { tenant, turn, shape, demand }
    }
}

/// How a child stands among its siblings; the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    above_guarantee: bool,
    share: u128,
    turn: Turn,
}

#[derive(Clone, Debug, Default)]
struct Branch {
    children: Vec<TenantId>,
    own: Option<Head>,
    best: Option<Head>,
}

/// The tournament of one pass: each branch knows its best job, and a change is carried up its line only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    branches: BTreeMap<TenantId, Branch>,
    roots: Vec<TenantId>,
    /// Use that is not in the books, when an order is played through without binding.
    supposed: BTreeMap<TenantId, ResourceVec>,
}

impl Order {
    /// Of the given heads, at most one per tenant.
    pub(crate) fn of(view: &View, heads: impl IntoIterator<Item = Head>) -> Self {
        let mut order = Order::default();
        for head in heads {
            let line: Vec<TenantId> = view.capacity.line_of(head.tenant).map(|(id, _)| id).collect();
            order.grow(&line);
            if let Some(branch) = order.branches.get_mut(&head.tenant) {
                branch.own = Some(head);
            }
        }
        for root in order.roots.clone() {
            order.settle(view, root);
        }
        order
    }

    fn grow(&mut self, line: &[TenantId]) {
        for (place, id) in line.iter().enumerate() {
            if self.branches.contains_key(id) {
                return;
            }
            self.branches.insert(*id, Branch::default());
            // The line goes up, so the child that led here is its first.
            match line.get(place + 1) {
                Some(parent) if self.branches.contains_key(parent) => self.adopt(*parent, *id),
                Some(_) => {}
                None => self.roots.push(*id),
            }
            if place > 0 {
                self.adopt(*id, line[place - 1]);
            }
        }
    }

    fn adopt(&mut self, parent: TenantId, child: TenantId) {
        if let Some(branch) = self.branches.get_mut(&parent)
            && !branch.children.contains(&child)
        {
            branch.children.push(child);
        }
    }

    fn settle(&mut self, view: &View, id: TenantId) {
        let children = self.branches.get(&id).map(|branch| branch.children.clone()).unwrap_or_default();
        for child in children {
            self.settle(view, child);
        }
        self.choose(view, id);
    }

    /// Chooses the best of one branch from its own head and its children's best.
    fn choose(&mut self, view: &View, id: TenantId) {
        let Some(branch) = self.branches.get(&id) else { return };
        let own = branch.own.iter().map(|head| (self.standing_of_own(view, id, head), head));
        let below = branch.children.iter().filter_map(|child| {
            let head = self.branches.get(child)?.best.as_ref()?;
            Some((self.standing(view, *child, head), head))
        });
        let best = own.chain(below).min_by_key(|(standing, _)| *standing).map(|(_, head)| head.clone());
        if let Some(branch) = self.branches.get_mut(&id) {
            branch.best = best;
        }
    }

    /// The job that goes next.
    pub(crate) fn next(&self, view: &View) -> Option<Head> {
        self.roots
            .iter()
            .filter_map(|root| Some((*root, self.branches.get(root)?.best.as_ref()?)))
            .min_by_key(|(root, head)| self.standing(view, *root, head))
            .map(|(_, head)| head.clone())
    }

    /// Takes over that `tenant` has another head, or that its use has changed.
    pub(crate) fn update(&mut self, view: &View, tenant: TenantId, own: Option<Head>) {
        if let Some(branch) = self.branches.get_mut(&tenant) {
            branch.own = own;
        }
        let line: Vec<TenantId> = view.capacity.line_of(tenant).map(|(id, _)| id).collect();
        for id in line {
            self.choose(view, id);
        }
    }

    /// Plays on as if `head` had started.
    pub(crate) fn suppose(&mut self, view: &View, head: &Head) {
        for (id, _) in view.capacity.line_of(head.tenant) {
            self.supposed.entry(id).or_default().add(&head.demand);
        }
    }

    fn used(&self, id: TenantId, at: &TenantUse) -> ResourceVec {
        match self.supposed.get(&id) {
            Some(more) => at.used.plus(more),
            None => at.used,
        }
    }

    fn standing(&self, view: &View, id: TenantId, head: &Head) -> Standing {
        let Some(at) = view.capacity.tenants().get(&id) else {
            return Standing { above_guarantee: true, share: u128::MAX, turn: head.turn };
        };
        let used = self.used(id, at);
        if covered(&used, &head.demand, &at.guarantee) {
            let share = asked(&head.demand).map(|resource| ratio(used.get(resource), at.guarantee.get(resource))).max();
            return Standing { above_guarantee: false, share: share.unwrap_or(0), turn: head.turn };
        }
        let share = dominant_share(&used, &at.guarantee, &view.totals) / u128::from(at.weight.max(1));
        Standing { above_guarantee: true, share, turn: head.turn }
    }

    /// A tenant's own jobs stand beside its children, with what it uses itself, without a guarantee of their own, at weight 1.
    fn standing_of_own(&self, view: &View, id: TenantId, head: &Head) -> Standing {
        let Some(at) = view.capacity.tenants().get(&id) else {
            return Standing { above_guarantee: true, share: u128::MAX, turn: head.turn };
        };
        let has_rivals = self.branches.get(&id).is_some_and(|branch| !branch.children.is_empty());
        let share = if has_rivals {
            let children = view.capacity.tenants().iter().filter(|(_, child)| child.parent == Some(id));
            let below = children.fold(ResourceVec::default(), |sum, (child, at)| sum.plus(&self.used(*child, at)));
            dominant_share(&self.used(id, at), &below, &view.totals)
        } else {
            0
        };
        Standing { above_guarantee: true, share, turn: head.turn }
    }
}

/// The resources that decide whether a demand is covered: GPUs where any are asked for, otherwise CPU and memory.
fn asked(demand: &ResourceVec) -> impl Iterator<Item = Resource> + '_ {
    let gpus = demand.gpus().next().is_some();
    demand.nonzero().map(|(resource, _)| resource).filter(move |resource| matches!(resource, Resource::Gpu(_)) == gpus)
}

fn covered(used: &ResourceVec, demand: &ResourceVec, guarantee: &ResourceVec) -> bool {
    asked(demand).all(|resource| used.get(resource) + demand.get(resource) <= guarantee.get(resource))
}

/// The largest share of any one resource of the fleet that is used beyond `floor`.
fn dominant_share(used: &ResourceVec, floor: &ResourceVec, totals: &ResourceVec) -> u128 {
    used.nonzero()
        .map(|(resource, amount)| ratio(amount.saturating_sub(floor.get(resource)), totals.get(resource)))
        .max()
        .unwrap_or(0)
}

fn ratio(part: u64, whole: u64) -> u128 {
    u128::from(part) * BILLION / u128::from(whole.max(1))
}

//! The quota tree as it stands: what each tenant has of its guarantee, beyond it, and lends to others.
//!
//! Each resource is counted by itself. A tenant *borrows* what it uses above its guarantee. That comes, in this order, from capacity that nobody is guaranteed,
//! from what its parent did not hand down or borrows itself, and last from the idle guarantees of its siblings. So a tenant *lends* the part of its
//! idle guarantee that others' borrowing needs. What must stay true: a tenant lends no more than is idle; at each level
//! siblings lend exactly what borrowing at that level cannot find elsewhere, and what their parent lends of their guarantees.

use crate::capacity::Capacity;
use crate::ids::TenantId;
use crate::resources::{Resource, ResourceVec};
use std::collections::BTreeMap;

/// How one tenant stands, its descendants included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaUse {
    /// In use within its guarantee.
    pub guaranteed: ResourceVec,
    /// In use above its guarantee.
    pub borrowed: ResourceVec,
    /// The part of its idle guarantee that others use.
    pub lent: ResourceVec,
    /// The part of floor accounts that healthy capacity cannot meet.
    pub unmet: ResourceVec,
}

/// How every tenant stands.
#[must_use]
pub fn quota_tree(capacity: &Capacity) -> BTreeMap<TenantId, QuotaUse> {
    let mut children: BTreeMap<Option<TenantId>, Vec<TenantId>> = BTreeMap::new();
    let mut stands: BTreeMap<TenantId, QuotaUse> = BTreeMap::new();
    for (id, at) in capacity.tenants() {
        children.entry(at.parent).or_default().push(*id);
        let borrowed = at.used.less(&at.guarantee);
        let guaranteed = at.used.less(&borrowed);
        stands.insert(*id, QuotaUse { guaranteed, borrowed, ..QuotaUse::default() });
    }
    for (id, unmet) in capacity.unmet_floors() {
        for (above, _) in capacity.line_of(*id) {
            stands.entry(above).or_default().unmet.add(unmet);
        }
    }
    let resources: Vec<Resource> = capacity.guaranteed_total().nonzero().map(|(resource, _)| resource).collect();
    // From the top: what a tenant lends is known before it is asked of its children.
    let mut level = vec![None];
    while let Some(parent) = level.pop() {
        let Some(below) = children.get(&parent) else { continue };
        for resource in &resources {
            lend(capacity, parent, below, *resource, &mut stands);
        }
        level.extend(below.iter().copied().map(Some));
    }
    stands
}

/// Shares among `children` what they have to lend of one resource.
fn lend(
    capacity: &Capacity,
    parent: Option<TenantId>,
    children: &[TenantId],
    resource: Resource,
    stands: &mut BTreeMap<TenantId, QuotaUse>,
) {
    let of = |id: &TenantId| &capacity.tenants()[id];
    let borrowed: u64 = children.iter().map(|child| stands[child].borrowed.get(resource)).sum();
    let due = match parent {
        None => {
            let spare = capacity.healthy().less(capacity.guaranteed_total());
            borrowed.saturating_sub(spare.get(resource))
        }
        Some(parent) => {
            // Its own jobs stand beside its children, and have no guarantee of their own.
            let (at, stand) = (of(&parent), &stands[&parent]);
            let wanted = borrowed + at.own.get(resource);
            let found = capacity.account_of(parent).get(resource) + stand.borrowed.get(resource);
            let idle_account = found.saturating_sub(wanted);
            wanted.saturating_sub(found) + stand.lent.get(resource).saturating_sub(idle_account)
        }
    };
    let idle = |child: &TenantId| of(child).guarantee.get(resource).saturating_sub(of(child).used.get(resource));
    // Those that do not lend come last: only what was taken before they said so is still in use.
    let (lenders, others): (Vec<TenantId>, Vec<TenantId>) =
        children.iter().partition(|child| of(child).lends(resource));
    let mut left = due;
    for group in [lenders, others] {
        let amounts: Vec<u64> = group.iter().map(idle).collect();
        for (child, share) in group.iter().zip(in_proportion(left, &amounts)) {
            left -= share;
            let stand = stands.entry(*child).or_default();
            stand.lent.set(resource, share);
        }
    }
}

/// `amount`, or all there is, taken from `sources` in proportion to them; what does not divide is taken from the first ones.
pub(crate) fn in_proportion(amount: u64, sources: &[u64]) -> Vec<u64> {
    let total: u64 = sources.iter().sum();
    let amount = amount.min(total);
    let share = |source: u64| (u128::from(amount) * u128::from(source) / u128::from(total.max(1))) as u64;
    let mut shares: Vec<u64> = sources.iter().map(|source| share(*source)).collect();
    let mut left = amount - shares.iter().sum::<u64>();
    for (share, source) in shares.iter_mut().zip(sources) {
        let more = left.min(source - *share);
        *share += more;
        left -= more;
    }
    shares
}

//! Floor accounts and the tree as it stands, against arithmetic of their own over random trees, fleets and histories.

use muster_model::allocation::Allocation;
use muster_model::capacity::Capacity;
use muster_model::floor_account::{FloorAccount, floor_accounts};
use muster_model::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use muster_model::node::{Gpu, Node, NodeHealth, NodeSpec};
use muster_model::quota_tree::quota_tree;
use muster_model::resources::Resource;
use muster_model::{GpuModel, GpuUnits, ResourceVec, Tenant};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const H100: Resource = Resource::Gpu(GpuModel::H100);

fn cards(count: u64) -> ResourceVec {
    ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(count))
}

fn node(id: u32, count: u32, withheld: u32, down: bool) -> Arc<Node> {
    let name = format!("n{id}");
    let gpu = |index| Gpu {
        withheld: (index < withheld).then(|| "a fault".to_owned()),
        ..Gpu::usual(&name, index, GpuModel::H100)
    };
    let spec = NodeSpec::usual(&name, (0..count).map(gpu).collect());
    let health = if down { NodeHealth::Down } else { NodeHealth::Ready };
    Arc::new(Node { health, ..Node::usual(NodeId(id), CellId(1), spec) })
}

fn tenant(id: u32, parent: Option<u32>, guarantee: u64) -> Tenant {
    Tenant {
        parent: parent.map(TenantId),
        guarantee: cards(guarantee),
        ..Tenant::usual(TenantId(id), &format!("t{id}"))
    }
}

/// Uses that many cards without holding any: places do not matter here.
fn uses(capacity: &mut Capacity, tenant: u32, count: u64) {
    let id = AllocationId(u64::from(tenant));
    let charge = cards(count);
    capacity.charge(&Allocation { charge, ..Allocation::usual(id, JobId(id.0), TenantId(tenant), Vec::new()) });
}

/// Two organisations with two teams each; ids of teams are above those of their organisations.
fn tree(guarantees: &[(u64, u64, u64); 2]) -> Vec<Tenant> {
    let mut tenants = Vec::new();
    for (number, (spare, one, two)) in guarantees.iter().enumerate() {
        let org = 10 * (number as u32 + 1);
        tenants.push(tenant(org, None, spare + one + two));
        tenants.push(tenant(org + 1, Some(org), *one));
        tenants.push(tenant(org + 2, Some(org), *two));
    }
    tenants
}

#[derive(Clone, Debug)]
enum Step {
    Node { id: u32, cards: u32, withheld: u32, down: bool },
    NodeGoes(u32),
    Tenant { id: u32, parent: Option<u32>, guarantee: u64 },
    TenantGoes(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let node = (0..4_u32, 0..5_u32, 0..3_u32, any::<bool>());
    let parent = prop::option::of(0..3_u32);
    prop_oneof![
        3 => node.prop_map(|(id, cards, withheld, down)| Step::Node { id, cards, withheld, down }),
        1 => (0..4_u32).prop_map(Step::NodeGoes),
        3 => (0..6_u32, parent, 0..9_u64).prop_map(|(id, parent, guarantee)| {
            // Parents are the first three, and organisations.
            Step::Tenant { id, parent: parent.filter(|_| id > 2), guarantee }
        }),
        1 => (3..6_u32).prop_map(Step::TenantGoes),
    ]
}

proptest! {
    #[test]
    fn accounts_that_are_kept_up_change_by_change_are_those_counted_at_once(steps in prop::collection::vec(step(), 1..40)) {
        let mut kept = Capacity::default();
        let (mut nodes, mut tenants) = (BTreeMap::new(), BTreeMap::new());
        for step in steps {
            match step {
                Step::Node { id, cards, withheld, down } => {
                    let node = node(id, cards, withheld, down);
                    kept.put_node(node.clone());
                    nodes.insert(id, node);
                }
                Step::NodeGoes(id) => {
                    kept.remove_node(NodeId(id));
                    nodes.remove(&id);
                }
                Step::Tenant { id, parent, guarantee } => {
                    let tenant = tenant(id, parent, guarantee);
                    kept.put_tenant(&tenant);
                    tenants.insert(id, tenant);
                }
                Step::TenantGoes(id) => {
                    kept.remove_tenant(TenantId(id));
                    tenants.remove(&id);
                }
            }
            // Asked after each step, so that a stale answer would show.
            let mut anew = Capacity::default();
            // Children first: a state may be loaded in any order.
            tenants.values().rev().for_each(|tenant| anew.put_tenant(tenant));
            nodes.values().for_each(|node| anew.put_node(Arc::clone(node)));
            prop_assert_eq!(kept.healthy(), anew.healthy());
            prop_assert_eq!(kept.guaranteed_total(), anew.guaranteed_total());
            prop_assert_eq!(kept.unmet_floors(), anew.unmet_floors());
            for id in tenants.keys() {
                prop_assert_eq!(kept.account_of(TenantId(*id)), anew.account_of(TenantId(*id)));
            }
        }
    }

    #[test]
    fn accounts_that_are_met_fit_into_healthy_capacity_and_the_oldest_are_met_first(
        guarantees in prop::array::uniform2((0..5_u64, 0..5_u64, 0..5_u64)), there in 0..30_u32, withheld in 0..8_u32,
    ) {
        let mut capacity = Capacity::default();
        tree(&guarantees).iter().for_each(|tenant| capacity.put_tenant(tenant));
        prop_assert!(capacity.unmet_floors().is_empty(), "a fleet without nodes is still to come");
        capacity.put_node(node(1, there, withheld, false));
        let ids: Vec<TenantId> = capacity.tenants().keys().copied().collect();
        let met: u64 = ids.iter().map(|id| capacity.met_account_of(*id).get(H100)).sum();
        let healthy = capacity.healthy().get(H100);
        prop_assert_eq!(met, capacity.guaranteed_total().get(H100).min(healthy));
        // Behind the first that is short nobody has anything.
        let short = ids.iter().position(|id| capacity.unmet_floors().contains_key(id));
        for id in short.into_iter().flat_map(|at| &ids[at + 1..]) {
            prop_assert_eq!(capacity.met_account_of(*id).get(H100), 0);
        }
    }

    #[test]
    fn what_is_lent_is_idle_and_is_what_borrowers_use(
        guarantees in prop::array::uniform2((0..5_u64, 0..5_u64, 0..5_u64)), used in prop::collection::vec(0..9_u64, 6), spare in 0..4_u64,
    ) {
        let mut capacity = Capacity::default();
        let tenants = tree(&guarantees);
        tenants.iter().for_each(|tenant| capacity.put_tenant(tenant));
        let total = capacity.guaranteed_total().get(H100) / GpuUnits::CARD.0 + spare;
        capacity.put_node(node(1, total as u32, 0, false));
        let mut left = total;
        for (tenant, used) in tenants.iter().zip(used) {
            let used = used.min(left);
            left -= used;
            uses(&mut capacity, tenant.id.0, used);
        }
        let stands = quota_tree(&capacity);
        let of = |id: TenantId| (&capacity.tenants()[&id], &stands[&id]);
        for tenant in &tenants {
            let (at, stand) = of(tenant.id);
            let (guarantee, used) = (at.guarantee.get(H100), at.used.get(H100));
            prop_assert_eq!(stand.guaranteed.get(H100), used.min(guarantee));
            prop_assert_eq!(stand.guaranteed.get(H100) + stand.borrowed.get(H100), used);
            prop_assert!(stand.lent.get(H100) <= guarantee.saturating_sub(used));
        }
        // Who borrows above what nobody is guaranteed, borrows from the other organisation.
        let tops = || tenants.iter().filter(|tenant| tenant.parent.is_none()).map(|tenant| of(tenant.id).1);
        let (borrowed, lent): (u64, u64) = (tops().map(|at| at.borrowed.get(H100)).sum(), tops().map(|at| at.lent.get(H100)).sum());
        prop_assert_eq!(lent, borrowed.saturating_sub(spare * GpuUnits::CARD.0));
        for org in tenants.iter().filter(|tenant| tenant.parent.is_none()) {
            let (at, stand) = of(org.id);
            let teams: Vec<_> = tenants.iter().filter(|team| team.parent == Some(org.id)).map(|team| of(team.id)).collect();
            let idle: u64 = teams.iter().map(|(at, _)| at.guarantee.get(H100).saturating_sub(at.used.get(H100))).sum();
            let within: u64 = teams.iter().map(|(_, stand)| stand.borrowed.get(H100)).sum::<u64>() + at.own.get(H100);
            let lent: u64 = teams.iter().map(|(_, stand)| stand.lent.get(H100)).sum();
            // Idle cards of the teams that are not lent are all that is idle below the organisation, beside its own account's.
            let taken = within + stand.lent.get(H100);
            let found = capacity.account_of(org.id).get(H100) + stand.borrowed.get(H100);
            prop_assert_eq!(lent, taken.saturating_sub(found).min(idle));
        }
    }
}

#[test]
fn a_move_takes_what_is_used_from_the_old_ancestors_to_the_new() {
    let mut capacity = Capacity::default();
    let tenants = tree(&[(0, 4, 0), (4, 0, 0)]);
    tenants.iter().for_each(|tenant| capacity.put_tenant(tenant));
    uses(&mut capacity, 11, 3);
    uses(&mut capacity, 20, 1);
    let moved = Tenant { parent: Some(TenantId(20)), ..tenants[1].clone() };
    capacity.put_tenant(&moved);
    let used = |id: u32| capacity.tenants()[&TenantId(id)].used.get(H100) / GpuUnits::CARD.0;
    assert_eq!((used(10), used(11), used(20)), (0, 3, 4));
    assert_eq!(capacity.account_of(TenantId(10)), cards(4));
    assert_eq!(capacity.account_of(TenantId(20)), ResourceVec::default());
}

#[test]
fn a_tenant_that_does_not_lend_is_shown_as_lending_last() {
    let mut capacity = Capacity::default();
    let mut tenants = [tenant(1, None, 4), tenant(2, None, 4), tenant(3, None, 0)];
    tenants[0].lend = false;
    tenants.iter().for_each(|tenant| capacity.put_tenant(tenant));
    capacity.put_node(node(1, 8, 0, false));
    uses(&mut capacity, 3, 3);
    let lent = |capacity: &Capacity, id| quota_tree(capacity)[&TenantId(id)].lent.get(H100) / GpuUnits::CARD.0;
    assert_eq!((lent(&capacity, 1), lent(&capacity, 2)), (0, 3));
}

proptest! {
    #[test]
    fn accounts_are_busy_idle_or_unmet_and_lend_what_burst_takes_of_them(
        guarantees in prop::array::uniform2((0..5_u64, 0..5_u64, 0..5_u64)), keeps in prop::collection::vec(any::<bool>(), 6),
        used in prop::collection::vec((0..9_u64, any::<bool>()), 6), there in 0..30_u64,
    ) {
        let mut capacity = Capacity::default();
        let mut tenants = tree(&guarantees);
        for (tenant, keeps) in tenants.iter_mut().zip(keeps) {
            tenant.lends.insert(H100, !keeps);
            capacity.put_tenant(tenant);
        }
        capacity.put_node(node(1, there as u32, 0, false));
        let (mut left, mut burst) = (there, 0);
        for (tenant, (used, covered)) in tenants.iter().zip(used) {
            // Covered by its own account, as far as that is met; or burst.
            let account = capacity.account_free(tenant.id, H100) / GpuUnits::CARD.0;
            let used = used.min(left).min(if covered { account } else { u64::MAX });
            left -= used;
            burst += if covered { 0 } else { used };
            let id = AllocationId(u64::from(tenant.id.0));
            let mut held = Allocation { charge: cards(used), ..Allocation::usual(id, JobId(id.0), tenant.id, Vec::new()) };
            held.set_class(covered.then_some(tenant.id).into(), 0);
            capacity.charge(&held);
        }
        let accounts = floor_accounts(&capacity);
        let sum = |of: fn(&FloorAccount) -> &ResourceVec| accounts.values().map(|at| of(at).get(H100)).sum::<u64>();
        prop_assert_eq!(sum(|at| &at.size), capacity.guaranteed_total().get(H100));
        for (id, at) in &accounts {
            let parts = at.busy.get(H100) + at.idle.get(H100) + at.unmet.get(H100);
            prop_assert_eq!(parts, at.size.get(H100), "{:?}", at);
            prop_assert!(at.lent.get(H100) <= at.idle.get(H100));
            prop_assert_eq!(at.busy, capacity.tenants()[id].floor_charged);
        }
        let unguaranteed = there * GpuUnits::CARD.0 - sum(|at| &at.busy) - sum(|at| &at.idle);
        let taken = (burst * GpuUnits::CARD.0).saturating_sub(unguaranteed);
        prop_assert_eq!(sum(|at| &at.lent), taken.min(sum(|at| &at.idle)));
        // Who keeps lends last.
        let keeps = |id: &TenantId| capacity.line_of(*id).any(|(_, at)| !at.lends(H100));
        let kept: u64 = accounts.iter().filter(|(id, _)| keeps(id)).map(|(_, at)| at.lent.get(H100)).sum();
        let lendable: u64 = accounts.iter().filter(|(id, _)| !keeps(id)).map(|(_, at)| at.idle.get(H100)).sum();
        prop_assert_eq!(kept, sum(|at| &at.lent).saturating_sub(lendable));
    }
}

/// A team that keeps its idle H100s inside an organisation that keeps its own: a sibling of the team may take neither.
#[test]
fn what_a_team_does_not_lend_is_kept_from_its_siblings_too() {
    let mut capacity = Capacity::default();
    let mut tenants = [tenant(1, None, 4), tenant(2, Some(1), 4), tenant(3, Some(1), 0), tenant(4, None, 0)];
    for number in [0, 1] {
        tenants[number].lends.insert(H100, false);
    }
    tenants.iter().for_each(|tenant| capacity.put_tenant(tenant));
    capacity.put_node(node(1, 6, 0, false));
    let allowed = |capacity: &Capacity, taker, count| {
        capacity.lending_allows(&Default::default(), TenantId(taker), &cards(count)).is_ok()
    };
    for taker in [3, 4] {
        assert!(allowed(&capacity, taker, 2) && !allowed(&capacity, taker, 3), "tenant {taker}");
    }
    // It lends again, and the organisation does not: the sibling may take it, a stranger not.
    tenants[1].lends.insert(H100, true);
    capacity.put_tenant(&tenants[1]);
    assert!(allowed(&capacity, 3, 6) && !allowed(&capacity, 4, 3));
    // Another resource is not kept by that.
    let cpus = ResourceVec::of_host(1_000, 0);
    assert!(capacity.lending_allows(&Default::default(), TenantId(4), &cpus).is_ok());
}

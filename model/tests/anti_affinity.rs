//! Tenants that are kept apart, in the capacity ledger: what is refused, both ways, at each level, and that a rule that comes later finds who is where.

use muster_model::allocation::Allocation;
use muster_model::capacity::{Capacity, Misfit, SoleHolder};
use muster_model::mig::MigPlacement;
use muster_model::mig::parse_profile;
use muster_model::node::{Gpu, Node, NodeSpec, Place};
use muster_model::task::{DeviceHold, HoldMode, TaskPlacement};
use muster_model::{
    AllocationId, AntiAffinity, AntiAffinityLevel, CellId, GpuModel, JobId, NodeId, ResourceVec, Tenant, TenantId,
};
use std::sync::Arc;

/// `a`, `a/team` and `b`.
fn tenant(id: u32, path: &str, anti_affinity: &[(&str, AntiAffinityLevel)]) -> Tenant {
    let apart =
        |(tenant, level): &(&str, AntiAffinityLevel)| AntiAffinity { tenant: (*tenant).to_owned(), level: *level };
    Tenant {
        parent: path.contains('/').then_some(TenantId(1)),
        anti_affinity: anti_affinity.iter().map(apart).collect(),
        ..Tenant::usual(TenantId(id), path)
    }
}

fn node(id: u32, nvlink: &str) -> Node {
    let name = format!("n{id}");
    let mut spec = NodeSpec::usual(&name, Gpu::usual_cards(&name, 2, GpuModel::H100));
    spec.place = Place { leaf: "l".to_owned(), nvlink_domain: nvlink.to_owned(), ..Place::default() };
    Node::usual(NodeId(id), CellId(1), spec)
}

/// Nodes 1 and 2 of one NVLink domain, node 3 alone.
fn ledger() -> Capacity {
    let mut ledger = Capacity::default();
    for (id, path) in [(1, "a"), (2, "a/team"), (3, "b")] {
        ledger.put_tenant(&tenant(id, path, &[]));
    }
    for (id, nvlink) in [(1, "nvl"), (2, "nvl"), (3, "")] {
        ledger.put_node(Arc::new(node(id, nvlink)));
    }
    ledger
}

/// One seventh of card `gpu`, at memory slice `start`.
fn slice(node: u32, gpu: u16, start: u8) -> TaskPlacement {
    let shape = parse_profile(GpuModel::H100, "1g.10gb").expect("a profile");
    let mode = HoldMode::Mig(MigPlacement { shape, start });
    TaskPlacement { node: NodeId(node), devices: vec![DeviceHold { gpu, mode }] }
}

fn held(id: u64, tenant: u32, task: TaskPlacement) -> Allocation {
    let usual = Allocation::usual(AllocationId(id), JobId(id), TenantId(tenant), vec![task]);
    Allocation { model: Some(GpuModel::H100), ..usual }
}

#[test]
fn a_rule_that_comes_later_finds_who_is_where_and_holds_both_ways() {
    // Which of card 0, card 1, the neighbour in the domain and the node alone are refused.
    let check = |level: AntiAffinityLevel, expected: [bool; 4]| {
        for (who, whom) in [((3, "b"), "a"), ((1, "a"), "b")] {
            let mut ledger = ledger();
            let theirs = held(1, 2, slice(1, 0, 0));
            ledger.charge(&theirs);
            ledger.put_tenant(&tenant(who.0, who.1, &[(whom, level)]));
            assert!(ledger.wants_tenants_counted());
            ledger.count_tenants([&theirs].into_iter());
            let refused = [slice(1, 0, 1), slice(1, 1, 0), slice(2, 0, 0), slice(3, 0, 0)].map(|task| {
                let proved = ledger.prove(TenantId(3), &[task], 1, 1, &ResourceVec::default());
                assert!(matches!(proved, Ok(()) | Err(Misfit::AntiAffinityConflict { .. })), "{proved:?}");
                proved.is_err()
            });
            assert_eq!(refused, expected, "{level}, said by {who:?}");
            // Nobody else is concerned, and it is over when the other has left.
            assert_eq!(ledger.prove(TenantId(1), &[slice(1, 0, 1)], 1, 1, &ResourceVec::default()), Ok(()));
            ledger.release(&theirs);
            assert_eq!(ledger.prove(TenantId(3), &[slice(1, 0, 1)], 1, 1, &ResourceVec::default()), Ok(()));
        }
    };
    check(AntiAffinityLevel::Card, [true, false, false, false]);
    check(AntiAffinityLevel::Node, [true, true, false, false]);
    check(AntiAffinityLevel::Island, [true, true, true, false]);
}

#[test]
fn who_is_alone_on_a_node_is_counted_task_by_task() {
    let mut ledger = ledger();
    ledger.watch_tenants();
    ledger.count_tenants(std::iter::empty());
    let sole = |ledger: &Capacity| ledger.nodes()[&NodeId(1)].tenants.sole();
    let all = [held(1, 1, slice(1, 0, 0)), held(2, 1, slice(1, 0, 1)), held(3, 3, slice(1, 1, 0))];
    assert_eq!(sole(&ledger), Some(SoleHolder::Nobody));
    ledger.charge(&all[0]);
    ledger.charge(&all[1]);
    assert_eq!(sole(&ledger), Some(SoleHolder::One(TenantId(1))));
    ledger.charge(&all[2]);
    assert_eq!(sole(&ledger), None);
    assert!(ledger.nodes()[&NodeId(1)].tenants.others_on(1, TenantId(1)));
    assert!(!ledger.nodes()[&NodeId(1)].tenants.others_on(0, TenantId(1)));
    ledger.release(&all[0]);
    ledger.release(&all[2]);
    assert_eq!(sole(&ledger), Some(SoleHolder::One(TenantId(1))), "one of its two slices is left");
    ledger.release(&all[1]);
    assert_eq!(sole(&ledger), Some(SoleHolder::Nobody));
}

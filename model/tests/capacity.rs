//! The capacity ledger against a naive model: over random histories of charges and releases both must agree on what fits (laws 1, 3, 8).
//!
//! The naive model keeps nothing but a list of who holds what and counts everything anew for each question.

use muster_model::allocation::Allocation;
use muster_model::capacity::{Capacity, Misfit, ShareRule};
use muster_model::mig::{MigPlacement, MigShape};
use muster_model::node::{Gpu, Node, NodeHealth, NodeSpec, WithheldSlice};
use muster_model::task::{DeviceHold, HoldMode, TaskPlacement};
use muster_model::{
    AllocationId, CellId, GpuModel, GpuUnits, JobId, Limits, NodeId, Pool, ResourceVec, Tenant, TenantId, Trust,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NODES: u32 = 3;
const CARDS: u16 = 2;
const MEMORY_MIB: u64 = 81_920;

/// `org` (max 4 cards) with `org/a` (max 2 cards) and `org/b` (untrusted); `other` without limits.
fn tenants() -> Vec<Tenant> {
    let tenant = |id, path: &str, parent: Option<u32>, cards: Option<u64>, trust| Tenant {
        parent: parent.map(TenantId),
        max: Limits {
            gpu: cards.map(|c| (GpuModel::H100, GpuUnits::cards(c))).into_iter().collect(),
            ..Limits::default()
        },
        trust,
        ..Tenant::usual(TenantId(id), path)
    };
    vec![
        tenant(1, "org", None, Some(4), Trust::Trusted),
        tenant(2, "org/a", Some(1), Some(2), Trust::Trusted),
        tenant(3, "org/b", Some(1), None, Trust::Untrusted),
        tenant(4, "other", None, None, Trust::Trusted),
    ]
}

/// Slices that are withheld, by node and card.
type Slices = BTreeMap<(u32, u16), Vec<MigPlacement>>;

fn node(id: u32, slices: &Slices) -> Node {
    let name = format!("n{id}");
    let withheld = |place: &MigPlacement| WithheldSlice { place: *place, reason: "Xid 94".to_owned() };
    let gpu = |index: u32| Gpu {
        withheld_slices: slices.get(&(id, index as u16)).into_iter().flatten().map(withheld).collect(),
        memory_mib: MEMORY_MIB,
        // One card of the fleet is withheld.
        withheld: (id == NODES && index == 1).then(|| "a process that is not ours".to_owned()),
        ..Gpu::usual(&name, index, GpuModel::H100)
    };
    let usual = NodeSpec::usual(&name, (0..u32::from(CARDS)).map(gpu).collect());
    let spec = NodeSpec { pool: "p".to_owned(), cpu_milli: 4_000, memory_mib: 1_000, ..usual };
    Node::usual(NodeId(id), CellId(1), spec)
}

fn pool() -> Pool {
    Pool { name: "p".to_owned(), time_slice_replicas: 3, mps_clients: 2, ..Pool::standard() }
}

#[derive(Clone, Debug)]
enum Step {
    Bind {
        tenant: u32,
        tasks: Vec<TaskPlacement>,
        cpu_milli: u64,
        charge_cards: u64,
    },
    Release(prop::sample::Index),
    /// The slices of a card that are withheld from now on.
    Withhold {
        node: u32,
        gpu: u16,
        slices: Vec<MigPlacement>,
    },
}

fn mode() -> impl Strategy<Value = HoldMode> {
    let shape = prop::sample::select(&MigShape::ALL[..]);
    prop_oneof![
        2 => Just(HoldMode::Whole),
        4 => (shape, 0_u8..8).prop_map(|(shape, start)| HoldMode::Mig(MigPlacement { shape, start })),
        3 => (10_u8..=70, 10_000_u64..50_000).prop_map(|(percent, memory_mib)| HoldMode::Mps { percent, memory_mib }),
        3 => (10_000_u64..50_000).prop_map(|memory_mib| HoldMode::TimeSlice { memory_mib }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let hold = (0..CARDS, mode()).prop_map(|(gpu, mode)| DeviceHold { gpu, mode });
    let task = (1..=NODES, prop::collection::vec(hold, 0..=2))
        .prop_map(|(node, devices)| TaskPlacement { node: NodeId(node), devices });
    let bind = (1_u32..=4, prop::collection::vec(task, 1..=3), 0_u64..2_500, 0_u64..=2)
        .prop_map(|(tenant, tasks, cpu_milli, charge_cards)| Step::Bind { tenant, tasks, cpu_milli, charge_cards });
    let places = prop::collection::vec((prop::sample::select(&MigShape::ALL[..]), 0_u8..8), 0..3);
    let withhold = (1..=NODES, 0..CARDS, places).prop_map(|(node, gpu, places)| {
        let place = |(shape, start)| MigPlacement { shape, start };
        Step::Withhold { node, gpu, slices: places.into_iter().map(place).collect() }
    });
    prop_oneof![6 => bind, 2 => any::<prop::sample::Index>().prop_map(Step::Release), 1 => withhold]
}

/// What is withheld of a card beside what is held of it: slice by slice, as long as none overlaps another. On a card that is held otherwise nothing is.
fn naive_withheld(holds: &[(TenantId, HoldMode)], slices: &[MigPlacement]) -> Vec<(TenantId, HoldMode)> {
    let mut standing = holds.to_vec();
    for place in slices {
        let all_mig = standing.iter().all(|(_, mode)| matches!(mode, HoldMode::Mig(_)));
        standing.push((TenantId(4), HoldMode::Mig(*place)));
        if !all_mig || !naive_card(&standing, &tenants()) {
            standing.pop();
        }
    }
    standing.split_off(holds.len())
}

/// Says whether the last of `live` can stand beside the others, from scratch.
fn naive_fits(live: &[Allocation], tenants: &[Tenant], slices: &Slices) -> bool {
    let newest = live.last().map(|held| held.id);
    for node in 1..=NODES {
        let here = || live.iter().flat_map(|held| held.tasks.iter().map(move |task| (held, task)));
        let cpu: u64 = here().filter(|(_, task)| task.node.0 == node).map(|(held, _)| held.cpu_milli).sum();
        if cpu > 4_000 {
            return false;
        }
        for gpu in 0..CARDS {
            let of = |is_new: bool| -> Vec<(TenantId, HoldMode)> {
                here()
                    .filter(|(held, task)| task.node.0 == node && (Some(held.id) == newest) == is_new)
                    .flat_map(|(held, task)| task.devices.iter().map(move |hold| (held.tenant, hold)))
                    .filter(|(_, hold)| hold.gpu == gpu)
                    .map(|(tenant, hold)| (tenant, hold.mode))
                    .collect()
            };
            let (mut holds, asked) = (of(false), of(true));
            if !asked.is_empty() {
                let withheld = slices.get(&(node, gpu)).map(|slices| naive_withheld(&holds, slices));
                holds.extend(withheld.unwrap_or_default());
                holds.extend(asked);
            }
            if !holds.is_empty() && node == NODES && gpu == 1 {
                return false;
            }
            if !naive_card(&holds, tenants) {
                return false;
            }
        }
    }
    tenants.iter().all(|tenant| {
        let below = |id: TenantId| {
            tenants
                .iter()
                .any(|t| t.id == id && (t.path == tenant.path || t.path.starts_with(&format!("{}/", tenant.path))))
        };
        let used: u64 =
            live.iter().filter(|held| below(held.tenant)).map(|held| held.charge.gpu(GpuModel::H100).0).sum();
        tenant.max.gpu.get(&GpuModel::H100).is_none_or(|max| used <= max.0)
    })
}

fn naive_card(holds: &[(TenantId, HoldMode)], tenants: &[Tenant]) -> bool {
    let count = |wanted: fn(&HoldMode) -> bool| holds.iter().filter(|(_, mode)| wanted(mode)).count();
    let whole = count(|mode| matches!(mode, HoldMode::Whole));
    let mig = count(|mode| matches!(mode, HoldMode::Mig(_)));
    let mps = count(|mode| matches!(mode, HoldMode::Mps { .. }));
    let slices = count(|mode| matches!(mode, HoldMode::TimeSlice { .. }));
    if [whole, mig, mps, slices].iter().filter(|n| **n > 0).count() > 1 || whole > 1 || mps > 2 || slices > 3 {
        return false;
    }
    let (mut owned, mut media, mut percents, mut memory) = ([false; 8], 0, 0_u32, 0_u64);
    let mut domains = BTreeSet::new();
    for (tenant, mode) in holds {
        let tenant = tenants.iter().find(|t| t.id == *tenant).expect("known");
        match *mode {
            HoldMode::Whole => {}
            HoldMode::Mig(MigPlacement { shape, start }) => {
                if !shape.starts(muster_model::gpu::MigFamily::Eight).contains(&start) {
                    return false;
                }
                for slice in start..start + shape.memory_slices() {
                    if std::mem::replace(&mut owned[usize::from(slice)], true) {
                        return false;
                    }
                }
                media += u8::from(shape.has_media());
            }
            HoldMode::Mps { percent, memory_mib } => {
                percents += u32::from(percent);
                memory += memory_mib + 480;
            }
            HoldMode::TimeSlice { memory_mib } => memory += memory_mib + 500,
        }
        if matches!(mode, HoldMode::Mps { .. } | HoldMode::TimeSlice { .. }) {
            if tenant.trust == Trust::Untrusted {
                return false;
            }
            domains.insert(Tenant::domain_of(&tenant.path));
        }
    }
    // What an H100's driver keeps, and its MPS server.
    let kept = if mps > 0 { 640 + 64 } else { 640 };
    media <= 1 && percents <= 100 && memory <= MEMORY_MIB - kept && domains.len() <= 1
}

fn allocation(id: u64, tenant: u32, tasks: &[TaskPlacement], cpu_milli: u64, cards: u64) -> Allocation {
    Allocation {
        model: Some(GpuModel::H100),
        cpu_milli,
        charge: ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(cards)),
        ..Allocation::usual(AllocationId(id), JobId(id), TenantId(tenant), tasks.to_vec())
    }
}

/// The capacity ledger with `live` charged and nothing else, as text: what a history must come to.
fn books_of(live: &[Allocation], slices: &Slices) -> Capacity {
    let mut ledger = Capacity::default();
    ledger.put_pool(pool());
    tenants().iter().for_each(|tenant| ledger.put_tenant(tenant));
    (1..=NODES).for_each(|id| ledger.put_node(Arc::new(node(id, slices))));
    live.iter().for_each(|held| ledger.charge(held));
    ledger
}

fn check(steps: &[Step]) -> Result<(), TestCaseError> {
    let tenants = tenants();
    let mut slices = Slices::new();
    let mut ledger = books_of(&[], &slices);
    let mut live: Vec<Allocation> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Bind { tenant, tasks, cpu_milli, charge_cards } => {
                let new = allocation(number as u64 + 1, *tenant, tasks, *cpu_milli, *charge_cards);
                let proved = ledger.prove(new.tenant, tasks, *cpu_milli, 1, &new.charge);
                live.push(new);
                prop_assert_eq!(proved.is_ok(), naive_fits(&live, &tenants, &slices), "step {}: {:?}", number, proved);
                match (proved, live.last()) {
                    (Ok(()), Some(new)) => ledger.charge(new),
                    _ => drop(live.pop()),
                }
            }
            Step::Release(which) if !live.is_empty() => {
                let gone = live.remove(which.index(live.len()));
                ledger.release(&gone);
            }
            Step::Release(_) => {}
            Step::Withhold { node: id, gpu, slices: places } => {
                let valid = |place: &MigPlacement| naive_card(&[(TenantId(4), HoldMode::Mig(*place))], &tenants);
                slices.insert((*id, *gpu), places.iter().copied().filter(valid).collect());
                ledger.put_node(Arc::new(node(*id, &slices)));
            }
        }
        prop_assert_eq!(format!("{ledger:?}"), format!("{:?}", books_of(&live, &slices)), "step {}", number);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn the_books_agree_with_a_naive_model(steps in prop::collection::vec(step(), 1..60)) {
        check(&steps)?;
    }
}

#[test]
fn enough_binds_are_accepted_for_the_comparison_to_mean_something() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut proved, mut asked) = (0, 0);
    let mut ledger = books_of(&[], &Slices::new());
    for number in 1..2_000 {
        let step = step().new_tree(&mut runner).expect("a step").current();
        if let Step::Bind { tenant, tasks, cpu_milli, charge_cards } = step {
            let new = allocation(number, tenant, &tasks, cpu_milli, charge_cards);
            asked += 1;
            if ledger.prove(new.tenant, &tasks, cpu_milli, 1, &new.charge).is_ok() {
                ledger.charge(&new);
                ledger.release(&new);
                proved += 1;
            }
        }
    }
    assert!(proved * 20 > asked, "{proved} of {asked}");
}

#[test]
#[should_panic(expected = "a charged allocation was proved")]
fn a_charge_that_was_not_proved_panics_rather_than_corrupt_the_books() {
    let hold = DeviceHold { gpu: 0, mode: HoldMode::Whole };
    let tasks = [TaskPlacement { node: NodeId(1), devices: vec![hold] }];
    let mut ledger = books_of(&[], &Slices::new());
    ledger.charge(&allocation(1, 4, &tasks, 0, 1));
    ledger.charge(&allocation(2, 4, &tasks, 0, 1));
}

#[test]
fn a_node_that_takes_no_work_is_refused() {
    for (health, drained) in [(NodeHealth::Silent, false), (NodeHealth::Down, false), (NodeHealth::Ready, true)] {
        let mut ledger = books_of(&[], &Slices::new());
        ledger.put_node(Arc::new(Node { health, drained, ..node(1, &Slices::new()) }));
        let tasks = [TaskPlacement { node: NodeId(1), devices: vec![] }];
        assert!(ledger.prove(TenantId(4), &tasks, 1, 1, &ResourceVec::default()).is_err(), "{health:?} {drained}");
    }
}

/// Before the rule a card gave all of its memory to its shares, and what it gave then is held on.
#[test]
fn shares_have_what_driver_and_contexts_leave_of_a_card() {
    let share = |memory_mib| TaskPlacement {
        node: NodeId(1),
        devices: vec![DeviceHold { gpu: 0, mode: HoldMode::TimeSlice { memory_mib } }],
    };
    let charge = ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(1));
    let proved = |ledger: &Capacity, memory_mib| ledger.prove(TenantId(1), &[share(memory_mib)], 1, 1, &charge);
    let mut ledger = books_of(&[allocation(1, 1, &[share(40_960)], 1, 1)], &Slices::new());
    let left = MEMORY_MIB - 640 - 500 - 40_960 - 500;
    assert_eq!(proved(&ledger, left), Ok(()));
    let Err(refused @ Misfit::Taken { .. }) = proved(&ledger, left + 1) else { panic!("it does not fit") };
    let words = "GPU 0 of node 1 cannot take time-slice of 39321 MiB: 41460 of its 81280 MiB for shares are in use";
    assert_eq!(refused.to_string(), words);
    ledger.set_share_rule(ShareRule::All);
    assert_eq!(proved(&ledger, 40_960), Ok(()));
    ledger.charge(&allocation(2, 1, &[share(40_960)], 1, 1));
    ledger.set_share_rule(ShareRule::WithoutOverhead);
    assert!(proved(&ledger, 1).is_err());
    let loaded =
        books_of(&[allocation(1, 1, &[share(40_960)], 1, 1), allocation(2, 1, &[share(40_960)], 1, 1)], &Slices::new());
    assert_eq!(loaded.nodes()[&NodeId(1)].cards, ledger.nodes()[&NodeId(1)].cards);
}

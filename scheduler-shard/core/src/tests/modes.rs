//! Cards change mode only when empty, and trust: what the shard proposes is judged by arithmetic of its own, before anybody proves it.

use super::fleet::*;
use crate::Proposal;
use muster_model::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const TENANTS: [&str; 4] = ["org/a", "org/b", "other", "guest"];

fn fleet() -> Fleet {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2), Host::new("b", GpuModel::H100, 2)]);
    for path in ["org/a", "org/b", "other"] {
        fleet.tenant(path, |_| {});
    }
    fleet.tenant("guest", |tenant| tenant.trust = Trust::Untrusted);
    fleet
}

fn spec(kind: usize, tenant: usize) -> JobSpec {
    let spec = match kind {
        0 => gang(1, 1),
        1 => mig("1g.10gb"),
        2 => mig("3g.40gb"),
        3 => mig("7g.80gb"),
        4 => mps(40, 30_000),
        5 => mps(20, 50_000),
        6 => slice(30_000),
        7 => slice(81_920),
        _ => job(2, DeviceRequest::Mps { percent: 60, memory_mib: 45_000, models: vec![GpuModel::H100] }),
    };
    JobSpec { tenant: TENANTS[tenant].into(), ..spec }
}

/// What is held of each card: by whose tenant, and how.
type Held = BTreeMap<(NodeId, u16), Vec<(TenantId, HoldMode)>>;

fn held(fleet: &Fleet) -> Held {
    let mut held = Held::new();
    for allocation in fleet.allocations.values() {
        add(&mut held, allocation.tenant, &allocation.tasks);
    }
    held
}

fn add(held: &mut Held, tenant: TenantId, tasks: &[TaskPlacement]) {
    for task in tasks {
        for hold in &task.devices {
            held.entry((task.node, hold.gpu)).or_default().push((tenant, hold.mode));
        }
    }
}

/// What is wrong with a card that is held so, if anything.
fn fault(fleet: &Fleet, holds: &[(TenantId, HoldMode)]) -> Option<&'static str> {
    let modes: BTreeSet<_> = holds.iter().map(|(_, mode)| mode.mode()).collect();
    if modes.len() > 1 {
        return Some("two modes at once");
    }
    let whole = holds.iter().filter(|(_, mode)| matches!(mode, HoldMode::Whole)).count();
    let slices: u32 = holds
        .iter()
        .map(|(_, mode)| if let HoldMode::Mig(p) = mode { p.shape.mask(p.start).count_ones() } else { 0 })
        .sum();
    let union = holds
        .iter()
        .fold(0_u8, |all, (_, mode)| if let HoldMode::Mig(p) = mode { all | p.shape.mask(p.start) } else { all });
    let memory: u64 = holds
        .iter()
        .map(|(_, mode)| match mode {
            HoldMode::Mps { memory_mib, .. } | HoldMode::TimeSlice { memory_mib } => *memory_mib,
            _ => 0,
        })
        .sum();
    let sharers: Vec<TenantId> = holds
        .iter()
        .filter(|(_, mode)| matches!(mode, HoldMode::Mps { .. } | HoldMode::TimeSlice { .. }))
        .map(|(tenant, _)| *tenant)
        .collect();
    let domains: BTreeSet<String> = sharers.iter().map(|tenant| fleet.domain(*tenant)).collect();
    match () {
        () if whole > 1 => Some("held whole twice"),
        () if slices > union.count_ones() => Some("a slice is held twice"),
        () if memory > GpuModel::H100.memory_mib() => Some("memory is oversubscribed"),
        () if domains.len() > 1 => Some("two trust domains"),
        () if domains.contains("guest") => Some("an untrusted sharer"),
        () => None,
    }
}

fn faults(fleet: &Fleet, held: &Held) -> Vec<&'static str> {
    held.values().filter_map(|holds| fault(fleet, holds)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// With a view that is up to date, nothing is proposed that breaks a card, and control refuses nothing.
    #[test]
    fn nothing_is_proposed_that_mixes_modes_or_trust(
        events in prop::collection::vec((0..12_usize, 0..9_usize, 0..TENANTS.len(), any::<prop::sample::Index>()), 1..60),
    ) {
        let mut fleet = fleet();
        for (what, kind, tenant, pick) in events {
            let running: Vec<JobId> = fleet.allocations.values().map(|held| held.job).collect();
            if what < 4 && !running.is_empty() {
                fleet.end(*pick.get(&running), what == 0);
            } else {
                fleet.submit(spec(kind, tenant));
            }
            fleet.deliver(usize::MAX);
            let mut after = held(&fleet);
            for proposal in fleet.pass() {
                let Proposal::Bind(Binding { job, tasks, .. }) = &proposal else { continue };
                add(&mut after, fleet.jobs[job].tenant, tasks);
                prop_assert_eq!(faults(&fleet, &after), Vec::<&str>::new(), "{:?}", proposal);
                prop_assert!(fleet.decide(proposal).is_some());
            }
            prop_assert_eq!(fleet.refused, 0);
        }
    }
}

/// The judge itself finds each of these.
#[test]
fn planted_faults_are_found() {
    let fleet = fleet();
    let (org, other, guest) = (TenantId(2), TenantId(4), TenantId(5));
    assert_eq!([org, other, guest].map(|tenant| fleet.domain(tenant)), ["org", "other", "guest"]);
    let slot = |start| HoldMode::Mig(mig::MigPlacement { shape: mig::MigShape::G1, start });
    let share = |memory_mib| HoldMode::TimeSlice { memory_mib };
    let client = HoldMode::Mps { percent: 10, memory_mib: 10 };
    let check = |holds: &[(TenantId, HoldMode)], expected: Option<&str>| assert_eq!(fault(&fleet, holds), expected);
    check(&[(org, slot(0)), (guest, slot(1))], None);
    check(&[(org, slot(0)), (org, slot(0))], Some("a slice is held twice"));
    check(&[(org, slot(0)), (org, client)], Some("two modes at once"));
    check(&[(org, client), (org, share(1))], Some("two modes at once"));
    check(&[(org, share(40_000)), (org, share(41_920))], None);
    check(&[(org, share(40_000)), (org, share(41_921))], Some("memory is oversubscribed"));
    check(&[(org, client), (other, client)], Some("two trust domains"));
    check(&[(guest, client)], Some("an untrusted sharer"));
}

#[test]
fn a_card_changes_mode_when_its_last_holder_has_gone() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    let steps: [JobSpec; 5] = [mig("1g.10gb"), mps(10, 100), slice(100), gang(1, 1), mig("7g.80gb")];
    let mut last: Option<JobId> = None;
    for spec in steps {
        let next = fleet.submit(spec);
        fleet.settle();
        if let Some(last) = last {
            assert!(!fleet.runs(next), "the card is held in another mode");
            fleet.end(last, false);
            fleet.settle();
        }
        assert!(fleet.runs(next));
        last = Some(next);
    }
}

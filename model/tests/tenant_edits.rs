//! Edits of tenants: what is named changes, what is not named stays, and removing is said.

use muster_model::resources::Resource;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::{AmountsEdit, AntiAffinityEdit, Edit, LendsEdit, TenantEdit, WeightsEdit};
use muster_model::{AntiAffinity, AntiAffinityLevel, GpuModel, GpuUnits, Limits, ResourceVec, Tenant, TenantId, Trust};
use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;

const MODELS: [GpuModel; 3] = [GpuModel::H100, GpuModel::H200, GpuModel::T4];
const RESOURCES: [Resource; 3] = [Resource::Gpu(GpuModel::H100), Resource::Cpu, Resource::Memory];
const OTHERS: [&str; 3] = ["ads", "search", "search/ranking"];

fn amounts() -> impl Strategy<Value = BTreeMap<GpuModel, u64>> {
    btree_map(select(MODELS.to_vec()), 1..9_u64, 0..3)
}

fn level() -> impl Strategy<Value = AntiAffinityLevel> {
    select(vec![AntiAffinityLevel::Card, AntiAffinityLevel::Node, AntiAffinityLevel::Island])
}

prop_compose! {
    fn tenant()(
        floor in amounts(), floor_cpu in 0..9_u64, ceiling in amounts(), ceiling_cpu in option::of(0..9_u64),
        memory in option::of(0..9_u64), weight in 1..9_u32, untrusted in any::<bool>(),
        apart in btree_map(select(OTHERS.to_vec()), level(), 0..3), lend in any::<bool>(), run_as in option::of(1_000_u32..1_003),
        weights in btree_map(select(RESOURCES.to_vec()), 1..9_u32, 0..3),
        lends in btree_map(select(RESOURCES.to_vec()), any::<bool>(), 0..3),
    ) -> Tenant {
        let mut guarantee = ResourceVec::of_host(floor_cpu, 0);
        for (model, units) in floor {
            guarantee.set_gpu(model, GpuUnits(units));
        }
        let gpu = ceiling.into_iter().map(|(model, units)| (model, GpuUnits(units))).collect();
        Tenant {
            id: TenantId(1), path: "research".into(), parent: None, guarantee,
            max: Limits { gpu, cpu_milli: ceiling_cpu, memory_mib: memory }, weight,
            trust: if untrusted { Trust::Untrusted } else { Trust::Trusted },
            anti_affinity: apart.into_iter().map(|(tenant, level)| AntiAffinity { tenant: tenant.into(), level }).collect(),
            lend, weights, lends, run_as,
        }
    }
}

fn edit<T: Clone + std::fmt::Debug + 'static>(value: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Edit<T>> {
    prop_oneof![Just(Edit::Keep), value.prop_map(Edit::Set), Just(Edit::Remove)].boxed()
}

prop_compose! {
    fn amounts_edit()(
        clear in any::<bool>(), gpu in btree_map(select(MODELS.to_vec()), option::of((1..9_u64).prop_map(GpuUnits)), 0..3),
        cpu_milli in edit(0..9_u64), memory_mib in edit(0..9_u64),
    ) -> AmountsEdit {
        AmountsEdit { clear, gpu, cpu_milli, memory_mib }
    }
}

prop_compose! {
    fn tenant_edit()(
        guarantee in amounts_edit(), max in amounts_edit(), weight in edit(1..9_u32),
        trust in edit(select(vec![Trust::Trusted, Trust::Untrusted])), clear in any::<bool>(),
        levels in btree_map(select(OTHERS.to_vec()), option::of(level()), 0..3), lend in edit(any::<bool>()), run_as in edit(1_000_u32..1_003),
        clears in (any::<bool>(), any::<bool>()),
        weights in btree_map(select(RESOURCES.to_vec()), option::of(1..9_u32), 0..3),
        lends in btree_map(select(RESOURCES.to_vec()), option::of(any::<bool>()), 0..3),
    ) -> TenantEdit {
        let levels = levels.into_iter().map(|(tenant, level)| (tenant.to_owned(), level)).collect();
        TenantEdit {
            path: "research".into(), guarantee, max, weight, trust, anti_affinity: AntiAffinityEdit { clear, levels }, lend,
            weights: WeightsEdit { clear: clears.0, of: weights }, lends: LendsEdit { clear: clears.1, of: lends }, run_as,
        }
    }
}

/// What a value is after its edit, said a second time.
fn expected<T>(edit: Edit<T>, cleared: bool, before: Option<T>) -> Option<T> {
    match edit {
        Edit::Set(value) => Some(value),
        Edit::Remove => None,
        Edit::Keep => before.filter(|_| !cleared),
    }
}

proptest! {
    #[test]
    fn each_value_is_as_its_edit_says_and_no_other_changes(before in tenant(), edit in tenant_edit()) {
        let after = edit.on(Some(&before));
        for model in GpuModel::ALL {
            let of = |edit: &AmountsEdit| match edit.gpu.get(&model) {
                None => Edit::Keep,
                Some(None) => Edit::Remove,
                Some(Some(units)) => Edit::Set(*units),
            };
            let max = expected(of(&edit.max), edit.max.clear, before.max.gpu.get(&model).copied());
            prop_assert_eq!(after.max.gpu.get(&model).copied(), max);
            let floor = expected(of(&edit.guarantee), edit.guarantee.clear, Some(before.guarantee.gpu(model)));
            prop_assert_eq!(after.guarantee.gpu(model), floor.unwrap_or_default());
        }
        let max = (
            expected(edit.max.cpu_milli, edit.max.clear, before.max.cpu_milli),
            expected(edit.max.memory_mib, edit.max.clear, before.max.memory_mib),
        );
        prop_assert_eq!((after.max.cpu_milli, after.max.memory_mib), max);
        let floor = expected(edit.guarantee.cpu_milli, edit.guarantee.clear, Some(before.guarantee.cpu_milli));
        prop_assert_eq!(after.guarantee.cpu_milli, floor.unwrap_or(0));
        prop_assert_eq!(after.weight, expected(edit.weight, false, Some(before.weight)).unwrap_or(1));
        prop_assert_eq!(after.trust, expected(edit.trust, false, Some(before.trust)).unwrap_or_default());
        for other in OTHERS {
            let level = |list: &[AntiAffinity]| list.iter().find(|apart| apart.tenant == other).map(|apart| apart.level);
            let of = match edit.anti_affinity.levels.get(other) {
                None => Edit::Keep,
                Some(None) => Edit::Remove,
                Some(Some(level)) => Edit::Set(*level),
            };
            prop_assert_eq!(level(&after.anti_affinity), expected(of, edit.anti_affinity.clear, level(&before.anti_affinity)));
        }
        prop_assert!(after.anti_affinity.is_sorted());
        for resource in RESOURCES {
            fn of<T: Copy>(edits: &BTreeMap<Resource, Option<T>>, resource: Resource) -> Edit<T> {
                edits.get(&resource).map_or(Edit::Keep, |edit| edit.map_or(Edit::Remove, Edit::Set))
            }
            let weight = expected(of(&edit.weights.of, resource), edit.weights.clear, before.weights.get(&resource).copied());
            prop_assert_eq!(after.weights.get(&resource).copied(), weight);
            let lent = expected(of(&edit.lends.of, resource), edit.lends.clear, before.lends.get(&resource).copied());
            prop_assert_eq!(after.lends.get(&resource).copied(), lent);
        }
        // The same again changes nothing.
        prop_assert_eq!(after.run_as, expected(edit.run_as, false, before.run_as));
        prop_assert_eq!(after.lend, expected(edit.lend, false, Some(before.lend)).unwrap_or(true));
        let as_tenant = |spec: TenantSpec| Tenant {
            guarantee: spec.guarantee, max: spec.max, weight: spec.weight, trust: spec.trust,
            anti_affinity: spec.anti_affinity, lend: spec.lend, weights: spec.weights, lends: spec.lends, run_as: spec.run_as, ..before.clone()
        };
        prop_assert_eq!(edit.on(Some(&as_tenant(after.clone()))), after);
    }

    #[test]
    fn an_edit_that_names_nothing_changes_nothing(before in tenant()) {
        let edit = TenantEdit { path: "research".into(), ..TenantEdit::default() };
        prop_assert_eq!(edit.on(Some(&before)), TenantSpec::from(&before));
    }
}

#[test]
fn a_new_tenant_begins_with_what_is_usual() {
    let edit = TenantEdit { path: "new".into(), weight: Edit::Set(3), ..TenantEdit::default() };
    assert_eq!(edit.on(None), TenantSpec { weight: 3, ..TenantSpec::usual("new") });
}

#[test]
fn a_tenant_lends_unless_it_says_otherwise() {
    let usual = TenantSpec::usual("new");
    assert!(usual.lend);
    let keeps = TenantEdit { path: "new".into(), lend: Edit::Set(false), ..TenantEdit::default() }.on(None);
    let back = TenantEdit { path: "new".into(), lend: Edit::Remove, ..TenantEdit::default() };
    let tenant = |spec: TenantSpec| Tenant {
        id: TenantId(1),
        path: spec.path,
        parent: None,
        guarantee: spec.guarantee,
        max: spec.max,
        weight: spec.weight,
        trust: spec.trust,
        anti_affinity: spec.anti_affinity,
        lend: spec.lend,
        weights: spec.weights,
        lends: spec.lends,
        run_as: spec.run_as,
    };
    let keeping = tenant(keeps);
    let mut capacity = muster_model::capacity::Capacity::default();
    capacity.put_tenant(&keeping);
    assert!(!keeping.lend && !capacity.tenants()[&TenantId(1)].lend);
    assert_eq!(back.on(Some(&keeping)), usual);
}

#[test]
fn a_value_of_one_resource_holds_before_that_of_all() {
    let (h100, t4) = (Resource::Gpu(GpuModel::H100), Resource::Gpu(GpuModel::T4));
    let mut tenant = Tenant::usual(TenantId(1), "research");
    (tenant.weight, tenant.lend) = (2, true);
    tenant.weights = [(h100, 5)].into();
    tenant.lends = [(h100, false)].into();
    assert_eq!([h100, t4, Resource::Cpu].map(|of| tenant.weight_of(of)), [5, 2, 2]);
    assert_eq!([h100, t4, Resource::Cpu].map(|of| tenant.lends(of)), [false, true, true]);
    for resource in GpuModel::ALL.into_iter().map(Resource::Gpu).chain([Resource::Cpu, Resource::Memory]) {
        assert_eq!(resource.to_string().parse(), Ok(resource));
    }
    assert!("gpu.h1000".parse::<Resource>().is_err() && "cpus".parse::<Resource>().is_err());
}

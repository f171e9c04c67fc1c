//! The bound on what is withheld at once.

use super::T0;
use muster_model::NodeId;
use muster_node_core::health::{Bounded, GpuUuid, Scope, VerdictKind, WithholdBound, Withholding};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn wanted(node: u32, card: u8, kind: VerdictKind, since_s: u64, is_active: bool) -> Withholding {
    let uuid = GpuUuid(format!("GPU-{card}"));
    Withholding { node: NodeId(node), uuid, scope: Scope::Card, kind, since_ms: T0 + since_s * 1_000, is_active }
}

fn cards(list: &[Withholding]) -> BTreeSet<(NodeId, GpuUuid)> {
    list.iter().map(|one| (one.node, one.uuid.clone())).collect()
}

#[test]
fn half_of_a_cell_and_an_absolute_figure() {
    let half = WithholdBound::default();
    let limits = [0, 1, 2, 3, 8, 9, u32::MAX].map(|total| half.limit(total));
    assert_eq!(limits, [0, 1, 1, 1, 4, 4, u32::MAX / 2]);
    assert_eq!(WithholdBound { count_max: Some(2), ..half }.limit(100), 2);
    assert_eq!(WithholdBound { share_max_percent: 0, count_max: None }.limit(100), 0);
    assert_eq!(WithholdBound { share_max_percent: 200, count_max: None }.limit(7), 7);
}

#[test]
fn what_is_active_goes_first_then_the_worst_then_the_oldest() {
    use VerdictKind::{Inspect, Reboot, Withhold};
    let all = vec![
        wanted(1, 1, Withhold, 5, false),
        wanted(1, 2, Inspect, 9, false),
        wanted(1, 3, Withhold, 1, false),
        wanted(1, 4, Withhold, 9, true),
        wanted(1, 5, Reboot, 9, false),
        wanted(1, 6, VerdictKind::Use, 0, true),
    ];
    let bound = WithholdBound { share_max_percent: 50, count_max: None };
    let Bounded { allowed, over } = bound.part(6, all.clone());
    let order = |list: &[Withholding]| list.iter().map(|one| one.uuid.0.clone()).collect::<Vec<_>>();
    assert_eq!(order(&allowed), ["GPU-4", "GPU-2", "GPU-5"]);
    assert_eq!(order(&over), ["GPU-3", "GPU-1"]);
    // The bound lifts: what still stands is applied, and what does not is not replayed.
    let lifted = WithholdBound { share_max_percent: 100, count_max: None };
    let still: Vec<_> = all.into_iter().filter(|one| one.uuid.0 != "GPU-3").collect();
    let Bounded { allowed, over } = lifted.part(6, still);
    assert_eq!(order(&allowed), ["GPU-4", "GPU-2", "GPU-5", "GPU-1"]);
    assert_eq!(over, []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_bound_is_kept(
        percent in 0..=120_u8, count_max in prop::option::of(0..6_u32), total in 8..20_u32,
        list in prop::collection::vec((0..2_u32, 0..4_u8, 0..5_u8, 0..9_u64, any::<bool>(), any::<bool>()), 0..16),
    ) {
        use VerdictKind::{Inspect, Reboot, ResetWhenIdle, Use, Withhold};
        let kinds = [Use, Withhold, ResetWhenIdle, Reboot, Inspect];
        let list: Vec<_> = list.into_iter().map(|(node, card, kind, since_s, is_active, is_slice)| {
            let scope = if is_slice { Scope::Slice(super::FIRST) } else { Scope::Card };
            Withholding { scope, ..wanted(node, card, kinds[usize::from(kind)], since_s, is_active) }
        }).collect();
        let bound = WithholdBound { share_max_percent: percent, count_max };
        let Bounded { allowed, over } = bound.part(total, list.clone());
        let most = u64::from(total) * u64::from(percent.min(100)) / 100;
        let most = most.max(u64::from(percent > 0)).min(u64::from(count_max.unwrap_or(u32::MAX)));
        prop_assert!(cards(&allowed).len() as u64 <= most);
        // Nothing is lost, and nothing is left out while there is room for its card.
        let asked = list.iter().filter(|one| one.kind != Use).count();
        prop_assert_eq!(allowed.len() + over.len(), asked);
        if cards(&allowed).len() as u64 == most {
            prop_assert!(cards(&allowed).is_disjoint(&cards(&over)));
        } else {
            prop_assert_eq!(&over, &vec![]);
        }
        // What is active is not given up for what is not.
        if over.iter().any(|one| one.is_active) {
            let active = cards(&list.iter().filter(|one| one.is_active && one.kind != Use).cloned().collect::<Vec<_>>());
            prop_assert!(cards(&allowed).is_subset(&active));
        }
        // The order in which they come does not matter.
        let reversed = bound.part(total, list.into_iter().rev().collect());
        prop_assert_eq!(cards(&reversed.allowed), cards(&allowed));
    }
}

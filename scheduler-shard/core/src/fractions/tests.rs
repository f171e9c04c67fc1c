//! Laws of the fractional score: the groups equal a rebuild, choices fit and are refused only when nothing fits, the mix is bounded
//! and forgets, scarcity keeps what few may use, and a planned move is proved.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const ANY: Kinds = Kinds::ANY;

fn demand(cards: u16, milli: u16, cpu_milli: u64) -> Demand {
    Demand { cards, milli, kinds: ANY, cpu_milli, memory_mib: 1 }
}

fn only(kind: u8, demand: Demand) -> Demand {
    Demand { kinds: Kinds::of([kind]), ..demand }
}

fn put(fleet: &mut NodeGroups, id: u64, demand: Demand) -> Option<Spot> {
    fleet.arrived(&demand);
    let spot = fleet.choose(&demand)?;
    assert!(fleet.place(id, &demand, &spot), "what was chosen fits: {spot:?} for {demand:?}");
    Some(spot)
}

#[test]
fn the_waste_is_what_the_next_demand_cannot_use() {
    let class = |demand: Demand| Class { demand: Demand { memory_mib: 0, ..demand }, weight_micro: MICRO };
    let check = |cards: &[u16], cpu_milli, demand, expected_milli: i64| {
        let node = NodeState::new(0, cards.to_vec(), cpu_milli, 1_000);
        assert_eq!(
            expected_waste_micro(&node, &[class(demand)]),
            expected_milli * MICRO,
            "{cards:?} {cpu_milli} {demand:?}"
        );
    };
    check(&[1_000, 400], 8_000, demand(1, 500, 1_000), 400); // one card is too small
    check(&[1_000, 400], 8_000, demand(2, 1_000, 1_000), 1_400); // two whole cards are not there
    check(&[1_000, 1_000], 500, demand(1, 500, 1_000), 2_000); // no CPU for even one
    check(&[1_000, 1_000], 1_000, demand(1, 500, 1_000), 1_500); // CPU for one of four
    check(&[1_000, 1_000], 1_000, demand(0, 0, 1_000), 0); // a host job is at home
    check(&[1_000, 1_000], 999, demand(0, 0, 1_000), 2_000); // and here it is not
    check(&[1_000, 1_000], 9_000, only(1, demand(1, 500, 0)), 2_000); // not its kind
    check(&[], 9_000, demand(1, 500, 0), 0);
}

#[test]
fn a_share_goes_beside_the_share_it_completes() {
    let mut fleet = NodeGroups::default();
    for _ in 0..3 {
        fleet.join(0, vec![1_000, 1_000], 32_000, 1_000);
    }
    let first = put(&mut fleet, 1, demand(1, 600, 4_000)).expect("room");
    assert_eq!(put(&mut fleet, 2, demand(1, 400, 4_000)), Some(first.clone()), "the card that it fills");
    let whole = put(&mut fleet, 3, demand(1, 1_000, 4_000)).expect("room");
    assert_eq!(whole.node, first.node, "the node that is begun");
}

#[test]
fn what_few_may_use_is_kept_for_those_who_must() {
    let mut fleet = NodeGroups::default();
    let scarce = fleet.join(1, vec![1_000], 8_000, 1_000); // first by index, so no tie helps
    let plain = fleet.join(0, vec![1_000, 1_000, 1_000], 24_000, 1_000);
    fleet.arrived(&only(1, demand(1, 1_000, 4_000)));
    assert_eq!(put(&mut fleet, 1, demand(1, 1_000, 4_000)).map(|spot| spot.node), Some(plain));
    assert_eq!(put(&mut fleet, 2, only(1, demand(1, 1_000, 4_000))).map(|spot| spot.node), Some(scarce));
}

#[test]
fn a_host_job_takes_cpu_where_no_card_misses_it() {
    let mut fleet = NodeGroups::default();
    let lean = fleet.join(0, vec![1_000; 4], 16_000, 1_000);
    let rich = fleet.join(0, vec![1_000; 2], 64_000, 1_000);
    assert_ne!(lean, rich);
    fleet.arrived(&demand(1, 1_000, 4_000));
    assert_eq!(put(&mut fleet, 1, demand(0, 0, 8_000)).map(|spot| spot.node), Some(rich));
}

#[test]
fn a_move_is_planned_and_proved() {
    let mut fleet = NodeGroups::default();
    for _ in 0..2 {
        fleet.join(0, vec![1_000], 8_000, 1_000);
    }
    let half = demand(1, 500, 1_000);
    for (id, node) in [(1, 0), (2, 1)] {
        assert!(fleet.place(id, &half, &Spot { node, cards: vec![0] }));
    }
    let whole = demand(1, 1_000, 1_000);
    assert_eq!(fleet.choose(&whole), None);
    let room = make_room(&mut fleet, &whole).expect("the halves fit together");
    assert!(fleet.remove(room.moved) && fleet.place(room.moved, &half, &room.to) && fleet.place(3, &whole, &room.spot));
    assert_eq!(make_room(&mut fleet, &whole), None, "nothing more is to be had");
}

#[test]
fn the_mix_is_bounded_and_forgets() {
    let mut mix = Mix::default();
    for cpu in 0..CLASSES_MAX as u64 + 100 {
        mix.arrived(&Demand { kinds: Kinds(cpu), ..demand(1, 500, cpu) });
    }
    assert!(mix.classes().len() <= CLASSES_MAX && mix.claims().len() <= CLAIMS_MAX + 1);
    for _ in 0..3 * HALVED_AT {
        mix.arrived(&demand(1, 250, 7));
    }
    let weight = |class: &Class| if class.demand.milli == 250 { class.weight_micro } else { 0 };
    assert!(mix.classes().iter().map(weight).sum::<i64>() > MICRO * 99 / 100, "old times are forgotten");
}

fn demands() -> impl Strategy<Value = Demand> {
    let cards = prop_oneof![3 => Just(1_u16), 1 => Just(0), 1 => 2..4_u16];
    let milli = prop_oneof![Just(1_000_u16), Just(810), Just(470), Just(160)];
    (cards, milli, 0..3_u64, 0..6_u64).prop_map(|(cards, milli, kinds, cpu)| Demand {
        cards,
        milli: if cards == 1 { milli } else { 1_000 * cards.min(1) },
        kinds: if cards == 0 { ANY } else { Kinds(kinds) },
        cpu_milli: cpu * 1_000,
        memory_mib: 10,
    })
}

proptest! {
    /// After any history the groups are those of a fleet made anew, and it would choose the same.
    #[test]
    fn groups_equal_a_rebuild(steps in prop::collection::vec((demands(), any::<bool>(), any::<prop::sample::Index>()), 1..60)) {
        let shapes = [(0_u8, 4_usize, 16_000), (1, 2, 24_000), (0, 4, 16_000), (1, 1, 4_000)];
        let mut fleet = NodeGroups::default();
        for (kind, cards, cpu) in shapes {
            fleet.join(kind, vec![1_000; cards], cpu, 200);
        }
        let mut standing: BTreeMap<u64, (Demand, Spot)> = BTreeMap::new();
        for (id, (wanted, leaves, which)) in (0_u64..).zip(&steps) {
            if *leaves && !standing.is_empty() {
                let gone = *which.get(&standing.keys().copied().collect::<Vec<_>>());
                standing.remove(&gone);
                prop_assert!(fleet.remove(gone));
            }
            let anywhere = (0..4).any(|node| fleet.state(node).fits(wanted));
            let spot = put(&mut fleet, id, *wanted);
            prop_assert_eq!(spot.is_some(), anywhere, "refused only when it fits nowhere");
            if let Some(spot) = spot {
                standing.insert(id, (*wanted, spot));
            }
        }
        let mut anew = NodeGroups::default();
        for (kind, cards, cpu) in shapes {
            anew.join(kind, vec![1_000; cards], cpu, 200);
        }
        steps.iter().for_each(|(wanted, _, _)| anew.arrived(wanted));
        for (id, (wanted, spot)) in &standing {
            prop_assert!(anew.place(*id, wanted, spot));
        }
        for node in 0..4 {
            prop_assert_eq!(fleet.state(node), anew.state(node));
        }
        prop_assert_eq!(fleet.states(), anew.states());
        fleet.look_ahead();
        anew.look_ahead();
        for (wanted, _, _) in &steps {
            prop_assert_eq!(fleet.choose(wanted), anew.choose(wanted));
        }
        // A planned move leaves the fleet as it was, and what it promises holds.
        for (wanted, _, _) in &steps {
            if fleet.choose(wanted).is_none() && let Some(room) = make_room(&mut fleet, wanted) {
                let mut then = fleet.clone();
                let (moved, _) = standing[&room.moved];
                prop_assert!(then.remove(room.moved) && then.place(room.moved, &moved, &room.to));
                prop_assert!(then.place(u64::MAX, wanted, &room.spot));
            }
        }
        for node in 0..4 {
            prop_assert_eq!(fleet.state(node), anew.state(node));
        }
    }
}

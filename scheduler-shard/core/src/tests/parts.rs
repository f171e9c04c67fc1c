//! Openings for parts of cards: a slice, a share or a whole card that waits because small parts are scattered over the cards.

use super::fleet::*;
use super::planner::{lawful, movable, plan};
use crate::Proposal;
use crate::planner::NoPlan;
use muster_model::mig::{MigPlacement, MigShape, parse_profile};
use muster_model::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Runs a job of one part exactly there, if that is free.
fn runs_on(fleet: &mut Fleet, spec: JobSpec, (node, gpu): (u32, u16), mode: HoldMode) -> Option<JobId> {
    let tasks = vec![TaskPlacement { node: NodeId(node), devices: vec![DeviceHold { gpu, mode }] }];
    let charge = spec.charge_on(GpuModel::H100);
    fleet.ledger.prove(TenantId(1), &tasks, 100, 10, &charge).ok()?;
    let job = fleet.submit(spec);
    let binding = Binding { job, attempt: Attempt(1), model: Some(GpuModel::H100), tasks };
    assert_eq!(fleet.decide(Proposal::Bind(binding)), Some(job), "the test's own placement fits");
    fleet.deliver(usize::MAX);
    Some(job)
}

fn shape(profile: &str) -> MigShape {
    parse_profile(GpuModel::H100, profile).expect("a profile of an H100")
}

fn slice_on(fleet: &mut Fleet, spec: JobSpec, at: (u32, u16), profile: &str, start: u8) -> Option<JobId> {
    runs_on(fleet, spec, at, HoldMode::Mig(MigPlacement { shape: shape(profile), start }))
}

fn share_on(fleet: &mut Fleet, spec: JobSpec, at: (u32, u16), percent: u8) -> JobId {
    runs_on(fleet, spec, at, HoldMode::Mps { percent, memory_mib: 8_000 }).expect("it fits")
}

/// Two cards with a small slice in each half, of which the one in the second half of the first card loses least.
fn scattered() -> (Fleet, Vec<JobId>) {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2)]);
    let costs = [(0, 0, 900), (0, 4, 60), (1, 0, 600), (1, 4, 600)];
    let jobs = costs.map(|(gpu, start, every)| {
        slice_on(&mut fleet, movable(mig("1g.10gb"), every, 0), (1, gpu), "1g.10gb", start).expect("it fits")
    });
    (fleet, jobs.to_vec())
}

fn waits(fleet: &mut Fleet, spec: JobSpec) -> JobId {
    let job = fleet.submit(spec);
    fleet.deliver(usize::MAX);
    fleet.settle();
    assert!(!fleet.runs(job), "no card takes it");
    job
}

#[test]
fn a_slice_that_no_card_takes_is_opened_by_the_cheapest_move() {
    let (mut fleet, jobs) = scattered();
    let wanted = waits(&mut fleet, mig("3g.40gb"));
    let made = plan(&fleet, 100);
    let [opening] = &made.openings[..] else { panic!("one opening: {made:?}") };
    let moved: Vec<JobId> = opening.moves.iter().map(|made| made.job).collect();
    assert_eq!((opening.job, opening.cards, moved, opening.cheapest), (wanted, 1, vec![jobs[1]], true));
    lawful(fleet, &made).expect("the laws hold");
}

#[test]
fn a_whole_card_is_opened_where_only_parts_are_free() {
    let (mut fleet, jobs) = scattered();
    let wanted = waits(&mut fleet, gang(1, 1));
    let made = plan(&fleet, 100);
    let [opening] = &made.openings[..] else { panic!("one opening: {made:?}") };
    let moved: BTreeSet<JobId> = opening.moves.iter().map(|made| made.job).collect();
    assert_eq!((opening.job, moved), (wanted, jobs[..2].iter().copied().collect()));
    lawful(fleet, &made).expect("the laws hold");

    // Nothing that moves makes room where whole cards are held by what cannot move.
    let mut fixed = Fleet::new([Host::new("a", GpuModel::H100, 2)]);
    slice_on(&mut fixed, mig("1g.10gb"), (1, 0), "1g.10gb", 0);
    slice_on(&mut fixed, movable(mig("1g.10gb"), 60, 0), (1, 1), "1g.10gb", 0);
    waits(&mut fixed, gang(1, 2));
    assert_eq!(plan(&fixed, 100).unhelped[0].why, NoPlan::TooFewFree { free: 0, needed: 2 });
}

#[test]
fn a_share_is_opened_among_sharers() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2)]);
    let cheap = share_on(&mut fleet, movable(mps(30, 8_000), 60, 0), (1, 0), 30);
    share_on(&mut fleet, movable(mps(30, 8_000), 600, 0), (1, 0), 30);
    share_on(&mut fleet, mps(60, 8_000), (1, 1), 60);
    let wanted = waits(&mut fleet, mps(70, 8_000));
    let made = plan(&fleet, 100);
    let [opening] = &made.openings[..] else { panic!("one opening: {made:?}") };
    assert_eq!((opening.job, opening.moves[0].job, opening.moves.len()), (wanted, cheap, 1));
    assert_eq!(opening.moves[0].to[0].devices[0].gpu, 1);
    lawful(fleet, &made).expect("the laws hold");
}

const PROFILES: [&str; 4] = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb"];

/// A slice somewhere: its card, its profile, its start, and what it saves and needs to start if it may move.
type Slice = (u16, usize, u8, Option<(u64, u64)>);

fn slices() -> impl Strategy<Value = Vec<Slice>> {
    let how = prop::option::weighted(0.7, (1..2_000_u64, 0..100_u64));
    prop::collection::vec((0..3_u16, 0..PROFILES.len(), 0..8_u8, how), 2..14)
}

fn build(slices: &[Slice]) -> Fleet {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 3)]);
    for (gpu, profile, start, how) in slices {
        let spec = mig(PROFILES[*profile]);
        let spec = how.map_or(spec.clone(), |(every, restart)| movable(spec, every, restart));
        let family = GpuModel::H100.facts().mig.expect("it has slices");
        if shape(PROFILES[*profile]).starts(family).contains(start) {
            slice_on(&mut fleet, spec, (1, *gpu), PROFILES[*profile], *start);
        }
    }
    fleet
}

/// Whether the shapes can all be added to the layouts, whatever the order and the places, none of them where it stood.
fn packs(layouts: &mut [Vec<MigPlacement>], shapes: &[(MigShape, usize, u8)]) -> bool {
    let family = GpuModel::H100.facts().mig.expect("it has slices");
    let Some(((shape, was_on, was_at), rest)) = shapes.split_first() else { return true };
    (0..layouts.len()).any(|at| {
        shape.starts(family).iter().any(|start| {
            let place = MigPlacement { shape: *shape, start: *start };
            if (at, *start) == (*was_on, *was_at) || !mig::can_stand(family, &layouts[at], place) {
                return false;
            }
            layouts[at].push(place);
            let fits = packs(layouts, rest);
            layouts[at].pop();
            fits
        })
    })
}

/// The least that opening any one card for a slice loses: every card, every set of its movable jobs, every place for all of them.
fn cheapest(fleet: &Fleet, wanted: MigShape) -> Option<u64> {
    let family = GpuModel::H100.facts().mig.expect("it has slices");
    let held: Vec<(&Allocation, usize, MigPlacement)> = fleet
        .allocations
        .values()
        .filter_map(|held| match held.tasks[0].devices[0] {
            DeviceHold { gpu, mode: HoldMode::Mig(place) } => Some((held, usize::from(gpu), place)),
            _ => None,
        })
        .collect();
    let may = |held: &Allocation| fleet.jobs[&held.job].spec.movable;
    let mut best = None;
    for card in 0..3 {
        let here: Vec<_> = held.iter().filter(|(held, on, _)| *on == card && may(held).is_some()).collect();
        for set in 1..1_u32 << here.len() {
            let moved: Vec<_> =
                here.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0).map(|(_, m)| *m).collect();
            let stays = |one: &AllocationId| moved.iter().all(|(held, ..)| held.id != *one);
            let mut layouts: Vec<Vec<MigPlacement>> = vec![Vec::new(); 3];
            held.iter().filter(|(held, ..)| stays(&held.id)).for_each(|(_, on, place)| layouts[*on].push(*place));
            let shapes: Vec<_> = moved.iter().map(|(_, on, place)| (place.shape, *on, place.start)).collect();
            let opens = wanted.starts(family).iter().any(|start| {
                let place = MigPlacement { shape: wanted, start: *start };
                let stands = mig::can_stand(family, &layouts[card], place);
                if stands {
                    layouts[card].push(place);
                }
                let fits = stands && packs(&mut layouts, &shapes);
                if stands {
                    layouts[card].pop();
                }
                fits
            });
            if opens {
                let lost = |held: &Allocation| {
                    let how = may(held).expect("it may move");
                    let ran_s = super::planner::NOW_MS / 1_000;
                    held.charge.gpu_total().0 * (how.checkpoint_every_s.unwrap_or(ran_s).min(ran_s) + how.restart_s)
                };
                let cost = moved.iter().map(|(held, ..)| lost(held)).sum::<u64>();
                best = Some(best.map_or(cost, |best: u64| best.min(cost)));
            }
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Laws 1 and 2, the share of movable work, and the proof, for parts and whole cards on random fleets of slices.
    #[test]
    fn openings_among_slices_keep_every_law(
        slices in slices(),
        asked in prop::collection::vec(0..PROFILES.len() + 1, 1..4),
        share in prop::sample::select(vec![10_u8, 50, 100, 100]),
    ) {
        let mut fleet = build(&slices);
        for one in asked {
            fleet.submit(PROFILES.get(one).map_or_else(|| gang(1, 1), |profile| mig(profile)));
        }
        fleet.deliver(usize::MAX);
        let made = plan(&fleet, share);
        lawful(fleet, &made)?;
    }

    /// No search over sets of one card's jobs opens a card for less than the plan says, and where there is such a set there is a plan.
    #[test]
    fn no_search_opens_a_card_for_less(slices in slices(), asked in 1..PROFILES.len()) {
        let mut fleet = build(&slices);
        let wanted = fleet.submit(mig(PROFILES[asked]));
        fleet.deliver(usize::MAX);
        fleet.settle();
        if fleet.runs(wanted) {
            return Ok(());
        }
        let least = cheapest(&fleet, shape(PROFILES[asked]));
        let made = plan(&fleet, 100);
        let told = made.openings.first().map(|one| {
            (one.moves.iter().map(|made| made.loss.unit_seconds).sum::<u64>(), one.cheapest)
        });
        prop_assert_eq!(told, least.map(|least| (least, true)));
    }
}

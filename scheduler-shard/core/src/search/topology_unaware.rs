//! Placement that does not look at the network: what most schedulers do, kept to be compared with.
//!
//! First fit takes nodes in the order of their ids, best fit the fullest first; cards are taken in the order of their index, whatever
//! island they are on. Every node is looked at. What must stay true: a placement is for the whole gang or there is none, and it passes
//! the same proof as any other.

use super::{Ask, Steps, node};
use crate::fleet::{Fleet, PlacementPolicy};
use muster_model::capacity::{CardUse, NodeUse};
use muster_model::mig::{MigPlacement, MigShape};
use muster_model::node::Gpu;
use muster_model::request::SharingMode;
use muster_model::{DeviceHold, DeviceRequest, GpuModel, HoldMode, NodeId, TaskPlacement};
use std::cmp::Reverse;
use std::collections::BTreeSet;

pub(super) fn place(fleet: &Fleet, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    let all = fleet.capacity.nodes();
    steps.0 += all.len() as u64;
    let useful = |there: &&NodeUse| has_room(ask, there) && ask.may_stand_on(fleet, &there.node);
    let mut nodes: Vec<(usize, &NodeUse)> = all.values().filter(useful).map(|there| (0, there)).collect();
    if fleet.placement == PlacementPolicy::BestFit {
        nodes.iter_mut().for_each(|(free, there)| *free = there.free_cards());
        nodes.sort_by_key(|(free, there)| (*free, there.node.id));
    }
    // A gang stays inside one pool.
    let pools: BTreeSet<&str> = nodes.iter().map(|(_, there)| there.node.spec.pool.as_str()).collect();
    let within = |pool: &str| {
        gang(fleet, ask, nodes.iter().map(|(_, there)| *there).filter(|there| there.node.spec.pool == pool))
    };
    pools.into_iter().find_map(within)
}

/// Whether anything on the node could serve a task, at a glance.
fn has_room(ask: &Ask<'_>, there: &NodeUse) -> bool {
    match ask.class.request.devices.mode() {
        None => true,
        Some(SharingMode::Whole) => there.free_cards() >= ask.class.request.devices.cards() as usize,
        Some(_) => there.cards.iter().any(|card| !matches!(card, CardUse::Whole(_))),
    }
}

/// Fills one node after the other.
fn gang<'a>(fleet: &Fleet, ask: &Ask<'_>, nodes: impl Iterator<Item = &'a NodeUse>) -> Option<Vec<TaskPlacement>> {
    let wanted = ask.class.tasks as usize;
    let mut tasks: Vec<TaskPlacement> = Vec::new();
    for there in nodes {
        let slots = ask.host_slots(fleet, there).min((wanted - tasks.len()) as u64);
        if slots == 0 {
            continue;
        }
        match ask.class.request.devices.mode() {
            None => tasks.extend((0..slots).map(|_| TaskPlacement { node: there.node.id, devices: Vec::new() })),
            Some(SharingMode::Whole) => whole(ask, there, slots, &mut tasks),
            Some(_) => parts(fleet, ask, there.node.id, slots, &mut tasks),
        }
        if tasks.len() == wanted {
            return Some(tasks);
        }
    }
    None
}

fn whole(ask: &Ask<'_>, there: &NodeUse, slots: u64, tasks: &mut Vec<TaskPlacement>) {
    let each = ask.class.request.devices.cards() as usize;
    let cards = (0..).zip(&there.node.spec.gpus).filter(|(at, gpu)| Some(gpu.model) == ask.model && there.is_free(*at));
    let free: Vec<u16> = cards.map(|(at, _)| at).collect();
    tasks.extend(free.chunks_exact(each.max(1)).take(slots as usize).map(|cards| TaskPlacement {
        node: there.node.id,
        devices: cards.iter().map(|gpu| DeviceHold { gpu: *gpu, mode: HoldMode::Whole }).collect(),
    }));
}

/// Shares on the cards of one node: the first card, or the fullest, that takes it.
fn parts(fleet: &Fleet, ask: &Ask<'_>, id: NodeId, slots: u64, tasks: &mut Vec<TaskPlacement>) {
    let Some(untouched) = node(fleet, id) else { return };
    let domain = fleet.capacity.domain_of(ask.tenant);
    let rules = fleet.capacity.card_rules(&untouched.node);
    let ways = ask.model.map(|model| modes(ask, model)).unwrap_or_default();
    let fits = |at: usize, card: &CardUse, gpu: &Gpu| {
        // A card that is held whole is most of them.
        let open = !matches!(card, CardUse::Whole(_)) && gpu.withheld.is_none() && Some(gpu.model) == ask.model;
        let pin = |mode: HoldMode| untouched.pin_allows(at as u16, mode, rules.pool).is_ok();
        let open = open && !ask.is_kept_off_card(fleet, untouched, at as u16);
        ways.iter().copied().find(|mode| open && pin(*mode) && card.can_take(domain, *mode, gpu, Some(rules)).is_ok())
    };
    let mut cards = untouched.cards.iter().zip(&untouched.node.spec.gpus).enumerate();
    if cards.all(|(at, (card, gpu))| fits(at, card, gpu).is_none()) {
        return;
    }
    let mut there = untouched.clone();
    for _ in 0..slots {
        let cards = there.cards.iter().zip(&there.node.spec.gpus).enumerate();
        let takes = |(at, (card, gpu)): (usize, (&CardUse, &Gpu))| Some((at, fits(at, card, gpu)?));
        let fullness = |at: usize| match &there.cards[at] {
            CardUse::Free => 0,
            CardUse::Mig(instances) => instances.iter().map(|(place, _)| u64::from(place.shape.memory_slices())).sum(),
            CardUse::Mps { shares, .. } | CardUse::TimeSlice { shares, .. } => {
                shares.iter().map(|share| share.memory_mib).sum()
            }
            CardUse::Whole(_) => u64::MAX,
        };
        let found = match fleet.placement {
            PlacementPolicy::BestFit => cards.filter_map(takes).min_by_key(|(at, _)| (Reverse(fullness(*at)), *at)),
            _ => cards.filter_map(takes).next(),
        };
        let Some((at, mode)) = found else { return };
        super::shares::take(&mut there.cards[at], domain, mode);
        tasks.push(TaskPlacement { node: id, devices: vec![DeviceHold { gpu: at as u16, mode }] });
    }
}

/// The ways in which a card of `model` could serve: MIG starts, lowest first.
fn modes(ask: &Ask<'_>, model: GpuModel) -> Vec<HoldMode> {
    match ask.class.request.devices {
        DeviceRequest::Mps { percent, memory_mib, .. } => vec![HoldMode::Mps { percent, memory_mib }],
        DeviceRequest::TimeSlice { memory_mib, .. } => vec![HoldMode::TimeSlice { memory_mib }],
        _ => {
            let family = model.facts().mig;
            let shape = ask.class.request.devices.mig_shape(model);
            let starts = family.zip(shape).map(|(family, shape)| (shape, shape.starts(family)));
            let place = |(shape, starts): (MigShape, &'static [u8])| {
                starts.iter().map(move |start| HoldMode::Mig(MigPlacement { shape, start: *start }))
            };
            starts.map(place).into_iter().flatten().collect()
        }
    }
}

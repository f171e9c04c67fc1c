//! A job that waits because every card it may use keeps a pinned layout.

use super::share_in_words;
use crate::search::Ask;
use crate::view::View;
use muster_model::capacity::{CardUse, NodeUse};
use muster_model::gpu::MigFamily;
use muster_model::mig::{self, MigShape, Occupied, PinnedLayout};
use muster_model::request::SharingMode;
use muster_model::{GpuModel, NodeId};
use std::collections::BTreeMap;

/// What a pool's pinned layout has for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedPool {
    /// The pool.
    pub pool: String,
    /// Its layout, in words.
    pub layout: String,
    /// Cards of the cell that hold it.
    pub cards: u64,
    /// Their slots of the profile that is asked for.
    pub slots: u64,
    /// Those that nobody holds.
    pub open: u64,
}

impl PinnedPool {
    pub(super) fn in_words(&self, model: GpuModel, what: &str) -> String {
        let PinnedPool { pool, layout, cards, slots, open } = self;
        let has = match (slots, open) {
            (0, _) => format!("no {what}"),
            (slots, open) => format!("{slots} slots of {what}, {open} free"),
        };
        format!("pool {pool} keeps {layout} on {cards} {model}: {has}")
    }
}

/// The model, what is asked for, and the layouts that stand in the way with what they have; none when some card that it may use is not
/// pinned.
pub(super) fn all_pinned(view: &View, ask: &Ask<'_>) -> Option<(GpuModel, String, Vec<PinnedPool>)> {
    let model = ask.model?;
    let family = model.facts().mig?;
    let shape = ask.class.request.devices.mig_shape(model);
    let mut pools: BTreeMap<&str, PinnedPool> = BTreeMap::new();
    for (_, there) in open_nodes(view, ask) {
        let pool = view.fleet.capacity.pool_of(&there.node);
        for (index, gpu) in there.node.spec.gpus.iter().enumerate() {
            if gpu.model != model || gpu.withheld.is_some() {
                continue;
            }
            let layout = pool.pinned.get(&model).filter(|_| there.is_pinned(index as u16))?;
            let pin = pools.entry(&there.node.spec.pool).or_insert_with(|| PinnedPool {
                pool: there.node.spec.pool.clone(),
                layout: layout.in_words(model),
                cards: 0,
                slots: 0,
                open: 0,
            });
            pin.cards += 1;
            if let Some(shape) = shape {
                pin.slots += layout.count(shape) as u64;
                pin.open += there.cards.get(index).map_or(0, |card| open_slots(card, layout, family, shape));
            }
        }
    }
    if pools.is_empty() {
        return None;
    }
    let pools: Vec<PinnedPool> = pools.into_values().collect();
    // An open slot is no obstacle by itself.
    if pools.iter().any(|pin| pin.open > 0) {
        return None;
    }
    Some((model, in_words(ask, model), pools))
}

fn open_nodes<'a>(view: &'a View, ask: &'a Ask<'_>) -> impl Iterator<Item = (&'a NodeId, &'a NodeUse)> + 'a {
    view.fleet.capacity.nodes().iter().filter(|(_, there)| {
        let node = &there.node;
        node.cell == ask.cell
            && node.accepts_work()
            && ask.pool_allows(&view.fleet, &node.spec.pool)
            && ask.admits(node)
    })
}

/// Slots of `shape` on one pinned card that nobody holds.
fn open_slots(card: &CardUse, layout: &PinnedLayout, family: MigFamily, shape: MigShape) -> u64 {
    let mut occupied = match card {
        CardUse::Free => Occupied::default(),
        CardUse::Mig(instances) => Occupied::by(instances.iter().map(|(place, _)| *place)),
        _ => return 0,
    };
    let mut open = 0;
    while let Some(slot) = layout.open_slot(family, occupied, shape) {
        occupied = occupied.with(slot);
        open += 1;
    }
    open
}

/// `3g.40gb`, `whole card`, or the share as it is asked for.
fn in_words(ask: &Ask<'_>, model: GpuModel) -> String {
    let devices = &ask.class.request.devices;
    match devices.mode() {
        Some(SharingMode::Mig) => {
            devices.mig_shape(model).and_then(|shape| mig::profile_name(model, shape)).unwrap_or_default()
        }
        Some(SharingMode::Whole) => "whole GPU".to_owned(),
        _ => share_in_words(ask).trim_start_matches("a ").to_owned(),
    }
}

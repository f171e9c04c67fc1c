//! Who holds what is sampled, and whether they use it.
//!
//! What must stay true: an allocation is named for a card or slice only when no other holds a part of it; a card in MIG mode has no holder, its slices have.

use super::Telemetry;
use muster_model::ids::{AllocationId, JobId};
use muster_model::mig::MigPlacement;
use muster_model::task::HoldMode;
use muster_node_core::telemetry::{DeviceUse, Figure, Figures, HoldSeen, HoldState, hold_state};
use std::collections::{BTreeMap, BTreeSet};

/// An allocation on this node.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) tenant: String,
    pub(super) job: JobId,
    pub(super) state: HoldState,
}

/// Part of a card: a slice, or the card as a whole, shared or not.
pub(super) type Part = (u16, Option<MigPlacement>);

/// An allocation as its tasks say.
struct Found {
    tenant: String,
    job: JobId,
    is_live: bool,
    parts: BTreeSet<Part>,
}

fn found(telemetry: &Telemetry) -> BTreeMap<AllocationId, Found> {
    let mut all: BTreeMap<AllocationId, Found> = BTreeMap::new();
    for (key, task) in telemetry.parts.executor.observe() {
        let held = all.entry(key.allocation).or_insert_with(|| Found {
            tenant: task.spec.tenant.clone(),
            job: task.spec.job,
            is_live: false,
            parts: BTreeSet::new(),
        });
        held.is_live |= task.is_live();
        held.parts.extend(task.spec.devices.iter().map(|device| match device.mode {
            HoldMode::Mig(place) => (device.gpu, Some(place)),
            HoldMode::Whole | HoldMode::Mps { .. } | HoldMode::TimeSlice { .. } => (device.gpu, None),
        }));
    }
    all.retain(|_, held| !held.parts.is_empty());
    all
}

/// The one allocation that holds a part, by part.
pub(super) fn sole(telemetry: &Telemetry) -> BTreeMap<Part, AllocationId> {
    let mut holders: BTreeMap<Part, BTreeSet<AllocationId>> = BTreeMap::new();
    for (allocation, held) in found(telemetry) {
        for part in held.parts {
            holders.entry(part).or_default().insert(allocation);
        }
    }
    let one = |(part, of): (Part, BTreeSet<AllocationId>)| Some((part, of.first().copied().filter(|_| of.len() == 1)?));
    holders.into_iter().filter_map(one).collect()
}

/// Every allocation that holds a device here, and what it does.
pub(super) fn held(telemetry: &Telemetry) -> BTreeMap<AllocationId, Held> {
    let sole = sole(telemetry);
    let cleaning = telemetry.cleaning.lock().clone();
    let state = |(allocation, held): (AllocationId, Found)| {
        let devices = held.parts.iter().map(|part| DeviceUse {
            is_sole: sole.get(part) == Some(&allocation),
            is_active: activity(telemetry, *part),
            has_process: has_process(telemetry, *part, allocation),
        });
        let is_cleaning = cleaning.contains(&allocation);
        let seen = HoldSeen { is_live: held.is_live, is_cleaning, devices: devices.collect() };
        (allocation, Held { tenant: held.tenant, job: held.job, state: hold_state(&seen) })
    };
    found(telemetry).into_iter().map(state).collect()
}

fn activity(telemetry: &Telemetry, (card, place): Part) -> Option<bool> {
    let latest = telemetry.latest.lock();
    let sample = &latest.get(usize::from(card))?.as_ref()?.sample;
    match place {
        None => is_active(&sample.figures),
        Some(place) => is_active(&sample.instances.iter().find(|one| one.place == Some(place))?.figures),
    }
}

fn is_active(figures: &Figures) -> Option<bool> {
    [Figure::GraphicsActive, Figure::SmActive, Figure::GpuUtil]
        .into_iter()
        .filter_map(|figure| figures.get(figure))
        .map(|value| value > 0.0)
        .reduce(|one, other| one || other)
}

fn has_process(telemetry: &Telemetry, (card, place): Part, allocation: AllocationId) -> Option<bool> {
    let users = telemetry.parts.health.users(card)?;
    let is_its = |user: &crate::health::User| {
        user.task.is_some_and(|task| task.allocation == allocation) && (place.is_none() || user.place == place)
    };
    Some(users.iter().any(is_its))
}

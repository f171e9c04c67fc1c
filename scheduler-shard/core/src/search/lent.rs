//! Nodes that are reserved or in windows, and serve a gang beside free ones, as long as it is over before they are wanted.
//!
//! What must stay true: nodes are lent for one search and then stand apart as before; they are lent only where they and the free ones could hold the
//! whole gang together.

use super::units::Units;
use super::{Ask, Steps};
use crate::fleet::index::bucket::{Bucket, TOP};
use crate::fleet::index::{GROUP_LEVELS, Partition, Windows};
use crate::fleet::{Fleet, Lent, PlacementPolicy};
use muster_model::request::SharingMode;
use muster_model::{TopologyLevel, WindowTimes};
use std::collections::BTreeMap;

/// Nodes that are reserved for gangs which start only when `ask` would be over, where these nodes and free ones together may hold the whole
/// gang and neither do alone: a gang may stand on both.
pub(crate) fn nodes_to_lend(fleet: &Fleet, ask: &Ask<'_>, steps: &mut Steps) -> Vec<Lent> {
    if ask.class.tasks < 2 || fleet.placement != PlacementPolicy::Topology {
        return Vec::new();
    }
    let mut lent = Vec::new();
    let mut of_pool: BTreeMap<&str, Vec<(&Partition, &Bucket)>> = BTreeMap::new();
    for (partition, bucket) in ask.buckets(fleet) {
        steps.0 += 1;
        of_pool.entry(&partition.pool).or_default().push((partition, bucket));
    }
    for parts in of_pool.into_values().filter(|parts| parts.len() > 1 && together_enough(ask, parts)) {
        for (partition, bucket) in parts {
            let hold = partition.hold.filter(|hold| ask.job != Some(hold.job));
            let windows = other_windows(ask, &partition.windows);
            if hold.is_some() || windows.is_some() {
                let lend = |node| Lent { node, hold, windows: windows.clone() };
                lent.extend(bucket.nodes_with_anything().map(lend));
            }
        }
    }
    lent.sort_unstable();
    lent.dedup();
    lent
}

/// Windows that tell nodes apart which `ask` may use alike, with what is left of them when they do not: the reservation that it names.
fn other_windows(ask: &Ask<'_>, windows: &Windows) -> Option<(Windows, Windows)> {
    let named = ask.class.reservation.as_deref();
    let own: Vec<WindowTimes> = windows.iter().filter(|times| times.is_reservation(named)).cloned().collect();
    (own.len() < windows.len()).then(|| (windows.clone(), Windows::from(own)))
}

/// Whether one domain of the required level may hold the whole gang on all of these parts together: an upper bound.
fn together_enough(ask: &Ask<'_>, parts: &[(&Partition, &Bucket)]) -> bool {
    let shares = ask.class.request.devices.mode().is_some_and(|mode| mode != SharingMode::Whole);
    let Some(units) = Units::of(ask).filter(|_| !shares) else { return shares };
    let tasks = units.one_by_one().without_cap();
    let level = match ask.required_level() {
        Some(TopologyLevel::Node) => return false,
        Some(level) => GROUP_LEVELS.iter().position(|at| *at == level),
        None => Some(TOP),
    };
    let mut bounds: BTreeMap<u32, u64> = BTreeMap::new();
    for (_, bucket) in parts {
        let domains = level.map_or(&bucket.islands, |level| &bucket.levels[level]).domains.iter();
        for (id, domain) in domains {
            let sum = bounds.entry(*id).or_default();
            *sum = sum.saturating_add(tasks.on_domain(domain));
        }
    }
    bounds.into_values().any(|sum| sum >= tasks.count)
}

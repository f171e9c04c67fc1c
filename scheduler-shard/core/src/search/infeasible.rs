//! Whether a gang would fit if nothing ran: keeping cards for one that never fits would waste them.
//!
//! Domains that are alike when empty are asked once. With a selector each node is asked, since what it accepts is said by the node.

use super::Ask;
use super::units::{Sight, Units};
use crate::fleet::Fleet;
use crate::fleet::index::bucket::{ALL, Bucket, TOP};
use crate::fleet::index::state::EmptyState;
use muster_model::gang::{Held, Tally};
use muster_model::{TopologyLevel, closeness};
use std::collections::BTreeMap;

/// Whether the open nodes of the cell would hold the gang if nothing ran on them.
pub(super) fn fits_when_empty(fleet: &Fleet, ask: &Ask<'_>) -> bool {
    let Some(units) = Units::of(ask) else { return false };
    if ask.class.selector.is_some() {
        return selected_fit(fleet, ask, units);
    }
    // What is kept for others stands apart; together they may hold more.
    let apart = || {
        fleet
            .index
            .buckets(ask.cell, ask.model)
            .any(|(partition, _)| partition.hold.is_some() || !partition.windows.is_empty())
    };
    ask.buckets(fleet).any(|(_, bucket)| bucket_holds(bucket, ask, units)) || apart() && selected_fit(fleet, ask, units)
}

fn bucket_holds(bucket: &Bucket, ask: &Ask<'_>, units: Units) -> bool {
    let on_one = |kind: &EmptyState, one_island: bool| {
        let islands = !one_island || !units.with_cards || kind.room.tightest(units.all()).is_some();
        islands && units.when_empty(ask, kind) >= units.count
    };
    let one_of = |level: usize| {
        let held = &bucket.levels[level];
        if units.adds_up(bucket, level) {
            return held.alike.keys().any(|kinds| units.on_empty_domain(level, kinds, ask) >= units.count);
        }
        let mut domains = held.domains.values();
        domains.any(|domain| units.bound_of(bucket, level, domain, Sight::Empty(ask)) >= units.count)
    };
    let all = || bucket.levels[TOP].domains.get(&ALL).into_iter().flat_map(|all| &all.kinds);
    match ask.required_level() {
        Some(TopologyLevel::Island) => {
            let spanning = || bucket.islands.alike.keys().any(|kinds| units.on_empty_island(kinds, ask) >= units.count);
            all().any(|(kind, _)| on_one(kind, true)) || units.may_share(TopologyLevel::Island) && spanning()
        }
        Some(TopologyLevel::Node) => all().any(|(kind, _)| on_one(kind, false)),
        Some(TopologyLevel::Leaf) => one_of(0),
        Some(TopologyLevel::Block) => one_of(1),
        Some(TopologyLevel::Region) => one_of(2),
        None => one_of(TOP),
    }
}

fn selected_fit(fleet: &Fleet, ask: &Ask<'_>, units: Units) -> bool {
    // By pool and domain of the required level.
    let mut held: BTreeMap<(&str, String), Tally<String, String>> = BTreeMap::new();
    let nodes = fleet.capacity.nodes().values().map(|there| (&there.node, there.pinned));
    let open = nodes.filter(|(node, _)| node.cell == ask.cell && node.accepts_work() && ask.admits(node));
    for (node, pinned) in open.filter(|(node, _)| ask.pool_allows(fleet, &node.spec.pool)) {
        let kind = EmptyState::of(node, pinned, ask.model);
        let island = node.spec.place.spanning_island().filter(|_| units.with_cards);
        let domain = match (ask.required_level(), &island) {
            (None, _) => String::new(),
            (Some(TopologyLevel::Island), Some(island)) => island.clone(),
            (Some(TopologyLevel::Island), None) if kind.room.tightest(units.all()).is_none() => continue,
            (Some(TopologyLevel::Island | TopologyLevel::Node), _) => node.id.to_string(),
            (Some(level), _) => node.spec.place.domain(level),
        };
        let spread = units.cap.map(|cap| closeness::spread_domain(node, cap.level)).unwrap_or_default();
        let together = units.tasks > 1 && ask.required_level() != Some(TopologyLevel::Node);
        let here = match island.filter(|_| together) {
            Some(island) => Held::Tasks(island, units.one_by_one().when_empty(ask, &kind)),
            None => Held::Units(units.when_empty(ask, &kind)),
        };
        if held.entry((node.spec.pool.as_str(), domain)).or_default().add(&units, spread, here) >= units.count {
            return true;
        }
    }
    false
}

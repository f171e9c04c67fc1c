//! The earliest time at which a gang fits, by the time limits of what runs, and the nodes that it will stand on.
//!
//! Each node says how much of the gang it holds now and after each end on it; the first moment at which the nodes of one domain of the
//! required level hold all of it is the time. Of the nodes that are open by then those are taken that open last: they do not stand idle
//! meanwhile. What must stay true: nothing but time limits is believed; what others have reserved is not touched; at that time the
//! search of [`crate::search`] finds the gang a place on these nodes (a property test).

use super::timeline::{ReleaseEvent, Timeline};
use crate::fleet::index::GROUP_LEVELS;
use crate::fleet::index::bucket::{ALL, Path, TOP};
use crate::fleet::index::state::{EmptyState, FreeState};
use crate::search::cards::Within;
use crate::search::units::Units;
use crate::search::{Ask, Steps};
use crate::view::View;
use muster_model::capacity::NodeUse;
use muster_model::gang::{Held, Tally};
use muster_model::{NodeId, Reservation, TopologyLevel, WindowTimes};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A domain of the required level inside one pool; nodes and NVLink domains have numbers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlacementDomain {
    pool: usize,
    is_node: bool,
    domain: u32,
}

/// A node can hold more of the gang from some time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Availability {
    placement_domain: PlacementDomain,
    at_ms: u64,
    leaf: u32,
    node: NodeId,
    /// The domain that the spread counts, and the NVLink domain that units may span; 0 for none.
    spread: u32,
    island: u32,
    /// Units; tasks where units may span nodes.
    more: u64,
}

/// The time and place for `ask`; what is reserved for its own job counts as open. None when no time limit gives any.
pub(crate) fn earliest(
    view: &View,
    ask: &Ask<'_>,
    timeline: &Timeline,
    now_ms: u64,
    steps: &mut Steps,
) -> Option<Reservation> {
    if ask.class.reservation.is_some() {
        // What runs in a reservation is its tenants' own business.
        return None;
    }
    let units = Units::of(ask)?;
    let after = Search { view, ask, units, now_ms, before_windows: false }.earliest(timeline, steps);
    let lasts_ms = ask.class.stays_at_most_ms();
    if view.windows.is_empty() || lasts_ms == u64::MAX {
        return after;
    }
    // Or on nodes whose windows begin only when it is over.
    let is_over = |found: &Reservation| {
        let over_ms = found.start_ms.saturating_add(lasts_ms);
        let mut windows = found.nodes.iter().flat_map(|node| view.fleet.index.windows_of(*node));
        windows.all(|times| times.allows(None, over_ms))
    };
    let before = Search { view, ask, units, now_ms, before_windows: true }.earliest(timeline, steps);
    after.into_iter().chain(before.filter(is_over)).min()
}

struct Search<'a> {
    view: &'a View,
    ask: &'a Ask<'a>,
    units: Units,
    now_ms: u64,
    /// Windows that have not begun are not looked at; otherwise their nodes open when they end.
    before_windows: bool,
}

impl Search<'_> {
    fn earliest(&self, timeline: &Timeline, steps: &mut Steps) -> Option<Reservation> {
        let mut availabilities = self.availabilities(timeline, steps);
        availabilities.sort_unstable();
        let by_domain = availabilities.chunk_by(|one, next| one.placement_domain == next.placement_domain);
        let (start_ms, placement_domain) = by_domain
            .filter_map(|availabilities| Some((self.first_moment(availabilities)?, availabilities)))
            .min_by_key(|(at, _)| *at)?;
        Some(Reservation { start_ms, nodes: self.opening_last(placement_domain, start_ms) })
    }

    /// From when on the windows of a node do not keep the gang off; none: for ever.
    fn open_from_ms(&self, windows: &[WindowTimes]) -> Option<u64> {
        let closed = windows.iter().filter(|times| times.open || !self.before_windows);
        closed.map(|times| times.end_ms).try_fold(self.now_ms, |from_ms, end_ms| Some(from_ms.max(end_ms?)))
    }

    fn availabilities(&self, timeline: &Timeline, steps: &mut Steps) -> Vec<Availability> {
        let mut availabilities = Vec::new();
        let mut pools: Vec<&str> = Vec::new();
        for (id, there) in self.view.fleet.capacity.nodes().iter().filter(|(_, there)| there.node.cell == self.ask.cell)
        {
            let Some((partition, path, kind)) = self.view.fleet.index.position_of(*id, self.ask.model) else {
                continue;
            };
            let open = self.ask.may_stay(partition.hold) && self.ask.pool_allows(&self.view.fleet, &partition.pool);
            if !open || !self.ask.admits(&there.node) || self.units.one_by_one().when_empty(self.ask, kind) == 0 {
                continue;
            }
            let Some(from_ms) = self.open_from_ms(&partition.windows) else { continue };
            let pool = pools.iter().position(|name| **name == *partition.pool).unwrap_or_else(|| {
                pools.push(&partition.pool);
                pools.len() - 1
            });
            let releases = timeline.on(*id);
            steps.0 += 1 + releases.len() as u64;
            let first = availabilities.len();
            self.on_node(there, (pool, path, kind), releases, &mut availabilities);
            availabilities[first..].iter_mut().for_each(|opens| opens.at_ms = opens.at_ms.max(from_ms));
        }
        availabilities
    }

    fn on_node(
        &self,
        there: &NodeUse,
        (pool, path, kind): (usize, Path, &EmptyState),
        releases: &[ReleaseEvent],
        into: &mut Vec<Availability>,
    ) {
        let node = there.node.id;
        let together = self.units.tasks > 1 && path.island.is_some();
        let availability = Availability {
            placement_domain: self.placement_domain(pool, node, path),
            at_ms: self.now_ms,
            leaf: path.levels[0],
            node,
            spread: self.spread_domain(node, path),
            island: path.island.filter(|_| together).unwrap_or(0),
            more: 0,
        };
        let mut held = self.held(there, path, kind, together);
        into.extend((held > 0).then_some(Availability { more: held, ..availability }));
        let mut later = None;
        for (index, release) in releases.iter().enumerate() {
            let later = later.get_or_insert_with(|| there.clone());
            release.tasks().iter().for_each(|task| later.release(release.allocation(), task));
            let at_ms = release.end_ms;
            if releases.get(index + 1).is_some_and(|next| next.end_ms == at_ms) {
                continue;
            }
            let then = self.held(later, path, kind, together);
            if then > held {
                into.push(Availability { at_ms, more: then - held, ..availability });
                held = then;
            }
        }
    }

    fn placement_domain(&self, pool: usize, node: NodeId, path: Path) -> PlacementDomain {
        let level = |level: TopologyLevel| GROUP_LEVELS.iter().position(|at| *at == level);
        match (self.ask.required_level(), path.island) {
            (None, _) => PlacementDomain { pool, is_node: false, domain: ALL },
            (Some(TopologyLevel::Island), Some(island)) => PlacementDomain { pool, is_node: false, domain: island },
            (Some(TopologyLevel::Island | TopologyLevel::Node), _) => {
                PlacementDomain { pool, is_node: true, domain: node.0 }
            }
            (Some(wide), _) => {
                PlacementDomain { pool, is_node: false, domain: path.levels[level(wide).unwrap_or(TOP)] }
            }
        }
    }

    fn spread_domain(&self, node: NodeId, path: Path) -> u32 {
        match self.units.cap {
            None => 0,
            Some(cap) => GROUP_LEVELS.iter().position(|at| *at == cap.level).map_or(node.0, |at| path.levels[at]),
        }
    }

    /// How much of the gang a node in this state holds: units, or tasks where units may span nodes.
    fn held(&self, there: &NodeUse, path: Path, kind: &EmptyState, together: bool) -> u64 {
        let units = if together { self.units.one_by_one() } else { self.units };
        let room = match self.ask.model {
            None => FreeState::of_cpu(there.cpu_free_milli, kind.cpu_milli),
            Some(model) => {
                let cards = (0..).zip(&there.node.spec.gpus);
                let free = cards.filter(|(at, gpu)| gpu.model == model && there.is_free(*at));
                FreeState::of_cards(free.map(|(_, gpu)| gpu.island), kind.room.largest, kind.room.spans)
            }
        };
        let one_island =
            self.ask.required_level() == Some(TopologyLevel::Island) && path.island.is_none() && units.with_cards;
        if one_island && room.tightest(units.all()).is_none() {
            return 0;
        }
        let within = if one_island { Within::OneIsland } else { Within::crossing(units.may_cross) };
        units.held(&self.view.fleet, self.ask, there, units.bound(&room, units.may_cross), within)
    }

    /// Counts a node that opens with those before it; answers the units of all of them.
    fn add(&self, tally: &mut Tally<u32, u32>, opens: &Availability) -> u64 {
        let held = if opens.island > 0 { Held::Tasks(opens.island, opens.more) } else { Held::Units(opens.more) };
        tally.add(&self.units, opens.spread, held)
    }

    /// When these openings, of one domain and in order of time, hold all of it.
    fn first_moment(&self, availabilities: &[Availability]) -> Option<u64> {
        let mut tally = Tally::default();
        let enough = |availability: &&Availability| self.add(&mut tally, availability) >= self.units.count;
        availabilities.iter().find(enough).map(|availability| availability.at_ms)
    }

    /// The nodes that open last of those that are open by `start_ms`, as many as it takes.
    fn opening_last(&self, availabilities: &[Availability], start_ms: u64) -> Vec<NodeId> {
        let mut by_node: BTreeMap<NodeId, Vec<&Availability>> = BTreeMap::new();
        for availability in availabilities.iter().filter(|availability| availability.at_ms <= start_ms) {
            by_node.entry(availability.node).or_default().push(availability);
        }
        let mut islands: BTreeMap<u32, u64> = BTreeMap::new();
        for availability in
            availabilities.iter().filter(|availability| availability.island > 0 && availability.at_ms <= start_ms)
        {
            islands
                .entry(availability.island)
                .and_modify(|at| *at = availability.at_ms.max(*at))
                .or_insert(availability.at_ms);
        }
        let mut nodes: Vec<Vec<&Availability>> = by_node.into_values().collect();
        nodes.sort_by_key(|of_node| {
            let last = of_node[of_node.len() - 1];
            let at_ms = islands.get(&last.island).copied().unwrap_or(last.at_ms);
            (Reverse(at_ms), last.island, last.leaf, last.node)
        });
        let (mut tally, mut chosen) = (Tally::default(), Vec::new());
        for of_node in nodes {
            let before = tally.total();
            let total = of_node.iter().map(|availability| self.add(&mut tally, availability)).max().unwrap_or(0);
            if total > before || of_node[0].island > 0 {
                chosen.push(of_node[0].node);
            }
            if total >= self.units.count {
                break;
            }
        }
        chosen.sort_unstable();
        chosen
    }
}

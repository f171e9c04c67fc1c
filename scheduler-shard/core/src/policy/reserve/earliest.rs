//! The earliest time at which a gang fits, by the time limits of what runs, and the nodes that it will stand on.
//!
//! Each node says how much of the gang it holds now and after each end on it; the first moment at which the nodes of one domain of the
//! required level hold all of it is the time. Of the nodes that are open by then those are taken that open last: they do not stand idle
//! meanwhile. What must stay true: nothing but time limits is believed; what others have reserved is not touched; at that time the
//! search of [`crate::search`] finds the gang a place on these nodes (a property test).

use super::timeline::{Departure, Timeline};
use crate::fleet::index::GROUP_LEVELS;
use crate::fleet::index::shelf::{ALL, Path, TOP};
use crate::fleet::index::state::{Kind, Room};
use crate::search::cards::Within;
use crate::search::units::Units;
use crate::search::{Ask, Steps};
use crate::view::View;
use muster_model::capacity::NodeUse;
use muster_model::{NodeId, Reservation, TopologyLevel};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A domain of the required level inside one pool; nodes and NVLink domains have numbers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ground {
    pool: usize,
    is_node: bool,
    domain: u32,
}

/// A node can hold more of the gang from some time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Opening {
    ground: Ground,
    at_ms: u64,
    leaf: u32,
    node: NodeId,
    /// The domain that the spread counts, and the NVLink domain that units may span; 0 for none.
    spread: u32,
    island: u32,
    /// Units; tasks where units may span nodes.
    more: u64,
}

/// The time and place for `ask`; what is kept for its own job counts as open. None when no time limit promises any.
pub(crate) fn earliest(
    view: &View,
    ask: &Ask<'_>,
    timeline: &Timeline,
    now_ms: u64,
    steps: &mut Steps,
) -> Option<Reservation> {
    let search = Search { view, ask, units: Units::of(ask)?, now_ms };
    let mut openings = search.openings(timeline, steps);
    openings.sort_unstable();
    let of_ground = openings.chunk_by(|one, next| one.ground == next.ground);
    let (start_ms, ground) =
        of_ground.filter_map(|openings| Some((search.first_moment(openings)?, openings))).min_by_key(|(at, _)| *at)?;
    Some(Reservation { start_ms, nodes: search.opening_last(ground, start_ms) })
}

struct Search<'a> {
    view: &'a View,
    ask: &'a Ask<'a>,
    units: Units,
    now_ms: u64,
}

impl Search<'_> {
    fn openings(&self, timeline: &Timeline, steps: &mut Steps) -> Vec<Opening> {
        let mut openings = Vec::new();
        let mut pools: Vec<&str> = Vec::new();
        for (id, there) in self.view.fleet.capacity.nodes().iter().filter(|(_, there)| there.node.cell == self.ask.cell)
        {
            let Some((part, path, kind)) = self.view.fleet.index.ground(*id, self.ask.model) else { continue };
            let open = self.ask.may_stay(part.hold) && self.ask.pool_allows(&self.view.fleet, &part.pool);
            if !open || !self.ask.admits(&there.node) || self.units.one_by_one().when_empty(self.ask, kind) == 0 {
                continue;
            }
            let pool = pools.iter().position(|name| **name == *part.pool).unwrap_or_else(|| {
                pools.push(&part.pool);
                pools.len() - 1
            });
            let departures = timeline.on(*id);
            steps.0 += 1 + departures.len() as u64;
            self.on_node(there, (pool, path, kind), departures, &mut openings);
        }
        openings
    }

    fn on_node(
        &self,
        there: &NodeUse,
        (pool, path, kind): (usize, Path, &Kind),
        departures: &[Departure],
        into: &mut Vec<Opening>,
    ) {
        let node = there.node.id;
        let together = self.units.tasks > 1 && path.island.is_some();
        let opening = Opening {
            ground: self.ground(pool, node, path),
            at_ms: self.now_ms,
            leaf: path.levels[0],
            node,
            spread: self.spread_domain(node, path),
            island: path.island.filter(|_| together).unwrap_or(0),
            more: 0,
        };
        let mut held = self.held(there, path, kind, together);
        into.extend((held > 0).then_some(Opening { more: held, ..opening }));
        let mut later = None;
        for (index, departure) in departures.iter().enumerate() {
            let later = later.get_or_insert_with(|| there.clone());
            departure.tasks().iter().for_each(|task| later.release(departure.allocation(), task));
            let at_ms = departure.end_ms;
            if departures.get(index + 1).is_some_and(|next| next.end_ms == at_ms) {
                continue;
            }
            let then = self.held(later, path, kind, together);
            if then > held {
                into.push(Opening { at_ms, more: then - held, ..opening });
                held = then;
            }
        }
    }

    fn ground(&self, pool: usize, node: NodeId, path: Path) -> Ground {
        let level = |level: TopologyLevel| GROUP_LEVELS.iter().position(|at| *at == level);
        match (self.ask.widest(), path.island) {
            (None, _) => Ground { pool, is_node: false, domain: ALL },
            (Some(TopologyLevel::Island), Some(island)) => Ground { pool, is_node: false, domain: island },
            (Some(TopologyLevel::Island | TopologyLevel::Node), _) => Ground { pool, is_node: true, domain: node.0 },
            (Some(wide), _) => Ground { pool, is_node: false, domain: path.levels[level(wide).unwrap_or(TOP)] },
        }
    }

    fn spread_domain(&self, node: NodeId, path: Path) -> u32 {
        match self.units.cap {
            None => 0,
            Some(cap) => GROUP_LEVELS.iter().position(|at| *at == cap.level).map_or(node.0, |at| path.levels[at]),
        }
    }

    /// How much of the gang a node in this state holds: units, or tasks where units may span nodes.
    fn held(&self, there: &NodeUse, path: Path, kind: &Kind, together: bool) -> u64 {
        let units = if together { self.units.one_by_one() } else { self.units };
        let room = match self.ask.model {
            None => Room::of_cpu(there.cpu_free_milli, kind.cpu_milli),
            Some(model) => {
                let cards = (0..).zip(&there.node.spec.gpus);
                let free = cards.filter(|(at, gpu)| gpu.model == model && there.is_free(*at));
                Room::of_cards(free.map(|(_, gpu)| gpu.island), kind.room.largest, kind.room.spans)
            }
        };
        let one_island = self.ask.widest() == Some(TopologyLevel::Island) && path.island.is_none() && units.with_cards;
        if one_island && room.tightest(units.all()).is_none() {
            return 0;
        }
        let within = if one_island { Within::OneIsland } else { Within::crossing(units.may_cross) };
        units.held(&self.view.fleet, self.ask, there, units.promised(&room, units.may_cross), within)
    }

    /// When these openings, of one domain and in order of time, hold all of it.
    fn first_moment(&self, openings: &[Opening]) -> Option<u64> {
        let mut tally = Tally::default();
        let enough = |opening: &&Opening| tally.take(opening, self.units) >= self.units.count;
        openings.iter().find(enough).map(|opening| opening.at_ms)
    }

    /// The nodes that open last of those that are open by `start_ms`, as many as it takes.
    fn opening_last(&self, openings: &[Opening], start_ms: u64) -> Vec<NodeId> {
        let mut by_node: BTreeMap<NodeId, Vec<&Opening>> = BTreeMap::new();
        for opening in openings.iter().filter(|opening| opening.at_ms <= start_ms) {
            by_node.entry(opening.node).or_default().push(opening);
        }
        let mut islands: BTreeMap<u32, u64> = BTreeMap::new();
        for opening in openings.iter().filter(|opening| opening.island > 0 && opening.at_ms <= start_ms) {
            islands.entry(opening.island).and_modify(|at| *at = opening.at_ms.max(*at)).or_insert(opening.at_ms);
        }
        let mut nodes: Vec<Vec<&Opening>> = by_node.into_values().collect();
        nodes.sort_by_key(|of_node| {
            let last = of_node[of_node.len() - 1];
            let at_ms = islands.get(&last.island).copied().unwrap_or(last.at_ms);
            (Reverse(at_ms), last.island, last.leaf, last.node)
        });
        let (mut tally, mut chosen) = (Tally::default(), Vec::new());
        for of_node in nodes {
            let before = tally.total;
            let total = of_node.iter().map(|opening| tally.take(opening, self.units)).max().unwrap_or(0);
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

/// Units that what was taken so far holds, whole ones and within the spread.
#[derive(Default)]
struct Tally {
    total: u64,
    spread: BTreeMap<u32, u64>,
    islands: BTreeMap<(u32, u32), u64>,
}

impl Tally {
    fn take(&mut self, opening: &Opening, units: Units) -> u64 {
        let mut more = opening.more;
        if opening.island > 0 {
            let tasks = self.islands.entry((opening.spread, opening.island)).or_default();
            let before = *tasks / units.tasks;
            *tasks += opening.more;
            more = *tasks / units.tasks - before;
        }
        if let Some(cap) = units.cap {
            let held = self.spread.entry(opening.spread).or_default();
            let before = (*held).min(cap.units);
            *held = held.saturating_add(more);
            more = (*held).min(cap.units) - before;
        }
        self.total = self.total.saturating_add(more);
        self.total
    }
}

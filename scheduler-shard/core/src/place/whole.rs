//! Gangs of whole cards, and of CPU alone.
//!
//! A gang is so many *units*: its tasks, or its segments where consecutive ranks must share an island. Levels are tried from the tightest to
//! the widest that the gang allows. On one node the smallest island that holds the gang is taken, then the node with fewest free units;
//! over several nodes, the domain that would have fewest free units left, inside it as few domains of each level below as will do, and
//! the remainder where it leaves least. So large islands, nodes and leaves stay whole. What must stay true:
//! - states promise at least what their nodes hold, so what is not promised is not there, and promises are checked node by node;
//! - nothing is changed before the whole gang stands: a try that comes to nothing is dropped;
//! - the answer is of the tightest level there is, and on it of the tightest domain whose hosts suffice (a property test).

use super::cards::{numa_allows, take_whole};
use super::{Ask, Steps, node};
use crate::index::shelf::{ALL, Domain, LEVELS, Shelf, TOP};
use crate::index::state::{Host, Kind, Room};
use crate::view::View;
use muster_model::capacity::NodeUse;
use muster_model::{DeviceHold, NodeId, NumaPolicy, Place, TaskPlacement, TopologyLevel};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Places tried for the remainder of a gang that promise room and whose hosts then turn out too full; after that it goes where the most is.
const REMAINDER_TRIES_MAX: usize = 4;

/// Where the search stands: how wide the gang is spread, tightest first. The last level of a shelf is the cell, which no name requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Island,
    Node,
    Domain(usize),
}

fn reaches(widest: Option<TopologyLevel>) -> impl Iterator<Item = Reach> {
    let all = [Reach::Island, Reach::Node].into_iter().chain((0..LEVELS).map(Reach::Domain));
    let count = match widest {
        Some(TopologyLevel::Island) => 1,
        Some(TopologyLevel::Node) => 2,
        Some(TopologyLevel::Leaf) => 3,
        Some(TopologyLevel::Block) => 4,
        Some(TopologyLevel::Region) => 5,
        None => 6,
    };
    all.take(count)
}

/// What a gang is made of.
#[derive(Clone, Copy, Debug)]
struct Units {
    count: u64,
    /// Free units of a shelf that each takes: cards, or milli-CPUs where there are none.
    each: u64,
    /// Tasks in each.
    tasks: u64,
    /// A task may cross islands where none holds it; a segment only where none could.
    may_cross: bool,
    with_cards: bool,
}

impl Units {
    /// None when the gang does not divide into segments, which no admitted request does.
    fn of(ask: &Ask<'_>) -> Option<Self> {
        let shape = ask.shape;
        let segment = shape.topology.segment_tasks.filter(|tasks| *tasks > 1);
        let tasks = segment.unwrap_or(1);
        if !shape.tasks.is_multiple_of(tasks) {
            return None;
        }
        let one = match ask.model {
            Some(_) => u64::from(shape.request.devices.cards()),
            None => shape.request.cpu_milli,
        };
        Some(Units {
            count: u64::from(shape.tasks / tasks),
            each: one.max(1) * u64::from(tasks),
            tasks: u64::from(tasks),
            may_cross: segment.is_none(),
            with_cards: ask.model.is_some(),
        })
    }

    fn all(&self) -> u64 {
        self.count * self.each
    }

    /// How many of them a node of this state holds at most. A segment may cross where no island of the node could ever hold it.
    fn promised(&self, room: &Room, cross: bool) -> u64 {
        let too_large = !self.may_cross && u64::from(room.largest) < self.each;
        if cross || !self.with_cards || too_large { room.anywhere(self.each) } else { room.in_islands(self.each) }
    }

    /// How many a domain holds at most.
    fn promised_by(&self, domain: &Domain, cross: bool) -> u64 {
        let of = |(room, nodes): &(Room, u32)| self.promised(room, cross).saturating_mul(u64::from(*nodes));
        domain.rooms.iter().fold(0, |sum, counted| sum.saturating_add(of(counted)))
    }

    /// How many a node that promises `promised` really holds, of those that are wanted.
    fn held(&self, ask: &Ask<'_>, there: &NodeUse, promised: u64) -> u64 {
        let held = promised.min(ask.host_slots(there) / self.tasks).min(self.count);
        match ask.model {
            // States do not tell NUMA nodes apart: where they matter, the cards are dealt out to see.
            Some(model) if ask.shape.numa > NumaPolicy::BestEffort => {
                let dealt = take_whole(there, model, held, self.tasks, ask);
                let lies_well = |cards: &Vec<DeviceHold>| numa_allows(&there.node, model, cards, ask.shape.numa);
                dealt.iter().take_while(|cards| lies_well(cards)).count() as u64 / self.tasks
            }
            _ => held,
        }
    }

    /// How many an empty node holds.
    fn when_empty(&self, ask: &Ask<'_>, kind: &Kind) -> u64 {
        let request = &ask.shape.request;
        let one_numa = ask.shape.numa == NumaPolicy::SingleNumaNode;
        if ask.shape.driver_min > kind.driver || one_numa && u32::from(kind.largest_numa) < request.devices.cards() {
            return 0;
        }
        let by_host = |all: u64, one: u64| all.checked_div(one).unwrap_or(u64::MAX);
        let tasks = by_host(kind.cpu_milli, request.cpu_milli).min(by_host(kind.memory_mib, request.memory_mib));
        self.promised(&kind.room, self.may_cross).min(tasks / self.tasks)
    }
}

/// How well a place suits: the least goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    /// Some task has to cross islands.
    crosses: bool,
    /// Free cards left of the island, where one island holds it all.
    island_left: u64,
    /// Free units left of the node or domain.
    left: u64,
}

/// Nodes and how many units each takes.
type Chosen = Vec<(NodeId, u64)>;

struct Search<'a> {
    view: &'a View,
    ask: &'a Ask<'a>,
    units: Units,
    steps: &'a mut Steps,
}

pub(super) fn place(view: &View, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    let units = Units::of(ask)?;
    let mut search = Search { view, ask, units, steps };
    for reach in reaches(ask.widest()) {
        let mut best: Option<(Fit, Chosen)> = None;
        for (_, shelf) in view.index.shelves(ask.cell, ask.model).filter(|(pool, _)| ask.pool_allows(view, pool)) {
            if shelf.free() < units.all() {
                continue;
            }
            let found = search.on_shelf(shelf, reach);
            if let Some(found) = found.filter(|(fit, _)| best.as_ref().is_none_or(|(other, _)| fit < other)) {
                best = Some(found);
            }
        }
        if let Some((_, chosen)) = best {
            return Some(fill(view, ask, units, chosen));
        }
    }
    None
}

impl Search<'_> {
    fn on_shelf(&mut self, shelf: &Shelf, reach: Reach) -> Option<(Fit, Chosen)> {
        match reach {
            Reach::Island => self.on_one_node(shelf, false, true),
            Reach::Node => {
                let inside = self.on_one_node(shelf, false, false);
                inside.or_else(|| if self.crossing_helps(shelf) { self.on_one_node(shelf, true, false) } else { None })
            }
            Reach::Domain(level) => {
                let inside = self.in_domains(shelf, level, false);
                inside.or_else(|| if self.crossing_helps(shelf) { self.in_domains(shelf, level, true) } else { None })
            }
        }
    }

    fn crossing_helps(&self, shelf: &Shelf) -> bool {
        self.units.may_cross && self.units.with_cards && shelf.rooms().any(|room| !room.is_one_island())
    }

    /// The node that suits best of those that hold the whole gang, in one island if so asked.
    fn on_one_node(&mut self, shelf: &Shelf, cross: bool, one_island: bool) -> Option<(Fit, Chosen)> {
        let needed = self.units.all();
        let least = Room { free: u32::try_from(needed).ok()?, ..Room::default() };
        let whole_host =
            Host::of(self.total(self.ask.shape.request.cpu_milli), self.total(self.ask.shape.request.memory_mib));
        let fit = |room: &Room| {
            let left = u64::from(room.free) - needed;
            if one_island && self.units.with_cards {
                let island_left = u64::from(room.tightest(needed)?) - needed;
                return Some(Fit { crosses: false, island_left, left });
            }
            (self.units.promised(room, cross) >= self.units.count).then_some(Fit {
                crosses: cross,
                island_left: 0,
                left,
            })
        };
        // States in order of how well they suit; nearly always a node of the first has the CPU and memory too.
        let mut last: Option<(Fit, Room)> = None;
        loop {
            let mut best: Option<(Fit, Room)> = None;
            for room in shelf.states.range(least..).map(|(room, _)| room) {
                self.steps.0 += 1;
                let Some(found) = fit(room).map(|fit| (fit, *room)) else { continue };
                if last.as_ref().is_none_or(|last| found > *last) && best.as_ref().is_none_or(|best| found < *best) {
                    best = Some(found);
                }
            }
            let (fit, room) = best?;
            for (_, nodes) in shelf.states[&room].iter().filter(|(host, _)| host.may_hold(whole_host)) {
                for id in nodes {
                    self.steps.0 += 1;
                    let promised = self.units.count;
                    if node(self.view, *id).is_some_and(|there| self.units.held(self.ask, there, promised) == promised)
                    {
                        return Some((fit, vec![(*id, self.units.count)]));
                    }
                }
            }
            last = Some((fit, room));
        }
    }

    /// What all tasks together take of a host.
    fn total(&self, of_one: u64) -> i64 {
        i64::try_from(of_one.saturating_mul(self.units.count * self.units.tasks)).unwrap_or(i64::MAX)
    }

    /// The domain of `level` with fewest free units left that holds the gang.
    fn in_domains(&mut self, shelf: &Shelf, level: usize, cross: bool) -> Option<(Fit, Chosen)> {
        let needed = self.units.all();
        for (free, id) in shelf.levels[level].by_free.range((needed, 0)..) {
            self.steps.0 += 1;
            let Some(domain) = shelf.levels[level].domains.get(id) else { continue };
            if self.units.promised_by(domain, cross) < self.units.count {
                continue;
            }
            let mut chosen = Chosen::new();
            if self.take(shelf, level, *id, self.units.count, cross, &mut chosen) == self.units.count {
                return Some((Fit { crosses: cross, island_left: 0, left: free - needed }, chosen));
            }
        }
        None
    }

    /// Takes up to `wanted` units of a domain, from as few domains below as will do; answers how many.
    fn take(&mut self, shelf: &Shelf, level: usize, id: u32, wanted: u64, cross: bool, into: &mut Chosen) -> u64 {
        let Some(domain) = shelf.levels[level].domains.get(&id) else { return 0 };
        if level == 0 {
            return self.take_nodes(domain, wanted, cross, into);
        }
        let below = &shelf.levels[level - 1].domains;
        let mut parts: Vec<(Reverse<u64>, u64, u32)> = Vec::with_capacity(domain.inside.len());
        for part in &domain.inside {
            self.steps.0 += 1;
            let Some(there) = below.get(part) else { continue };
            let promised = self.units.promised_by(there, cross);
            if promised > 0 {
                parts.push((Reverse(promised), there.free, *part));
            }
        }
        parts.sort_unstable();
        let (mut left, mut tries) = (wanted, REMAINDER_TRIES_MAX);
        for next in 0..parts.len() {
            if left == 0 {
                break;
            }
            // The remainder goes into one part if any holds it: the one with least promised, then least free, first.
            let holding = parts[next..].partition_point(|(Reverse(promised), ..)| *promised >= left);
            let mut tightest: Vec<_> = parts[next..next + holding].to_vec();
            tightest.sort_unstable_by_key(|(Reverse(promised), free, part)| (*promised, *free, *part));
            for (.., part) in tightest.into_iter().take(tries) {
                tries -= 1;
                let before = into.len();
                if self.take(shelf, level - 1, part, left, cross, into) == left {
                    return wanted;
                }
                into.truncate(before);
            }
            left -= self.take(shelf, level - 1, parts[next].2, left, cross, into);
        }
        wanted - left
    }

    /// Takes up to `wanted` units of the nodes of a leaf: those with most room first, the remainder where it leaves least.
    fn take_nodes(&mut self, leaf: &Domain, wanted: u64, cross: bool, into: &mut Chosen) -> u64 {
        let mut rooms: Vec<(Reverse<u64>, u32, Room)> = Vec::with_capacity(leaf.rooms.len());
        for (room, _) in &leaf.rooms {
            let promised = self.units.promised(room, cross);
            if promised > 0 {
                rooms.push((Reverse(promised), room.free, *room));
            }
        }
        rooms.sort_unstable();
        let (mut left, mut tries) = (wanted, REMAINDER_TRIES_MAX);
        let first = into.len();
        for next in 0..rooms.len() {
            let (Reverse(promised), _, room) = rooms[next];
            for id in of_room(leaf, room) {
                if left == 0 {
                    return wanted;
                }
                if promised >= left && tries > 0 {
                    if let Some(last) = self.remainder(leaf, &rooms[next..], left, cross, &into[first..]) {
                        into.push((last, left));
                        return wanted;
                    }
                    tries -= 1;
                }
                self.steps.0 += 1;
                let held = node(self.view, id).map_or(0, |there| self.units.held(self.ask, there, promised)).min(left);
                if held > 0 {
                    into.push((id, held));
                    left -= held;
                }
            }
        }
        wanted - left
    }

    /// The node that holds `left` units and has least left then, of those not taken yet.
    fn remainder(
        &mut self,
        leaf: &Domain,
        rooms: &[(Reverse<u64>, u32, Room)],
        left: u64,
        cross: bool,
        taken: &[(NodeId, u64)],
    ) -> Option<NodeId> {
        let mut holding: Vec<Room> =
            rooms.iter().take_while(|(Reverse(promised), ..)| *promised >= left).map(|(.., room)| *room).collect();
        holding.sort_unstable_by_key(|room| (self.units.promised(room, cross), *room));
        for room in holding {
            for id in of_room(leaf, room).filter(|id| taken.iter().all(|(other, _)| other != id)) {
                self.steps.0 += 1;
                let promised = self.units.promised(&room, cross);
                if node(self.view, id).is_some_and(|there| self.units.held(self.ask, there, promised) >= left) {
                    return Some(id);
                }
            }
        }
        None
    }
}

/// The nodes of a leaf that are in one state, by id.
fn of_room(leaf: &Domain, room: Room) -> impl Iterator<Item = NodeId> + '_ {
    leaf.nodes.range((room, NodeId(0))..=(room, NodeId(u32::MAX))).map(|(_, id)| *id)
}

/// Cards for each rank. Ranks follow the network: neighbours in rank are neighbours in leaf.
fn fill(view: &View, ask: &Ask<'_>, units: Units, mut chosen: Chosen) -> Vec<TaskPlacement> {
    if chosen.len() > 1 {
        let place_of = |id: NodeId| node(view, id).map(|there| &there.node.spec.place);
        let mut placed: Vec<(Option<&Place>, NodeId, u64)> =
            chosen.into_iter().map(|(id, count)| (place_of(id), id, count)).collect();
        placed.sort_unstable();
        chosen = placed.into_iter().map(|(_, id, count)| (id, count)).collect();
    }
    let mut tasks = Vec::with_capacity(ask.shape.tasks as usize);
    for (id, count) in chosen {
        let devices = match (ask.model, node(view, id)) {
            (Some(model), Some(there)) => take_whole(there, model, count, units.tasks, ask),
            _ => vec![Vec::new(); (count * units.tasks) as usize],
        };
        tasks.extend(devices.into_iter().map(|devices| TaskPlacement { node: id, devices }));
    }
    tasks
}

/// Whether the open nodes of the cell would hold the gang if nothing ran on them. Domains that are alike when empty are asked once.
pub(super) fn fits_when_empty(view: &View, ask: &Ask<'_>) -> bool {
    let Some(units) = Units::of(ask) else { return false };
    if ask.shape.selector.is_some() {
        return selected_fit_when_empty(view, ask, units);
    }
    let sum = |kinds: &[(Kind, u32)]| {
        kinds.iter().fold(0_u64, |sum, (kind, nodes)| {
            sum.saturating_add(units.when_empty(ask, kind).saturating_mul(u64::from(*nodes)))
        })
    };
    let on_one = |kind: &Kind, one_island: bool| {
        let islands = !one_island || !units.with_cards || kind.room.tightest(units.all()).is_some();
        islands && units.when_empty(ask, kind) >= units.count
    };
    let holds = |shelf: &Shelf| {
        let all = shelf.levels[TOP].domains.get(&ALL);
        match ask.widest() {
            Some(level @ (TopologyLevel::Island | TopologyLevel::Node)) => {
                all.is_some_and(|all| all.kinds.iter().any(|(kind, _)| on_one(kind, level == TopologyLevel::Island)))
            }
            Some(TopologyLevel::Leaf) => shelf.levels[0].alike.keys().any(|kinds| sum(kinds) >= units.count),
            Some(TopologyLevel::Block) => shelf.levels[1].alike.keys().any(|kinds| sum(kinds) >= units.count),
            Some(TopologyLevel::Region) => shelf.levels[2].alike.keys().any(|kinds| sum(kinds) >= units.count),
            None => all.is_some_and(|all| sum(&all.kinds) >= units.count),
        }
    };
    view.index
        .shelves(ask.cell, ask.model)
        .filter(|(pool, _)| ask.pool_allows(view, pool))
        .any(|(_, shelf)| holds(shelf))
}

/// The same for a gang with a selector: what it accepts is said by each node, so each node is asked.
fn selected_fit_when_empty(view: &View, ask: &Ask<'_>, units: Units) -> bool {
    let mut held: BTreeMap<(&str, String), u64> = BTreeMap::new();
    let nodes = view.capacity.nodes().values().map(|there| (&there.node, there.pinned));
    let open = nodes.filter(|(node, _)| node.cell == ask.cell && node.accepts_work() && ask.admits(node));
    for (node, pinned) in open.filter(|(node, _)| ask.pool_allows(view, &node.spec.pool)) {
        let kind = Kind::of(node, pinned, ask.model);
        let domain = match ask.widest() {
            None => String::new(),
            Some(TopologyLevel::Island) if kind.room.tightest(units.all()).is_none() => continue,
            Some(TopologyLevel::Island | TopologyLevel::Node) => node.id.to_string(),
            Some(level) => node.spec.place.domain(level),
        };
        let sum = held.entry((node.spec.pool.as_str(), domain)).or_default();
        *sum = sum.saturating_add(units.when_empty(ask, &kind));
    }
    held.values().any(|held| *held >= units.count)
}

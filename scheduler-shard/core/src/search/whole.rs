//! Gangs of whole cards, and of CPU alone.
//!
//! Levels are tried from the tightest to the widest that the gang allows. On one node the smallest island that holds the gang is taken, then
//! the node with fewest free units; over several nodes, the domain that would have fewest free units left (of NVLink domains that span
//! nodes too), inside it as few domains of each level below as will do, and the remainder where it leaves least. So large islands,
//! nodes and leaves stay whole. Work that suffers from neighbours first tries the nodes where no other tenant is. What must stay true:
//! - the bound of a state is never below what its nodes hold, and each node is checked before it is used;
//! - nothing is changed before the whole gang stands: a try that comes to nothing is dropped;
//! - the answer is of the tightest level there is, and on it of the tightest domain whose hosts suffice (a property test).

use super::cards::Within;
use super::fill::{Chosen, fill};
use super::units::{Sight, Units};
use super::{Ask, Steps, node};
use crate::fleet::Fleet;
use crate::fleet::index::GROUP_LEVELS;
use crate::fleet::index::bucket::{Bucket, Domain, LEVELS};
use crate::fleet::index::state::{FreeState, HostState};
use muster_model::capacity::SoleHolder;
use muster_model::{NodeId, TaskPlacement, TopologyLevel};
use std::cmp::Reverse;
use std::ops::Bound;

/// Places tried for the remainder of a gang whose bound is high enough and whose hosts then turn out too full; after that it goes where the most is.
const REMAINDER_TRIES_MAX: usize = 4;
/// Nodes without other tenants that are tried of one state; nearly always the first has the CPU and memory too.
const QUIET_TRIES_MAX: usize = 64;

/// Where the search stands: how wide the gang is spread. The last level of a bucket is the cell, which no name requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// One island of one node.
    NodeIsland,
    /// One NVLink domain of several nodes.
    Island,
    Node,
    Domain(usize),
}

/// What a gang tries, tightest first. NVLink is faster than what joins the islands of one host, so an island of several nodes goes before
/// a node, unless the gang asks for one node.
fn reaches(ask: &Ask<'_>) -> impl Iterator<Item = Reach> {
    let topology = &ask.class.topology;
    let near = match (topology.required, topology.preferred) {
        (Some(TopologyLevel::Island), _) => &[Reach::NodeIsland, Reach::Island][..],
        (Some(TopologyLevel::Node), _) => &[Reach::NodeIsland, Reach::Node],
        (_, Some(TopologyLevel::Node)) => &[Reach::NodeIsland, Reach::Node, Reach::Island],
        _ => &[Reach::NodeIsland, Reach::Island, Reach::Node],
    };
    let wide = match topology.required {
        Some(TopologyLevel::Island | TopologyLevel::Node) => 0,
        Some(level) => GROUP_LEVELS.iter().take_while(|at| **at <= level).count(),
        None => LEVELS,
    };
    near.iter().copied().chain((0..wide).map(Reach::Domain))
}

/// How well a place suits: the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    /// The gang suffers from neighbours, and there are some.
    disturbed: bool,
    /// Some task has to cross islands.
    crosses: bool,
    /// Free cards left of the island, where one island holds it all.
    island_left: u64,
    /// Free units left of the node or domain.
    left: u64,
}

/// A part of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// A domain of this level.
    Domain(usize, u32),
    /// An NVLink domain of several nodes.
    Island(u32),
    /// The nodes of this leaf that lie in none.
    Loose(u32),
}

struct Search<'a> {
    fleet: &'a Fleet,
    ask: &'a Ask<'a>,
    units: Units,
    steps: &'a mut Steps,
}

pub(super) fn place(fleet: &Fleet, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    let units = Units::of(ask)?;
    let mut search = Search { fleet, ask, units, steps };
    let buckets: Vec<&Bucket> =
        ask.buckets(fleet).map(|(_, bucket)| bucket).filter(|bucket| bucket.free() >= units.all()).collect();
    if buckets.is_empty() {
        return None;
    }
    for reach in reaches(ask) {
        let mut best: Option<(Fit, Chosen)> = None;
        for bucket in &buckets {
            let found = search.on_shelf(bucket, reach);
            if let Some(found) = found.filter(|(fit, _)| best.as_ref().is_none_or(|(other, _)| fit < other)) {
                best = Some(found);
            }
        }
        if let Some((_, chosen)) = best {
            return Some(fill(fleet, ask, units, chosen));
        }
    }
    None
}

impl Search<'_> {
    fn on_shelf(&mut self, bucket: &Bucket, reach: Reach) -> Option<(Fit, Chosen)> {
        let inside = match reach {
            Reach::NodeIsland | Reach::Node => Some(TopologyLevel::Node),
            Reach::Island => Some(TopologyLevel::Island),
            Reach::Domain(level) => GROUP_LEVELS.get(level).copied(),
        };
        if inside.is_some_and(|level| !self.units.may_share(level)) {
            return None;
        }
        match reach {
            Reach::NodeIsland => self.undisturbed(bucket).or_else(|| {
                let loose = self.on_one_node(bucket, false, true);
                let spanning = self.on_node_of_island(bucket);
                loose.into_iter().chain(spanning).min_by_key(|(fit, _)| *fit)
            }),
            Reach::Island => self.on_one_island(bucket),
            Reach::Node => {
                let inside = self.on_one_node(bucket, false, false);
                inside
                    .or_else(|| if self.crossing_helps(bucket) { self.on_one_node(bucket, true, false) } else { None })
            }
            Reach::Domain(level) => {
                let inside = self.in_domains(bucket, level, false);
                inside.or_else(|| if self.crossing_helps(bucket) { self.in_domains(bucket, level, true) } else { None })
            }
        }
    }

    /// How a place suits that leaves so much.
    fn fitting(&self) -> impl Fn(bool, u64, u64) -> Fit + use<> {
        let disturbed = self.ask.class.latency_critical;
        move |crosses, island_left, left| Fit { disturbed, crosses, island_left, left }
    }

    fn fit(&self, crosses: bool, island_left: u64, left: u64) -> Fit {
        self.fitting()(crosses, island_left, left)
    }

    /// The gang on one node.
    fn all_on(&self, id: NodeId) -> Chosen {
        vec![(id, self.units.count * self.units.tasks)]
    }

    fn holds_all(&mut self, id: NodeId, within: Within) -> bool {
        self.steps.0 += 1;
        let (units, fleet) = (self.units, self.fleet);
        node(fleet, id).is_some_and(|there| units.held(fleet, self.ask, there, units.count, within) == units.count)
    }

    /// For a gang that suffers from neighbours, one island of a node on which no other tenant is.
    fn undisturbed(&mut self, bucket: &Bucket) -> Option<(Fit, Chosen)> {
        if !self.ask.class.latency_critical || !self.units.with_cards {
            return None;
        }
        let needed = self.units.all();
        let least = FreeState { free: u32::try_from(needed).ok()?, ..FreeState::default() };
        let mut best: Option<(Fit, NodeId)> = None;
        for who in [SoleHolder::One(self.ask.tenant), SoleHolder::Nobody] {
            let Some(nodes) = bucket.sole.get(&who) else { continue };
            let mut from = Bound::Included((least, NodeId(0)));
            while let Some((room, _)) = nodes.range((from, Bound::Unbounded)).next().copied() {
                let end = (room, NodeId(u32::MAX));
                from = Bound::Excluded(end);
                self.steps.0 += 1;
                let Some(island) = room.tightest(needed).map(u64::from) else { continue };
                let left = u64::from(room.free) - needed;
                for (_, id) in nodes.range((room, NodeId(0))..=end).take(QUIET_TRIES_MAX) {
                    // Nodes of one state differ in what is free of the islands that span them.
                    let island = self.fleet.index.island_free(bucket, *id).filter(|_| room.spans).unwrap_or(island);
                    let fit = Fit { disturbed: false, ..self.fit(false, island - needed, left) };
                    if best.is_none_or(|(other, _)| fit < other) && self.holds_all(*id, Within::OneIsland) {
                        best = Some((fit, *id));
                    }
                    if !room.spans && best.is_some_and(|(best, _)| best <= fit) {
                        break;
                    }
                }
            }
        }
        best.map(|(fit, id)| (fit, self.all_on(id)))
    }

    /// One node of the NVLink domain with fewest free cards.
    fn on_node_of_island(&mut self, bucket: &Bucket) -> Option<(Fit, Chosen)> {
        let (units, needed) = (self.units, self.units.all());
        if !units.with_cards {
            return None;
        }
        let mut best: Option<(Fit, NodeId)> = None;
        for (free, id) in bucket.islands.by_free.range((needed, 0)..) {
            self.steps.0 += 1;
            // Of domains with as many free, the one with the tightest node.
            if best.is_some_and(|(best, _)| best.island_left < free - needed) {
                break;
            }
            let Some(island) = bucket.islands.domains.get(id) else { continue };
            let free_states = island.free_states.iter().map(|(room, _)| *room);
            for room in free_states.filter(|room| units.bound(room, false) >= units.count) {
                let fit = self.fit(false, free - needed, u64::from(room.free) - needed);
                if best.is_some_and(|(best, _)| best <= fit) {
                    break;
                }
                if let Some(id) = of_room(island, room).find(|id| self.holds_all(*id, Within::Islands)) {
                    best = Some((fit, id));
                    break;
                }
            }
        }
        best.map(|(fit, id)| (fit, self.all_on(id)))
    }

    /// The NVLink domain of several nodes with fewest free cards that holds the whole gang.
    fn on_one_island(&mut self, bucket: &Bucket) -> Option<(Fit, Chosen)> {
        let needed = self.units.all();
        for (free, id) in bucket.islands.by_free.range((needed, 0)..) {
            self.steps.0 += 1;
            let Some(island) = bucket.islands.domains.get(id) else { continue };
            if self.units.on_island(island, Sight::Now { cross: false }) < self.units.count {
                continue;
            }
            let mut chosen = Chosen::new();
            if self.take_island(island, self.units.count, &mut chosen) == self.units.count {
                return Some((self.fit(false, free - needed, free - needed), chosen));
            }
        }
        None
    }

    fn crossing_helps(&self, bucket: &Bucket) -> bool {
        self.units.may_cross && self.units.with_cards && bucket.free_states().any(|room| !room.is_one_island())
    }

    /// The node that suits best of those that hold the whole gang, in one island if so asked.
    fn on_one_node(&mut self, bucket: &Bucket, cross: bool, one_island: bool) -> Option<(Fit, Chosen)> {
        let needed = self.units.all();
        let least = FreeState { free: u32::try_from(needed).ok()?, ..FreeState::default() };
        let whole_host =
            HostState::of(self.total(self.ask.class.request.cpu_milli), self.total(self.ask.class.request.memory_mib));
        let (units, as_fit) = (self.units, self.fitting());
        let fit = |room: &FreeState| {
            let left = u64::from(room.free) - needed;
            if one_island && units.with_cards {
                // Of an island that spans nodes more is free than on the node.
                let island = room.tightest(needed).filter(|_| !room.spans)?;
                return Some(as_fit(false, u64::from(island) - needed, left));
            }
            (units.bound(room, cross) >= units.count).then_some(as_fit(cross, 0, left))
        };
        let within = if one_island { Within::OneIsland } else { Within::crossing(cross) };
        // States in order of how well they suit; nearly always a node of the first has the CPU and memory too.
        let mut last: Option<(Fit, FreeState)> = None;
        loop {
            let mut best: Option<(Fit, FreeState)> = None;
            for room in bucket.states.range(least..).map(|(room, _)| room) {
                self.steps.0 += 1;
                let Some(found) = fit(room).map(|fit| (fit, *room)) else { continue };
                if last.as_ref().is_none_or(|last| found > *last) && best.as_ref().is_none_or(|best| found < *best) {
                    best = Some(found);
                }
            }
            let (fit, room) = best?;
            for (_, nodes) in bucket.states[&room].iter().filter(|(host, _)| host.may_hold(whole_host)) {
                for id in nodes {
                    if self.holds_all(*id, within) {
                        return Some((fit, self.all_on(*id)));
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
    fn in_domains(&mut self, bucket: &Bucket, level: usize, cross: bool) -> Option<(Fit, Chosen)> {
        let needed = self.units.all();
        for (free, id) in bucket.levels[level].by_free.range((needed, 0)..) {
            self.steps.0 += 1;
            let Some(domain) = bucket.levels[level].domains.get(id) else { continue };
            if self.bound_of(bucket, level, domain, cross) < self.units.count {
                continue;
            }
            let mut chosen = Chosen::new();
            if self.take(bucket, level, *id, self.units.count, cross, &mut chosen) == self.units.count {
                return Some((self.fit(cross, 0, free - needed), chosen));
            }
        }
        None
    }

    fn bound_of(&mut self, bucket: &Bucket, level: usize, domain: &Domain, cross: bool) -> u64 {
        if !self.units.adds_up(bucket, level) {
            self.steps.0 += domain.inside.len() as u64;
        }
        self.units.bound_of(bucket, level, domain, Sight::Now { cross })
    }

    /// Takes up to `wanted` units of a domain, from as few domains below as will do; answers how many.
    fn take(&mut self, bucket: &Bucket, level: usize, id: u32, wanted: u64, cross: bool, into: &mut Chosen) -> u64 {
        let Some(domain) = bucket.levels[level].domains.get(&id) else { return 0 };
        let wanted = wanted.min(self.units.cap_of(level));
        let mut parts: Vec<(Reverse<u64>, u64, Part)> = Vec::with_capacity(domain.inside.len() + 1);
        if level > 0 {
            for part in &domain.inside {
                self.steps.0 += 1;
                let Some(there) = bucket.levels[level - 1].domains.get(part) else { continue };
                let bound = self.bound_of(bucket, level - 1, there, cross);
                parts.push((Reverse(bound), there.free, Part::Domain(level - 1, *part)));
            }
        } else if domain.inside.is_empty() {
            return self.take_nodes(self.units, domain, wanted, cross, into);
        } else {
            let mut loose = domain.free;
            for part in &domain.inside {
                self.steps.0 += 1;
                let Some(there) = bucket.islands.domains.get(part) else { continue };
                let bound = self.units.on_island(there, Sight::Now { cross });
                parts.push((Reverse(bound), there.free, Part::Island(*part)));
                loose -= there.free;
            }
            let bound = self.units.on_loose_nodes(domain, Sight::Now { cross });
            parts.push((Reverse(bound), loose, Part::Loose(id)));
        }
        parts.retain(|(Reverse(bound), ..)| *bound > 0);
        parts.sort_unstable();
        self.take_parts(bucket, &parts, wanted, cross, into)
    }

    /// Takes up to `wanted` units of these parts, those with most first.
    fn take_parts(
        &mut self,
        bucket: &Bucket,
        parts: &[(Reverse<u64>, u64, Part)],
        wanted: u64,
        cross: bool,
        into: &mut Chosen,
    ) -> u64 {
        let (mut left, mut tries) = (wanted, REMAINDER_TRIES_MAX);
        for next in 0..parts.len() {
            if left == 0 {
                break;
            }
            // The remainder goes into one part if any holds it: the one with the lowest bound, then least free, first.
            let holding = parts[next..].partition_point(|(Reverse(bound), ..)| *bound >= left);
            let mut tightest: Vec<_> = parts[next..next + holding].to_vec();
            tightest.sort_unstable_by_key(|(Reverse(bound), free, part)| (*bound, *free, *part));
            for (.., part) in tightest.into_iter().take(tries) {
                tries -= 1;
                let before = into.len();
                if self.take_part(bucket, part, left, cross, into) == left {
                    return wanted;
                }
                into.truncate(before);
            }
            left -= self.take_part(bucket, parts[next].2, left, cross, into);
        }
        wanted - left
    }

    fn take_part(&mut self, bucket: &Bucket, part: Part, wanted: u64, cross: bool, into: &mut Chosen) -> u64 {
        match part {
            Part::Domain(level, id) => self.take(bucket, level, id, wanted, cross, into),
            Part::Island(id) => match bucket.islands.domains.get(&id) {
                Some(island) => self.take_island(island, wanted, into),
                None => 0,
            },
            Part::Loose(id) => match bucket.levels[0].domains.get(&id) {
                Some(leaf) => self.take_nodes(self.units, leaf, wanted, cross, into),
                None => 0,
            },
        }
    }

    /// Takes up to `wanted` units of an NVLink domain: a segment may stand on several of its nodes, a task on one.
    fn take_island(&mut self, island: &Domain, wanted: u64, into: &mut Chosen) -> u64 {
        let (tasks, first) = (self.units.tasks, into.len());
        let taken = self.take_nodes(self.units.one_by_one(), island, wanted * tasks, false, into);
        let mut over = taken % tasks;
        while over > 0 && into.len() > first {
            let at = into.len() - 1;
            let less = over.min(into[at].1);
            into[at].1 -= less;
            over -= less;
            if into[at].1 == 0 {
                into.pop();
            }
        }
        taken / tasks
    }

    /// Takes up to `wanted` units of the nodes of a leaf or NVLink domain: those with most room first, the remainder where it leaves least.
    fn take_nodes(&mut self, units: Units, leaf: &Domain, wanted: u64, cross: bool, into: &mut Chosen) -> u64 {
        let spanning = leaf.nodes.first().is_some_and(|(room, _)| room.spans);
        let within = Within::crossing(cross);
        let mut free_states: Vec<(Reverse<u64>, u32, FreeState)> = Vec::with_capacity(leaf.free_states.len());
        for (room, _) in leaf.free_states.iter().filter(|(room, _)| room.spans == spanning) {
            let bound = units.bound(room, cross);
            if bound > 0 {
                free_states.push((Reverse(bound), room.free, *room));
            }
        }
        free_states.sort_unstable();
        let (mut left, mut tries) = (wanted, REMAINDER_TRIES_MAX);
        let first = into.len();
        for next in 0..free_states.len() {
            let (Reverse(bound), _, room) = free_states[next];
            for id in of_room(leaf, room) {
                if left == 0 {
                    return wanted;
                }
                if bound >= left && tries > 0 {
                    if let Some(last) = self.remainder(units, leaf, &free_states[next..], left, cross, &into[first..]) {
                        into.push((last, left * units.tasks));
                        return wanted;
                    }
                    tries -= 1;
                }
                self.steps.0 += 1;
                let there = node(self.fleet, id);
                let held = there.map_or(0, |there| units.held(self.fleet, self.ask, there, bound, within)).min(left);
                if held > 0 {
                    into.push((id, held * units.tasks));
                    left -= held;
                }
            }
        }
        wanted - left
    }

    /// The node that holds `left` units and has least left then, of those not taken yet.
    fn remainder(
        &mut self,
        units: Units,
        leaf: &Domain,
        free_states: &[(Reverse<u64>, u32, FreeState)],
        left: u64,
        cross: bool,
        taken: &[(NodeId, u64)],
    ) -> Option<NodeId> {
        let mut holding: Vec<FreeState> =
            free_states.iter().take_while(|(Reverse(bound), ..)| *bound >= left).map(|(.., room)| *room).collect();
        holding.sort_unstable_by_key(|room| (units.bound(room, cross), *room));
        for room in holding {
            for id in of_room(leaf, room).filter(|id| taken.iter().all(|(other, _)| other != id)) {
                self.steps.0 += 1;
                let bound = units.bound(&room, cross);
                let held = |there| units.held(self.fleet, self.ask, there, bound, Within::crossing(cross));
                if node(self.fleet, id).is_some_and(|there| held(there) >= left) {
                    return Some(id);
                }
            }
        }
        None
    }
}

/// The nodes of a leaf or NVLink domain that are in one state, by id.
fn of_room(leaf: &Domain, room: FreeState) -> impl Iterator<Item = NodeId> + '_ {
    leaf.nodes.range((room, NodeId(0))..=(room, NodeId(u32::MAX))).map(|(_, id)| *id)
}

//! A gang as what has to be counted of it: units, and how many of them one domain may have.
//!
//! A *unit* is what must stand together: a task, or a segment where consecutive ranks must share an island. Whoever asks how much of a gang some
//! nodes hold counts units with a [`Tally`]: the control plane when it routes, a shard when it searches and reserves. What must stay true: a
//! segment counts only whole; where tasks are spread, no domain of that level counts for more than it may have. Whether a placement
//! keeps all of this is proved elsewhere ([`crate::closeness`]), from the placement alone.

use crate::request::TaskRequest;
use crate::topology::{Topology, TopologyLevel};
use std::collections::BTreeMap;

/// The most units that one domain of a level may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// The level.
    pub level: TopologyLevel,
    /// Units at most.
    pub units: u64,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gang {
    /// How many units it has.
    pub count: u64,
    /// What each unit takes: cards, or milli-CPUs where it has no cards.
    pub each: u64,
    /// Tasks in each unit.
    pub tasks: u64,
    /// A task may cross islands where none holds it; a segment only where none could.
    pub may_cross: bool,
    /// Whether it takes cards.
    pub with_cards: bool,
    /// What its spread allows.
    pub cap: Option<Cap>,
}

impl Gang {
    /// The gang of `tasks` tasks, on cards or on CPU alone. None when it does not divide into segments, which no valid request does.
    #[must_use]
    pub fn of(tasks: u32, topology: &Topology, request: &TaskRequest, with_cards: bool) -> Option<Self> {
        let segment = topology.segment_tasks.filter(|each| *each > 1);
        let each = segment.unwrap_or(1);
        if !tasks.is_multiple_of(each) {
            return None;
        }
        let one = if with_cards { u64::from(request.devices.cards()) } else { request.cpu_milli };
        let spread = topology.required_spread().filter(|_| segment.is_none());
        Some(Gang {
            count: u64::from(tasks / each),
            each: one.max(1) * u64::from(each),
            tasks: u64::from(each),
            may_cross: segment.is_none(),
            with_cards,
            cap: spread.map(|spread| Cap { level: spread.level, units: u64::from(spread.tasks_max) }),
        })
    }

    /// What all units together take.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.count * self.each
    }

    /// The same gang task by task.
    #[must_use]
    pub fn one_by_one(self) -> Self {
        Gang { count: self.count * self.tasks, each: self.each / self.tasks, tasks: 1, may_cross: true, ..self }
    }

    /// The same gang wherever its tasks stand.
    #[must_use]
    pub fn without_cap(self) -> Self {
        Gang { cap: None, ..self }
    }

    /// So many of `tasks` as make whole units.
    #[must_use]
    pub fn whole(&self, tasks: u64) -> u64 {
        tasks - tasks % self.tasks
    }

    /// The most units that one domain of `level` may have; a node counts as a domain.
    #[must_use]
    pub fn cap_at(&self, level: TopologyLevel) -> u64 {
        self.cap.filter(|cap| cap.level == level).map_or(u64::MAX, |cap| cap.units)
    }

    /// Whether all units may stand inside one domain of `level`, as far as their spread goes.
    #[must_use]
    pub fn may_share(&self, level: TopologyLevel) -> bool {
        // An NVLink domain of several nodes lies between the node and the leaf.
        let inside = |cap: &Cap| match level {
            TopologyLevel::Island => cap.level > TopologyLevel::Node,
            _ => cap.level >= level,
        };
        self.cap.filter(inside).is_none_or(|cap| self.count <= cap.units)
    }
}

/// What a node, or several, hold of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held<I> {
    /// Units, each on one node.
    Units(u64),
    /// Tasks on nodes of one NVLink domain, where a unit may stand on several of them.
    Tasks(I, u64),
}

/// Units that some nodes hold together. `S` names a domain that tasks are spread over, `I` an NVLink domain inside it.
#[derive(Clone, Debug)]
pub struct Tally<S, I> {
    total: u64,
    spread: BTreeMap<S, u64>,
    islands: BTreeMap<(S, I), u64>,
}

impl<S, I> Default for Tally<S, I> {
    fn default() -> Self {
        Tally { total: 0, spread: BTreeMap::new(), islands: BTreeMap::new() }
    }
}

impl<S: Ord + Clone, I: Ord> Tally<S, I> {
    /// Adds what is held in the domain `spread`; answers the units of all that was added.
    pub fn add(&mut self, gang: &Gang, spread: S, held: Held<I>) -> u64 {
        let mut more = match held {
            Held::Units(units) => units,
            Held::Tasks(island, more) => {
                let tasks = self.islands.entry((spread.clone(), island)).or_default();
                let before = *tasks / gang.tasks;
                *tasks = tasks.saturating_add(more);
                *tasks / gang.tasks - before
            }
        };
        if let Some(cap) = gang.cap {
            let sum = self.spread.entry(spread).or_default();
            let before = (*sum).min(cap.units);
            *sum = sum.saturating_add(more);
            more = (*sum).min(cap.units) - before;
        }
        self.total = self.total.saturating_add(more);
        self.total
    }

    /// Units of all that was added.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::DeviceRequest;
    use crate::topology::Spread;

    fn gang(tasks: u32, topology: Topology) -> Option<Gang> {
        let devices = DeviceRequest::Whole { count: 2, models: Vec::new() };
        Gang::of(tasks, &topology, &TaskRequest { devices, cpu_milli: 100, memory_mib: 1 }, true)
    }

    #[test]
    fn segments_count_whole_and_may_span_nodes_of_an_island() {
        let topology = Topology { segment_tasks: Some(4), ..Topology::default() };
        let gang_of_8 = gang(8, topology).expect("two segments");
        assert_eq!((gang_of_8.count, gang_of_8.each, gang_of_8.all(), gang_of_8.whole(11)), (2, 8, 16, 8));
        assert_eq!(gang(6, topology), None, "no whole segments");
        let mut tally: Tally<(), &str> = Tally::default();
        let held = [Held::Tasks("a", 3), Held::Tasks("b", 3), Held::Units(1), Held::Tasks("a", 1)];
        let sums = held.map(|held| tally.add(&gang_of_8, (), held));
        assert_eq!(sums, [0, 0, 1, 2], "the tasks of islands a and b make no segment together");
    }

    #[test]
    fn a_domain_counts_for_what_the_spread_allows() {
        let spread = Some(Spread { level: TopologyLevel::Leaf, tasks_max: 2, required: true });
        let spread_gang = gang(5, Topology { spread, ..Topology::default() }).expect("tasks");
        let mut tally: Tally<&str, ()> = Tally::default();
        let sums = [("l1", 3), ("l2", 1), ("l1", 1), ("l2", 4)]
            .map(|(leaf, units)| tally.add(&spread_gang, leaf, Held::Units(units)));
        assert_eq!(sums, [2, 3, 3, 4]);
        assert!(!spread_gang.may_share(TopologyLevel::Leaf) && spread_gang.may_share(TopologyLevel::Block));
    }
}

//! What a gang is made of, and how much of it nodes and domains hold.
//!
//! A gang is so many units ([`Gang`]). Tasks never leave a node; a segment may stand on several nodes of one NVLink domain, so a domain counts
//! whole segments of the tasks that its nodes hold together. What must stay true: a bound is never below what is
//! there; where it is a plain sum over nodes it is taken so, since that is nearly always.

use super::Ask;
use super::cards::{Within, most};
use crate::fleet::Fleet;
use crate::fleet::index::GROUP_LEVELS;
use crate::fleet::index::bucket::{Bucket, Counts, Domain};
use crate::fleet::index::state::{EmptyState, FreeState};
use muster_model::capacity::NodeUse;
use muster_model::gang::Gang;
use muster_model::{GpuModel, NumaPolicy, TopologyLevel};
use std::ops::Deref;

/// A gang, and what the fleet holds of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units(Gang);

impl Deref for Units {
    type Target = Gang;

    fn deref(&self) -> &Gang {
        &self.0
    }
}

/// What is looked at: what is free now, or what there would be if nothing ran.
#[derive(Clone, Copy)]
pub(crate) enum Sight<'a> {
    Now { cross: bool },
    Empty(&'a Ask<'a>),
}

impl Units {
    /// None when the gang does not divide into segments, which no admitted request does.
    pub(crate) fn of(ask: &Ask<'_>) -> Option<Self> {
        let class = ask.class;
        Gang::of(class.tasks, &class.topology, &class.request, ask.model.is_some()).map(Units)
    }

    /// The same gang task by task.
    pub(crate) fn one_by_one(self) -> Self {
        Units(self.0.one_by_one())
    }

    /// The same gang wherever its tasks stand.
    pub(crate) fn without_cap(self) -> Self {
        Units(self.0.without_cap())
    }

    /// The most that one domain of a bucket's `level` may have.
    pub(crate) fn cap_of(&self, level: usize) -> u64 {
        GROUP_LEVELS.get(level).map_or(u64::MAX, |level| self.cap_at(*level))
    }

    /// An upper bound: how many of them a node of this state holds at most. A segment may cross where no island of the node could ever hold it.
    pub(crate) fn bound(&self, room: &FreeState, cross: bool) -> u64 {
        let too_large = !self.may_cross && u64::from(room.largest) < self.each;
        let held =
            if cross || !self.with_cards || too_large { room.anywhere(self.each) } else { room.in_islands(self.each) };
        held.min(self.cap_at(TopologyLevel::Node))
    }

    /// How many an empty node holds.
    pub(crate) fn when_empty(&self, ask: &Ask<'_>, kind: &EmptyState) -> u64 {
        let request = &ask.class.request;
        if ask.class.driver_min > kind.driver {
            return 0;
        }
        let one_numa = self.with_cards && ask.class.numa == NumaPolicy::SingleNumaNode;
        let by_numa = if one_numa { kind.on_numa_nodes(request.devices.cards().into()) } else { u64::MAX };
        let by_host = |all: u64, one: u64| all.checked_div(one).unwrap_or(u64::MAX);
        let tasks = by_host(kind.cpu_milli, request.cpu_milli).min(by_host(kind.memory_mib, request.memory_mib));
        self.bound(&kind.room, self.may_cross).min(tasks.min(by_numa) / self.tasks)
    }

    /// How many a node whose state holds at most `bound` really holds `within` what they have to stay in, of those that are wanted.
    pub(crate) fn held(&self, fleet: &Fleet, ask: &Ask<'_>, there: &NodeUse, bound: u64, within: Within) -> u64 {
        let held = bound.min(ask.host_slots(fleet, there) / self.tasks).min(self.count);
        match ask.model {
            // States do not tell NUMA nodes apart: where they matter, the cards are dealt out to see.
            Some(model) if ask.class.numa > NumaPolicy::BestEffort => {
                let within = if self.is_larger_than_islands(there, model) { Within::Node } else { within };
                most(there, model, (held, self.tasks), ask, within)
            }
            _ => held,
        }
    }

    /// Whether it is a segment that no island of the node could ever hold.
    fn is_larger_than_islands(&self, there: &NodeUse, model: GpuModel) -> bool {
        let cards =
            (0_u16..).zip(&there.node.spec.gpus).filter(|(at, gpu)| gpu.model == model && !there.is_pinned(*at));
        !self.may_cross
            && u64::from(FreeState::of_cards(cards.map(|(_, gpu)| gpu.island), 0, false).islands[0]) < self.each
    }

    /// How many the nodes of a domain hold, each for itself; of a leaf only those outside of NVLink domains, if so asked.
    fn on_nodes(&self, domain: &Domain, sight: Sight<'_>, loose: bool) -> u64 {
        match sight {
            Sight::Now { cross } => {
                let free_states = domain.free_states.iter().filter(|(room, _)| !(loose && room.spans));
                sum(free_states.map(|(room, nodes)| (self.bound(room, cross), *nodes)))
            }
            Sight::Empty(ask) => self.on_empty_nodes(&domain.kinds, ask, loose),
        }
    }

    fn on_empty_nodes(&self, kinds: &Counts<EmptyState>, ask: &Ask<'_>, loose: bool) -> u64 {
        let kinds = kinds.iter().filter(|(kind, _)| !(loose && kind.room.spans));
        sum(kinds.map(|(kind, nodes)| (self.when_empty(ask, kind), *nodes)))
    }

    /// How many the nodes of a domain hold at most, each for itself, wherever its cards lie.
    pub(crate) fn on_domain(&self, domain: &Domain) -> u64 {
        self.on_nodes(domain, Sight::Now { cross: true }, false)
    }

    /// How many the nodes of a leaf that lie in no NVLink domain hold.
    pub(crate) fn on_loose_nodes(&self, leaf: &Domain, sight: Sight<'_>) -> u64 {
        self.on_nodes(leaf, sight, true)
    }

    /// How many the nodes of an NVLink domain hold together.
    pub(crate) fn on_island(&self, island: &Domain, sight: Sight<'_>) -> u64 {
        self.one_by_one().on_nodes(island, sight, false) / self.tasks
    }

    /// The same of a domain of such kinds when it is empty.
    pub(crate) fn on_empty_island(&self, kinds: &Counts<EmptyState>, ask: &Ask<'_>) -> u64 {
        self.one_by_one().on_empty_nodes(kinds, ask, false) / self.tasks
    }

    /// The same of a leaf, block, region or bucket whose nodes add up.
    pub(crate) fn on_empty_domain(&self, level: usize, kinds: &Counts<EmptyState>, ask: &Ask<'_>) -> u64 {
        self.on_empty_nodes(kinds, ask, false).min(self.cap_of(level))
    }

    /// Whether what a domain of `level` holds is what its nodes hold.
    pub(crate) fn adds_up(&self, bucket: &Bucket, level: usize) -> bool {
        let segments_span = self.tasks > 1 && !bucket.islands.domains.is_empty();
        let capped_below = (0..level).any(|below| self.cap_of(below) < u64::MAX);
        !segments_span && !capped_below
    }

    /// How many a domain of `level` holds at most.
    pub(crate) fn bound_of(&self, bucket: &Bucket, level: usize, domain: &Domain, sight: Sight<'_>) -> u64 {
        let held = if self.adds_up(bucket, level) {
            self.on_nodes(domain, sight, false)
        } else if level > 0 {
            let below = domain.inside.iter().filter_map(|id| bucket.levels[level - 1].domains.get(id));
            sum(below.map(|below| (self.bound_of(bucket, level - 1, below, sight), 1)))
        } else {
            let islands = domain.inside.iter().filter_map(|id| bucket.islands.domains.get(id));
            let on_islands = sum(islands.map(|island| (self.on_island(island, sight), 1)));
            on_islands.saturating_add(self.on_loose_nodes(domain, sight))
        };
        held.min(self.cap_of(level))
    }
}

/// So many of each, together.
fn sum(counted: impl Iterator<Item = (u64, u32)>) -> u64 {
    counted.fold(0, |sum, (each, of)| sum.saturating_add(each.saturating_mul(u64::from(of))))
}

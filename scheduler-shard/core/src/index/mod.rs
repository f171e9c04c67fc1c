//! Which nodes have room, found without looking at all of them.
//!
//! Nodes that accept work stand on *shelves*, one per cell, GPU model and pool. A shelf groups nodes and shared cards by their state
//! ([`state`]), in all and per domain of the network ([`shelf`]): a decision looks at groups and then at the few nodes it takes.
//! What must stay true: the index is a function of the books alone, so refreshing the touched nodes gives what building
//! it anew would (a property test); a refresh costs what has changed on the node, not what the node is.

pub(crate) mod shelf;
pub(crate) mod state;

use muster_model::capacity::{CardUse, NodeUse};
use muster_model::{CellId, GpuModel, Node, NodeId, Place, TopologyLevel};
use shelf::{ALL, LEVELS, Shelf};
use state::{Host, Kind, Room};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use state::CardState;

/// Cards of one node that the index sees; an admitted node has at most 72.
const CARDS_MAX: usize = u128::BITS as usize;

/// Makes kept at once; beyond, those that no node is of any more are forgotten.
const MAKES_MAX: usize = 1_024;

/// The groups of the network that are wider than a node.
pub(crate) const GROUP_LEVELS: [TopologyLevel; 3] = [TopologyLevel::Leaf, TopologyLevel::Block, TopologyLevel::Region];

/// The group of `level` that `place` lies in: its place with everything below that level left empty.
pub(crate) fn group_of(place: &Place, level: TopologyLevel) -> Place {
    let mut group = place.clone();
    if level >= TopologyLevel::Block {
        group.leaf.clear();
    }
    if level >= TopologyLevel::Region {
        group.block.clear();
        group.zone.clear();
    }
    group
}

/// A card as far as its state goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CardFacts {
    model: GpuModel,
    island: u8,
    usable: bool,
    /// It serves a pinned layout and is never free as a whole.
    pinned: bool,
}

/// What nodes of one make have in common; a fleet has a few makes, so they are always at hand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Make {
    cell: CellId,
    pool: Arc<str>,
    cards: Vec<CardFacts>,
    /// The shelves it stands on.
    shelves: Vec<(Option<GpuModel>, Kind)>,
}

/// What one node has put on the shelves, so that it can be taken off again.
#[derive(Clone, Debug)]
struct Entry {
    /// The description that this was read from; read anew only when it is another.
    node: Arc<Node>,
    make: Arc<Make>,
    /// As it was taken over.
    pinned: u128,
    domains: [u32; LEVELS],
    host: Host,
    /// Bit by bit the usable cards that nobody holds.
    free: u128,
    /// As long as the shelves it stands on.
    rooms: Vec<Room>,
    /// As long as its cards.
    shared: Vec<Option<CardState>>,
}

type Shelves = BTreeMap<(CellId, Option<GpuModel>), BTreeMap<Arc<str>, Shelf>>;

/// All shelves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    shelves: Shelves,
    entries: BTreeMap<NodeId, Entry>,
    /// Every domain that has been seen, by its place; 0 is none of them.
    domains: BTreeMap<Place, u32>,
    makes: BTreeSet<Arc<Make>>,
}

impl Index {
    /// The shelves of `cell` for `model` by pool.
    pub(crate) fn shelves(
        &self,
        cell: CellId,
        model: Option<GpuModel>,
    ) -> impl Iterator<Item = (&Arc<str>, &Shelf)> + '_ {
        self.shelves.get(&(cell, model)).into_iter().flatten()
    }

    /// The models of which `cell` has cards on a node that accepts work.
    pub(crate) fn models(&self, cell: CellId) -> impl Iterator<Item = Option<GpuModel>> + '_ {
        self.shelves.range((cell, None)..).take_while(move |((of, _), _)| *of == cell).map(|((_, model), _)| *model)
    }

    /// The shelves that node `id` stands on, by model; none when it takes no new work.
    pub(crate) fn models_of(&self, id: NodeId) -> impl Iterator<Item = Option<GpuModel>> + '_ {
        self.entries.get(&id).into_iter().flat_map(|entry| entry.make.shelves.iter().map(|(model, _)| *model))
    }

    /// Takes over what node `id` has free now; `None`: it has left.
    pub(crate) fn refresh(&mut self, id: NodeId, there: Option<&NodeUse>) {
        let there = there.filter(|there| there.node.accepts_work());
        if there.is_some_and(|there| self.touch(id, there, 0..there.cards.len() as u16)) {
            return;
        }
        self.remove(id);
        let Some(there) = there else { return };
        self.insert(id, there);
        self.touch(id, there, 0..there.cards.len() as u16);
    }

    /// The same for a node whose description stands as it was taken over, when only these cards and its host's room may have
    /// changed. Answers whether there was such a node.
    pub(crate) fn touch(&mut self, id: NodeId, there: &NodeUse, cards: impl Iterator<Item = u16>) -> bool {
        match self.entries.get_mut(&id) {
            Some(entry) if Arc::ptr_eq(&entry.node, &there.node) && entry.pinned == there.pinned => {
                update(&mut self.shelves, id, entry, there, cards);
                true
            }
            _ => false,
        }
    }

    fn insert(&mut self, id: NodeId, there: &NodeUse) {
        let node = there.node.clone();
        let pinned = there.pinned;
        let make = self.make(&node, pinned);
        let [leaf, block, region] = GROUP_LEVELS.map(|level| self.domain(group_of(&node.spec.place, level)));
        let domains = [leaf, block, region, ALL];
        for (model, kind) in &make.shelves {
            let pools = self.shelves.entry((make.cell, *model)).or_default();
            pools.entry(make.pool.clone()).or_default().join(domains, *kind);
        }
        let rooms = vec![Room::default(); make.shelves.len()];
        let shared = vec![None; make.cards.len()];
        self.entries.insert(id, Entry { node, make, pinned, domains, host: Host::default(), free: 0, rooms, shared });
    }

    fn remove(&mut self, id: NodeId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        let make = &entry.make;
        for ((model, kind), room) in make.shelves.iter().zip(&entry.rooms) {
            let Some(pools) = self.shelves.get_mut(&(make.cell, *model)) else { continue };
            let Some(shelf) = pools.get_mut(&make.pool) else { continue };
            for (gpu, (card, state)) in make.cards.iter().zip(&entry.shared).enumerate() {
                if Some(card.model) == *model && state.is_some() {
                    shelf.move_card((id, gpu as u16), *state, None);
                }
            }
            shelf.move_node(id, entry.domains, (*room, entry.host), (Room::default(), Host::default()));
            shelf.leave(entry.domains, *kind);
            if shelf.is_empty() {
                pools.remove(&make.pool);
            }
            if pools.is_empty() {
                self.shelves.remove(&(make.cell, *model));
            }
        }
    }

    fn make(&mut self, node: &Node, pinned: u128) -> Arc<Make> {
        let facts = |(index, gpu): (usize, &muster_model::Gpu)| CardFacts {
            model: gpu.model,
            island: gpu.island,
            usable: gpu.withheld.is_none() && index < CARDS_MAX,
            pinned: index < CARDS_MAX && pinned >> index & 1 == 1,
        };
        let cards: Vec<CardFacts> = node.spec.gpus.iter().enumerate().map(facts).collect();
        let mut models: Vec<Option<GpuModel>> =
            cards.iter().filter(|card| card.usable).map(|card| Some(card.model)).collect();
        models.push(None);
        models.sort_unstable();
        models.dedup();
        let shelves = models.into_iter().map(|model| (model, Kind::of(node, pinned, model))).collect();
        let make = Make { cell: node.cell, pool: Arc::from(node.spec.pool.as_str()), cards, shelves };
        if let Some(known) = self.makes.get(&make) {
            return known.clone();
        }
        if self.makes.len() >= MAKES_MAX {
            self.makes.retain(|make| Arc::strong_count(make) > 1);
        }
        let make = Arc::new(make);
        self.makes.insert(make.clone());
        make
    }

    /// The number of a domain. Levels are kept apart, so one place may stand for a leaf and for a block.
    fn domain(&mut self, place: Place) -> u32 {
        let next = self.domains.len() as u32 + 1;
        *self.domains.entry(place).or_insert(next)
    }

    /// The place that each domain number stands for.
    #[cfg(test)]
    pub(crate) fn places(&self) -> BTreeMap<u32, Place> {
        self.domains.iter().map(|(place, id)| (*id, place.clone())).collect()
    }

    /// The shelves with their keys.
    #[cfg(test)]
    pub(crate) fn all_shelves(&self) -> impl Iterator<Item = (CellId, Option<GpuModel>, &Arc<str>, &Shelf)> + '_ {
        self.shelves.iter().flat_map(|((cell, model), pools)| pools.iter().map(|(p, s)| (*cell, *model, p, s)))
    }
}

/// Moves what has changed on a node that stands on its shelves already; only `touched` cards may have changed.
fn update(shelves: &mut Shelves, id: NodeId, entry: &mut Entry, there: &NodeUse, touched: impl Iterator<Item = u16>) {
    let make = &entry.make;
    for gpu in touched {
        let at = usize::from(gpu);
        let (Some(facts), Some(card)) = (make.cards.get(at), there.cards.get(at)) else { continue };
        if !facts.usable {
            continue;
        }
        let free = u128::from(matches!(card, CardUse::Free) && !facts.pinned) << gpu;
        entry.free = entry.free & !(1 << gpu) | free;
        let (old, new) = (entry.shared[at], CardState::of(card, facts.pinned));
        if old != new
            && let Some(shelf) = shelves.get_mut(&(make.cell, Some(facts.model))).and_then(|p| p.get_mut(&make.pool))
        {
            shelf.move_card((id, gpu), old, new);
            entry.shared[at] = new;
        }
    }
    let host = Host::of(there.cpu_free_milli, there.memory_free_mib);
    let old_host = std::mem::replace(&mut entry.host, host);
    for ((model, kind), old) in make.shelves.iter().zip(&mut entry.rooms) {
        let new = match model {
            None => Room::of_cpu(there.cpu_free_milli, kind.cpu_milli),
            Some(model) => {
                let free =
                    make.cards.iter().enumerate().filter(|(gpu, facts)| {
                        facts.model == *model && *gpu < CARDS_MAX && entry.free & (1 << gpu) != 0
                    });
                Room::of_cards(free.map(|(_, facts)| facts.island), kind.room.largest)
            }
        };
        if (*old, old_host) != (new, host)
            && let Some(shelf) = shelves.get_mut(&(make.cell, *model)).and_then(|p| p.get_mut(&make.pool))
        {
            shelf.move_node(id, entry.domains, (*old, old_host), (new, host));
            *old = new;
        }
    }
}

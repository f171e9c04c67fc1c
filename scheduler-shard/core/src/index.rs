//! Which nodes have room, found without looking at all of them.
//!
//! Nodes that accept work are put on *shelves*, one per cell, GPU model and pool. A shelf orders them by free whole cards, in all
//! and per leaf, block and region, and groups the cards that are shared already by their state. What must stay true: the index
//! is a function of the books alone, so refreshing the touched nodes gives what building it anew would (a property test).

use muster_model::capacity::{CardUse, NodeUse};
use muster_model::{CellId, GpuModel, NodeId, Place, TenantId, TopologyLevel};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a shared card has left, as far as placement tells cards apart. Cards of one state are interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CardState {
    /// Cut into instances that hold these memory slices.
    Mig { occupied: u8, media: bool },
    /// Shared under MPS.
    Mps { domain: TenantId, percent: u32, memory_mib: u64, clients: usize },
    /// Shared by turns.
    TimeSlice { domain: TenantId, memory_mib: u64, clients: usize },
}

impl CardState {
    /// The state of a card that is shared now.
    pub(crate) fn of(card: &CardUse) -> Option<Self> {
        match card {
            CardUse::Free | CardUse::Whole(_) => None,
            CardUse::Mig(instances) => Some(CardState::Mig {
                occupied: instances.iter().fold(0, |mask, (place, _)| mask | place.shape.mask(place.start)),
                media: instances.iter().any(|(place, _)| place.shape.has_media()),
            }),
            CardUse::Mps { domain, shares } => Some(CardState::Mps {
                domain: *domain,
                percent: shares.iter().map(|share| u32::from(share.percent)).sum(),
                memory_mib: shares.iter().map(|share| share.memory_mib).sum(),
                clients: shares.len(),
            }),
            CardUse::TimeSlice { domain, shares } => Some(CardState::TimeSlice {
                domain: *domain,
                memory_mib: shares.iter().map(|share| share.memory_mib).sum(),
                clients: shares.len(),
            }),
        }
    }
}

/// Nodes by what they have free: whole cards of the shelf's model, or milli-CPUs on the shelf without one. Nodes with nothing free
/// are not in it.
pub(crate) type ByFree = BTreeMap<u64, BTreeSet<NodeId>>;

/// The groups of the network that are wider than a node.
pub(crate) const GROUP_LEVELS: [TopologyLevel; 3] = [TopologyLevel::Leaf, TopologyLevel::Block, TopologyLevel::Region];

/// The nodes of one cell and pool that have cards of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shelf {
    /// All of them.
    pub(crate) by_free: ByFree,
    /// Per leaf, block and region, in the order of [`GROUP_LEVELS`].
    pub(crate) groups: [BTreeMap<Arc<Place>, ByFree>; 3],
    /// Cards that are shared already.
    pub(crate) shared: BTreeMap<CardState, BTreeSet<(NodeId, u16)>>,
}

impl Shelf {
    fn is_empty(&self) -> bool {
        self.by_free.is_empty() && self.shared.is_empty()
    }

    /// Free units of all its nodes.
    pub(crate) fn free(&self) -> u64 {
        free_of(&self.by_free)
    }
}

/// Free units of the nodes in `by_free`.
pub(crate) fn free_of(by_free: &ByFree) -> u64 {
    by_free.iter().map(|(free, nodes)| free * nodes.len() as u64).sum()
}

/// What one node has put on the shelves, so that it can be taken off again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    cell: CellId,
    pool: Arc<str>,
    groups: [Arc<Place>; 3],
    free: Vec<(Option<GpuModel>, u64)>,
    shared: Vec<(GpuModel, CardState, u16)>,
}

impl Entry {
    /// What `there` has to offer; nothing when it takes no new work.
    fn of(there: &NodeUse) -> Option<Self> {
        let node = &there.node;
        if !node.accepts_work() {
            return None;
        }
        let mut free: BTreeMap<Option<GpuModel>, u64> = BTreeMap::new();
        let mut shared = Vec::new();
        free.insert(None, there.cpu_free_milli.max(0) as u64);
        for (index, (card, gpu)) in there.cards.iter().zip(&node.spec.gpus).enumerate() {
            if gpu.withheld.is_some() {
                continue;
            }
            *free.entry(Some(gpu.model)).or_default() += u64::from(matches!(card, CardUse::Free));
            shared.extend(CardState::of(card).map(|state| (gpu.model, state, index as u16)));
        }
        let groups = GROUP_LEVELS.map(|level| Arc::new(group_of(&node.spec.place, level)));
        let pool = Arc::from(node.spec.pool.as_str());
        Some(Entry { cell: node.cell, pool, groups, free: free.into_iter().collect(), shared })
    }
}

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

/// All shelves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    shelves: BTreeMap<(CellId, Option<GpuModel>), BTreeMap<Arc<str>, Shelf>>,
    entries: BTreeMap<NodeId, Entry>,
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

    /// Takes over what node `id` has free now; `None`: it has left.
    pub(crate) fn refresh(&mut self, id: NodeId, there: Option<&NodeUse>) {
        let new = there.and_then(Entry::of);
        if self.entries.get(&id) == new.as_ref() {
            return;
        }
        if let Some(old) = self.entries.remove(&id) {
            self.take_off(id, &old);
        }
        if let Some(new) = new {
            self.put_on(id, &new);
            self.entries.insert(id, new);
        }
    }

    fn put_on(&mut self, id: NodeId, entry: &Entry) {
        for (model, free) in entry.free.iter().filter(|(_, free)| *free > 0) {
            let shelf = self.shelf(entry, *model);
            shelf.by_free.entry(*free).or_default().insert(id);
            for (groups, group) in shelf.groups.iter_mut().zip(&entry.groups) {
                groups.entry(group.clone()).or_default().entry(*free).or_default().insert(id);
            }
        }
        for (model, state, gpu) in &entry.shared {
            self.shelf(entry, Some(*model)).shared.entry(*state).or_default().insert((id, *gpu));
        }
    }

    fn take_off(&mut self, id: NodeId, entry: &Entry) {
        for (model, free) in entry.free.iter().filter(|(_, free)| *free > 0) {
            let shelf = self.shelf(entry, *model);
            take_node(&mut shelf.by_free, *free, id);
            for (groups, group) in shelf.groups.iter_mut().zip(&entry.groups) {
                let Some(by_free) = groups.get_mut(group) else { continue };
                take_node(by_free, *free, id);
                if by_free.is_empty() {
                    groups.remove(group);
                }
            }
        }
        for (model, state, gpu) in &entry.shared {
            let shelf = self.shelf(entry, Some(*model));
            let Some(cards) = shelf.shared.get_mut(state) else { continue };
            cards.remove(&(id, *gpu));
            if cards.is_empty() {
                shelf.shared.remove(state);
            }
        }
        for model in entry.free.iter().map(|(model, _)| *model) {
            let Some(pools) = self.shelves.get_mut(&(entry.cell, model)) else { continue };
            pools.retain(|_, shelf| !shelf.is_empty());
            if pools.is_empty() {
                self.shelves.remove(&(entry.cell, model));
            }
        }
    }

    fn shelf(&mut self, entry: &Entry, model: Option<GpuModel>) -> &mut Shelf {
        self.shelves.entry((entry.cell, model)).or_default().entry(entry.pool.clone()).or_default()
    }
}

fn take_node(by_free: &mut ByFree, free: u64, id: NodeId) {
    let Some(nodes) = by_free.get_mut(&free) else { return };
    nodes.remove(&id);
    if nodes.is_empty() {
        by_free.remove(&free);
    }
}

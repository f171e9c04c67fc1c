//! Which nodes have room, found without looking at all of them.
//!
//! Nodes that accept work are in *buckets*, one per cell, GPU model and partition ([`partition`]). A bucket groups nodes and shared cards by their state
//! ([`state`]), in all and per domain of the network ([`bucket`]): a decision looks at groups and then at the few nodes it takes.
//! What must stay true: the index is a function of the capacity ledger alone, so refreshing the touched nodes gives what building
//! it anew would (a property test); a refresh costs what has changed on the node, not what the node is.

pub(crate) mod bucket;
mod partition;
pub(crate) mod state;

use crate::by_id::ById;
use bucket::{ALL, Bucket, Path, Standing};
use muster_model::capacity::{CardUse, NodeUse, SoleHolder};
use muster_model::{CellId, GpuModel, Node, NodeId, Place, TenantId, TopologyLevel, WindowTimes};
use partition::Holds;
use state::{EmptyState, FreeState, HostState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use partition::{Hold, Partition, Windows};
pub(crate) use state::CardState;

/// Cards of one node that the index sees; an admitted node has at most 72.
const CARDS_MAX: usize = u128::BITS as usize;

/// Node classes kept at once; beyond, those that no node is of any more are forgotten.
const NODE_CLASSES_MAX: usize = 1_024;

/// The groups of the network that are wider than a node.
pub(crate) const GROUP_LEVELS: [TopologyLevel; 3] = [TopologyLevel::Leaf, TopologyLevel::Block, TopologyLevel::Region];

/// The group of `level` that `place` lies in: its place with everything below that level left empty. Of the level island it is the
/// NVLink domain that it shares with other nodes.
pub(crate) fn group_of(place: &Place, level: TopologyLevel) -> Place {
    let mut group = place.clone();
    if level > TopologyLevel::Island {
        group.nvlink_domain.clear();
    }
    if level >= TopologyLevel::Block {
        group.leaf.clear();
    }
    if level >= TopologyLevel::Region {
        group.block.clear();
        group.zone.clear();
    }
    group
}

/// Where a gang may have to stand.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Near {
    /// Anywhere.
    All,
    /// In the group of this level that the node lies in.
    Group(NodeId, TopologyLevel),
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

/// What nodes of one class have in common; a fleet has a few classes, so they are always at hand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NodeClass {
    cell: CellId,
    partition: Partition,
    /// Its cards are part of an NVLink island that spans several nodes.
    spans: bool,
    cards: Vec<CardFacts>,
    /// The buckets it is in.
    buckets: Vec<(Option<GpuModel>, EmptyState)>,
}

/// What one node has put into the buckets, so that it can be taken out again.
#[derive(Clone, Debug)]
struct Entry {
    /// The description that this was read from; read anew only when it is another.
    node: Arc<Node>,
    class: Arc<NodeClass>,
    /// As it was taken over.
    pinned: u128,
    path: Path,
    host: HostState,
    sole: Option<SoleHolder>,
    /// Bit by bit the usable cards that nobody holds.
    free: u128,
    /// As long as the buckets it is in.
    free_states: Vec<FreeState>,
    /// As long as its cards.
    shared: Vec<Option<CardState>>,
}

/// What the cards of a node have left, and who alone is on it, where that is of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardsLeft {
    /// Bit by bit the usable cards that nobody holds.
    free: u128,
    shared: Vec<Option<CardState>>,
    sole: Option<SoleHolder>,
}

impl CardsLeft {
    /// Whether any card is free that was not, or is shared otherwise than before.
    pub(crate) fn has_other_than(&self, before: &CardsLeft) -> bool {
        let shared_otherwise = |(now, before): (&Option<CardState>, &Option<CardState>)| now.is_some() && now != before;
        self.free & !before.free != 0
            || self.sole != before.sole
            || self.shared.len() != before.shared.len()
            || self.shared.iter().zip(&before.shared).any(shared_otherwise)
    }
}

type Buckets = BTreeMap<(CellId, Option<GpuModel>), BTreeMap<Partition, Bucket>>;

/// All buckets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    buckets: Buckets,
    /// By [`NodeId`].
    entries: ById<Entry>,
    /// Every domain that has been seen, by its place; 0 is none of them.
    domains: BTreeMap<Place, u32>,
    classes: BTreeSet<Arc<NodeClass>>,
    holds: Holds,
    /// Of the nodes that are in any window.
    windows: BTreeMap<NodeId, Windows>,
    watched: Watched,
}

/// What is kept in step only once somebody has asked for it.
#[derive(Clone, Debug, Default)]
struct Watched {
    /// Tenants with work that suffers from neighbours: for them alone it is known which nodes have no other tenant.
    quiet: BTreeSet<TenantId>,
    /// Some job wants no card: the buckets without a model say what CPU is free.
    hosts: bool,
}

impl Index {
    /// The buckets of `cell` for `model`, partition by partition.
    pub(crate) fn buckets(
        &self,
        cell: CellId,
        model: Option<GpuModel>,
    ) -> impl Iterator<Item = (&Partition, &Bucket)> + '_ {
        self.buckets.get(&(cell, model)).into_iter().flatten()
    }

    /// The models of which `cell` has cards on a node that accepts work.
    pub(crate) fn models(&self, cell: CellId) -> impl Iterator<Item = Option<GpuModel>> + '_ {
        self.buckets.range((cell, None)..).take_while(move |((of, _), _)| *of == cell).map(|((_, model), _)| *model)
    }

    /// The buckets that node `id` is in, by model, with the whole cards that are free on it (CPU where there is no model) and whether a part of one
    /// may be; none when it takes no new work.
    pub(crate) fn free_on(&self, id: NodeId) -> impl Iterator<Item = (Option<GpuModel>, u32, bool)> + '_ {
        let entry = self.entries.get(u64::from(id.0));
        let buckets = entry.map(|entry| entry.class.buckets.iter().zip(&entry.free_states).map(move |of| (entry, of)));
        buckets.into_iter().flatten().map(|(entry, ((model, _), room))| {
            let shared =
                |(card, state): (&CardFacts, &Option<CardState>)| state.is_some() && Some(card.model) == *model;
            (*model, room.free, room.free > 0 || entry.class.cards.iter().zip(&entry.shared).any(shared))
        })
    }

    /// What the cards of node `id` have left; none when it takes no new work.
    pub(crate) fn cards_left(&self, id: NodeId) -> Option<CardsLeft> {
        let Entry { free, shared, sole, .. } = self.entries.get(u64::from(id.0))?;
        Some(CardsLeft { free: *free, shared: shared.clone(), sole: *sole })
    }

    /// How many tasks of so many whole cards each `open` nodes hold at most, each task on one node, in all or in one group of the network.
    pub(crate) fn holds_at_most(
        &self,
        (cell, model): (CellId, Option<GpuModel>),
        each: u32,
        near: Near,
        open: impl Fn(&Partition) -> bool,
    ) -> u64 {
        let group = match near {
            Near::All => None,
            Near::Group(node, level) => {
                let at = GROUP_LEVELS.iter().position(|of| *of == level);
                at.zip(self.entries.get(u64::from(node.0))).map(|(at, entry)| (at, entry.path.levels[at]))
            }
        };
        let (at, domain) = group.unwrap_or((bucket::TOP, ALL));
        let of_state = |(state, nodes): &(FreeState, u32)| state.anywhere(u64::from(each.max(1))) * u64::from(*nodes);
        let buckets = self.buckets(cell, model).filter(|(partition, _)| open(partition));
        let domains = buckets.filter_map(|(_, bucket)| bucket.levels[at].domains.get(&domain));
        domains.flat_map(|domain| &domain.free_states).map(of_state).sum()
    }

    /// The bucket of `model` that node `id` is in.
    pub(crate) fn bucket_of(&self, id: NodeId, model: Option<GpuModel>) -> Option<&Bucket> {
        let class = &self.entries.get(u64::from(id.0))?.class;
        self.buckets.get(&(class.cell, model))?.get(&class.partition)
    }

    /// Where node `id` lies, and what it is for `model` when nothing runs; none when it takes no work or has no such card.
    pub(crate) fn position_of(&self, id: NodeId, model: Option<GpuModel>) -> Option<(&Partition, Path, &EmptyState)> {
        let Entry { class, path, .. } = self.entries.get(u64::from(id.0))?;
        let (_, kind) = class.buckets.iter().find(|(of, _)| *of == model)?;
        Some((&class.partition, path.on(model), kind))
    }

    /// For whom node `id` is kept.
    pub(crate) fn hold_of(&self, id: NodeId) -> Option<Hold> {
        self.holds.of(id)
    }

    /// The windows that node `id` is in.
    pub(crate) fn windows_of(&self, id: NodeId) -> &[WindowTimes] {
        self.windows.get(&id).map_or(&[], |windows| windows)
    }

    /// Whether node `id` is kept for a gang, or in a window: time limits decide who may use it.
    pub(crate) fn is_kept(&self, id: NodeId) -> bool {
        self.hold_of(id).is_some() || self.windows.contains_key(&id)
    }

    /// It is in these windows from now on.
    pub(crate) fn set_windows(&mut self, id: NodeId, windows: Windows, there: Option<&NodeUse>) {
        match windows.is_empty() {
            true => self.windows.remove(&id),
            false => self.windows.insert(id, windows),
        };
        self.enter_again(id, there);
    }

    /// Keeps a node for a job from now on.
    pub(crate) fn hold(&mut self, id: NodeId, hold: Hold, there: Option<&NodeUse>) {
        self.holds.add(id, hold);
        self.enter_again(id, there);
    }

    /// Keeps it for that job no longer.
    pub(crate) fn let_go(&mut self, id: NodeId, hold: Hold, there: Option<&NodeUse>) {
        self.holds.remove(id, hold);
        self.enter_again(id, there);
    }

    fn enter_again(&mut self, id: NodeId, there: Option<&NodeUse>) {
        self.remove(id);
        self.refresh(id, there);
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
        match self.entries.get_mut(u64::from(id.0)) {
            Some(entry) if Arc::ptr_eq(&entry.node, &there.node) && entry.pinned == there.pinned => {
                update(&mut self.buckets, &self.watched, id, entry, there, cards);
                true
            }
            _ => false,
        }
    }

    /// From now on it is known which nodes nobody or `tenant` alone is on.
    pub(crate) fn watch(&mut self, tenant: TenantId, nodes: &BTreeMap<NodeId, NodeUse>) {
        if self.watched.quiet.insert(tenant) {
            self.touch_all(nodes);
        }
    }

    /// From now on it is known what CPU is free where, for jobs that want no card.
    pub(crate) fn watch_hosts(&mut self, nodes: &BTreeMap<NodeId, NodeUse>) {
        if !std::mem::replace(&mut self.watched.hosts, true) {
            self.touch_all(nodes);
        }
    }

    fn touch_all(&mut self, nodes: &BTreeMap<NodeId, NodeUse>) {
        for (id, there) in nodes {
            self.touch(*id, there, std::iter::empty());
        }
    }

    /// Free cards of the NVLink island of several nodes that node `id` is part of.
    pub(crate) fn island_free(&self, bucket: &Bucket, id: NodeId) -> Option<u64> {
        let island = self.entries.get(u64::from(id.0))?.path.island?;
        Some(bucket.islands.domains.get(&island)?.free)
    }

    fn insert(&mut self, id: NodeId, there: &NodeUse) {
        let node = there.node.clone();
        let pinned = there.pinned;
        let class = self.class_of(&node, pinned);
        let [leaf, block, region] = GROUP_LEVELS.map(|level| self.domain(group_of(&node.spec.place, level)));
        let island = class.spans.then(|| self.domain(node.spec.place.clone()));
        let path = Path { island, levels: [leaf, block, region, ALL] };
        for (model, kind) in &class.buckets {
            let pools = self.buckets.entry((class.cell, *model)).or_default();
            pools.entry(class.partition.clone()).or_default().join(path.on(*model), *kind);
        }
        let free_states = vec![FreeState::default(); class.buckets.len()];
        let shared = vec![None; class.cards.len()];
        let (host, sole) = (HostState::default(), None);
        self.entries
            .insert(u64::from(id.0), Entry { node, class, pinned, path, host, sole, free: 0, free_states, shared });
    }

    fn remove(&mut self, id: NodeId) {
        let Some(entry) = self.entries.remove(u64::from(id.0)) else { return };
        let class = &entry.class;
        for ((model, kind), room) in class.buckets.iter().zip(&entry.free_states) {
            let Some(pools) = self.buckets.get_mut(&(class.cell, *model)) else { continue };
            let Some(bucket) = pools.get_mut(&class.partition) else { continue };
            for (gpu, (card, state)) in class.cards.iter().zip(&entry.shared).enumerate() {
                if Some(card.model) == *model && state.is_some() {
                    bucket.move_card((id, gpu as u16), *state, None);
                }
            }
            let old = Standing { room: *room, host: entry.host, sole: entry.sole.filter(|_| model.is_some()) };
            let path = entry.path.on(*model);
            bucket.move_node(id, path, old, Standing::default());
            bucket.leave(path, *kind);
            if bucket.is_empty() {
                pools.remove(&class.partition);
            }
            if pools.is_empty() {
                self.buckets.remove(&(class.cell, *model));
            }
        }
    }

    fn class_of(&mut self, node: &Node, pinned: u128) -> Arc<NodeClass> {
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
        let buckets = models.into_iter().map(|model| (model, EmptyState::of(node, pinned, model))).collect();
        let spans = !node.spec.place.nvlink_domain.is_empty();
        let windows = self.windows.get(&node.id).cloned().unwrap_or_default();
        let partition = Partition { pool: Arc::from(node.spec.pool.as_str()), hold: self.holds.of(node.id), windows };
        let class = NodeClass { cell: node.cell, partition, spans, cards, buckets };
        if let Some(known) = self.classes.get(&class) {
            return known.clone();
        }
        if self.classes.len() >= NODE_CLASSES_MAX {
            self.classes.retain(|class| Arc::strong_count(class) > 1);
        }
        let class = Arc::new(class);
        self.classes.insert(class.clone());
        class
    }

    /// The number of a domain. Levels are kept apart, so one place may stand for a leaf and for a block.
    fn domain(&mut self, place: Place) -> u32 {
        let next = self.domains.len() as u32 + 1;
        *self.domains.entry(place).or_insert(next)
    }

    /// An empty one that watches and keeps the same.
    #[cfg(test)]
    pub(crate) fn emptied(&self) -> Index {
        Index {
            watched: self.watched.clone(),
            holds: self.holds.clone(),
            windows: self.windows.clone(),
            ..Index::default()
        }
    }

    /// The place that each domain number stands for.
    #[cfg(test)]
    pub(crate) fn places(&self) -> BTreeMap<u32, Place> {
        self.domains.iter().map(|(place, id)| (*id, place.clone())).collect()
    }

    /// The buckets with their keys.
    #[cfg(test)]
    pub(crate) fn all_buckets(&self) -> impl Iterator<Item = (CellId, Option<GpuModel>, &Partition, &Bucket)> + '_ {
        self.buckets.iter().flat_map(|((cell, model), pools)| pools.iter().map(|(p, s)| (*cell, *model, p, s)))
    }
}

/// Moves what has changed on a node that is in its buckets already; only `touched` cards may have changed.
fn update(
    buckets: &mut Buckets,
    watched: &Watched,
    id: NodeId,
    entry: &mut Entry,
    there: &NodeUse,
    touched: impl Iterator<Item = u16>,
) {
    let class = &entry.class;
    for gpu in touched {
        let at = usize::from(gpu);
        let (Some(facts), Some(card)) = (class.cards.get(at), there.cards.get(at)) else { continue };
        if !facts.usable {
            continue;
        }
        let free = u128::from(matches!(card, CardUse::Free) && !facts.pinned) << gpu;
        entry.free = entry.free & !(1 << gpu) | free;
        let (old, new) = (entry.shared[at], CardState::of(card, facts.pinned));
        if old != new
            && let Some(bucket) =
                buckets.get_mut(&(class.cell, Some(facts.model))).and_then(|p| p.get_mut(&class.partition))
        {
            bucket.move_card((id, gpu), old, new);
            entry.shared[at] = new;
        }
    }
    let host = HostState::of(there.cpu_free_milli, there.memory_free_mib);
    let quiet = &watched.quiet;
    let of_interest = |sole: &SoleHolder| {
        matches!(sole, SoleHolder::Nobody) || matches!(sole, SoleHolder::One(one) if quiet.contains(one))
    };
    let sole = if quiet.is_empty() { None } else { there.tenants.sole().filter(of_interest) };
    let (old_host, old_sole) = (std::mem::replace(&mut entry.host, host), std::mem::replace(&mut entry.sole, sole));
    for ((model, kind), old) in class.buckets.iter().zip(&mut entry.free_states) {
        if model.is_none() && !watched.hosts {
            continue;
        }
        let new = match model {
            None => FreeState::of_cpu(there.cpu_free_milli, kind.cpu_milli),
            Some(model) => {
                let free =
                    class.cards.iter().enumerate().filter(|(gpu, facts)| {
                        facts.model == *model && *gpu < CARDS_MAX && entry.free & (1 << gpu) != 0
                    });
                FreeState::of_cards(free.map(|(_, facts)| facts.island), kind.room.largest, class.spans)
            }
        };
        // Hosts without cards are no islands.
        let with_cards = |sole: Option<SoleHolder>| sole.filter(|_| model.is_some());
        let before = Standing { room: *old, host: old_host, sole: with_cards(old_sole) };
        let after = Standing { room: new, host, sole: with_cards(sole) };
        if before != after
            && let Some(bucket) = buckets.get_mut(&(class.cell, *model)).and_then(|p| p.get_mut(&class.partition))
        {
            bucket.move_node(id, entry.path.on(*model), before, after);
            *old = new;
        }
    }
}

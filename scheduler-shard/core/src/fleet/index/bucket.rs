//! A bucket: the nodes of one cell and pool that have cards of one model, grouped by state, in all and per domain of the network.
//!
//! Domains form a tree: leaf, block, region, and the whole bucket above them; below a leaf the NVLink domains that span several of its nodes.
//! Each knows how many of its nodes are in which state, so that what it could hold is a sum over a dozen states. What must stay true: every count is that of the nodes below, whatever the
//! order in which nodes came, changed and went.

use super::state::{CardState, EmptyState, FreeState, HostState};
use muster_model::capacity::SoleHolder;
use muster_model::{GpuModel, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Levels of domains on a bucket: leaf, block, region, all of it.
pub(crate) const LEVELS: usize = 4;
/// The level of the whole bucket; it has one domain, [`ALL`].
pub(crate) const TOP: usize = LEVELS - 1;
/// The domain that is the whole bucket.
pub(crate) const ALL: u32 = 0;

/// How many there are of each, in order.
pub(crate) type Counts<T> = Vec<(T, u32)>;

/// The domains that a node lies in, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    /// The NVLink domain that it shares with other nodes, if it does.
    pub(crate) island: Option<u32>,
    pub(crate) levels: [u32; LEVELS],
}

impl Path {
    /// On the bucket of `model`: NVLink joins cards, so without a model there are no such domains.
    pub(super) fn on(self, model: Option<GpuModel>) -> Self {
        Path { island: self.island.filter(|_| model.is_some()), ..self }
    }
}

/// What placement tells a node apart by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) room: FreeState,
    pub(crate) host: HostState,
    /// Who is alone there, if it is nobody or a tenant that is watched.
    pub(crate) sole: Option<SoleHolder>,
}

/// One NVLink domain, leaf, block or region, or the bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Free units of its nodes.
    pub(crate) free: u64,
    /// Its nodes with anything free, by state.
    pub(crate) free_states: Counts<FreeState>,
    /// All its nodes, by what they are when empty.
    pub(crate) kinds: Counts<EmptyState>,
    /// The domains of the level below; of a leaf the NVLink domains in it.
    pub(crate) inside: BTreeSet<u32>,
    /// Of an NVLink domain, and of a leaf as far as they lie in none: the nodes with anything free.
    pub(crate) nodes: BTreeSet<(FreeState, NodeId)>,
}

/// The domains of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) domains: BTreeMap<u32, Domain>,
    /// Those with anything free, in order of how much.
    pub(crate) by_free: BTreeSet<(u64, u32)>,
    /// How many domains are alike when empty.
    pub(crate) alike: BTreeMap<Counts<EmptyState>, u32>,
}

/// Nodes of one state, by what CPU and memory they have left.
pub(crate) type ByHost = BTreeMap<HostState, BTreeSet<NodeId>>;

/// The nodes of one cell and pool that have cards of one model (or, without one, all of them).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Nodes with anything free.
    pub(crate) states: BTreeMap<FreeState, ByHost>,
    pub(crate) levels: [Level; LEVELS],
    /// NVLink domains that span several nodes.
    pub(crate) islands: Level,
    /// Nodes with anything free on which nobody, or a tenant that is watched, is alone.
    pub(crate) sole: BTreeMap<SoleHolder, BTreeSet<(FreeState, NodeId)>>,
    /// Cards that are shared already.
    pub(crate) shared: BTreeMap<CardState, BTreeSet<(NodeId, u16)>>,
}

impl Bucket {
    pub(crate) fn is_empty(&self) -> bool {
        self.levels[TOP].domains.is_empty()
    }

    fn all(&self) -> Option<&Domain> {
        self.levels[TOP].domains.get(&ALL)
    }

    /// Free units of all its nodes.
    pub(crate) fn free(&self) -> u64 {
        self.all().map_or(0, |all| all.free)
    }

    /// The states of its nodes that have anything free, least first.
    pub(crate) fn free_states(&self) -> impl DoubleEndedIterator<Item = &FreeState> + '_ {
        self.states.keys()
    }

    /// Nodes with a free unit whose host may hold `asked`, those with fewest free units first.
    pub(crate) fn open_nodes(&self, asked: HostState) -> impl Iterator<Item = NodeId> + '_ {
        let hosts = self.states.values().flatten().filter(move |(host, _)| host.may_hold(asked));
        hosts.flat_map(|(_, nodes)| nodes.iter().copied())
    }

    /// The nodes on which a whole unit is free, or a card is shared.
    pub(crate) fn nodes_with_anything(&self) -> impl Iterator<Item = NodeId> + '_ {
        let shared = self.shared.values().flatten().map(|(id, _)| *id);
        self.open_nodes(HostState::default()).chain(shared)
    }

    /// A node joins, with nothing free yet.
    pub(super) fn join(&mut self, path: Path, kind: EmptyState) {
        if let Some(island) = path.island {
            self.islands.recount_kinds(island, kind, true);
        }
        for level in 0..LEVELS {
            self.levels[level].recount_kinds(path.levels[level], kind, true);
            let below = if level > 0 { Some(path.levels[level - 1]) } else { path.island };
            if let (Some(below), Some(domain)) = (below, self.levels[level].domains.get_mut(&path.levels[level])) {
                domain.inside.insert(below);
            }
        }
    }

    /// A node leaves, with nothing free any more.
    pub(super) fn leave(&mut self, path: Path, kind: EmptyState) {
        if let Some(island) = path.island {
            self.islands.recount_kinds(island, kind, false);
        }
        for level in 0..LEVELS {
            self.levels[level].recount_kinds(path.levels[level], kind, false);
            let gone = match (level, path.island) {
                (0, None) => None,
                (0, Some(island)) => Some(island).filter(|island| !self.islands.domains.contains_key(island)),
                _ => Some(path.levels[level - 1]).filter(|below| !self.levels[level - 1].domains.contains_key(below)),
            };
            if let (Some(gone), Some(domain)) = (gone, self.levels[level].domains.get_mut(&path.levels[level])) {
                domain.inside.remove(&gone);
            }
        }
    }

    /// A node goes from one state to another; a state with nothing free is none.
    pub(super) fn move_node(&mut self, id: NodeId, path: Path, old: Standing, new: Standing) {
        if old == new {
            return;
        }
        if (old.room, old.host) != (new.room, new.host) {
            self.move_state(id, old, new);
        }
        if (old.room, old.sole) != (new.room, new.sole) {
            self.move_sole(id, old, new);
        }
        if old.room != new.room {
            for (level, domain) in path.levels.into_iter().enumerate() {
                self.levels[level].move_node(id, domain, level == 0 && path.island.is_none(), old.room, new.room);
            }
            if let Some(island) = path.island {
                self.islands.move_node(id, island, true, old.room, new.room);
            }
        }
    }

    fn move_state(&mut self, id: NodeId, old: Standing, new: Standing) {
        if old.room.free > 0
            && let Some(hosts) = self.states.get_mut(&old.room)
            && let Some(nodes) = hosts.get_mut(&old.host)
        {
            nodes.remove(&id);
            if nodes.is_empty() {
                hosts.remove(&old.host);
                if hosts.is_empty() {
                    self.states.remove(&old.room);
                }
            }
        }
        if new.room.free > 0 {
            self.states.entry(new.room).or_default().entry(new.host).or_default().insert(id);
        }
    }

    fn move_sole(&mut self, id: NodeId, old: Standing, new: Standing) {
        if let Some(sole) = old.sole.filter(|_| old.room.free > 0)
            && let Some(nodes) = self.sole.get_mut(&sole)
        {
            nodes.remove(&(old.room, id));
            if nodes.is_empty() {
                self.sole.remove(&sole);
            }
        }
        if let Some(sole) = new.sole.filter(|_| new.room.free > 0) {
            self.sole.entry(sole).or_default().insert((new.room, id));
        }
    }

    /// A card that is shared goes from one state to another; none: it is not shared.
    pub(super) fn move_card(&mut self, card: (NodeId, u16), old: Option<CardState>, new: Option<CardState>) {
        if let Some(old) = old
            && let Some(cards) = self.shared.get_mut(&old)
        {
            cards.remove(&card);
            if cards.is_empty() {
                self.shared.remove(&old);
            }
        }
        if let Some(new) = new {
            self.shared.entry(new).or_default().insert(card);
        }
    }
}

impl Level {
    fn recount_kinds(&mut self, id: u32, kind: EmptyState, more: bool) {
        let Level { domains, alike, .. } = self;
        let domain = domains.entry(id).or_default();
        if let Some(same) = alike.get_mut(&domain.kinds) {
            *same -= 1;
            if *same == 0 {
                alike.remove(&domain.kinds);
            }
        }
        recount(&mut domain.kinds, kind, more);
        if domain.kinds.is_empty() {
            domains.remove(&id);
        } else {
            *alike.entry(domain.kinds.clone()).or_default() += 1;
        }
    }

    fn move_node(&mut self, id: NodeId, at: u32, lists: bool, old: FreeState, new: FreeState) {
        let Some(domain) = self.domains.get_mut(&at) else { return };
        let before = domain.free;
        if old.free > 0 {
            recount(&mut domain.free_states, old, false);
        }
        if new.free > 0 {
            recount(&mut domain.free_states, new, true);
        }
        if lists && old.free > 0 {
            domain.nodes.remove(&(old, id));
        }
        if lists && new.free > 0 {
            domain.nodes.insert((new, id));
        }
        domain.free = before - u64::from(old.free) + u64::from(new.free);
        if domain.free != before {
            // In before out: a set of one domain, as the widest levels have it, would give its memory back each time.
            if domain.free > 0 {
                self.by_free.insert((domain.free, at));
            }
            self.by_free.remove(&(before, at));
        }
    }
}

fn recount<T: Ord + Copy>(counts: &mut Counts<T>, of: T, more: bool) {
    match (counts.binary_search_by_key(&of, |(known, _)| *known), more) {
        (Ok(at), true) => counts[at].1 += 1,
        (Err(at), true) => counts.insert(at, (of, 1)),
        (Ok(at), false) => {
            counts[at].1 -= 1;
            if counts[at].1 == 0 {
                counts.remove(at);
            }
        }
        (Err(_), false) => {}
    }
}

//! Parts of cards: MIG instances, MPS shares, time-slices.
//!
//! A card that is shared already goes before a free one, so that free cards stay whole; among shared ones, the one of which the shares
//! still expected will leave least unfilled ([`crate::fractions`]), then whose remainder loses least, then the fullest. An open slot of a
//! pinned layout costs nothing, so it goes first. Where an instance starts on its card is the model's business
//! ([`muster_model::mig::best_start_before`]): first what waits beside it in the queue must still fit, then most of what may come. Cards
//! of one state are interchangeable, so states are compared and not cards.
//! A gang of several shares is placed task by task on a trial copy of the cards it has touched so far.

use super::cards::free_by_island;
use super::{Ask, Steps, node};
use crate::fleet::index::bucket::Bucket;
use crate::fleet::index::state::HostState;
use crate::fleet::index::{CardState, GROUP_LEVELS, group_of};
use crate::fleet::{Fleet, left_milli};
use crate::fractions::{CARD_MILLI, milli_of};
use muster_model::capacity::{CardRules, CardUse, NodeUse};
use muster_model::mig::{self, Occupied, ShapeCounts};
use muster_model::request::SharingMode;
use muster_model::{
    DeviceHold, DeviceRequest, GpuModel, HoldMode, NodeId, Place, Pool, TaskPlacement, TenantId, TopologyLevel,
    closeness,
};
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::RangeInclusive;

/// How well a card suits; the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    /// A free card has to be opened.
    opens_card: bool,
    /// What more of the card no share will ever fill, by what is expected, in milli-GPU.
    unfilled_milli: i64,
    /// What the rest of the card is worth less afterwards, beyond what is taken.
    lost: u64,
    /// What is left of the card.
    left: u64,
}

/// Where on one kind of card the share would go.
#[derive(Clone, Copy, Debug)]
struct Way {
    score: Score,
    mode: HoldMode,
}

/// Where the tasks of a gang may stand once the first of them stands.
#[derive(Clone, Debug)]
enum Within {
    Anywhere,
    Group(TopologyLevel, Place),
    Island(NodeId, Option<u8>),
}

/// What earlier tasks of the same gang have taken, so that later ones see it.
#[derive(Default)]
struct Trial {
    nodes: BTreeMap<NodeId, NodeUse>,
    /// Tasks by the domain that they are spread over, where they are.
    spread: BTreeMap<String, u32>,
}

pub(super) fn place(fleet: &Fleet, ask: &Ask<'_>, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
    let model = ask.model?;
    for (partition, bucket) in ask.buckets(fleet) {
        let pool = fleet.capacity.pool_named(&partition.pool);
        // Every first card that could begin the gang is a try; without a required level there is only one.
        for within in starts(fleet, ask, bucket) {
            let domain = fleet.capacity.domain_of(ask.tenant);
            let search = Search { fleet, ask, model, bucket, pool, domain, waiting: ask.slices_waiting };
            if let Some(tasks) = search.gang(&within, steps) {
                return Some(tasks);
            }
        }
    }
    None
}

/// One share on a card of this node that has `left` milli-GPU; `None` when none of them may take it.
pub(super) fn on_node(fleet: &Fleet, ask: &Ask<'_>, there: &NodeUse, left: u16) -> Option<Vec<TaskPlacement>> {
    let model = ask.model?;
    let bucket = fleet.index.bucket_of(there.node.id, ask.model)?;
    let pool = fleet.capacity.pool_of(&there.node);
    let domain = fleet.capacity.domain_of(ask.tenant);
    let mode = ask.class.request.devices.mode()?;
    let search = Search { fleet, ask, model, bucket, pool, domain, waiting: ShapeCounts::default() };
    (0..there.cards.len() as u16).find_map(|gpu| {
        let state = CardState::of(&there.cards[usize::from(gpu)], there.is_pinned(gpu));
        let has = state.map_or(u64::from(CARD_MILLI), |state| {
            left_milli(state, model, mode, fleet.capacity.card_rules(&there.node))
        });
        let way = search.way(state).filter(|_| has == u64::from(left))?;
        let usable = search.usable(there, gpu, way.mode, &Within::Anywhere, &Trial::default());
        usable.then(|| vec![TaskPlacement { node: there.node.id, devices: vec![DeviceHold { gpu, mode: way.mode }] }])
    })
}

/// The places that a gang with a required level may be confined to.
fn starts(fleet: &Fleet, ask: &Ask<'_>, bucket: &Bucket) -> Vec<Within> {
    let Some(level) = ask.required_level().filter(|_| ask.class.tasks > 1) else { return vec![Within::Anywhere] };
    let shared = bucket.shared.values().flatten().map(|(id, _)| *id);
    let ids: BTreeSet<NodeId> = shared.chain(bucket.open_nodes(HostState::default())).collect();
    let nodes = ids.into_iter().filter_map(|id| node(fleet, id));
    if GROUP_LEVELS.contains(&level) {
        let groups: BTreeSet<Place> = nodes.map(|there| group_of(&there.node.spec.place, level)).collect();
        return groups.into_iter().map(|group| Within::Group(level, group)).collect();
    }
    nodes
        .flat_map(|there| {
            let place = &there.node.spec.place;
            if level == TopologyLevel::Island && !place.nvlink_domain.is_empty() {
                return vec![Within::Group(level, place.clone())];
            }
            let islands: BTreeSet<u8> = there.node.spec.gpus.iter().map(|gpu| gpu.island).collect();
            let id = there.node.id;
            let all = islands.into_iter().map(move |island| Within::Island(id, Some(island)));
            if level == TopologyLevel::Island { all.collect() } else { vec![Within::Island(id, None)] }
        })
        .collect()
}

struct Search<'a> {
    fleet: &'a Fleet,
    ask: &'a Ask<'a>,
    model: GpuModel,
    bucket: &'a Bucket,
    pool: &'a Pool,
    domain: TenantId,
    /// See [`Ask::slices_waiting`]; none for a task that is placed where least is lost.
    waiting: ShapeCounts,
}

impl Search<'_> {
    fn gang(&self, within: &Within, steps: &mut Steps) -> Option<Vec<TaskPlacement>> {
        let mut trial = Trial::default();
        let tasks = self.ask.class.tasks;
        (0..tasks).map(|rank| self.task(within, &mut trial, rank + 1 == tasks, steps)).collect()
    }

    /// Whether the domain that tasks are spread over has one less than it may have.
    fn has_space(&self, there: &NodeUse, trial: &Trial) -> bool {
        let Some(spread) = self.ask.class.topology.required_spread() else { return true };
        let domain = closeness::spread_domain(&there.node, spread.level);
        trial.spread.get(&domain).is_none_or(|tasks| *tasks < spread.tasks_max)
    }

    fn task(&self, within: &Within, trial: &mut Trial, last: bool, steps: &mut Steps) -> Option<TaskPlacement> {
        let (id, hold) = self.card(within, trial, steps)?;
        let placement = TaskPlacement { node: id, devices: vec![hold] };
        if last {
            // Nobody comes after it to see what it has taken.
            return Some(placement);
        }
        if let (Some(spread), Some(there)) = (self.ask.class.topology.required_spread(), node(self.fleet, id)) {
            *trial.spread.entry(closeness::spread_domain(&there.node, spread.level)).or_default() += 1;
        }
        let there = match trial.nodes.entry(id) {
            Entry::Occupied(touched) => touched.into_mut(),
            Entry::Vacant(untouched) => untouched.insert(node(self.fleet, id)?.clone()),
        };
        there.cpu_free_milli -= self.ask.class.request.cpu_milli as i64;
        there.memory_free_mib -= self.ask.class.request.memory_mib as i64;
        take(&mut there.cards[usize::from(hold.gpu)], self.domain, hold.mode);
        Some(placement)
    }

    /// The card for the next task. Compute of a slice is its own; where it is shared in turns or percent, work that suffers from
    /// neighbours takes a card with others on it last.
    fn card(&self, within: &Within, trial: &Trial, steps: &mut Steps) -> Option<(NodeId, DeviceHold)> {
        let isolated = matches!(self.ask.class.request.devices, DeviceRequest::Mig { .. });
        let quiet = self.ask.class.latency_critical && !isolated;
        let touched = self.on_touched(within, trial, steps);
        let shared = touched.or_else(|| self.on_shared(within, trial, quiet, steps));
        shared
            .or_else(|| self.on_free(within, trial, steps))
            .or_else(|| if quiet { self.on_shared(within, trial, false, steps) } else { None })
    }

    /// A card that this gang has already touched: tightest by definition.
    fn on_touched(&self, within: &Within, trial: &Trial, steps: &mut Steps) -> Option<(NodeId, DeviceHold)> {
        let mut best: Option<(Score, NodeId, DeviceHold)> = None;
        for (id, there) in &trial.nodes {
            for gpu in 0..there.cards.len() as u16 {
                steps.0 += 1;
                let card = &there.cards[usize::from(gpu)];
                let Some(way) = CardState::of(card, there.is_pinned(gpu)).and_then(|state| self.way(Some(state)))
                else {
                    continue;
                };
                if self.usable(there, gpu, way.mode, within, trial)
                    && best.is_none_or(|(score, at, hold)| (way.score, *id, gpu) < (score, at, hold.gpu))
                {
                    best = Some((way.score, *id, DeviceHold { gpu, mode: way.mode }));
                }
            }
        }
        best.map(|(_, id, hold)| (id, hold))
    }

    fn on_shared(
        &self,
        within: &Within,
        trial: &Trial,
        alone: bool,
        steps: &mut Steps,
    ) -> Option<(NodeId, DeviceHold)> {
        let mut ways: Vec<(Score, CardState, HoldMode)> = Vec::new();
        for (state, _) in self.bucket.shared.range(self.states()) {
            steps.0 += 1;
            ways.extend(self.way(Some(*state)).map(|way| (way.score, *state, way.mode)));
        }
        ways.sort_by_key(|(score, state, _)| (*score, *state));
        ways.into_iter().find_map(|(_, state, mode)| {
            let cards = self.bucket.shared.get(&state)?;
            cards.iter().find_map(|(id, gpu)| {
                steps.0 += 1;
                // Nodes that the gang has touched are judged by the trial, above.
                let there = node(self.fleet, *id).filter(|_| !trial.nodes.contains_key(id))?;
                if alone && there.tenants.others_on(*gpu, self.ask.tenant) {
                    return None;
                }
                self.usable(there, *gpu, mode, within, trial).then_some((*id, DeviceHold { gpu: *gpu, mode }))
            })
        })
    }

    /// The states that cards have which are driven as asked, inside one trust domain where that matters.
    fn states(&self) -> RangeInclusive<CardState> {
        let domain = self.domain;
        let mps = |percent, memory_mib, clients| CardState::Mps { domain, percent, memory_mib, clients };
        let slices = |memory_mib, clients| CardState::TimeSlice { domain, memory_mib, clients };
        match self.ask.class.request.devices {
            DeviceRequest::Mps { .. } => mps(0, 0, 0)..=mps(u32::MAX, u64::MAX, usize::MAX),
            DeviceRequest::TimeSlice { .. } => slices(0, 0)..=slices(u64::MAX, usize::MAX),
            _ => {
                let full = Occupied { slices: u8::MAX, media: true };
                CardState::Pinned(Occupied::default())..=CardState::Mig(full)
            }
        }
    }

    /// A free card of the node with the fewest free ones, in its fullest island.
    fn on_free(&self, within: &Within, trial: &Trial, steps: &mut Steps) -> Option<(NodeId, DeviceHold)> {
        let mode = self.way(None)?.mode;
        let request = &self.ask.class.request;
        let asked = HostState::of(request.cpu_milli as i64, request.memory_mib as i64);
        self.bucket.open_nodes(asked).find_map(|id| {
            steps.0 += 1;
            let there = trial.nodes.get(&id).or_else(|| node(self.fleet, id))?;
            let islands = free_by_island(there, self.model);
            let mut order: Vec<&Vec<u16>> = islands.values().collect();
            order.sort_by_key(|cards| (cards.len(), cards.first().copied()));
            let gpu = order.into_iter().flatten().find(|gpu| self.usable(there, **gpu, mode, within, trial))?;
            Some((id, DeviceHold { gpu: *gpu, mode }))
        })
    }

    fn usable(&self, there: &NodeUse, gpu: u16, mode: HoldMode, within: &Within, trial: &Trial) -> bool {
        let Some(card) = there.node.spec.gpus.get(usize::from(gpu)) else { return false };
        let inside = match within {
            Within::Anywhere => true,
            Within::Group(level, group) => group_of(&there.node.spec.place, *level) == *group,
            Within::Island(id, island) => there.node.id == *id && island.is_none_or(|island| card.island == island),
        };
        let rules = self.fleet.capacity.card_rules(&there.node);
        inside
            && card.model == self.model
            && card.withheld.is_none()
            && self.has_space(there, trial)
            && self.ask.host_slots(self.fleet, there) >= 1
            && !self.ask.is_kept_off_card(self.fleet, there, gpu)
            && there.pin_allows(gpu, mode, rules.pool).is_ok()
            && there.cards[usize::from(gpu)].can_take(self.domain, mode, card, Some(rules)).is_ok()
    }

    /// How the share would stand on a card of this state; `None` is a free card.
    fn way(&self, state: Option<CardState>) -> Option<Way> {
        let opens_card = state.is_none();
        let way = |lost, left, mode| Some(Way { score: Score { opens_card, unfilled_milli: 0, lost, left }, mode });
        let rule = self.fleet.capacity.share_rule();
        // A share more, of what the shares there leave.
        let memory_left = |mode: SharingMode, (clients, used): (usize, u64), asked: u64| {
            let taken = rule.all_take_mib(self.model, mode, clients as u64 + 1, used + asked);
            rule.room_mib(self.model, mode, self.model.memory_mib()).checked_sub(taken)
        };
        match (&self.ask.class.request.devices, state) {
            (DeviceRequest::Mig { .. }, Some(CardState::Pinned(occupied))) => {
                let family = self.model.facts().mig?;
                let shape = self.ask.class.request.devices.mig_shape(self.model)?;
                let place = self.pool.pinned.get(&self.model)?.open_slot(family, occupied, shape)?;
                way(0, mig::worth(family, occupied.with(place)), HoldMode::Mig(place))
            }
            (DeviceRequest::Mig { .. }, None | Some(CardState::Mig(_))) => {
                let occupied = match state {
                    Some(CardState::Mig(occupied)) => occupied,
                    _ => Occupied::default(),
                };
                let family = self.model.facts().mig?;
                let shape = self.ask.class.request.devices.mig_shape(self.model)?;
                let start = mig::best_start_before(family, occupied, shape, &self.waiting)?;
                way(start.lost, start.left, HoldMode::Mig(start.place))
            }
            (&DeviceRequest::Mps { percent, memory_mib, .. }, None) => {
                memory_left(SharingMode::Mps, (0, 0), memory_mib)?;
                way(0, 0, HoldMode::Mps { percent, memory_mib })
            }
            (
                &DeviceRequest::Mps { percent, memory_mib, .. },
                Some(CardState::Mps { domain, percent: held, memory_mib: used, clients }),
            ) if domain == self.domain && clients < usize::from(self.pool.mps_clients) => {
                memory_left(SharingMode::Mps, (clients, used), memory_mib)?;
                let left = 100_u32.checked_sub(held + u32::from(percent))?;
                way(0, u64::from(left), HoldMode::Mps { percent, memory_mib }).map(|way| self.expecting(way, state))
            }
            (&DeviceRequest::TimeSlice { memory_mib, .. }, None) => {
                memory_left(SharingMode::TimeSlice, (0, 0), memory_mib)?;
                way(0, 0, HoldMode::TimeSlice { memory_mib })
            }
            (
                &DeviceRequest::TimeSlice { memory_mib, .. },
                Some(CardState::TimeSlice { domain, memory_mib: used, clients }),
            ) if domain == self.domain && clients < usize::from(self.pool.time_slice_replicas) => {
                let left = memory_left(SharingMode::TimeSlice, (clients, used), memory_mib)?;
                let way = way(0, left, HoldMode::TimeSlice { memory_mib });
                way.map(|way| self.expecting(way, state))
            }
            _ => None,
        }
    }

    /// The same, knowing what shares are expected.
    fn expecting(&self, way: Way, state: Option<CardState>) -> Way {
        let devices = &self.ask.class.request.devices;
        let (Some(mode), Some(state)) = (devices.mode(), state) else { return way };
        let rules = CardRules { pool: self.pool, shares: self.fleet.capacity.share_rule() };
        let left = left_milli(state, self.model, mode, rules);
        let milli = milli_of(devices.charge_on(self.model));
        let unfilled_milli = self.fleet.learned.unfilled_milli(self.ask.cell, self.model, mode, left, milli);
        Way { score: Score { unfilled_milli, ..way.score }, ..way }
    }
}

/// Takes a share of a trial card; ids do not matter there.
pub(super) fn take(card: &mut CardUse, domain: TenantId, mode: HoldMode) {
    use muster_model::AllocationId;
    use muster_model::capacity::Share;
    let share = |percent, memory_mib| Share { allocation: AllocationId(0), percent, memory_mib };
    match (&mut *card, mode) {
        (_, HoldMode::Whole) => *card = CardUse::Whole(AllocationId(0)),
        (CardUse::Mig(instances), HoldMode::Mig(place)) => instances.push((place, Some(AllocationId(0)))),
        (_, HoldMode::Mig(place)) => *card = CardUse::Mig(vec![(place, Some(AllocationId(0)))]),
        (CardUse::Mps { shares, .. }, HoldMode::Mps { percent, memory_mib }) => shares.push(share(percent, memory_mib)),
        (_, HoldMode::Mps { percent, memory_mib }) => {
            *card = CardUse::Mps { domain, shares: vec![share(percent, memory_mib)] };
        }
        (CardUse::TimeSlice { shares, .. }, HoldMode::TimeSlice { memory_mib }) => shares.push(share(0, memory_mib)),
        (_, HoldMode::TimeSlice { memory_mib }) => {
            *card = CardUse::TimeSlice { domain, shares: vec![share(0, memory_mib)] };
        }
    }
}

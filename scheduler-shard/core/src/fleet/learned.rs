//! What is learned of the shares of cards that are asked for, and what a begun card is good for by it ([`crate::fractions`]).
//!
//! Each job that comes to wait in a cell is counted on the model that it prefers. At the beginning of a pass, once a part more has
//! come, the remainders of the cell's shared cards are weighed against what is to come. What must stay true: a function of the
//! changes and passes that the fleet has seen; bounded: a hundred sizes for each cell, model and mode; looking ahead costs nothing per decision.
//! Cards of all pools and trust domains are weighed together: which of them a coming share may use is not foreseen, only proved.

use super::Fleet;
use super::index::CardState;
use crate::fractions::{CARD_MILLI, Fills, HALVED_AT, Outlook, STEPS, milli_of};
use crate::job_class::JobClass;
use muster_model::capacity::CardRules;
use muster_model::request::SharingMode;
use muster_model::{CellId, GpuModel};
use std::collections::{BTreeMap, BTreeSet};

/// The remainders are weighed anew once this part more has come, and at least so many jobs.
const LOOKS_PER_ARRIVALS: u64 = 64;
const LOOK_AFTER_JOBS: u64 = 16;
/// Sizes are kept in hundredths of a card, rounded up.
const STEP_MILLI: u64 = CARD_MILLI as u64 / STEPS as u64;

/// What is known of all cells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learned {
    by_model: BTreeMap<(CellId, GpuModel), OfModel>,
    /// Where enough has come to look ahead again.
    due: BTreeSet<(CellId, GpuModel)>,
}

/// What has come for one model in one cell.
#[derive(Clone, Debug, Default)]
struct OfModel {
    /// Jobs; those before the last halving count half.
    jobs: u64,
    look_at: u64,
    came_milli: u64,
    mps: Share,
    time_slice: Share,
}

/// Shares of one mode.
#[derive(Clone, Debug, Default)]
struct Share {
    by_milli: BTreeMap<u16, u64>,
    fills: Fills,
}

impl OfModel {
    /// What has come of a mode in which a share may be of any size.
    fn share(&self, mode: SharingMode) -> &Share {
        if mode == SharingMode::Mps { &self.mps } else { &self.time_slice }
    }

    fn halve(&mut self) {
        self.jobs /= 2;
        self.came_milli /= 2;
        for share in [&mut self.mps, &mut self.time_slice] {
            share.by_milli.values_mut().for_each(|count| *count /= 2);
            share.by_milli.retain(|_, count| *count > 0);
        }
    }
}

impl Learned {
    /// A job has come to wait in `cell`.
    pub(crate) fn came(&mut self, cell: CellId, class: &JobClass) {
        let Some(offer) = class.offers().first() else { return };
        let Some(model) = offer.model else { return };
        let learned = self.by_model.entry((cell, model)).or_default();
        let all_milli = milli_of(offer.charge.gpu(model));
        learned.came_milli += all_milli;
        learned.jobs += 1;
        let share = match class.request.devices.mode() {
            Some(SharingMode::Mps) => Some(&mut learned.mps),
            Some(SharingMode::TimeSlice) => Some(&mut learned.time_slice),
            _ => None,
        };
        let tasks = u64::from(class.tasks.max(1));
        let each = all_milli.div_ceil(tasks).next_multiple_of(STEP_MILLI);
        if let (Some(share), Ok(each)) = (share, u16::try_from(each)) {
            *share.by_milli.entry(each.min(CARD_MILLI)).or_default() += tasks;
        }
        if learned.jobs >= HALVED_AT {
            learned.halve();
            learned.look_at = learned.jobs;
        }
        if learned.jobs >= learned.look_at {
            self.due.insert((cell, model));
        }
    }

    /// A cell is no more.
    pub(super) fn forget(&mut self, cell: CellId) {
        self.by_model.retain(|(of, _), _| *of != cell);
        self.due.retain(|(of, _)| *of != cell);
    }

    /// What more of a card of `model` nobody will fill when `milli` are taken of the `left_milli` that it has; the same for
    /// every card as long as nothing is known.
    pub(crate) fn unfilled_milli(
        &self,
        cell: CellId,
        model: GpuModel,
        mode: SharingMode,
        left: u64,
        milli: u64,
    ) -> i64 {
        let Some(learned) = self.by_model.get(&(cell, model)) else { return 0 };
        let whole = u64::from(CARD_MILLI);
        learned.share(mode).fills.added_milli(left.min(whole) as u16, milli.min(whole) as u16)
    }
}

impl Fleet {
    /// Weighs the remainders of the shared cards of `cell` where enough has come since the last time.
    pub(crate) fn look_ahead(&mut self, cell: CellId) {
        while let Some((of, model)) = self.learned.due.range((cell, GpuModel::ALL[0])..).next().copied()
            && of == cell
        {
            self.learned.due.remove(&(cell, model));
            let [mps, time_slice] =
                [SharingMode::Mps, SharingMode::TimeSlice].map(|mode| self.fills(cell, model, mode));
            let Some(learned) = self.learned.by_model.get_mut(&(cell, model)) else { continue };
            (learned.mps.fills, learned.time_slice.fills) = (mps, time_slice);
            learned.look_at = learned.jobs + (learned.jobs / LOOKS_PER_ARRIVALS).max(LOOK_AFTER_JOBS);
        }
    }

    fn fills(&self, cell: CellId, model: GpuModel, mode: SharingMode) -> Fills {
        self.outlook(cell, model, mode).map(|outlook| Fills::of(&outlook)).unwrap_or_default()
    }

    /// What stands and what is to come, from the index; `None` when no share of the mode has come.
    pub(crate) fn outlook(&self, cell: CellId, model: GpuModel, mode: SharingMode) -> Option<Outlook> {
        let learned = self.learned.by_model.get(&(cell, model))?;
        let share = learned.share(mode);
        if share.by_milli.is_empty() {
            return None;
        }
        let shares = share.by_milli.clone();
        let mut outlook = Outlook { shares, came_milli: learned.came_milli, ..Outlook::default() };
        for (partition, bucket) in self.index.buckets(cell, Some(model)) {
            let rules =
                CardRules { pool: self.capacity.pool_named(&partition.pool), shares: self.capacity.share_rule() };
            outlook.free_milli += bucket.free() * u64::from(CARD_MILLI);
            for (state, cards) in &bucket.shared {
                let left = left_milli(*state, model, mode, rules);
                let (left, count) = (left.min(u64::from(CARD_MILLI)) as u16, cards.len() as u64);
                if left > 0 {
                    *outlook.remainders.entry(left).or_default() += count;
                    outlook.free_milli += u64::from(left) * count;
                }
            }
        }
        Some(outlook)
    }
}

/// What a shared card has left for a share of `mode`, in milli-GPU: the scarcer of compute and memory; nothing when it is driven
/// otherwise or takes no more clients.
pub(crate) fn left_milli(
    state: CardState,
    model: GpuModel,
    mode: SharingMode,
    CardRules { pool, shares }: CardRules<'_>,
) -> u64 {
    let whole = u64::from(CARD_MILLI);
    let room = shares.room_mib(model, mode, model.memory_mib());
    // One share more has a context more.
    let of_memory = |clients: usize, used: u64| {
        let taken = shares.all_take_mib(model, mode, clients as u64 + 1, used);
        room.saturating_sub(taken) * whole / model.memory_mib().max(1)
    };
    match state {
        CardState::Mps { percent, memory_mib, clients, .. }
            if mode == SharingMode::Mps && clients < usize::from(pool.mps_clients) =>
        {
            let of_compute = u64::from(100_u32.saturating_sub(percent)) * whole / 100;
            of_compute.min(of_memory(clients, memory_mib))
        }
        CardState::TimeSlice { memory_mib, clients, .. }
            if mode == SharingMode::TimeSlice && clients < usize::from(pool.time_slice_replicas) =>
        {
            of_memory(clients, memory_mib)
        }
        _ => 0,
    }
}

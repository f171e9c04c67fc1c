//! What is held and what is used, model by model, over the time of a run.
//!
//! *Allocated* counts cards that hold anything. *Used* counts what running tasks ask of them: all of what they hold, and where a job has said its needs,
//! the compute that it needs. What must stay true: what is counted up is counted down when the allocation is gone.

use muster_model::{Allocation, AllocationId, GpuModel, GpuUnits, Job, NodeId};
use std::collections::BTreeMap;

/// One model.
#[derive(Clone, Debug, Default)]
struct OfModel {
    /// Cards that hold something, with the number of holds.
    cards: BTreeMap<(NodeId, u16), u32>,
    used: u64,
    since_ms: u64,
    card_ms: u128,
    used_ms: u128,
}

impl OfModel {
    fn settle(&mut self, now_ms: u64) {
        let passed = u128::from(now_ms.saturating_sub(self.since_ms));
        self.card_ms += self.cards.len() as u128 * passed;
        self.used_ms += u128::from(self.used) * passed;
        self.since_ms = self.since_ms.max(now_ms);
    }
}

#[derive(Clone, Debug)]
struct Held {
    model: GpuModel,
    cards: Vec<(NodeId, u16)>,
    /// What it uses while it runs, in units.
    uses: u64,
    runs: bool,
}

/// Every model.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    began_ms: u64,
    models: BTreeMap<GpuModel, OfModel>,
    held: BTreeMap<AllocationId, Held>,
}

impl Usage {
    pub(super) fn begin(now_ms: u64) -> Self {
        Usage { began_ms: now_ms, models: BTreeMap::new(), held: BTreeMap::new() }
    }

    fn of(&mut self, model: GpuModel, now_ms: u64) -> &mut OfModel {
        let of = self.models.entry(model).or_insert(OfModel { since_ms: self.began_ms, ..OfModel::default() });
        of.settle(now_ms);
        of
    }

    /// An allocation is made.
    pub(super) fn take(&mut self, now_ms: u64, held: &Allocation, job: &Job) {
        let Some(model) = held.model else { return };
        let cards: Vec<(NodeId, u16)> =
            held.tasks.iter().flat_map(|task| task.devices.iter().map(|hold| (task.node, hold.gpu))).collect();
        let of = self.of(model, now_ms);
        cards.iter().for_each(|card| *of.cards.entry(*card).or_default() += 1);
        let uses = asked(held, job);
        self.held.insert(held.id, Held { model, cards, uses, runs: false });
    }

    /// All its tasks run, or not any more.
    pub(super) fn runs(&mut self, now_ms: u64, id: AllocationId, runs: bool) {
        let Some(held) = self.held.get_mut(&id).filter(|held| held.runs != runs) else { return };
        held.runs = runs;
        let (model, uses) = (held.model, held.uses);
        let of = self.of(model, now_ms);
        of.used = if runs { of.used + uses } else { of.used - uses };
    }

    /// It is gone.
    pub(super) fn give(&mut self, now_ms: u64, id: AllocationId) {
        self.runs(now_ms, id, false);
        let Some(held) = self.held.remove(&id) else { return };
        let of = self.of(held.model, now_ms);
        for card in held.cards {
            if let Some(holds) = of.cards.get_mut(&card) {
                *holds -= 1;
                if *holds == 0 {
                    of.cards.remove(&card);
                }
            }
        }
    }

    /// Cards that hold something now.
    pub(super) fn cards(&self) -> BTreeMap<GpuModel, u64> {
        self.models.iter().map(|(model, of)| (*model, of.cards.len() as u64)).collect()
    }

    /// The means up to `now_ms`: cards that hold something, and cards in use.
    pub(super) fn means(&mut self, now_ms: u64) -> BTreeMap<GpuModel, (f64, f64)> {
        let span = now_ms.saturating_sub(self.began_ms).max(1) as f64;
        let mean = |(model, of): (&GpuModel, &mut OfModel)| {
            of.settle(now_ms);
            (*model, (of.card_ms as f64 / span, of.used_ms as f64 / span / GpuUnits::CARD.0 as f64))
        };
        self.models.iter_mut().map(mean).collect()
    }
}

/// The units that the running tasks of an allocation use.
fn asked(held: &Allocation, job: &Job) -> u64 {
    let units = held.charge.gpu_total().0;
    match &job.spec.asked.needs {
        Some(needs) if needs.compute_percent > 0 => {
            let each = u64::from(needs.compute_percent) * GpuUnits::CARD.0 / 100;
            let cards = held.tasks.iter().map(|task| task.devices.len() as u64).sum::<u64>();
            (each * held.tasks.len() as u64).min(cards * GpuUnits::CARD.0)
        }
        _ => units,
    }
}

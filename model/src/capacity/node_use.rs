//! One node and what is held of it.
//!
//! What must stay true: what is released is what was charged; a copy of it can be asked how the node will stand later.

use super::{CardUse, Misfit, Tenants};
use crate::allocation::Allocation;
use crate::ids::{AllocationId, TenantId};
use crate::node::{Node, Pool};
use crate::task::{HoldMode, TaskPlacement};
use std::sync::Arc;

/// A node and what is held of it.
#[derive(Clone, Debug)]
pub struct NodeUse {
    /// The node as it stands.
    pub node: Arc<Node>,
    /// Each card.
    pub cards: Vec<CardUse>,
    /// Milli-CPUs not held.
    pub cpu_free_milli: i64,
    /// MiB not held. Negative when the node came back smaller than what runs on it.
    pub memory_free_mib: i64,
    /// Who holds anything of it, while that is of interest ([`count_tenants`](super::Capacity::count_tenants)).
    pub tenants: Tenants,
    /// The cards that its pool pins to a MIG layout, bit by bit.
    pub pinned: u128,
}

impl NodeUse {
    pub(super) fn of(node: Arc<Node>, pool: &Pool) -> Self {
        let mut cards = vec![CardUse::Free; node.spec.gpus.len()];
        cards.iter_mut().zip(&node.spec.gpus).for_each(|(card, gpu)| card.withhold(gpu));
        let (cpu, memory) = (node.spec.cpu_milli as i64, node.spec.memory_mib as i64);
        let pinned = pool.pinned_cards(&node.spec.gpus);
        let tenants = Tenants::default();
        NodeUse { node, cards, cpu_free_milli: cpu, memory_free_mib: memory, tenants, pinned }
    }

    /// Whether this card can be had whole: nobody holds it, nothing withholds it and no layout pins it.
    #[must_use]
    pub fn is_free(&self, gpu: u16) -> bool {
        let at = usize::from(gpu);
        matches!(self.cards.get(at), Some(CardUse::Free))
            && self.node.spec.gpus.get(at).is_some_and(|gpu| gpu.withheld.is_none())
            && !self.is_pinned(gpu)
    }

    /// How many cards can be had whole.
    #[must_use]
    pub fn free_cards(&self) -> usize {
        (0..self.cards.len() as u16).filter(|gpu| self.is_free(*gpu)).count()
    }

    /// Whether its pool pins this card to a MIG layout.
    #[must_use]
    pub const fn is_pinned(&self, gpu: u16) -> bool {
        self.pinned >> gpu & 1 == 1
    }

    /// Whether the layout that `pool` pins this card to, if any, has room for `mode` by its rules.
    ///
    /// # Errors
    /// When the card is pinned and `mode` is none of the layout's slots.
    pub fn pin_allows(&self, gpu: u16, mode: HoldMode, pool: &Pool) -> Result<(), Misfit> {
        let model = self.node.spec.gpus.get(usize::from(gpu)).map(|card| card.model);
        let Some((model, pin)) = model.filter(|_| self.is_pinned(gpu)).and_then(|m| Some((m, pool.pinned.get(&m)?)))
        else {
            return Ok(());
        };
        if matches!(mode, HoldMode::Mig(place) if pin.slots().contains(&place)) {
            return Ok(());
        }
        let (pool, layout) = (pool.name.clone(), pin.clone());
        Err(Misfit::Pinned { node: self.node.id, gpu, pool, model, layout, asked: mode })
    }
}

/// The cards of a task; for one without cards the host, once.
pub(super) fn each_hold(task: &TaskPlacement, mut count: impl FnMut(Option<u16>)) {
    task.devices.iter().for_each(|hold| count(Some(hold.gpu)));
    if task.devices.is_empty() {
        count(None);
    }
}

impl NodeUse {
    /// Gives back what one task of an allocation holds of the node. On a copy: how the node will stand once that task is over.
    pub fn release(&mut self, allocation: &Allocation, task: &TaskPlacement) {
        self.cpu_free_milli += allocation.cpu_milli as i64;
        self.memory_free_mib += allocation.memory_mib as i64;
        for hold in &task.devices {
            let at = usize::from(hold.gpu);
            self.cards[at].release(allocation.id);
            if let Some(gpu) = self.node.spec.gpus.get(at).filter(|gpu| !gpu.withheld_slices.is_empty()) {
                self.cards[at].withhold(gpu);
            }
        }
        if self.tenants != Tenants::default() {
            each_hold(task, |gpu| self.tenants.remove(allocation.tenant, gpu));
        }
    }

    /// What already runs is charged even where a node came back smaller or its pool was tightened since.
    pub(super) fn charge(
        &mut self,
        allocation: AllocationId,
        domain: TenantId,
        task: &TaskPlacement,
        cpu_milli: u64,
        memory_mib: u64,
    ) -> Result<(), Misfit> {
        let node = task.node;
        for hold in &task.devices {
            let gpu = hold.gpu;
            let card = self.node.spec.gpus.get(usize::from(gpu)).ok_or(Misfit::NoGpu { node, gpu })?;
            let held = &mut self.cards[usize::from(gpu)];
            // A slice may have been withheld since it was given: it is its holder's until that ends.
            held.lift_withheld();
            let taken = held.take(allocation, domain, hold.mode, card, None);
            held.withhold(card);
            taken.map_err(|conflict| Misfit::Taken { node, gpu, model: card.model, asked: hold.mode, conflict })?;
        }
        self.cpu_free_milli -= cpu_milli as i64;
        self.memory_free_mib -= memory_mib as i64;
        Ok(())
    }
}

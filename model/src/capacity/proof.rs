//! What a gang under proof takes of nodes, task by task.
//!
//! What must stay true: the ledger itself is not changed; only the cards that the gang touches are copied.

use super::{CardRules, CardUse, Misfit, NodeUse};
use crate::ids::{AllocationId, NodeId, TenantId};
use crate::task::TaskPlacement;
use std::collections::BTreeMap;

/// What a gang under proof has taken so far, so that ranks that meet on one node see each other. Ranks come node by node mostly, so
/// only the nodes left behind are in a tree.
#[derive(Default)]
pub(super) struct Taken {
    here: Option<(NodeId, Touched)>,
    left: BTreeMap<NodeId, Touched>,
}

impl Taken {
    pub(super) fn on(&mut self, there: &NodeUse) -> &mut Touched {
        let id = there.node.id;
        if let Some((before, touched)) = self.here.take_if(|(at, _)| *at != id) {
            self.left.insert(before, touched);
        }
        let again = || (id, self.left.remove(&id).unwrap_or_else(|| Touched::of(there)));
        &mut self.here.get_or_insert_with(again).1
    }
}

/// What a gang under proof leaves of one node: the host's room, and copies of the cards it touches, no others.
pub(super) struct Touched {
    cpu_free_milli: i64,
    memory_free_mib: i64,
    cards: Vec<(u16, CardUse)>,
}

impl Touched {
    fn of(there: &NodeUse) -> Self {
        let (cpu_free_milli, memory_free_mib) = (there.cpu_free_milli, there.memory_free_mib);
        Touched { cpu_free_milli, memory_free_mib, cards: Vec::new() }
    }

    pub(super) fn take(
        &mut self,
        there: &NodeUse,
        domain: TenantId,
        task: &TaskPlacement,
        (cpu_milli, memory_mib): (u64, u64),
        rules: CardRules<'_>,
    ) -> Result<(), Misfit> {
        let node = task.node;
        let host = |what, free: i64, asked: u64| Misfit::Host { node, what, free: free.max(0) as u64, asked };
        if self.cpu_free_milli < cpu_milli as i64 {
            return Err(host("milli-CPU", self.cpu_free_milli, cpu_milli));
        }
        if self.memory_free_mib < memory_mib as i64 {
            return Err(host("MiB", self.memory_free_mib, memory_mib));
        }
        for hold in &task.devices {
            let gpu = hold.gpu;
            let card = there.node.spec.gpus.get(usize::from(gpu)).ok_or(Misfit::NoGpu { node, gpu })?;
            if let Some(reason) = &card.withheld {
                return Err(Misfit::Withheld { node, gpu, reason: reason.clone() });
            }
            there.pin_allows(gpu, hold.mode, rules.pool)?;
            let at = self.cards.iter().position(|(index, _)| *index == gpu).unwrap_or_else(|| {
                self.cards.push((gpu, there.cards[usize::from(gpu)].clone()));
                self.cards.len() - 1
            });
            self.cards[at]
                .1
                .take(AllocationId(0), domain, hold.mode, card, Some(rules))
                .map_err(|conflict| Misfit::Taken { node, gpu, model: card.model, asked: hold.mode, conflict })?;
        }
        self.cpu_free_milli -= cpu_milli as i64;
        self.memory_free_mib -= memory_mib as i64;
        Ok(())
    }
}

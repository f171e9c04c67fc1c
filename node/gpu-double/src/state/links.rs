//! How cards reach each other: PCI switches, host bridges, NUMA nodes, NVLinks.
//!
//! What must stay true: the answer for two cards does not depend on their order.

use super::card::{Card, LinkRemote};

/// The nearest common part of two cards' paths, as `nvmlGpuTopologyLevel_t`: 0 same board, 10 one PCI switch (PIX), 30 one host bridge
/// (PHB), 40 one NUMA node (NODE), 50 the whole system (SYS). The double has no chains of switches (20, PXB).
#[must_use]
pub fn common_ancestor(a: &Card, b: &Card) -> u32 {
    if a.pci == b.pci {
        0
    } else if a.switch == b.switch {
        10
    } else if a.bridge == b.bridge {
        30
    } else if a.numa == b.numa {
        40
    } else {
        50
    }
}

/// Whether two cards are joined by NVLink, through active links to each other or to one common switch.
#[must_use]
pub fn is_linked(a: &Card, b: &Card) -> bool {
    let active = |card: &Card| -> Vec<LinkRemote> {
        card.links.iter().filter(|link| link.is_active).map(|link| link.remote.clone()).collect()
    };
    let (of_a, of_b) = (active(a), active(b));
    of_a.contains(&LinkRemote::Card(b.pci))
        || of_b.contains(&LinkRemote::Card(a.pci))
        || of_a.iter().any(|remote| matches!(remote, LinkRemote::Switch(_)) && of_b.contains(remote))
}

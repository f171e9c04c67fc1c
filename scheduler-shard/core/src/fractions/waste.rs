//! The expected waste of a node: how much of its free GPU the next demand could not use.
//!
//! For a class *m* of the mix and a node with free CPU *C* and cards that have *g₁…gₖ* left, *G = Σgᵢ*:
//!
//! ```text
//! eligible(m) = { i : gᵢ ≥ milli(m) }
//! usable(m)   = 0                                          kind not admitted, |eligible| < cards(m), or C < cpu(m)
//!             = min( Σ gᵢ over eligible, C·gpu(m)/cpu(m) )   otherwise
//!             = G                                          m asks for no GPU and C ≥ cpu(m); 0 when C < cpu(m)
//! waste       = Σ weight(m) · (G − usable(m))
//! ```
//!
//! Weng et al. have the first two lines and the sum without the bound by CPU; the bound is what keeps a node's CPU and GPU in the
//! proportion that demand needs. A class without GPU counts because a node that cannot host it any more has used up its CPU.

use super::mix::Class;
use super::shape::{Demand, NodeState};

/// The waste of a node in milli-GPU, in millionths.
#[must_use]
pub fn expected_waste_micro(node: &NodeState, classes: &[Class]) -> i64 {
    let free = node.gpu_milli();
    if free == 0 {
        return 0;
    }
    let wasted = |class: &Class| class.weight_micro * (free - usable_milli(node, free, &class.demand)) as i64;
    classes.iter().map(wasted).sum()
}

/// What a class could use of the `free` milli-GPU of a node; never more than `free`.
fn usable_milli(node: &NodeState, free: u64, class: &Demand) -> u64 {
    if node.cpu_milli < class.cpu_milli {
        return 0;
    }
    if class.cards == 0 {
        return free;
    }
    if !class.kinds.admit(node.kind) {
        return 0;
    }
    let cards = node.cards();
    let too_small = cards.partition_point(|left| *left < class.milli);
    if cards.len() - too_small < usize::from(class.cards) {
        return 0;
    }
    let eligible = free - cards[..too_small].iter().map(|left| u64::from(*left)).sum::<u64>();
    match class.cpu_milli {
        0 => eligible,
        cpu_milli => eligible.min(node.cpu_milli * class.gpu_milli() / cpu_milli),
    }
}

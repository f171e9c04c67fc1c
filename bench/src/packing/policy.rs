//! The published baselines, as the study's simulator decides.
//!
//! - `fgd`: scores a node by the change of its expected fragmentation against the *whole trace's* mix (an oracle: the commonest classes
//!   that make 95 % of the pods), squeezed through a sigmoid and cut to a whole number from 0 to 100. Many nodes tie; the first in
//!   the order of the nodes wins, so that ties always fall on the same few nodes, which is worth points. The study gives its nodes
//!   random names in every run: a shuffled order is its rule, and the file's order another draw of it.
//! - `fgd-plain`: the same measure without rounding, so that ties hardly occur.
//! - `bestfit`: least CPU (of 128 cores) and GPU (of 8 cards) left, half and half, cut to whole numbers, first node on ties.
//! - `random`: any node where it fits, any card of it.

use super::trace::{Node, Pod};
use muster_scheduler_core::fractions::Demand;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Share of the pods whose classes the study takes as typical.
const TYPICAL_PERCENT: usize = 95;
/// What the study's best fit measures by.
const MAX_CPU_MILLI: f64 = 128_000.0;
const MAX_GPU_MILLI: f64 = 8_000.0;

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Our engine: mix learned online, no help from the order of nodes.
    Muster,
    /// What a shard places by, in all it does.
    Placement,
    /// The published FGD.
    Fgd,
    /// FGD's measure without the rounding whose ties names break.
    FgdPlain,
    /// The published best fit.
    BestFit,
    /// Any node.
    Random,
}

impl Policy {
    /// What it is called on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Policy::Muster => "muster",
            Policy::Placement => "placement",
            Policy::Fgd => "fgd",
            Policy::FgdPlain => "fgd-plain",
            Policy::BestFit => "bestfit",
            Policy::Random => "random",
        }
    }
}

/// The row of the published table that a policy is held against.
#[must_use]
pub fn published_row(policy: Policy) -> &'static str {
    match policy {
        Policy::Muster | Policy::Placement | Policy::Fgd | Policy::FgdPlain => "06-FGD",
        Policy::BestFit => "05-BestFit",
        Policy::Random => "01-Random",
    }
}

/// What is left of a node.
#[derive(Clone, Debug)]
pub(super) struct Left {
    pub(super) kind: u8,
    pub(super) cpu_milli: u64,
    pub(super) memory_mib: u64,
    pub(super) cards: Vec<u16>,
}

impl Left {
    pub(super) fn of(node: &Node) -> Self {
        let cards = vec![1_000; usize::from(node.cards)];
        Left { kind: node.kind, cpu_milli: node.cpu_milli, memory_mib: node.memory_mib, cards }
    }

    pub(super) fn fits(&self, pod: &Demand) -> bool {
        self.cpu_milli >= pod.cpu_milli
            && self.memory_mib >= pod.memory_mib
            && (pod.cards == 0 || pod.kinds.admit(self.kind))
            && self.room(pod) >= usize::from(pod.cards)
    }

    fn room(&self, pod: &Demand) -> usize {
        self.cards.iter().filter(|left| **left >= pod.milli).count()
    }

    pub(super) fn take(&mut self, pod: &Demand, cards: &[u16]) {
        self.cpu_milli -= pod.cpu_milli;
        self.memory_mib -= pod.memory_mib;
        cards.iter().for_each(|card| self.cards[usize::from(*card)] -= pod.milli);
    }

    /// The cards on which the pod could go: each one for a fraction, the first free ones otherwise.
    fn ways(&self, pod: &Demand) -> Vec<Vec<u16>> {
        let room = || (0_u16..).zip(&self.cards).filter(|(_, left)| **left >= pod.milli).map(|(card, _)| card);
        if pod.cards == 1 && pod.milli < 1_000 {
            return room().map(|card| vec![card]).collect();
        }
        vec![room().take(usize::from(pod.cards)).collect()]
    }
}

/// The study's typical classes with their shares.
pub(super) fn typical(pods: &[Pod]) -> Vec<(Demand, f64)> {
    let mut counts: BTreeMap<Demand, usize> = BTreeMap::new();
    for pod in pods {
        *counts.entry(Demand { memory_mib: 0, ..pod.demand }).or_default() += 1;
    }
    let mut classes: Vec<(Demand, usize)> = counts.into_iter().collect();
    // Classes as frequent as each other: the study takes the larger first, which decides who stands at the edge.
    classes.sort_by_key(|(class, count)| Reverse((*count, class.cpu_milli, class.milli, class.cards, class.kinds)));
    let mut covered = 0;
    let enough = |covered: usize| covered * 100 >= TYPICAL_PERCENT * pods.len();
    let typical: Vec<(Demand, usize)> = classes
        .into_iter()
        .take_while(|(_, count)| {
            let more = !enough(covered);
            covered += if more { *count } else { 0 };
            more
        })
        .collect();
    typical.into_iter().map(|(class, count)| (class, count as f64 / covered as f64)).collect()
}

/// The published fragmentation of a node: free milli-GPU that the typical classes cannot use.
fn fragmentation(node: &Left, typical: &[(Demand, f64)]) -> f64 {
    let free: u64 = node.cards.iter().map(|left| u64::from(*left)).sum();
    let lost = |class: &Demand| {
        let served = class.cards > 0
            && class.kinds.admit(node.kind)
            && node.cpu_milli >= class.cpu_milli
            && node.room(class) >= usize::from(class.cards);
        let small = node.cards.iter().filter(|left| **left < class.milli).map(|left| u64::from(*left)).sum();
        if served { small } else { free }
    };
    typical.iter().map(|(class, share)| share * lost(class) as f64).sum()
}

/// The score of the best way on one node, higher is better, with its cards.
pub(super) fn score(policy: Policy, node: &Left, pod: &Demand, typical: &[(Demand, f64)]) -> (f64, Vec<u16>) {
    let left_of = |cards: &[u16]| cards.first().map_or(0, |card| node.cards[usize::from(*card)]);
    if policy == Policy::BestFit {
        // The card is chosen apart from the node: the fullest one.
        let cards = node.ways(pod).into_iter().min_by_key(|cards| left_of(cards)).unwrap_or_default();
        let gpu = node.cards.iter().map(|left| u64::from(*left)).sum::<u64>() - pod.gpu_milli();
        let cpu = node.cpu_milli - pod.cpu_milli;
        let left = 0.5 * cpu as f64 / MAX_CPU_MILLI + 0.5 * gpu as f64 / MAX_GPU_MILLI;
        return (((1.0 - left) * 100.0).trunc(), cards);
    }
    let before = fragmentation(node, typical);
    let mut best = (f64::NEG_INFINITY, Vec::new());
    for cards in node.ways(pod) {
        let mut after = node.clone();
        after.take(pod, &cards);
        let gain = before - fragmentation(&after, typical);
        let squeezed = || (100.0 / (1.0 + (-gain / 1_000.0).exp())).trunc();
        let found = if policy == Policy::Fgd { squeezed() } else { gain };
        if found > best.0 {
            best = (found, cards);
        }
    }
    best
}

/// A node drawn from those where the pod fits, and its fullest card.
pub(super) fn random(nodes: &[Left], pod: &Demand, rng: &mut ChaCha8Rng) -> Option<(usize, Vec<u16>)> {
    let fitting: Vec<usize> = (0..nodes.len()).filter(|node| nodes[*node].fits(pod)).collect();
    let node = *fitting.get(rng.gen_range(0..fitting.len().max(1)))?;
    let ways = nodes[node].ways(pod);
    let way = ways.get(rng.gen_range(0..ways.len().max(1)))?.clone();
    Some((node, way))
}

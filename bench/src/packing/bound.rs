//! What no packing can exceed, by relaxation: for every prefix of the arrivals, the least of three bounds on the allocated GPU.
//!
//! Each drops all constraints but one kind, and may choose which pods to refuse (which no policy here may):
//! - *kinds*: for a set *S* of models, what only *S* admits cannot exceed what *S* has (by max-flow/min-cut the least over all sets
//!   is exact for divisible pods);
//! - *CPU*: all CPU of the fleet as one, pods divisible, the ones with most GPU per CPU first;
//! - *cards*: a dual feasible function (Lueker 1983; Fekete and Schepers 2001). For λ ≤ ½ card let `u(s) = 1` above `1 − λ`, 0 below
//!   λ, `s` between. No card can hold pods whose `u` exceeds 1, so `Σ u ≤ cards`; pods divisible, the ones with most GPU
//!   per `u` first. With λ just above 0.19 it says that what a pod of 0.81 leaves of its card is lost unless something smaller fills it.

use super::play::Curve;
use super::trace::{Nodes, Pod};
use muster_scheduler_core::fractions::{CARD_MILLI, Demand, Kinds};
use std::collections::BTreeMap;

/// The bound at every bin of the curve.
#[must_use]
pub fn curve(fleet: &Nodes, pods: &[Pod], arrivals: &[usize]) -> Curve {
    let capacity = fleet.capacity_milli();
    let mut curve = Curve::default();
    let mut arrived = Arrived::default();
    for pod in arrivals {
        arrived.add(&pods[*pod].demand);
        let bin = (100.0 * arrived.milli as f64 / capacity as f64).round() as u32;
        if super::CURVE_PERCENT.contains(&bin) {
            let bound = arrived.by_kinds(fleet).min(arrived.by_cpu(fleet)).min(arrived.by_cards(fleet));
            curve.sample(arrived.milli, bound, capacity);
        }
    }
    curve
}

/// What has come, summed up.
#[derive(Default)]
struct Arrived {
    milli: u64,
    by_kinds: BTreeMap<Kinds, u64>,
    /// CPU of the pods, by GPU and CPU of one.
    by_shape: BTreeMap<(u64, u64), u64>,
    /// Cards asked for, by what is taken of each.
    by_size: BTreeMap<u16, u64>,
}

impl Arrived {
    fn add(&mut self, pod: &Demand) {
        if pod.cards == 0 {
            return;
        }
        self.milli += pod.gpu_milli();
        *self.by_kinds.entry(pod.kinds).or_default() += pod.gpu_milli();
        *self.by_shape.entry((pod.gpu_milli(), pod.cpu_milli)).or_default() += 1;
        *self.by_size.entry(pod.milli).or_default() += u64::from(pod.cards);
    }

    fn by_kinds(&self, fleet: &Nodes) -> f64 {
        let all = (1_u64 << fleet.models.len()) - 1;
        let mut capacity = vec![0_u64; fleet.models.len()];
        for node in &fleet.nodes {
            capacity[usize::from(node.kind)] += u64::from(node.cards) * u64::from(CARD_MILLI);
        }
        let bound = |set: u64| {
            let has: u64 =
                capacity.iter().enumerate().filter(|(kind, _)| set >> kind & 1 == 1).map(|(_, has)| has).sum();
            let confined = |kinds: &Kinds| if *kinds == Kinds::ANY { set == all } else { kinds.0 & all & !set == 0 };
            let asked: u64 = self.by_kinds.iter().filter(|(kinds, _)| confined(kinds)).map(|(_, milli)| milli).sum();
            self.milli - asked.saturating_sub(has)
        };
        (0..=all).map(bound).min().unwrap_or(self.milli) as f64
    }

    fn by_cpu(&self, fleet: &Nodes) -> f64 {
        let cpu: u64 = fleet.nodes.iter().map(|node| node.cpu_milli).sum();
        let items = self.by_shape.iter().map(|((gpu, cpu), count)| (*gpu as f64, *cpu as f64, *count as f64));
        knapsack(items.collect(), cpu as f64)
    }

    fn by_cards(&self, fleet: &Nodes) -> f64 {
        let cards: u64 = fleet.nodes.iter().map(|node| u64::from(node.cards)).sum();
        let card = CARD_MILLI;
        // The function changes only where a size begins to count or its complement to fill.
        let steps = self.by_size.keys().flat_map(|size| [*size, size + 1, card - size, card - size + 1, 0]);
        let bound = |lambda: u16| {
            let weigh = |size: u16| match size {
                size if size > card - lambda => card,
                size if size < lambda => 0,
                size => size,
            };
            let item = |(size, count): (&u16, &u64)| (f64::from(*size), f64::from(weigh(*size)), *count as f64);
            knapsack(self.by_size.iter().map(item).collect(), cards as f64 * f64::from(card))
        };
        steps.filter(|lambda| *lambda <= card / 2).map(bound).fold(f64::INFINITY, f64::min)
    }
}

/// The most value within `room` when items, `(value, size, count)`, may be cut.
fn knapsack(mut items: Vec<(f64, f64, f64)>, mut room: f64) -> f64 {
    items.sort_by(|a, b| (b.0 * a.1).total_cmp(&(a.0 * b.1)));
    let mut value = 0.0;
    for (each, size, count) in items {
        let fits = if size > 0.0 { (room / size).min(count) } else { count };
        value += each * fits;
        room -= size * fits;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::super::trace::Node;
    use super::*;

    #[test]
    fn bounds_are_what_a_hand_finds() {
        let node = |kind| Node { name: String::new(), cpu_milli: 10_000, memory_mib: 1, cards: 2, kind };
        let fleet = Nodes { nodes: vec![node(0), node(1)], models: vec!["a".to_owned(), "b".to_owned()] };
        let check = |pods: &[(u16, u16, u64, u64, u64)], bound: [f64; 3]| {
            let mut arrived = Arrived::default();
            for (cards, milli, kinds, cpu_milli, count) in pods {
                let demand =
                    Demand { cards: *cards, milli: *milli, kinds: Kinds(*kinds), cpu_milli: *cpu_milli, memory_mib: 0 };
                (0..*count).for_each(|_| arrived.add(&demand));
            }
            let found = [arrived.by_kinds(&fleet), arrived.by_cpu(&fleet), arrived.by_cards(&fleet)];
            assert_eq!(found.map(f64::round), bound, "{pods:?}");
        };
        check(&[(1, 1_000, 0, 1, 3)], [3_000.0, 3_000.0, 3_000.0]); // all of it fits
        check(&[(1, 1_000, 1, 0, 3), (1, 1_000, 0, 0, 1)], [3_000.0, 4_000.0, 4_000.0]); // two of three have a place
        check(&[(2, 1_000, 0, 10_000, 3)], [4_000.0, 4_000.0, 4_000.0]); // more than there is
        check(&[(1, 1_000, 0, 10_000, 4)], [4_000.0, 2_000.0, 4_000.0]); // CPU for two
        check(&[(1, 800, 0, 0, 4), (1, 300, 0, 0, 2)], [3_800.0, 3_800.0, 3_320.0]); // nothing fits beside 0.8
        check(&[(1, 800, 0, 0, 4), (1, 200, 0, 0, 2)], [3_600.0, 3_600.0, 3_600.0]); // two fifths do
    }
}

//! Which cards are joined by NVLink.
//!
//! What must stay true: cards of one island reach each other over NVLink alone; islands are numbered from 0 in the order of their first cards, so one host
//! always gets the same numbers.

use super::wire::Facts;

/// The island of each card: cards of one fabric clique, cards that share an NVSwitch, and direct neighbours are together.
pub(super) fn islands<'a>(cards: impl Iterator<Item = &'a Facts>) -> Vec<u8> {
    let cards: Vec<&Facts> = cards.collect();
    let mut first: Vec<usize> = (0..cards.len()).collect();
    for (at, card) in cards.iter().enumerate() {
        for other in 0..at {
            if joined(card, cards[other]) {
                let (from, to) = (first[at].max(first[other]), first[at].min(first[other]));
                first.iter_mut().filter(|first| **first == from).for_each(|first| *first = to);
            }
        }
    }
    let mut numbers: Vec<usize> = first.clone();
    numbers.sort_unstable();
    numbers.dedup();
    let number = |first: &usize| numbers.binary_search(first).unwrap_or_default();
    first.iter().map(|first| u8::try_from(number(first)).unwrap_or(u8::MAX)).collect()
}

fn joined(one: &Facts, other: &Facts) -> bool {
    if one.fabric.is_some() && other.fabric.is_some() {
        return one.fabric == other.fabric;
    }
    let leads_to = |from: &Facts, to: &Facts| from.links.iter().any(|link| !link.is_switch && link.pci == to.card.pci);
    let shares_switch = one.links.iter().any(|link| link.is_switch && other.links.contains(link));
    shares_switch || leads_to(one, other) || leads_to(other, one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::nvml::wire::{CardId, Link};

    fn card(number: u8, fabric: Option<u32>, links: &[(bool, &str)]) -> Facts {
        let card = CardId { pci: format!("0000:0{number}:00.0"), uuid: format!("GPU-{number}") };
        let links = links.iter().map(|(is_switch, pci)| Link { is_switch: *is_switch, pci: (*pci).to_owned() });
        let fabric = fabric.map(|clique| ([7; 16], clique));
        Facts { card, name: String::new(), memory_mib: 0, fabric, links: links.collect() }
    }

    fn check(cards: &[Facts], expected: &[u8]) {
        assert_eq!(islands(cards.iter()), expected);
    }

    #[test]
    fn cards_without_links_are_alone() {
        check(&[card(0, None, &[]), card(1, None, &[])], &[0, 1]);
    }

    #[test]
    fn cliques_are_islands() {
        check(&[card(0, Some(1), &[]), card(1, Some(2), &[]), card(2, Some(1), &[])], &[0, 1, 0]);
    }

    #[test]
    fn a_shared_switch_joins() {
        let cards = [card(0, None, &[(true, "s1")]), card(1, None, &[(true, "s2")]), card(2, None, &[(true, "s1")])];
        check(&cards, &[0, 1, 0]);
    }

    #[test]
    fn neighbours_of_neighbours_are_together() {
        let cards = [
            card(0, None, &[(false, "0000:03:00.0")]),
            card(1, None, &[]),
            card(2, None, &[(false, "0000:03:00.0")]),
            card(3, None, &[]),
        ];
        check(&cards, &[0, 1, 0, 0]);
    }
}

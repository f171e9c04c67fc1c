//! A map from ids of one counter, in order.
//!
//! Jobs and allocations come with rising ids and leave at random: a tree of single entries costs a decision a dozen cold lines. Here
//! sixty-four consecutive ids share a page, so the tree is small and what is looked up stands at its place. What must stay true: a page
//! is there exactly as long as something stands on it; a page whose ids have nearly all gone costs 512 bytes, no more.

use std::collections::BTreeMap;

const PAGE: u64 = 64;

/// Values by id.
#[derive(Clone, Debug)]
pub(crate) struct ById<V> {
    pages: BTreeMap<u64, Page<V>>,
}

#[derive(Clone, Debug)]
struct Page<V> {
    slots: Box<[Option<V>]>,
    count: u32,
}

impl<V> Default for ById<V> {
    fn default() -> Self {
        ById { pages: BTreeMap::new() }
    }
}

fn slot(id: u64) -> usize {
    (id % PAGE) as usize
}

impl<V> ById<V> {
    pub(crate) fn get(&self, id: u64) -> Option<&V> {
        self.pages.get(&(id / PAGE))?.slots[slot(id)].as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut V> {
        self.pages.get_mut(&(id / PAGE))?.slots[slot(id)].as_mut()
    }

    /// Puts a value in its place; answers what stood there.
    pub(crate) fn insert(&mut self, id: u64, value: V) -> Option<V> {
        let page =
            self.pages.entry(id / PAGE).or_insert_with(|| Page { slots: (0..PAGE).map(|_| None).collect(), count: 0 });
        let old = page.slots[slot(id)].replace(value);
        page.count += u32::from(old.is_none());
        old
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<V> {
        let page = self.pages.get_mut(&(id / PAGE))?;
        let old = page.slots[slot(id)].take()?;
        page.count -= 1;
        if page.count == 0 {
            self.pages.remove(&(id / PAGE));
        }
        Some(old)
    }

    /// An id above those of all values.
    pub(crate) fn beyond(&self) -> u64 {
        self.pages.last_key_value().map_or(0, |(page, _)| (page + 1) * PAGE)
    }

    /// There are no more values than this.
    pub(crate) fn values_max(&self) -> usize {
        self.pages.len() * PAGE as usize
    }

    /// In order of the ids.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> + '_ {
        self.pages.values().flat_map(|page| page.slots.iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..400_u64, any::<bool>()), 0..300)) {
            let (mut pages, mut tree) = (ById::default(), BTreeMap::new());
            for (number, (id, put)) in steps.into_iter().enumerate() {
                // Ids far apart share no page; neighbours do.
                let id = id * 7;
                if put {
                    prop_assert_eq!(pages.insert(id, number), tree.insert(id, number));
                } else {
                    prop_assert_eq!(pages.remove(id), tree.remove(&id));
                }
                prop_assert_eq!(pages.get(id), tree.get(&id));
                prop_assert!(pages.values().eq(tree.values()));
                let full: std::collections::BTreeSet<u64> = tree.keys().map(|id| id / PAGE).collect();
                prop_assert!(pages.pages.keys().copied().eq(full));
            }
        }
    }
}

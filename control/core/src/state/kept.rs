//! How the state keeps the objects of one kind: a table by id, and what an object's coming, changing and going means for what is derived.
//!
//! What must stay true: whatever puts an object into a table or takes one out tells [`Kept::changed`] in the same step, with what was there
//! before. Applying is a hot path: an object is looked up once and never copied.

use crate::index::Index;
use muster_model::capacity::Capacity;
use muster_model::object::Replicated;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What follows from the objects.
#[derive(Clone, Debug, Default)]
pub struct Derived {
    /// What is in use.
    pub(super) capacity: Capacity,
    /// Ways to find objects without scanning.
    pub(super) index: Index,
}

/// A kind of object in the state.
pub trait Kept: Replicated {
    /// What the table holds: itself, or shared with who reads the state.
    type Held: From<Self> + Borrow<Self>;
    /// Where they are.
    type Table: Table<Self>;

    /// An object has come (`old` is none), changed, or gone (`new` is none).
    fn changed(derived: &mut Derived, old: Option<&Self::Held>, new: Option<&Self::Held>);
}

/// The objects of one kind.
pub trait Table<K: Kept>: Default {
    /// The object has this value now.
    fn put(&mut self, object: K, derived: &mut Derived);

    /// The object is gone, if it was there.
    fn delete(&mut self, id: &K::Id, derived: &mut Derived);

    /// All, in the order of their ids.
    fn all(&self) -> impl Iterator<Item = K> + '_;
}

impl<K: Kept> Table<K> for BTreeMap<K::Id, K::Held> {
    fn put(&mut self, object: K, derived: &mut Derived) {
        match self.entry(object.object_id()) {
            Entry::Vacant(place) => {
                let new = place.insert(object.into());
                K::changed(derived, None, Some(new));
            }
            Entry::Occupied(mut place) => {
                let old = place.insert(object.into());
                K::changed(derived, Some(&old), Some(place.get()));
            }
        }
    }

    fn delete(&mut self, id: &K::Id, derived: &mut Derived) {
        if let Some(old) = self.remove(id) {
            K::changed(derived, Some(&old), None);
        }
    }

    fn all(&self) -> impl Iterator<Item = K> + '_ {
        self.values().map(|held| Borrow::<K>::borrow(held).clone())
    }
}

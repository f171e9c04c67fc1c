//! What a fuzz target is, and what it has come to.
//!
//! What must stay true: a target notes what it has reached, and nothing that a target does depends on these notes.

use std::cell::RefCell;
use std::collections::BTreeSet;

/// One parser, with what must hold of what it reads.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of the folder of its kept inputs.
    pub name: &'static str,
    /// What it reads and what must hold, for people.
    pub what: &'static str,
    /// Words that its inputs have, for the mutator.
    pub words: &'static [&'static str],
    /// What its kept inputs have to reach: names of types that were read, and of places in the target.
    pub reaches: &'static [&'static str],
    /// Reads one input. It panics when something does not hold.
    pub run: fn(&[u8]),
}

thread_local! {
    static REACHED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// Notes that a target has come to a place, for the test that kept inputs are still good.
pub(crate) fn reached(place: &'static str) {
    REACHED.with_borrow_mut(|places| places.insert(place));
}

/// The places that targets have come to on this thread since this was asked last.
#[must_use]
pub fn take_reached() -> BTreeSet<&'static str> {
    REACHED.with_borrow_mut(std::mem::take)
}

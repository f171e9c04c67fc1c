//! What a fuzz target is, and all that there are.
//!
//! What must stay true: names are unique, since each is a folder of kept inputs.

use crate::targets::{files, host, images, login, pki, replay, stored, text, tokens, wire};
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

/// All targets, group by group.
pub const GROUPS: &[(&str, &[Target])] = &[
    ("text", text::TARGETS),
    ("replay", replay::TARGETS),
    ("files", files::TARGETS),
    ("wire", wire::TARGETS),
    ("stored", stored::TARGETS),
    ("tokens", tokens::TARGETS),
    ("login", login::TARGETS),
    ("pki", pki::TARGETS),
    ("host", host::TARGETS),
    ("images", images::TARGETS),
];

/// All targets.
pub fn all() -> impl Iterator<Item = &'static Target> {
    GROUPS.iter().flat_map(|(_, targets)| targets.iter())
}

/// The target of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Target> {
    all().find(|target| target.name == name)
}

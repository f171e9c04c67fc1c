//! Reading a stored tree: no deeper than a text can make it.
//!
//! Each level of a tree is one level of recursion. What must stay true: bytes from a disk or a peer end in an error, never in a full stack.

use super::bounds;
use serde::{Deserialize, Deserializer, de::Error};
use std::cell::Cell;

thread_local! {
    /// Levels of the tree that this thread is inside.
    static LEVELS: Cell<usize> = const { Cell::new(0) };
}

/// One level, left again however the reading ends.
struct Level;

impl Level {
    fn enter() -> Option<Self> {
        LEVELS.with(|levels| {
            // The innermost level is a comparison, which enters none.
            let is_free = levels.get() + 1 < bounds::DEPTH_MAX;
            is_free.then(|| levels.set(levels.get() + 1)).map(|()| Level)
        })
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        LEVELS.with(|levels| levels.set(levels.get() - 1));
    }
}

/// Reads the parts of a join or a negation.
pub(super) fn one_level_down<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    let _level = Level::enter()
        .ok_or_else(|| D::Error::custom(format_args!("selector has more than {} levels", bounds::DEPTH_MAX)))?;
    T::deserialize(from)
}

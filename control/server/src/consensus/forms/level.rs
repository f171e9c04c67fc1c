//! What each voter says of the feature levels that it knows.
//!
//! What must stay true: what was said in an earlier term does not count, and a voter that has said nothing knows nothing.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// By voter, the newest level it knows, as its heartbeats said in this term.
#[derive(Debug, Default)]
pub(crate) struct Levels(Mutex<BTreeMap<u64, u32>>);

impl Levels {
    pub(crate) fn note(&self, voter: u64, knows: u32) {
        self.0.lock().insert(voter, knows);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// What all of them know; nothing while one has not said so.
    pub(crate) fn common(&self, voters: &BTreeSet<u64>) -> Option<u32> {
        let known = self.0.lock();
        voters.iter().map(|voter| known.get(voter).copied()).collect::<Option<Vec<u32>>>()?.into_iter().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_know_is_known_once_all_have_said_so() {
        let levels = Levels::default();
        let voters = BTreeSet::from([1, 2]);
        levels.note(1, 3);
        assert_eq!(levels.common(&voters), None, "2 has not said anything");
        levels.note(2, 2);
        levels.note(9, 1);
        assert_eq!(levels.common(&voters), Some(2), "9 does not vote");
        levels.note(2, 4);
        assert_eq!(levels.common(&voters), Some(3), "2 was started in a newer version");
        levels.clear();
        assert_eq!(levels.common(&voters), None, "what was said in an earlier term does not count");
    }
}

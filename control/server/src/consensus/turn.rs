//! Whose turn it is to stand for election, as one voter sees it.
//!
//! Two voters that ask the others at the same moment would both be told yes, both take the new term, and both vote for themselves: nobody
//! is elected before the next timeout. So a voter that has said yes lets that candidate go first for a while, and of two candidates the
//! better one goes first: the one whose log holds more, then the one with the lower id. What must stay true:
//! - it only decides who waits, and for how long: it changes no vote, and every turn ends by itself;
//! - a voter that has begun to ask for votes is not talked out of it, since its own vote is given.

use crate::consensus::types::LogId;
use parking_lot::Mutex;
use std::cmp::Reverse;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A voter that would lead, ordered by how much it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    last_log: Option<LogId>,
    id: Reverse<u64>,
}

impl Candidate {
    pub(super) fn new(last_log: Option<LogId>, id: u64) -> Self {
        Candidate { last_log, id: Reverse(id) }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    turn: Mutex<Option<Turn>>,
    /// When another voter asked whose log lacks entries that this one has.
    wanted: Mutex<Option<Instant>>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    of: Candidate,
    until: Instant,
    /// It is this node, and it asks for votes.
    stands: bool,
}

impl Turns {
    /// Lets another candidate go first, unless a better one does, or this node stands already: then until when.
    pub(super) fn give(&self, to: Candidate, until: Instant) -> Result<(), Instant> {
        self.set(Turn { of: to, until, stands: false })
    }

    /// This node begins to ask the others. An error says how long a better candidate goes first.
    pub(super) fn take(&self, me: Candidate, until: Instant) -> Result<(), Instant> {
        *self.wanted.lock() = None;
        self.set(Turn { of: me, until, stands: false })
    }

    /// This node begins to ask for votes, unless a better candidate has asked it meanwhile.
    pub(super) fn stand(&self, me: Candidate, until: Instant) -> Result<(), Instant> {
        self.set(Turn { of: me, until, stands: true })
    }

    fn set(&self, new: Turn) -> Result<(), Instant> {
        let mut turn = self.turn.lock();
        let now = Instant::now();
        match *turn {
            Some(old) if now < old.until && old.of.id != new.of.id && (old.stands || old.of > new.of) => Err(old.until),
            _ => {
                *turn = Some(new);
                Ok(())
            }
        }
    }

    /// The turn of `id` ends.
    pub(super) fn release(&self, id: u64) {
        let mut turn = self.turn.lock();
        if turn.is_some_and(|turn| turn.of.id == Reverse(id)) {
            *turn = None;
        }
    }

    /// Until when anybody but `id` goes first.
    pub(super) fn given_until(&self, id: u64) -> Option<Instant> {
        self.turn.lock().filter(|turn| turn.of.id != Reverse(id)).map(|turn| turn.until)
    }

    /// A voter asked that lacks entries: this one is to stand.
    pub(super) fn want(&self) {
        *self.wanted.lock() = Some(Instant::now());
        self.changed.notify_one();
    }

    /// Whether one did since `heard`, when a leader was last heard of.
    pub(super) fn is_wanted_since(&self, heard: Instant) -> bool {
        self.wanted.lock().is_some_and(|at| at > heard)
    }

    /// Ready when this node may be due sooner than it thought.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::CommittedLeaderId;
    use std::time::Duration;

    fn candidate(id: u64, index: u64) -> Candidate {
        Candidate::new(Some(LogId::new(CommittedLeaderId::new(1, 1), index)), id)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn of_two_that_ask_at_once_one_gives_way() {
        let (two, three) = (Turns::default(), Turns::default());
        assert_eq!(two.take(candidate(2, 7), soon()), Ok(()));
        assert_eq!(three.take(candidate(3, 7), soon()), Ok(()));
        assert!(two.give(candidate(3, 7), soon()).is_err());
        assert_eq!(three.give(candidate(2, 7), soon()), Ok(()));
        assert!(three.stand(candidate(3, 7), soon()).is_err(), "it has given way meanwhile");
        assert_eq!(two.stand(candidate(2, 7), soon()), Ok(()));
        assert!(two.give(candidate(1, 9), soon()).is_err(), "it has voted for itself");
        two.release(2);
        assert_eq!(two.give(candidate(3, 7), soon()), Ok(()));
    }

    #[test]
    fn the_log_counts_more_than_the_id() {
        let turns = Turns::default();
        assert_eq!(turns.give(candidate(1, 7), soon()), Ok(()));
        assert_eq!(turns.give(candidate(3, 8), soon()), Ok(()));
        assert!(turns.give(candidate(1, 7), soon()).is_err());
        assert!(turns.given_until(3).is_none());
        assert!(turns.given_until(2).is_some());
    }

    #[test]
    fn a_turn_ends_by_itself() {
        let turns = Turns::default();
        assert_eq!(turns.give(candidate(1, 7), Instant::now()), Ok(()));
        assert_eq!(turns.give(candidate(3, 7), soon()), Ok(()));
    }
}

//! When this node last heard of a leader.

use crate::consensus::types::Vote;
use parking_lot::Mutex;
use tokio::time::Instant;

/// See the module.
#[derive(Debug)]
pub(crate) struct Contact(Mutex<Heard>);

#[derive(Clone, Copy, Debug)]
struct Heard {
    /// Starting counts: whoever leads has a while to make itself heard.
    at: Instant,
    /// The highest committed vote that was heard.
    vote: Option<Vote>,
    /// A leader was heard since this node started.
    leader: bool,
    /// Its process has ended since.
    ended: bool,
}

impl Contact {
    pub(crate) fn new(now: Instant) -> Self {
        Contact(Mutex::new(Heard { at: now, vote: None, leader: false, ended: false }))
    }

    /// A leader with this vote was heard. A leader that has been replaced does not count.
    pub(crate) fn note(&self, vote: &Vote, now: Instant) {
        let mut heard = self.0.lock();
        if vote.is_committed() && heard.vote.is_none_or(|known| *vote >= known) {
            *heard = Heard { at: heard.at.max(now), vote: Some(*vote), leader: true, ended: false };
        }
    }

    /// The process of this leader, last heard of at `at`, was found to have ended. Whether nothing was heard of any leader meanwhile.
    pub(super) fn note_end(&self, leader: u64, at: Instant) -> bool {
        let mut heard = self.0.lock();
        let same = heard.at == at && heard.leader_id() == Some(leader);
        heard.ended |= same;
        same
    }

    pub(super) fn last(&self) -> Instant {
        self.0.lock().at
    }

    /// Who was heard last.
    pub(super) fn leader(&self) -> Option<u64> {
        self.0.lock().leader_id()
    }

    /// When a leader was heard, if one was since this node started, and its process is not known to have ended.
    pub(super) fn leader_heard(&self) -> Option<Instant> {
        let heard = self.0.lock();
        (heard.leader && !heard.ended).then_some(heard.at)
    }

    /// Whether the process of the last leader has ended.
    pub(super) fn leader_has_ended(&self) -> bool {
        self.0.lock().ended
    }
}

impl Heard {
    fn leader_id(&self) -> Option<u64> {
        self.vote.and_then(|vote| vote.leader_id().voted_for())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_leader_that_was_replaced_is_not_heard() {
        let start = Instant::now();
        let contact = Contact::new(start);
        assert_eq!(contact.leader_heard(), None);
        contact.note(&Vote::new_committed(5, 2), start + Duration::from_millis(10));
        contact.note(&Vote::new_committed(4, 1), start + Duration::from_millis(90));
        contact.note(&Vote::new(6, 3), start + Duration::from_millis(95));
        assert_eq!(contact.leader_heard(), Some(start + Duration::from_millis(10)));
        assert_eq!(contact.leader(), Some(2));
    }

    #[test]
    fn a_leader_that_is_heard_again_has_not_ended() {
        let start = Instant::now();
        let contact = Contact::new(start);
        let (first, second) = (start + Duration::from_millis(10), start + Duration::from_millis(20));
        contact.note(&Vote::new_committed(5, 2), first);
        assert!(contact.note_end(2, first));
        assert_eq!((contact.leader_has_ended(), contact.leader_heard()), (true, None));
        contact.note(&Vote::new_committed(5, 2), second);
        assert_eq!((contact.leader_has_ended(), contact.leader_heard()), (false, Some(second)));
        assert!(!contact.note_end(2, first), "it was asked before it was heard again");
        assert!(!contact.note_end(1, second), "another one was asked");
        assert!(!contact.leader_has_ended());
    }
}

//! The last changes, for those who follow: a ring bounded by count and by bytes.
//!
//! What must stay true: revisions in the ring follow each other without a gap, so a follower either gets every change after the
//! revision it names, in order, or is told that it is too late.

use crate::consensus::error::{Lagged, TooOld};
use crate::consensus::stop::Stop;
use crate::consensus::{Applied, Follower};
use muster_model::{AuditRecord, Change, Job, Object, Revision};
use muster_runtime::timeline;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::watch;

/// Revisions kept: at a thousand a second, a follower may stall for a minute.
const MAX_REVISIONS: usize = 65_536;
/// And their size in memory: some seconds of the highest rate, minutes of a usual one. Who falls behind further is sent a snapshot.
const MAX_BYTES: usize = 128 << 20;
/// What lies in texts, lists and maps of an object is stored more tightly than it is kept.
const KEPT_BY_STORED: usize = 2;

/// Publishes what was applied.
#[derive(Debug)]
pub(crate) struct Hub {
    ring: Mutex<Ring>,
    /// The last revision published; wakes followers and those who wait for a revision.
    last: watch::Sender<u64>,
    stop: Stop,
}

#[derive(Debug, Default)]
struct Ring {
    /// The revision before the first kept.
    before: u64,
    kept: VecDeque<(Applied, usize)>,
    bytes: usize,
    /// Of everything that was ever put in.
    bytes_ever: u64,
}

/// How far back the changes reach that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The lowest revision to follow from.
    pub oldest: Revision,
    /// The last revision.
    pub last: Revision,
    /// Bytes of all changes that this node has ever published.
    bytes_ever: u64,
}

impl Reach {
    /// What has come since `earlier`, in thousandths of what is kept at most.
    #[must_use]
    pub fn since(&self, earlier: &Reach) -> u64 {
        let revisions = self.last.0.saturating_sub(earlier.last.0) * 1_000 / MAX_REVISIONS as u64;
        let bytes = self.bytes_ever.saturating_sub(earlier.bytes_ever) * 1_000 / MAX_BYTES as u64;
        revisions.max(bytes)
    }
}

impl Hub {
    /// Starts after `applied`, with nothing kept.
    pub(crate) fn new(applied: u64, stop: Stop) -> Self {
        Hub { ring: Mutex::new(Ring { before: applied, ..Ring::default() }), last: watch::Sender::new(applied), stop }
    }

    /// Adds the next revision, whose changes take so many bytes when they are stored.
    pub(crate) fn publish(&self, applied: Applied, stored: usize) {
        let revision = applied.revision.0;
        let bytes = in_memory(&applied.changes, stored);
        tracing::trace!(target: timeline::TARGET, step = "applied", revision);
        // The very first entry, a membership, has index 0: there is no revision before it to follow from, and it changes nothing.
        if revision > 0 {
            let mut ring = self.ring.lock();
            if ring.before + ring.kept.len() as u64 + 1 != revision {
                *ring = Ring { before: revision - 1, bytes_ever: ring.bytes_ever, ..Ring::default() };
            }
            ring.kept.push_back((applied, bytes));
            ring.bytes += bytes;
            ring.bytes_ever += bytes as u64;
            while ring.kept.len() > MAX_REVISIONS || (ring.bytes > MAX_BYTES && ring.kept.len() > 1) {
                if let Some((_, freed)) = ring.kept.pop_front() {
                    ring.bytes -= freed;
                    ring.before += 1;
                }
            }
        }
        self.last.send_replace(revision);
    }

    /// A snapshot took the place of everything up to `applied`.
    pub(crate) fn reset(&self, applied: u64) {
        let mut ring = self.ring.lock();
        *ring = Ring { before: applied, bytes_ever: ring.bytes_ever, ..Ring::default() };
        drop(ring);
        self.last.send_replace(applied);
    }

    /// Follows from the revision after `after`.
    pub(crate) fn follow(self: &std::sync::Arc<Self>, after: Revision) -> Result<Follower, TooOld> {
        let oldest = self.ring.lock().before;
        if after.0 < oldest {
            return Err(TooOld { after, oldest: Revision(oldest) });
        }
        Ok(Follower { hub: self.clone(), after: after.0, wake: self.last.subscribe() })
    }

    /// How far back the changes reach.
    pub(crate) fn reach(&self) -> Reach {
        let ring = self.ring.lock();
        let last = ring.before + ring.kept.len() as u64;
        Reach { oldest: Revision(ring.before), last: Revision(last), bytes_ever: ring.bytes_ever }
    }

    /// Waits until `revision` is applied.
    pub(crate) async fn wait_for(&self, revision: u64) -> Result<(), String> {
        let mut last = self.last.subscribe();
        tokio::select! {
            biased;
            reached = last.wait_for(|last| *last >= revision) => {
                reached.map(|_| ()).map_err(|_| "the control node has stopped".to_owned())
            }
            why = self.stop.stopped() => Err(why),
        }
    }

    fn after(&self, after: u64) -> Result<Option<Applied>, Lagged> {
        let ring = self.ring.lock();
        if after < ring.before {
            return Err(Lagged::Behind { after: Revision(after) });
        }
        let place = usize::try_from(after - ring.before).unwrap_or(usize::MAX);
        Ok(ring.kept.get(place).map(|(applied, _)| applied.clone()))
    }
}

/// About what these changes take in memory. A changed object is kept in a box that would hold the largest kind of object, so small ones take ten
/// times what is stored of them.
fn in_memory(changes: &[Change], stored: usize) -> usize {
    let kept = |change: &Change| match change {
        Change::Put(_) => size_of::<Object>(),
        Change::Retire(_) => size_of::<Job>(),
        Change::Audit(_) => size_of::<AuditRecord>(),
        Change::Delete(_) => 0,
    };
    let boxes: usize = changes.iter().map(kept).sum();
    size_of::<(Applied, usize)>() + size_of_val(changes) + boxes + stored * KEPT_BY_STORED
}

impl Follower {
    /// The changes of the next revision, as soon as they are applied. Safe to drop and call again.
    ///
    /// # Errors
    /// [`Lagged`] when the follower was too slow or the node has stopped.
    pub async fn next(&mut self) -> Result<Applied, Lagged> {
        loop {
            // Marked as seen before looking, so that what comes after the look wakes.
            self.wake.borrow_and_update();
            if let Some(applied) = self.hub.after(self.after)? {
                self.after = applied.revision.0;
                return Ok(applied);
            }
            tokio::select! {
                biased;
                why = self.hub.stop.stopped() => return Err(Lagged::Stopped { why }),
                changed = self.wake.changed() => {
                    if changed.is_err() {
                        return Err(Lagged::Stopped { why: "the control node has stopped".to_owned() });
                    }
                }
            }
        }
    }

    /// The changes of the next revision, if they have been applied already.
    ///
    /// # Errors
    /// [`Lagged::Behind`] when the follower was too slow.
    pub fn ready(&mut self) -> Result<Option<Applied>, Lagged> {
        let applied = self.hub.after(self.after)?;
        if let Some(applied) = &applied {
            self.after = applied.revision.0;
        }
        Ok(applied)
    }

    /// The last revision it has had.
    #[must_use]
    pub fn after(&self) -> Revision {
        Revision(self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::usage::AllocationUsage;
    use std::sync::Arc;

    fn applied(revision: u64) -> Applied {
        Applied { revision: Revision(revision), now_ms: revision, changes: Arc::default() }
    }

    #[tokio::test]
    async fn a_follower_gets_every_revision_in_order() {
        let hub = Arc::new(Hub::new(10, Stop::new()));
        let mut follower = hub.follow(Revision(10)).expect("follows");
        for revision in 11..=20 {
            hub.publish(applied(revision), 1);
        }
        for revision in 11..=20 {
            assert_eq!(follower.next().await.expect("next").revision, Revision(revision));
        }
        let waiting = tokio::spawn(async move { follower.next().await });
        tokio::task::yield_now().await;
        hub.publish(applied(21), 1);
        assert_eq!(waiting.await.expect("task").expect("next").revision, Revision(21));
        assert_eq!(hub.follow(Revision(9)).expect_err("too old").oldest, Revision(10));
    }

    #[tokio::test]
    async fn one_that_is_too_slow_is_told() {
        let hub = Arc::new(Hub::new(0, Stop::new()));
        let mut slow = hub.follow(Revision(0)).expect("follows");
        for revision in 1..=5 {
            hub.publish(applied(revision), MAX_BYTES / KEPT_BY_STORED / 2 - 1_024);
        }
        assert_eq!(slow.next().await.expect_err("lagged"), Lagged::Behind { after: Revision(0) });
        let mut kept = hub.follow(Revision(3)).expect("follows");
        assert_eq!(kept.next().await.expect("next").revision, Revision(4));
        hub.reset(100);
        assert_eq!(kept.next().await.expect_err("lagged"), Lagged::Behind { after: Revision(4) });
    }

    #[test]
    fn many_small_changes_are_counted_as_they_lie_in_memory() {
        let hub = Arc::new(Hub::new(0, Stop::new()));
        let (changes, stored) = (1_000, 20);
        for revision in 1..=1_000 {
            let small = Object::AllocationUsage(AllocationUsage::default());
            let changes: Vec<Change> = (0..changes).map(|_| Change::put(small.clone())).collect();
            let applied = Applied { revision: Revision(revision), now_ms: revision, changes: Arc::new(changes) };
            hub.publish(applied, 1_000 * stored);
        }
        let kept = hub.ring.lock().kept.len();
        assert!(kept * changes * size_of::<Object>() <= MAX_BYTES, "{kept} revisions of {changes} changes are kept");
        assert!(kept > 50, "{kept}");
    }

    #[tokio::test]
    async fn followers_end_with_the_node() {
        let stop = Stop::new();
        let hub = Arc::new(Hub::new(0, stop.clone()));
        let mut follower = hub.follow(Revision(0)).expect("follows");
        stop.because("disk");
        assert_eq!(follower.next().await.expect_err("stopped"), Lagged::Stopped { why: "disk".to_owned() });
        assert_eq!(hub.wait_for(1).await, Err("disk".to_owned()));
    }
}

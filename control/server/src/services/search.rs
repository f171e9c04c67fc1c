//! Searches: explanations and plans, which the scheduler's own core makes on a view of the state.
//!
//! The view is built when it is first asked for and brought up to date by the changes since, so that a question costs what has changed
//! and not what there is. A search takes up to some tenths of a second, longer than an election may: it is done by [`Host::heavy`]. What
//! must stay true: the answer holds at the revision it names; one search at a time touches the view; those under way are bounded, and
//! more are refused with the time to wait.
//!
//! [`Host::heavy`]: muster_runtime::Host::heavy

use super::App;
use super::snapshot::Snapshot;
use crate::api::refusal;
use crate::consensus::{Consensus, Follower};
use muster_model::{Change, Revision};
use muster_scheduler_core::View;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Calls whose searches are under way: at some tenths of a second each, the last is answered within a client's patience.
const CALLS_MAX: usize = 16;

/// The view, once somebody has asked for it, and the calls that use it.
pub(crate) struct Searches {
    kept: Arc<Mutex<Option<Kept>>>,
    calls: Arc<Semaphore>,
}

impl Default for Searches {
    fn default() -> Self {
        Searches { kept: Arc::default(), calls: Arc::new(Semaphore::new(CALLS_MAX)) }
    }
}

/// A call that may search.
pub(crate) struct Search {
    kept: Arc<Mutex<Option<Kept>>>,
    _call: OwnedSemaphorePermit,
}

struct Kept {
    view: View,
    follower: Follower,
}

impl Kept {
    fn build(consensus: &Consensus) -> Option<Self> {
        let snapshot = consensus.read(Snapshot::take);
        let follower = consensus.follow(snapshot.revision).ok()?;
        let mut view = View::default();
        for object in snapshot.objects() {
            view.apply(&Change::put(object));
        }
        Some(Kept { view, follower })
    }

    /// Takes over the changes up to `revision`, which have been applied; nothing when some were missed.
    fn catch_up(mut self, revision: Revision) -> Option<Self> {
        while self.follower.after() < revision {
            let applied = self.follower.ready().ok()??;
            for change in applied.changes.iter() {
                self.view.apply(change);
            }
        }
        Some(self)
    }
}

impl Searches {
    /// Lets a call in; it may search several times, one after the other.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when too many are under way.
    pub(crate) fn enter(&self) -> Result<Search, Status> {
        let call = Arc::clone(&self.calls).try_acquire_owned();
        let call = call.map_err(|_| {
            metrics::counter!("muster_searches_refused_total").increment(1);
            refusal::searching(CALLS_MAX)
        })?;
        Ok(Search { kept: Arc::clone(&self.kept), _call: call })
    }
}

impl Search {
    /// Looks at a view that is at `revision`, which has been applied here, or later; trials on it are undone before `look` ends.
    ///
    /// # Errors
    /// When changes come faster than they can be taken over, or the search broke off.
    pub(crate) async fn look<R: Send + 'static>(
        &self,
        app: &App,
        revision: Revision,
        look: impl FnOnce(&mut View, Revision) -> R + Send + 'static,
    ) -> Result<R, Status> {
        let (kept, consensus) = (Arc::clone(&self.kept), app.consensus.clone());
        let search = move || {
            let mut kept = kept.lock();
            // It is taken out meanwhile: a search that panics leaves no half view behind.
            let caught_up = kept.take().and_then(|kept| kept.catch_up(revision));
            let mut found = caught_up.or_else(|| Kept::build(&consensus)?.catch_up(revision))?;
            let at = found.follower.after();
            let seen = look(&mut found.view, at);
            *kept = Some(found);
            Some(seen)
        };
        let searched = app.host.heavy(search).map_err(|full| refusal::searching(full.limit))?.await;
        let seen = searched.map_err(|broken| Status::internal(broken.to_string()))?;
        seen.ok_or_else(|| refusal::unavailable("the state changes too fast for this search; try again"))
    }
}

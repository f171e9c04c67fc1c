//! Brings the state: a snapshot, then every change, from any control node that answers.
//!
//! What must stay true: the planner is given whole revisions in order; after a gap it is given a whole snapshot. A stream that
//! ends, fails, goes quiet or falls behind what the shard knows to be committed is taken up again elsewhere, from the last
//! whole revision.

use crate::control::Control;
use muster_model::{Change, Object};
use muster_proto::convert::change_from_control_plane;
use muster_proto::v1;
use muster_runtime::pki::CertificateClock;
use muster_runtime::timeline;
use muster_scheduler_core::View;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Messages that may wait for the planner; beyond, the stream itself is held back.
pub(crate) const SEEN_MAX: usize = 256;
/// A stream that says nothing for so long is taken up again at another node: a live one repeats itself four times meanwhile, and
/// resuming is cheap.
const SILENCE_MAX: Duration = Duration::from_millis(600);
/// A stream that has not brought a revision known to be committed for so long hangs behind.
const BEHIND_MAX: Duration = Duration::from_millis(500);
/// Pause before the next try.
const RETRY: Duration = Duration::from_millis(100);

/// What the planner is told.
pub(crate) enum Seen {
    /// Everything, as of a revision.
    Snapshot { view: Box<View>, revision: u64, now_ms: u64 },
    /// The changes up to a revision.
    Changes { changes: Vec<Change>, revision: u64, now_ms: u64 },
}

/// Why a stream was left.
enum Left {
    Stop,
    Again(&'static str),
}

pub(crate) struct Follower {
    pub(crate) control: Arc<Control>,
    pub(crate) seen: mpsc::Sender<Seen>,
    /// The highest revision that the planner knows to be committed.
    pub(crate) expected: watch::Receiver<u64>,
    /// Is told the time of the state.
    pub(crate) clock: Arc<CertificateClock>,
}

impl Follower {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut at_revision = 0;
        loop {
            let from = self.control.current();
            let left = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                left = self.stream(from, &mut at_revision) => left,
            };
            match left {
                Left::Stop => return,
                Left::Again(why) => {
                    tracing::debug!(why, revision = at_revision, "the watch is opened again");
                    metrics::counter!("muster_shard_watch_restarts_total", "why" => why).increment(1);
                    self.control.turn_from(from);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Reads one stream until it is to be left.
    async fn stream(&self, from: usize, at_revision: &mut u64) -> Left {
        let opening = tokio::time::timeout(SILENCE_MAX, self.control.watch(*at_revision));
        let mut stream = match opening.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(_)) => return Left::Again("refused"),
            Err(_) => return Left::Again("silent"),
        };
        let mut expected = self.expected.clone();
        let mut parts = Parts::default();
        let mut behind_since: Option<Instant> = None;
        loop {
            let behind = *expected.borrow_and_update() > *at_revision;
            let since = behind.then(|| *behind_since.get_or_insert_with(Instant::now));
            if !behind {
                behind_since = None;
            }
            // While behind, silence is counted from when that began, and more strictly.
            let until = since.map_or_else(|| Instant::now() + SILENCE_MAX, |since| since + BEHIND_MAX);
            let message = tokio::select! {
                biased;
                message = tokio::time::timeout_at(until, stream.message()) => message,
                Ok(()) = expected.changed(), if !behind => continue,
            };
            let event = match message {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) => return Left::Again("ended"),
                Ok(Err(_)) => return Left::Again("failed"),
                Err(_) => return Left::Again("silent"),
            };
            self.clock.hear(event.now_ms);
            if event.snapshot || event.revision > *at_revision {
                // Progress: a long catching-up is not a hang.
                behind_since = None;
            }
            // Calls to that node have failed: what it tells may be old.
            if self.control.current() != from {
                return Left::Again("moved");
            }
            if is_beat(&event, *at_revision) {
                continue;
            }
            let Some(seen) = parts.take(event) else { continue };
            *at_revision = seen.revision();
            tracing::trace!(target: timeline::TARGET, step = "shard_received", revision = *at_revision);
            if self.seen.send(seen).await.is_err() {
                return Left::Stop;
            }
        }
    }
}

impl Seen {
    fn revision(&self) -> u64 {
        match self {
            Seen::Snapshot { revision, .. } | Seen::Changes { revision, .. } => *revision,
        }
    }
}

/// The parts of a revision, or of a snapshot, that is not complete yet.
#[derive(Default)]
struct Parts {
    snapshot: bool,
    changes: Vec<Change>,
}

impl Parts {
    /// Adds an event; answers what is complete with it.
    fn take(&mut self, event: v1::WatchEvent) -> Option<Seen> {
        if event.snapshot && !self.snapshot {
            self.changes.clear();
            self.snapshot = true;
        }
        self.changes.extend(event.changes.into_iter().filter_map(understood));
        if event.more {
            return None;
        }
        let Parts { snapshot, changes } = std::mem::take(self);
        let (revision, now_ms) = (event.revision, event.now_ms);
        if !snapshot {
            return Some(Seen::Changes { changes, revision, now_ms });
        }
        let view = Box::new(View::from_objects(changes.into_iter().filter_map(put)));
        Some(Seen::Snapshot { view, revision, now_ms })
    }
}

/// Whether the event only says that the stream lives.
fn is_beat(event: &v1::WatchEvent, at_revision: u64) -> bool {
    !event.snapshot && !event.more && event.changes.is_empty() && event.revision <= at_revision
}

fn put(change: Change) -> Option<Object> {
    match change {
        Change::Put(object) => Some(*object),
        Change::Delete(_) | Change::Retire(_) | Change::Audit(_) => None,
    }
}

/// A change that this shard cannot read is one it cannot plan with; the rest of the fleet must not wait for that. It is said loudly, by
/// the object's name, since jobs and nodes that a shard does not see do not take part.
fn understood(wire: v1::WatchChange) -> Option<Change> {
    let what = name_of(&wire);
    match change_from_control_plane(wire) {
        Ok(change) => Some(change),
        Err(error) => {
            metrics::counter!("muster_shard_changes_not_understood_total").increment(1);
            tracing::error!(
                %what, %error,
                "this shard cannot read an object of the control plane and plans without it; upgrade the shard to the control plane's version"
            );
            None
        }
    }
}

/// What a change is about, for the log.
fn name_of(wire: &v1::WatchChange) -> String {
    use v1::watch_change::Change as Wire;
    match &wire.change {
        Some(Wire::Tenant(tenant)) => format!("tenant {}", tenant.id),
        Some(Wire::Pool(pool)) => format!("pool {}", pool.name),
        Some(Wire::Window(window)) => format!("window {}", window.name),
        Some(Wire::PriorityClass(class)) => format!("priority class {}", class.name),
        Some(Wire::Move(record)) => format!("move {}", record.id),
        Some(Wire::UseHistory(record)) => format!("history of use of tenant {}", record.tenant_id),
        Some(Wire::Cell(cell)) => format!("cell {}", cell.name),
        Some(Wire::Node(node)) => format!("node {}", node.spec.as_ref().map_or("", |spec| spec.name.as_str())),
        Some(Wire::Job(job)) => format!("job {}", job.id),
        Some(Wire::Allocation(allocation)) => format!("allocation {} of job {}", allocation.id, allocation.job),
        Some(
            Wire::TenantGone(_)
            | Wire::PoolGone(_)
            | Wire::CellGone(_)
            | Wire::NodeGone(_)
            | Wire::JobGone(_)
            | Wire::AllocationGone(_)
            | Wire::PriorityClassGone(_)
            | Wire::WindowGone(_)
            | Wire::MoveGone(_)
            | Wire::UseHistoryGone(_),
        ) => "a deletion".to_owned(),
        None => "an object of an unknown kind".to_owned(),
    }
}

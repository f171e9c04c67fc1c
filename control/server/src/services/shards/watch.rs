//! The watch that shards plan from: a snapshot in parts, then the changes of every revision.
//!
//! What must stay true: an event holds a bounded number of changes; the last event of a revision says so (`more` is false); between
//! snapshot and changes there is no gap, and a shard that has missed changes is sent a new snapshot. Every revision is told, also one
//! that changed nothing a shard sees, so that a shard knows how far its view has come. A node that is part of the cluster is never
//! quiet for longer than a beat: silence tells a shard to look elsewhere.

use crate::api::refusal;
use crate::consensus::{Follower, Lagged};
use crate::services::App;
use crate::services::outlet::Outlet;
use crate::services::snapshot::Snapshot;
use futures::StreamExt;
use futures::stream::BoxStream;
use muster_model::Revision;
use muster_proto::convert::{change_to_wire, object_to_wire};
use muster_proto::v1;
use prost::Message;
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// Changes of one event.
const CHANGES_MAX: usize = 1_000;
/// And their bytes, but for one that is larger by itself: the largest gang's allocation.
const BYTES_MAX: usize = 1 << 20;

/// A watch with nothing to tell repeats its revision this often, while this node hears the quorum.
const BEAT: Duration = Duration::from_millis(150);

type Events = Outlet<v1::WatchEvent>;

pub(super) fn watch(
    app: &App,
    request: v1::WatchRequest,
) -> Result<BoxStream<'static, Result<v1::WatchEvent, Status>>, Status> {
    let permit = Arc::clone(&app.watches).try_acquire_owned();
    let permit = permit.map_err(|_| refusal::busy("the number of watches", super::super::WATCHES_MAX))?;
    let (out, events) = app.shard_events.open();
    let from = (request.from_revision != 0).then_some(Revision(request.from_revision));
    let host = app.host.clone();
    let app = app.clone();
    host.spawn_for_one(async move {
        let _permit = permit;
        let _ = app.stop.run_until_cancelled(run(&app, from, &out)).await;
    });
    Ok(events.boxed())
}

/// Ends when the shard has gone or this node stops.
async fn run(app: &App, mut from: Option<Revision>, out: &Events) {
    loop {
        let follower = match from.take().map(|after| app.consensus.follow(after)) {
            Some(Ok(follower)) => follower,
            None | Some(Err(_)) => {
                let Some(after) = snapshot(app, out).await else { return };
                from = Some(after);
                continue;
            }
        };
        if !follow(app, follower, out).await {
            return;
        }
    }
}

/// Sends the whole state in parts; `None` when the shard has gone.
async fn snapshot(app: &App, out: &Events) -> Option<Revision> {
    let snapshot = app.consensus.read(Snapshot::take);
    let (revision, now_ms) = (snapshot.revision, snapshot.now_ms);
    let mut changes = snapshot.objects().filter_map(|object| object_to_wire(&object)).map(planned).peekable();
    loop {
        let part = next_part(&mut changes);
        let more = changes.peek().is_some();
        let event = v1::WatchEvent { revision: revision.0, snapshot: true, more, changes: part, now_ms };
        out.send(event).await.ok()?;
        if !more {
            return Some(revision);
        }
    }
}

/// A change with what planning needs of it: commands, environments and names of jobs are nothing to a shard, which may be in wrong hands.
fn planned(mut change: v1::WatchChange) -> v1::WatchChange {
    if let Some(v1::watch_change::Change::Job(job)) = &mut change.change
        && let Some(spec) = &mut job.spec
    {
        spec.command = vec!["-".to_owned()];
        spec.env.clear();
        spec.secret_env.clear();
        spec.workdir.clear();
        spec.name = "-".to_owned();
        job.checkpoint_note.clear();
    }
    change
}

/// As many changes as one event holds.
fn next_part(changes: &mut Peekable<impl Iterator<Item = v1::WatchChange>>) -> Vec<v1::WatchChange> {
    let (mut part, mut bytes) = (Vec::new(), 0);
    while part.len() < CHANGES_MAX {
        let Some(change) = changes.next_if(|change| part.is_empty() || bytes + change.encoded_len() <= BYTES_MAX)
        else {
            break;
        };
        bytes += change.encoded_len();
        part.push(change);
    }
    part
}

/// Sends changes; true when the shard has missed some and needs a snapshot, false when it or this node has gone.
async fn follow(app: &App, mut follower: Follower, out: &Events) -> bool {
    loop {
        let applied = tokio::select! {
            biased;
            () = out.closed() => return false,
            applied = follower.next() => applied,
            () = tokio::time::sleep(BEAT) => {
                let revision = follower.after().0;
                // A stream that is full needs no beat, and a node that hears nobody gives none.
                if app.consensus.hears_quorum() {
                    out.send_now(v1::WatchEvent { revision, ..Default::default() });
                }
                continue;
            }
        };
        let applied = match applied {
            Ok(applied) => applied,
            Err(Lagged::Behind { .. }) => return true,
            Err(Lagged::Stopped { why }) => {
                out.fail(refusal::unavailable(why));
                return false;
            }
        };
        let mut changes = applied.changes.iter().filter_map(change_to_wire).map(planned).peekable();
        loop {
            let part = next_part(&mut changes);
            let more = changes.peek().is_some();
            let (revision, now_ms) = (applied.revision.0, applied.now_ms);
            let event = v1::WatchEvent { revision, snapshot: false, more, changes: part, now_ms };
            if out.send(event).await.is_err() {
                return false;
            }
            if !more {
                break;
            }
        }
    }
}

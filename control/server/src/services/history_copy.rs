//! What an event log is made from (`muster events export`): a state, and the changes after it.
//!
//! The caller makes the log; this node sends what it has applied, in stored form, of the kinds that a log tells of. What must stay true: between
//! the state and the changes, and between two revisions, there is no gap: where this node does not have a change any more, the call ends
//! and says so; a slow reader waits for itself, within the bound of all of these calls together.

use super::App;
use super::guarded::{Of, guarded};
use super::outlet::{Gone, Outlet};
use super::snapshot::Snapshot;
use crate::api::refusal;
use crate::consensus::{Applied, Follower, Lagged, copied};
use futures::StreamExt;
use futures::stream::BoxStream;
use muster_control_core::authz::{About, Ask};
use muster_control_core::events::{is_told, is_told_of};
use muster_model::identity::Author;
use muster_model::{Change, Key, Object, Revision, Rpc};
use muster_proto::v1;
use muster_proto::v1::copied_change::Change as Copied;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// Bytes of one part, but for one object that is larger by itself.
const PART_BYTES_MAX: usize = 1 << 20;
/// A call with nothing to tell says so this often, while this node hears the quorum.
const BEAT: Duration = Duration::from_secs(2);
/// Calls served at a time: each may hold a state of the past, and logs are written by few.
pub(super) const CALLS_MAX: usize = 16;

pub(crate) type Parts = Outlet<v1::CopyHistoryPart>;

/// What a call asks for, once it was found that it can be had.
struct Call {
    state: Option<Arc<Snapshot>>,
    follower: Follower,
    /// The last revision, unless the call goes on.
    until: Option<Revision>,
}

pub(super) async fn copy_history(
    app: &App,
    author: &Author,
    request: v1::CopyHistoryRequest,
) -> Result<BoxStream<'static, Result<v1::CopyHistoryPart, Status>>, Status> {
    let permit = Arc::clone(&app.history_copies).try_acquire_owned();
    let permit = permit.map_err(|_| refusal::busy("the number of copies of the history", CALLS_MAX))?;
    let last = app
        .look(
            author,
            Ask { rpc: Rpc::AdminCopyHistory, about: About::Nothing },
            request.consistency,
            |_, revision, _| revision,
        )
        .await?;
    let after = Revision(request.after_revision);
    if after > last {
        return Err(refusal::not_reached(after, last));
    }
    let state = if request.with_state { app.past.before(after) } else { None };
    let oldest = || app.past.oldest().unwrap_or(last);
    if request.with_state && state.is_none() {
        return Err(refusal::history_gone(after, oldest()));
    }
    let from = state.as_ref().map_or(after, |state| state.revision);
    let follower = app.consensus.follow(from).map_err(|_| refusal::history_gone(from, oldest()))?;
    let call = Call { state, follower, until: (!request.follow).then_some(last) };
    let (out, parts) = app.history_parts.open();
    let pump_app = app.clone();
    app.host.spawn_for_one(async move {
        let app = pump_app;
        let _permit = permit;
        // Ends when the reader has gone or this node stops.
        let _ = app.stop.run_until_cancelled(send(&app, call, &out)).await;
    });
    Ok(guarded(app, (author, None), Rpc::AdminCopyHistory, Of::Many, parts.boxed()))
}

async fn send(app: &App, call: Call, out: &Parts) -> Result<(), Gone> {
    if let Some(state) = call.state {
        send_state(app, &state, out).await?;
        if call.until == Some(state.revision) {
            return send_end(app, state.revision, out).await;
        }
    }
    let mut follower = call.follower;
    if call.until.is_some_and(|until| until <= follower.after()) {
        return send_end(app, follower.after(), out).await;
    }
    loop {
        let applied = tokio::select! {
            biased;
            () = out.closed() => return Err(Gone),
            applied = follower.next() => applied,
            () = tokio::time::sleep(BEAT) => {
                // A node that hears nobody is not told from one that is silent.
                if app.consensus.hears_quorum() {
                    let (revision, now_ms) = (follower.after().0, app.consensus.now_ms());
                    out.send_now(v1::CopyHistoryPart { revision, now_ms, ..Default::default() });
                }
                continue;
            }
        };
        match applied {
            Ok(applied) => {
                send_changes(app, &applied, out).await?;
                if call.until.is_some_and(|until| until <= applied.revision) {
                    return send_end(app, applied.revision, out).await;
                }
            }
            Err(Lagged::Behind { after }) => {
                out.fail(refusal::history_gone(after, app.past.oldest().unwrap_or(after)));
                return Ok(());
            }
            Err(Lagged::Stopped { why }) => {
                out.fail(refusal::unavailable(why));
                return Ok(());
            }
        }
    }
}

async fn send_end(app: &App, revision: Revision, out: &Parts) -> Result<(), Gone> {
    let now_ms = app.consensus.now_ms();
    out.send(v1::CopyHistoryPart { revision: revision.0, now_ms, end: true, ..Default::default() }).await
}

async fn send_state(app: &App, state: &Snapshot, out: &Parts) -> Result<(), Gone> {
    let (revision, now_ms, level) = (state.revision.0, state.now_ms, level_of(app));
    let objects = state.clone().objects().filter(|object: &Object| is_told_of(object));
    let written: Box<dyn Iterator<Item = Vec<u8>> + Send> = Box::new(objects.map(move |object| encode(level, object)));
    let mut written = written.peekable();
    loop {
        let (mut objects, mut bytes) = (Vec::new(), 0);
        while let Some(object) = written.next_if(|object| bytes == 0 || bytes + object.len() <= PART_BYTES_MAX) {
            bytes += object.len();
            objects.push(object);
        }
        let more = written.peek().is_some();
        out.send(v1::CopyHistoryPart { revision, now_ms, state: true, objects, more, ..Default::default() }).await?;
        if !more {
            return Ok(());
        }
        // Other work of this node goes on between two parts.
        tokio::task::yield_now().await;
    }
}

/// Every revision is told, also one of which a log says nothing, so that the reader can see that there is no gap.
async fn send_changes(app: &App, applied: &Applied, out: &Parts) -> Result<(), Gone> {
    for part in parts_of(level_of(app), applied) {
        out.send(part).await?;
    }
    Ok(())
}

/// The parts of one revision: at least one.
fn parts_of(level: u32, applied: &Applied) -> Vec<v1::CopyHistoryPart> {
    let (revision, now_ms) = (applied.revision.0, applied.now_ms);
    let told = applied.changes.iter().filter(|change| is_told(change));
    let mut written = told.filter_map(|change| copy(level, change)).peekable();
    let mut parts = Vec::new();
    loop {
        let (mut changes, mut bytes) = (Vec::new(), 0);
        while let Some(change) = written.next_if(|change| bytes == 0 || bytes + size(change) <= PART_BYTES_MAX) {
            bytes += size(&change).max(1);
            changes.push(v1::CopiedChange { change: Some(change) });
        }
        let more = written.peek().is_some();
        parts.push(v1::CopyHistoryPart { revision, now_ms, changes, more, ..Default::default() });
        if !more {
            return parts;
        }
    }
}

fn level_of(app: &App) -> u32 {
    app.consensus.read(|state, _| state.meta.feature_level)
}

fn encode(level: u32, object: Object) -> Vec<u8> {
    match object {
        Object::Job(job) => copied::encode(level, &Object::Job(copied::without_commands(&job))),
        other => copied::encode(level, &other),
    }
}

fn copy(level: u32, change: &Change) -> Option<Copied> {
    Some(match change {
        Change::Put(object) => Copied::Put(encode(level, Object::clone(object))),
        Change::Retire(job) => Copied::RetiredJob(copied::encode(level, &Object::Job(copied::without_commands(job)))),
        Change::Delete(Key::Tenant(id)) => Copied::DeletedTenant(id.0.into()),
        Change::Delete(Key::Pool(name)) => Copied::DeletedPool(name.clone()),
        Change::Delete(Key::Node(id)) => Copied::DeletedNode(id.0.into()),
        Change::Delete(Key::Allocation(id)) => Copied::DeletedAllocation(id.0),
        Change::Delete(_) | Change::Audit(_) => return None,
    })
}

fn size(change: &Copied) -> usize {
    match change {
        Copied::Put(bytes) | Copied::RetiredJob(bytes) => bytes.len(),
        Copied::DeletedPool(name) => name.len(),
        Copied::DeletedTenant(_) | Copied::DeletedNode(_) | Copied::DeletedAllocation(_) => size_of::<u64>(),
    }
}

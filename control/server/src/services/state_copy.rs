//! Copies of the state, for questions that are answered elsewhere (`muster what-if`).
//!
//! The objects are counted while the state is held and written afterwards, part by part, as the reader takes them. What must stay true: all parts are
//! of one revision, and the last says so; a copy holds up nobody, and those under way are bounded in number and time.

use super::App;
use super::snapshot::Snapshot;
use crate::api::refusal;
use crate::consensus::copied;
use futures::StreamExt;
use futures::stream::BoxStream;
use muster_control_core::State;
use muster_control_core::authz::{About, Allowed, Ask};
use muster_model::identity::Author;
use muster_model::{Object, Rpc};
use muster_proto::v1;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// Copies under way at a time: each keeps one version of the state in memory until it is sent.
pub(super) const COPIES_MAX: usize = 2;
/// A copy of the largest state takes some tens of seconds on a slow link; whoever reads more slowly is cut off.
const COPY_TIME_MAX: Duration = Duration::from_secs(300);
/// Bytes of one part, but for one object that is larger by itself.
const PART_BYTES_MAX: usize = 1 << 20;

pub(super) async fn copy_state(
    app: &App,
    author: &Author,
    request: v1::CopyStateRequest,
) -> Result<BoxStream<'static, Result<v1::CopyStatePart, Status>>, Status> {
    let permit = Arc::clone(&app.state_copies).try_acquire_owned();
    let permit = permit.map_err(|_| refusal::busy("the number of copies of the state", COPIES_MAX))?;
    let look = |state: &State, revision, _: &Allowed| {
        let classes: Vec<_> = state.device_classes.values().cloned().map(Object::DeviceClass).collect();
        (state.meta.clone(), classes, Snapshot::take(state, revision))
    };
    let (meta, classes, snapshot) =
        app.look(author, Ask { rpc: Rpc::AdminCopyState, about: About::Nothing }, request.consistency, look).await?;
    let (revision, now_ms) = (snapshot.revision, snapshot.now_ms.max(app.consensus.now_ms()));
    let level = meta.feature_level;
    let objects = std::iter::once(Object::Meta(meta)).chain(classes).chain(snapshot.objects());
    let written = objects.map(move |object| match object {
        Object::Job(job) => copied::encode(level, &Object::Job(copied::without_commands(&job))),
        other => copied::encode(level, &other),
    });
    let mut written = written.peekable();
    let mut done = false;
    let parts = std::iter::from_fn(move || {
        let _under_way = &permit;
        if done {
            return None;
        }
        let (mut objects, mut bytes) = (Vec::new(), 0);
        while let Some(object) = written.next_if(|object| bytes == 0 || bytes + object.len() <= PART_BYTES_MAX) {
            bytes += object.len();
            objects.push(object);
        }
        let more = written.peek().is_some();
        done = !more;
        Some(v1::CopyStatePart { revision: revision.0, now_ms, objects, more })
    });
    // Other work of this node goes on between two parts.
    let parts = futures::stream::iter(parts).then(|part| async move {
        tokio::task::yield_now().await;
        Ok(part)
    });
    let stop = app.stop.clone();
    let over = async move {
        let _ = tokio::time::timeout(COPY_TIME_MAX, stop.cancelled()).await;
    };
    Ok(parts.take_until(Box::pin(over)).boxed())
}

//! Streams that end when what allowed them does not hold any more.
//!
//! What must stay true: after a revocation was acknowledged by this node, a stream under that right sends nothing for longer than [`LOOK_EVERY`]; whoever had
//! it is told why.

use super::App;
use crate::api::auth;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use muster_control_core::authz::{About, Ask, Shown};
use muster_model::identity::Author;
use muster_model::{AccessMode, JobId, Rpc};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::Status;

/// Between two looks: with what a follower lags, well within the five seconds that are promised.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What a stream was allowed for.
#[derive(Clone, Copy)]
pub(crate) enum Of {
    /// Whatever the caller may see of many things.
    Many,
    /// One job that lives.
    Job(JobId),
}

struct Guarded<T> {
    app: App,
    author: Author,
    /// What the machine has shown which opened it.
    shown: Option<Shown>,
    rpc: Rpc,
    of: Of,
    looks: Interval,
    stream: BoxStream<'static, Result<T, Status>>,
}

/// The same stream, for as long as `author` may have it, and the machine's key is its own.
pub(crate) fn guarded<T: Send + 'static>(
    app: &App,
    (author, shown): (&Author, Option<Shown>),
    rpc: Rpc,
    of: Of,
    stream: BoxStream<'static, Result<T, Status>>,
) -> BoxStream<'static, Result<T, Status>> {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let guarded = Guarded { app: app.clone(), author: author.clone(), shown, rpc, of, looks, stream };
    stream::unfold(Some(guarded), |guarded| async move {
        let mut guarded = guarded?;
        loop {
            tokio::select! {
                biased;
                _ = guarded.looks.tick() => {
                    if let Err(status) = guarded.look() {
                        return Some((Err(status), None));
                    }
                }
                item = guarded.stream.next() => return item.map(|item| (item, Some(guarded))),
            }
        }
    })
    .boxed()
}

impl<T> Guarded<T> {
    fn look(&self) -> Result<(), Status> {
        let now_ms = self.app.consensus.now_ms();
        let judged = self.app.consensus.read(|state, _| {
            if state.meta.access == AccessMode::Open && !self.author.principal.is_machine() {
                return Ok(());
            }
            let about = match self.of {
                Of::Many => About::Nothing,
                // One that has ended meanwhile was allowed, and what is left of its stream is little.
                Of::Job(job) if state.jobs.contains_key(&job) => About::Job(job),
                Of::Job(_) => return Ok(()),
            };
            auth::still(state, now_ms, (&self.author, self.shown.as_ref()), &Ask { rpc: self.rpc, about })
        });
        judged.map_err(|denied| self.app.refuse(&self.author, self.rpc, &denied))
    }
}

//! Watching jobs: those that match as they are, then every change of them in the order of revisions.
//!
//! What must stay true: between the snapshot and the changes there is no gap; a reader that has missed changes is sent a new
//! snapshot; the watch of one job ends by itself when the job is over.

use super::list::below;
use super::{limited, unknown};
use crate::api::refusal;
use crate::consensus::{Follower, Lagged};
use crate::services::App;
use crate::services::guarded::{Of, guarded};
use crate::services::outlet::{Gone, Outlet};
use futures::StreamExt;
use futures::stream::BoxStream;
use muster_control_core::authz::{About, Visibility};
use muster_model::identity::Author;
use muster_model::{Change, Job, JobId, JobPhase, Object, Revision, Rpc};
use muster_proto::convert::job::job_in_brief;
use muster_proto::v1;
use std::sync::Arc;
use tonic::Status;

/// Why a watch ends.
enum End {
    /// The reader has gone, or has all it asked for.
    Done,
    /// The node stops or its disk fails.
    Failed(Status),
}

struct Watch {
    app: App,
    author: Author,
    sees: Visibility,
    tenant: String,
    job: Option<JobId>,
    out: Outlet<v1::JobEvent>,
}

pub(super) async fn watch(
    app: &App,
    author: &Author,
    request: v1::WatchJobsRequest,
) -> Result<BoxStream<'static, Result<v1::JobEvent, Status>>, Status> {
    let permit = Arc::clone(&app.watches).try_acquire_owned();
    let permit = permit.map_err(|_| refusal::busy("the number of watches", super::super::WATCHES_MAX))?;
    let job = (request.job_id != 0).then_some(JobId(request.job_id));
    // Whatever the caller has been told already is in what it now sees.
    app.consensus.read_index().await.map_err(|error| refusal::propose(&error))?;
    let present = app.consensus.read(|_, revision| revision);
    if request.from_revision > present.0 {
        let problem = format!("is {}, but the cluster is at revision {present}", request.from_revision);
        return Err(refusal::field("from_revision", problem, "use a revision from a reply of this cluster, or 0"));
    }
    let mut from = (request.from_revision != 0).then_some(Revision(request.from_revision));
    if let Some(id) = job {
        let live = app.consensus.read(|state, _| state.jobs.get(&id).map(Arc::clone));
        let (job, _) = super::get::find(app, author, Rpc::JobsGet, live, id)?;
        if matches!(job.phase, JobPhase::Finished(_)) {
            // It will not change any more: its last value is the whole answer.
            from = None;
        }
    }
    let allowed = app.allow(author, Rpc::JobsWatch, About::Nothing)?;
    let (out, events) = app.job_events.open();
    let watch = Watch {
        app: app.clone(),
        author: author.clone(),
        sees: allowed.sees().clone(),
        tenant: request.tenant,
        job,
        out,
    };
    app.host.spawn_for_one(async move {
        let _permit = permit;
        let stop = watch.app.stop.clone();
        if let Some(End::Failed(status)) = stop.run_until_cancelled(watch.run(from)).await {
            watch.out.fail(status);
        }
    });
    Ok(guarded(app, (author, None), Rpc::JobsWatch, Of::Many, events.boxed()))
}

impl Watch {
    async fn run(&self, mut from: Option<Revision>) -> End {
        loop {
            let followed = match from.take().map(|after| self.app.consensus.follow(after)) {
                Some(Ok(follower)) => self.follow(follower).await,
                // From now, or too old: a snapshot first.
                None | Some(Err(_)) => match self.snapshot().await {
                    Ok(after) => {
                        from = Some(after);
                        continue;
                    }
                    Err(end) => Err(end),
                },
            };
            match followed {
                Ok(()) => {}
                Err(end) => return end,
            }
        }
    }

    /// Sends the matching jobs as they are, and gives the revision at which that was.
    async fn snapshot(&self) -> Result<Revision, End> {
        let (jobs, revision) = self.app.consensus.read(|state, revision| {
            let jobs: Vec<Arc<Job>> = match self.job {
                Some(id) => state.jobs.get(&id).into_iter().map(Arc::clone).collect(),
                None => {
                    let wanted = |job: &&Arc<Job>| self.matches(job) && self.sees.shows(state, job.tenant);
                    state.jobs.values().filter(wanted).map(Arc::clone).collect()
                }
            };
            (jobs, revision)
        });
        if let (Some(id), true) = (self.job, jobs.is_empty()) {
            let finished = self.app.consensus.finished_job(id).map_err(|error| End::Failed(refusal::disk(&error)))?;
            let job = finished.ok_or_else(|| End::Failed(unknown(&self.app, &self.author, id)))?;
            return Err(match self.send(revision, &job).await {
                Ok(()) => End::Done,
                Err(end) => end,
            });
        }
        for job in &jobs {
            self.send(revision, job).await?;
        }
        self.event(revision, v1::job_event::Event::SnapshotEnd(true)).await?;
        Ok(revision)
    }

    /// Sends changes until the reader has missed some.
    async fn follow(&self, mut follower: Follower) -> Result<(), End> {
        loop {
            let applied = tokio::select! {
                biased;
                () = self.out.closed() => return Err(End::Done),
                applied = follower.next() => applied,
            };
            let applied = match applied {
                Ok(applied) => applied,
                Err(Lagged::Behind { .. }) => return Ok(()),
                Err(Lagged::Stopped { why }) => return Err(End::Failed(refusal::unavailable(why))),
            };
            for change in applied.changes.iter() {
                let job = match change {
                    Change::Put(object) => match &**object {
                        Object::Job(job) => job,
                        _ => continue,
                    },
                    Change::Retire(job) => &**job,
                    Change::Delete(_) | Change::Audit(_) => continue,
                };
                if self.matches(job) && self.app.consensus.read(|state, _| self.sees.shows(state, job.tenant)) {
                    self.send(applied.revision, job).await?;
                    if self.job.is_some() && matches!(job.phase, JobPhase::Finished(_)) {
                        return Err(End::Done);
                    }
                }
            }
        }
    }

    fn matches(&self, job: &Job) -> bool {
        self.job.is_none_or(|id| id == job.id) && below(&self.tenant, &job.spec.tenant)
    }

    async fn send(&self, revision: Revision, job: &Job) -> Result<(), End> {
        let mut shown = job_in_brief(job);
        if !self.sees.shows_fleet() {
            self.app.consensus.read(|state, _| limited::job(state, &self.sees, &mut shown));
        }
        self.event(revision, v1::job_event::Event::Job(shown)).await
    }

    async fn event(&self, revision: Revision, event: v1::job_event::Event) -> Result<(), End> {
        let event = v1::JobEvent { revision: revision.0, event: Some(event) };
        self.out.send(event).await.map_err(|Gone| End::Done)
    }
}

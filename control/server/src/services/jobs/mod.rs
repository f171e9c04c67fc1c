//! `muster.v1.Jobs`: what tenants use. One family of calls per file.

mod dependencies;
mod explain;
mod get;
mod hold;
mod limited;
mod list;
mod logs;
mod preempted;
mod reasons;
mod submit;
mod watch;

use super::App;
use crate::api::{auth, refusal};
use futures::stream::BoxStream;
use muster_control_core::Command;
use muster_control_core::authz::{About, Allowed};
use muster_model::identity::Author;
use muster_model::tenant_edit::Edit;
use muster_model::{AccessMode, FieldError, Job, JobId, JobPhase, JobUpdate, Revision, Rpc};
use muster_proto::v1;
use tonic::{Code, Request, Response, Status};

pub(super) use get::account_path;
pub(crate) use logs::{LogAnswer, LogQuestion, open_here};

/// The service.
pub(crate) struct JobsService(pub(crate) App);

#[tonic::async_trait]
impl v1::jobs_server::Jobs for JobsService {
    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Result<Response<v1::SubmitReply>, Status> {
        let (author, request) = auth::split(request);
        submit::submit(&self.0, &author, request).await.map(Response::new)
    }

    async fn get(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::GetJobReply>, Status> {
        let (author, request) = auth::split(request);
        get::get(&self.0, &author, request).await.map(Response::new)
    }

    async fn list(&self, request: Request<v1::ListJobsRequest>) -> Result<Response<v1::ListJobsReply>, Status> {
        let (author, request) = auth::split(request);
        list::list(&self.0, &author, request).await.map(Response::new)
    }

    type WatchStream = BoxStream<'static, Result<v1::JobEvent, Status>>;

    async fn watch(&self, request: Request<v1::WatchJobsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (author, request) = auth::split(request);
        watch::watch(&self.0, &author, request).await.map(Response::new)
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Result<Response<v1::CancelReply>, Status> {
        let (author, request) = auth::split(request);
        let job = JobId(request.job_id);
        let revision = self.of_live_job(&author, job, Command::Cancel { job }).await?;
        tracing::info!(%job, %revision, "cancelled");
        Ok(Response::new(v1::CancelReply { revision: revision.0 }))
    }

    async fn requeue(&self, request: Request<v1::RequeueRequest>) -> Result<Response<v1::RequeueReply>, Status> {
        let (author, request) = auth::split(request);
        let job = JobId(request.job_id);
        let revision = self.of_live_job(&author, job, Command::Requeue { job }).await?;
        tracing::info!(%job, %revision, "requeued");
        Ok(Response::new(v1::RequeueReply { revision: revision.0 }))
    }

    async fn update(&self, request: Request<v1::UpdateJobRequest>) -> Result<Response<v1::UpdateJobReply>, Status> {
        let (author, request) = auth::split(request);
        let job = JobId(request.job_id);
        let update = update(request).map_err(|fault| refusal::fields(&[fault]))?;
        let revision = self.of_live_job(&author, job, Command::UpdateJob { job, update }).await?;
        tracing::info!(%job, %revision, "changed");
        Ok(Response::new(v1::UpdateJobReply { revision: revision.0 }))
    }
    async fn hold(&self, request: Request<v1::HoldRequest>) -> Result<Response<v1::HoldReply>, Status> {
        let (author, request) = auth::split(request);
        hold::hold(&self.0, &author, request).await.map(Response::new)
    }

    async fn cancel_array_tasks(
        &self,
        request: Request<v1::CancelArrayTasksRequest>,
    ) -> Result<Response<v1::CancelArrayTasksReply>, Status> {
        let (author, request) = auth::split(request);
        hold::cancel_tasks(&self.0, &author, request).await.map(Response::new)
    }

    async fn set_array_limit(
        &self,
        request: Request<v1::SetArrayLimitRequest>,
    ) -> Result<Response<v1::SetArrayLimitReply>, Status> {
        let (author, request) = auth::split(request);
        hold::set_array_limit(&self.0, &author, request).await.map(Response::new)
    }

    async fn release(&self, request: Request<v1::ReleaseJobRequest>) -> Result<Response<v1::ReleaseJobReply>, Status> {
        let (author, request) = auth::split(request);
        hold::release(&self.0, &author, request).await.map(Response::new)
    }

    type LogsStream = BoxStream<'static, Result<v1::LogChunk, Status>>;

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        let (author, request) = auth::split(request);
        logs::logs(&self.0, &author, request).await.map(Response::new)
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainReply>, Status> {
        let (author, request) = auth::split(request);
        explain::explain(&self.0, &author, request).await.map(Response::new)
    }
}

impl JobsService {
    /// Has a command about a live job decided; says of one that has ended how it ended.
    async fn of_live_job(&self, author: &Author, job: JobId, command: Command) -> Result<Revision, Status> {
        match self.0.decide(author, command).await {
            Err(refused) if refused.code() == Code::NotFound => Err(not_live(&self.0, author, job, refused).await),
            decided => decided.map(|(_, revision)| revision),
        }
    }
}

/// The change that a request asks for.
fn update(request: v1::UpdateJobRequest) -> Result<JobUpdate, FieldError> {
    let v1::UpdateJobRequest { job_id: _, time_limit_s, no_time_limit, priority, tenant, name, comment } = request;
    let time_limit_s = match (time_limit_s, no_time_limit) {
        (Some(_), true) => {
            return Err(FieldError::new("no_time_limit", "conflicts with time_limit_s", "send one of them"));
        }
        (Some(limit_s), false) => Edit::Set(limit_s),
        (None, true) => Edit::Remove,
        (None, false) => Edit::Keep,
    };
    Ok(JobUpdate { time_limit_s, priority, tenant, name, comment })
}

/// The state machine knows live jobs alone: one that has ended is in the history. Whoever may not see it is told what they would be told of one that
/// never was.
async fn not_live(app: &App, author: &Author, job: JobId, refused: Status) -> Status {
    // The history here is as new as the answer of the state machine only after a linearizable look.
    if let Err(status) = app.catch_up(v1::Consistency::Linearizable.into()).await {
        return status;
    }
    match app.consensus.finished_job(job) {
        Err(error) => refusal::disk(&error),
        Ok(Some(found)) => match (allow_ended(app, author, Rpc::JobsGet, &found), &found.phase) {
            (Ok(_), JobPhase::Finished(outcome)) => refusal::ended(job, outcome),
            _ => refused,
        },
        Ok(None) => unknown(app, author, job),
    }
}

/// Judges a call about a job that has ended.
fn allow_ended(app: &App, author: &Author, rpc: Rpc, job: &Job) -> Result<Allowed, Status> {
    app.allow(author, rpc, About::Ended { job: job.id, tenant: job.tenant, user: &job.spec.user })
}

/// Remembers that somebody read what another has written, in a closed cluster.
fn note_read(app: &App, allowed: &Allowed, job: &Job, what: &str) {
    let author = allowed.author();
    let own = author.principal.job_user() == Some(job.spec.user.as_str());
    if !own && app.consensus.read(|state, _| state.meta.access == AccessMode::Closed) {
        app.denials.note(
            author,
            allowed.rpc().name(),
            format!("read: {what} of job {} of {}", job.id, job.spec.tenant),
        );
    }
}

/// A job that neither lives nor is remembered. That there was one is told to those alone who see all jobs.
fn unknown(app: &App, author: &Author, job: JobId) -> Status {
    let sees_all = app.allow(author, Rpc::JobsList, About::Nothing).is_ok_and(|allowed| allowed.sees().shows_fleet());
    let was_there = app.consensus.read(|state, _| job.0 > 0 && job < state.meta.next_job);
    if was_there && sees_all {
        refusal::forgotten(job, &app.leader_leases.history.in_words())
    } else {
        refusal::not_found("job", job)
    }
}

//! `muster.v1.Jobs`: what tenants use. One family of calls per file.

mod dependencies;
mod explain;
mod get;
mod hold;
mod list;
mod logs;
mod preempted;
mod reasons;
mod submit;
mod watch;

use super::App;
use crate::api::refusal;
use futures::stream::BoxStream;
use muster_control_core::Command;
use muster_model::tenant_edit::Edit;
use muster_model::{FieldError, JobId, JobPhase, JobUpdate, Revision};
use muster_proto::v1;
use tonic::{Code, Request, Response, Status};

pub(super) use get::account_path;
pub(crate) use logs::{LogAnswer, LogQuestion, open_here};

/// The service.
pub(crate) struct JobsService(pub(crate) App);

#[tonic::async_trait]
impl v1::jobs_server::Jobs for JobsService {
    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Result<Response<v1::SubmitReply>, Status> {
        submit::submit(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn get(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::GetJobReply>, Status> {
        get::get(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn list(&self, request: Request<v1::ListJobsRequest>) -> Result<Response<v1::ListJobsReply>, Status> {
        list::list(&self.0, request.into_inner()).await.map(Response::new)
    }

    type WatchStream = BoxStream<'static, Result<v1::JobEvent, Status>>;

    async fn watch(&self, request: Request<v1::WatchJobsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        watch::watch(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Result<Response<v1::CancelReply>, Status> {
        let job = JobId(request.into_inner().job_id);
        let revision = self.of_live_job(job, Command::Cancel { job }).await?;
        tracing::info!(%job, %revision, "cancelled");
        Ok(Response::new(v1::CancelReply { revision: revision.0 }))
    }

    async fn requeue(&self, request: Request<v1::RequeueRequest>) -> Result<Response<v1::RequeueReply>, Status> {
        let job = JobId(request.into_inner().job_id);
        let revision = self.of_live_job(job, Command::Requeue { job }).await?;
        tracing::info!(%job, %revision, "requeued");
        Ok(Response::new(v1::RequeueReply { revision: revision.0 }))
    }

    async fn update(&self, request: Request<v1::UpdateJobRequest>) -> Result<Response<v1::UpdateJobReply>, Status> {
        let request = request.into_inner();
        let job = JobId(request.job_id);
        let update = update(request).map_err(|fault| refusal::fields(&[fault]))?;
        let revision = self.of_live_job(job, Command::UpdateJob { job, update }).await?;
        tracing::info!(%job, %revision, "changed");
        Ok(Response::new(v1::UpdateJobReply { revision: revision.0 }))
    }
    async fn hold(&self, request: Request<v1::HoldRequest>) -> Result<Response<v1::HoldReply>, Status> {
        hold::hold(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn cancel_array_tasks(
        &self,
        request: Request<v1::CancelArrayTasksRequest>,
    ) -> Result<Response<v1::CancelArrayTasksReply>, Status> {
        hold::cancel_tasks(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn set_array_limit(
        &self,
        request: Request<v1::SetArrayLimitRequest>,
    ) -> Result<Response<v1::SetArrayLimitReply>, Status> {
        hold::set_array_limit(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn release(&self, request: Request<v1::ReleaseJobRequest>) -> Result<Response<v1::ReleaseJobReply>, Status> {
        hold::release(&self.0, request.into_inner()).await.map(Response::new)
    }

    type LogsStream = BoxStream<'static, Result<v1::LogChunk, Status>>;

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        logs::logs(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainReply>, Status> {
        explain::explain(&self.0, request.into_inner()).await.map(Response::new)
    }
}

impl JobsService {
    /// Has a command about a live job decided; says of one that has ended how it ended.
    async fn of_live_job(&self, job: JobId, command: Command) -> Result<Revision, Status> {
        match self.0.decide(command).await {
            Err(refused) if refused.code() == Code::NotFound => Err(not_live(&self.0, job, refused).await),
            decided => decided.map(|(_, revision)| revision),
        }
    }
}

/// The change that a request asks for.
fn update(request: v1::UpdateJobRequest) -> Result<JobUpdate, FieldError> {
    let v1::UpdateJobRequest { job_id: _, time_limit_s, no_time_limit, priority, tenant, name } = request;
    let time_limit_s = match (time_limit_s, no_time_limit) {
        (Some(_), true) => {
            return Err(FieldError::new("no_time_limit", "conflicts with time_limit_s", "send one of them"));
        }
        (Some(limit_s), false) => Edit::Set(limit_s),
        (None, true) => Edit::Remove,
        (None, false) => Edit::Keep,
    };
    Ok(JobUpdate { time_limit_s, priority, tenant, name })
}

/// The state machine knows live jobs alone: one that has ended is in the history.
async fn not_live(app: &App, job: JobId, refused: Status) -> Status {
    // The history here is as new as the answer of the state machine only after a linearizable look.
    let live = app.look(v1::Consistency::Linearizable.into(), |state, _| state.jobs.contains_key(&job)).await;
    match (live, app.consensus.finished_job(job)) {
        (Err(status), _) => status,
        (_, Err(error)) => refusal::disk(&error),
        (_, Ok(Some(found))) => match found.phase {
            JobPhase::Finished(outcome) => refusal::ended(job, &outcome),
            _ => refused,
        },
        (_, Ok(None)) => unknown(app, job),
    }
}

/// A job that neither lives nor is remembered.
fn unknown(app: &App, job: JobId) -> Status {
    let was_there = app.consensus.read(|state, _| job.0 > 0 && job < state.meta.next_job);
    if was_there {
        refusal::forgotten(job, &app.leader_leases.history.in_words())
    } else {
        refusal::not_found("job", job)
    }
}

//! `muster.v1.Jobs`: what tenants use. One family of calls per file.

mod dependencies;
mod explain;
mod get;
mod hold;
mod list;
mod logs;
mod reasons;
mod submit;
mod watch;

use super::App;
use crate::api::refusal;
use futures::stream::BoxStream;
use muster_control_core::Command;
use muster_model::{JobId, JobPhase};
use muster_proto::v1;
use tonic::{Code, Request, Response, Status};

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
        let decided = self.0.decide(Command::Cancel { job }).await;
        let (_, revision) = match decided {
            Err(refused) if refused.code() == Code::NotFound => return Err(cancel_refused(&self.0, job, refused).await),
            other => other?,
        };
        tracing::info!(%job, %revision, "cancelled");
        Ok(Response::new(v1::CancelReply { revision: revision.0 }))
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

/// The state machine knows live jobs alone: one that has ended is in the history.
async fn cancel_refused(app: &App, job: JobId, refused: Status) -> Status {
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

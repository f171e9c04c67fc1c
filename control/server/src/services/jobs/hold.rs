//! Hold and release of pending jobs, and what is changed about arrays. Whoever acts as an administrator is judged as one.

use super::not_live;
use crate::api::refusal;
use crate::services::App;
use muster_control_core::Command;
use muster_model::identity::Author;
use muster_model::{Holder, JobId, Revision};
use muster_proto::convert::array::tasks_from_wire;
use muster_proto::v1;
use tonic::{Code, Status};

pub(super) async fn hold(app: &App, author: &Author, request: v1::HoldRequest) -> Result<v1::HoldReply, Status> {
    let (job, by) = (JobId(request.job_id), holder(request.by_admin));
    let revision = decide(app, author, job, Command::Hold { job, by }).await?;
    tracing::info!(%job, %by, %revision, "held");
    Ok(v1::HoldReply { revision: revision.0 })
}

pub(super) async fn release(
    app: &App,
    author: &Author,
    request: v1::ReleaseJobRequest,
) -> Result<v1::ReleaseJobReply, Status> {
    let (job, by) = (JobId(request.job_id), holder(request.by_admin));
    let revision = decide(app, author, job, Command::Release { job, by }).await?;
    tracing::info!(%job, %by, %revision, "released");
    Ok(v1::ReleaseJobReply { revision: revision.0 })
}

pub(super) async fn set_array_limit(
    app: &App,
    author: &Author,
    request: v1::SetArrayLimitRequest,
) -> Result<v1::SetArrayLimitReply, Status> {
    let (job, max_running) = (JobId(request.job_id), request.max_running);
    let revision = decide(app, author, job, Command::SetArrayLimit { job, max_running }).await?;
    tracing::info!(%job, ?max_running, %revision, "the limit of the array has changed");
    Ok(v1::SetArrayLimitReply { revision: revision.0 })
}

pub(super) async fn cancel_tasks(
    app: &App,
    author: &Author,
    request: v1::CancelArrayTasksRequest,
) -> Result<v1::CancelArrayTasksReply, Status> {
    let job = JobId(request.job_id);
    let indices = tasks_from_wire("tasks", &request.tasks).map_err(|error| refusal::fields(&[error]))?;
    let revision = decide(app, author, job, Command::CancelTasks { job, indices }).await?;
    tracing::info!(%job, tasks = request.tasks, %revision, "tasks of the array were cancelled");
    Ok(v1::CancelArrayTasksReply { revision: revision.0 })
}

const fn holder(by_admin: bool) -> Holder {
    if by_admin { Holder::Admin } else { Holder::User }
}

async fn decide(app: &App, author: &Author, job: JobId, command: Command) -> Result<Revision, Status> {
    match app.decide(author, command).await {
        Ok((_, revision)) => Ok(revision),
        Err(refused) if refused.code() == Code::NotFound => Err(not_live(app, author, job, refused).await),
        Err(refused) => Err(refused),
    }
}

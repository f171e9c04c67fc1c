//! A task's output, streamed from the agent that has it, through whichever control node has the agent's session.
//!
//! What must stay true: a slow reader holds up neither the agent nor its session. When it falls behind, the session drops the
//! stream and it is opened again from the offset that the reader has reached.

use crate::api::{MESSAGE_BYTES_MAX, refusal};
use crate::services::guarded::{Of, guarded};
use crate::services::{App, STREAM_EVENTS_MAX};
use crate::sessions::logs::{LogAsk, LogPiece};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use muster_control_core::State;
use muster_model::identity::Author;
use muster_model::{AllocationId, AllocationState, Attempt, Job, JobId, NodeId, Rank, Rpc};
use muster_proto::v1;
use muster_proto::v1::peer_client::PeerClient;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

/// Openings without a byte between them before a stream gives up: an agent that restarts is back within these seconds.
const FRUITLESS_MAX: u32 = 40;
/// Between two openings.
const REOPEN_AFTER: Duration = Duration::from_millis(500);
/// Another control node that takes longer to say whether it has the session is treated as not having it.
const PEER_WITHIN: Duration = Duration::from_secs(2);

/// Which output of which task on which node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogTarget {
    /// Where it runs or ran.
    pub(crate) node: NodeId,
    /// In which allocation.
    pub(crate) allocation: AllocationId,
    /// Which rank.
    pub(crate) rank: Rank,
    /// Standard error instead of standard output.
    pub(crate) stderr: bool,
    /// Goes on while the task runs.
    pub(crate) follow: bool,
    /// From this byte.
    pub(crate) offset: u64,
}

/// The question as it travels between control nodes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum LogQuestion {
    /// The first form.
    V1(LogTarget),
}

/// A piece of the answer as it travels between control nodes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum LogAnswer {
    /// The first form.
    V1(LogPiece),
}

pub(super) async fn logs(
    app: &App,
    author: &Author,
    request: v1::LogsRequest,
) -> Result<BoxStream<'static, Result<v1::LogChunk, Status>>, Status> {
    let permit = Arc::clone(&app.log_streams).try_acquire_owned();
    let permit = permit.map_err(|_| refusal::busy("the number of log streams", super::super::LOG_STREAMS_MAX))?;
    let mut target = target(app, author, &request).await?;
    let (out, chunks) = mpsc::channel(STREAM_EVENTS_MAX);
    let (allowed, job) = (author.clone(), JobId(request.job_id));
    let pump_app = app.clone();
    app.host.clone().spawn_for_one(async move {
        let _permit = permit;
        let app = pump_app;
        if let Some(Err(status)) = app.stop.run_until_cancelled(pump(&app, &mut target, &out)).await {
            let _ = out.send(Err(status)).await;
        }
    });
    Ok(guarded(app, (&allowed, None), Rpc::JobsLogs, Of::Job(job), ReceiverStream::new(chunks).boxed()))
}

/// Finds the task that is meant.
async fn target(app: &App, author: &Author, request: &v1::LogsRequest) -> Result<LogTarget, Status> {
    let id = JobId(request.job_id);
    let (attempt, rank) = (Attempt(request.attempt), Rank(request.rank));
    app.catch_up(v1::Consistency::Linearizable.into()).await?;
    let found = app.consensus.read(|state, _| {
        let job = state.jobs.get(&id)?;
        let present = attempt == Attempt(0) || attempt == job.attempt;
        Some((Arc::clone(job), present.then(|| grown(state, job, rank)).flatten()))
    });
    let (live, grown) = found.unzip();
    let (job, allowed) = super::get::find(app, author, Rpc::JobsLogs, live, id)?;
    super::note_read(app, &allowed, &job, "output");
    let (node, allocation, rank) = match grown.flatten() {
        Some(grown) => grown,
        None => {
            let (node, allocation) = place(&job, attempt, rank)?;
            (node, allocation, rank)
        }
    };
    Ok(LogTarget { node, allocation, rank, stderr: request.stderr, follow: request.follow, offset: request.offset })
}

/// Where a rank beyond the least of an elastic job runs, and its place in that allocation.
fn grown(state: &State, job: &Job, rank: Rank) -> Option<(NodeId, AllocationId, Rank)> {
    let beyond = rank.0.checked_sub(job.spec.tasks)?;
    let parts = job.growth.parts.iter().filter_map(|part| state.allocations.get(part));
    let parts = parts.filter(|part| part.state == AllocationState::Active);
    let mut tasks = parts.flat_map(|part| part.tasks.iter().enumerate().map(|(at, task)| (task.node, part.id, at)));
    tasks.nth(beyond as usize).map(|(node, part, at)| (node, part, Rank(at as u32)))
}

/// Where a rank of an attempt ran, and under which allocation; attempt 0 is the last one.
fn place(job: &Job, attempt: Attempt, rank: Rank) -> Result<(NodeId, AllocationId), Status> {
    let id = job.id;
    let Some(last) = job.last_allocation else {
        return Err(Status::failed_precondition(format!("job {id} has not started yet; try again when it runs")));
    };
    let ranks = |ranks: usize| {
        let problem = format!("is {rank}, but the job has {ranks} tasks");
        refusal::field("rank", problem, "use 0 to the number of tasks minus 1")
    };
    if attempt == Attempt(0) || attempt == job.attempt {
        let node = job.nodes.get(rank.0 as usize);
        return Ok((*node.ok_or_else(|| ranks(job.nodes.len()))?, last));
    }
    let Some(record) = job.attempts.iter().find(|record| record.attempt == attempt) else {
        let oldest = job.attempts.first().map_or(job.attempt, |record| record.attempt);
        let problem = format!("is {attempt}, but only attempts {oldest} to {} are kept", job.attempt);
        return Err(refusal::field("attempt", problem, "use one of these attempts"));
    };
    match record.node_of(rank) {
        Some(node) => Ok((node, record.allocation)),
        None if record.nodes.is_empty() => {
            let problem = format!("is {attempt}, and its nodes are no longer recorded");
            Err(refusal::field(
                "attempt",
                problem,
                "use a later attempt: for large jobs only the last few are recorded",
            ))
        }
        None => Err(ranks(job.spec.tasks as usize)),
    }
}

/// Passes pieces on to the reader until the output ends, opening the stream again where it broke.
async fn pump(
    app: &App,
    target: &mut LogTarget,
    out: &mpsc::Sender<Result<v1::LogChunk, Status>>,
) -> Result<(), Status> {
    let mut fruitless = 0;
    while fruitless < FRUITLESS_MAX {
        let mut pieces = match open(app, target).await {
            Ok(pieces) => pieces,
            Err(status) if status.code() == Code::NotFound && target.follow => {
                fruitless += 1;
                tokio::time::sleep(REOPEN_AFTER).await;
                continue;
            }
            Err(status) => return Err(status),
        };
        fruitless += 1;
        loop {
            let piece = tokio::select! {
                biased;
                () = out.closed() => return Ok(()),
                piece = pieces.next() => piece,
            };
            match piece {
                Some(Ok(LogPiece::Data { data, offset, truncated })) => {
                    fruitless = 0;
                    target.offset = offset + data.len() as u64;
                    let chunk = v1::LogChunk { data, offset, truncated };
                    if out.send(Ok(chunk)).await.is_err() {
                        return Ok(());
                    }
                }
                Some(Ok(LogPiece::End)) => return Ok(()),
                Some(Ok(LogPiece::Failed { why })) => return Err(Status::failed_precondition(why)),
                Some(Err(_)) | None => break,
            }
        }
        tokio::time::sleep(REOPEN_AFTER).await;
    }
    Err(no_session(target.node))
}

fn no_session(node: NodeId) -> Status {
    refusal::unavailable(format!(
        "node {node} is not connected to the control plane, and its output can be read only there; try again when it is connected"
    ))
}

type Pieces = BoxStream<'static, Result<LogPiece, Status>>;

async fn open(app: &App, target: &LogTarget) -> Result<Pieces, Status> {
    match open_here(app, target).await {
        Err(status) if status.code() == Code::NotFound => {}
        opened => return opened,
    }
    let question =
        postcard::to_stdvec(&LogQuestion::V1(target.clone())).map_err(|error| Status::internal(error.to_string()))?;
    for member in app.consensus.status().members {
        if member.id == app.consensus.id() {
            continue;
        }
        let Some(channel) = app.consensus.channel_to(member.id) else { continue };
        let mut client = PeerClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let call = client.logs(v1::Payload { data: question.clone() }).boxed();
        if let Ok(Ok(answer)) = tokio::time::timeout(PEER_WITHIN, call).await {
            let pieces = answer.into_inner().map(|payload| {
                let payload = payload?;
                match postcard::from_bytes(&payload.data) {
                    Ok(LogAnswer::V1(piece)) => Ok(piece),
                    Err(error) => Err(Status::internal(format!("part of a log cannot be read: {error}"))),
                }
            });
            return Ok(pieces.boxed());
        }
    }
    Err(Status::not_found(no_session(target.node).message()))
}

/// Opens the output when the agent's session is on this node; NOT_FOUND otherwise.
pub(crate) async fn open_here(app: &App, target: &LogTarget) -> Result<Pieces, Status> {
    let ask = LogAsk {
        allocation: target.allocation,
        rank: target.rank,
        stderr: target.stderr,
        follow: target.follow,
        offset: target.offset,
    };
    let pieces = app.hub.open_log(target.node, ask).await?;
    Ok(ReceiverStream::new(pieces).map(Ok).boxed())
}

//! `muster logs`: bytes as the task wrote them; a stream that was cut goes on where it stopped.

use crate::args::jobs::Logs;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output::note;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use std::time::Duration;
use tonic::{Code, Status};

/// Streams in a row that gave nothing before the client gives up: about ten seconds.
const EMPTY_STREAMS_MAX: u32 = 20;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(500);

/// Prints.
///
/// # Errors
/// When there is no such job or task, or the cluster stays away.
pub async fn run(context: &Context, args: &Logs) -> Result<(), Failure> {
    let mut offset = 0;
    let mut empty = 0;
    loop {
        let request = v1::LogsRequest {
            job_id: args.id,
            rank: args.rank,
            attempt: args.attempt,
            stderr: args.stderr,
            follow: args.follow,
            offset,
        };
        let open = |channel| async move { JobsClient::new(channel).logs(request).await };
        let mut stream = context.client.call("logs", open).await?;
        let before = offset;
        let end = loop {
            match stream.message().await {
                Ok(Some(chunk)) => {
                    if chunk.truncated {
                        note(&format!(
                            "[output before byte {} was dropped: the task wrote more than is kept]",
                            chunk.offset
                        ));
                    }
                    context.out.bytes(&chunk.data)?;
                    offset = chunk.offset + chunk.data.len() as u64;
                }
                Ok(None) => return Ok(()),
                Err(status) => break status,
            }
        };
        empty = if offset > before { 0 } else { empty + 1 };
        if !cut(&end) || empty > EMPTY_STREAMS_MAX {
            return Err(Failure::from_status("logs", &end));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether the stream broke rather than was refused.
fn cut(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal)
}

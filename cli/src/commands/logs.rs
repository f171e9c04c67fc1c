//! `muster logs`: bytes as the task wrote them, made harmless on a terminal; a stream that was cut goes on where it stopped.
//!
//! What must stay true: what was dropped is said once, where it is missing; lines of several ranks never mix, and what waits of them is
//! bounded.

use crate::args::jobs::Logs;
use crate::commands::Context;
use crate::failure::Failure;
use crate::output::neutral::Neutral;
use crate::output::note;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use muster_proto::v1;
use muster_proto::v1::jobs_client::JobsClient;
use std::time::Duration;
use tonic::{Code, Status};

/// Streams in a row that gave nothing before the client gives up: about ten seconds.
const EMPTY_STREAMS_MAX: u32 = 20;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(500);
/// Ranks that are followed at the same time: as many readers as one node serves.
const FOLLOWED_MAX: u32 = 64;
/// A line that is longer is shown in parts.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Prints.
///
/// # Errors
/// When there is no such job or task, or the cluster stays away.
pub async fn run(context: &Context, args: &Logs) -> Result<(), Failure> {
    let shown = || Shown((context.out.is_terminal && !args.raw).then(Neutral::default));
    if args.all_ranks {
        return all_ranks(context, args, shown).await;
    }
    let mut sink = Plain(shown());
    let ended = one(context, args, args.rank, &mut sink).await;
    sink.0.end(context)?;
    ended
}

/// What is done with a rank's output.
trait Sink {
    /// Takes what came next.
    fn data(&mut self, context: &Context, data: &[u8]) -> Result<(), Failure>;

    /// So many bytes are missing before what comes next.
    fn gap(&mut self, context: &Context, bytes: u64) -> Result<(), Failure>;
}

/// How bytes are printed: as they are, or made harmless.
struct Shown(Option<Neutral>);

impl Shown {
    fn print(&mut self, context: &Context, data: &[u8]) -> Result<(), Failure> {
        match &mut self.0 {
            Some(stream) => context.out.bytes(stream.take(data).as_bytes()),
            None => context.out.bytes(data),
        }
    }

    fn end(&mut self, context: &Context) -> Result<(), Failure> {
        self.0.as_mut().map_or(Ok(()), |stream| context.out.bytes(stream.end().as_bytes()))
    }
}

/// Bytes in their order.
struct Plain(Shown);

impl Sink for Plain {
    fn data(&mut self, context: &Context, data: &[u8]) -> Result<(), Failure> {
        self.0.print(context, data)
    }

    fn gap(&mut self, _: &Context, bytes: u64) -> Result<(), Failure> {
        note(&gap_words(bytes));
        Ok(())
    }
}

fn gap_words(bytes: u64) -> String {
    format!("[{bytes} bytes of output were dropped here: only the beginning and the end of a long output are kept]")
}

/// Whole lines, each behind the rank that wrote it.
struct Labelled {
    label: String,
    line: Vec<u8>,
    shown: Shown,
}

impl Labelled {
    fn flush(&mut self, context: &Context) -> Result<(), Failure> {
        if self.line.is_empty() { Ok(()) } else { self.print(context) }
    }
}

impl Labelled {
    /// Prints the line, ended.
    fn print(&mut self, context: &Context) -> Result<(), Failure> {
        let mut line = std::mem::take(&mut self.line);
        context.out.bytes(self.label.as_bytes())?;
        let Some(stream) = &mut self.shown.0 else {
            line.push(b'\n');
            return context.out.bytes(&line);
        };
        // What is written over itself in one line becomes lines, and each is this rank's.
        let mut text = stream.take(&line);
        text.push_str(&stream.end());
        let text = text.trim_end_matches('\n').replace('\n', &format!("\n{}", self.label));
        context.out.bytes(format!("{text}\n").as_bytes())
    }
}

impl Sink for Labelled {
    fn data(&mut self, context: &Context, data: &[u8]) -> Result<(), Failure> {
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(end) => {
                    self.line.extend_from_slice(end);
                    self.print(context)?;
                }
                None => self.line.extend_from_slice(part),
            }
            if self.line.len() > LINE_BYTES_MAX {
                self.flush(context)?;
            }
        }
        Ok(())
    }

    fn gap(&mut self, context: &Context, bytes: u64) -> Result<(), Failure> {
        self.flush(context)?;
        note(&format!("{}{}", self.label, gap_words(bytes)));
        Ok(())
    }
}

/// All ranks: in their order, or all at once when they are followed.
async fn all_ranks(context: &Context, args: &Logs, shown: impl Fn() -> Shown) -> Result<(), Failure> {
    let job = super::job::get(&context.client, args.id, context.consistency).await?.job.unwrap_or_default();
    let ranks = job.spec.map_or(1, |spec| spec.tasks);
    if args.follow && ranks > FOLLOWED_MAX {
        let problem =
            format!("would follow {ranks} tasks, but at most {FOLLOWED_MAX} can be followed at the same time");
        return Err(Failure::field("--all-ranks", problem, "follow one task with --rank, or leave out --follow"));
    }
    let width = ranks.saturating_sub(1).to_string().len();
    let shown = &shown;
    let rank_output = |rank: u32| async move {
        let mut sink = Labelled { label: format!("{rank:>width$}: "), line: Vec::new(), shown: shown() };
        let ended = one(context, args, rank, &mut sink).await;
        sink.flush(context)?;
        // A rank that has no output, because it never started, hides nothing of the others.
        if let Err(failure) = ended {
            note(&format!("{}[{failure}]", sink.label));
            return Ok(false);
        }
        Ok::<bool, Failure>(true)
    };
    let mut any = false;
    if args.follow {
        let mut followed: FuturesUnordered<_> = (0..ranks).map(rank_output).collect();
        while let Some(had) = followed.next().await {
            any |= had?;
        }
    } else {
        for rank in 0..ranks {
            any |= rank_output(rank).await?;
        }
    }
    if any {
        Ok(())
    } else {
        Err(Failure::field("job", "has no output of any task", "see `muster job` for the reason"))
    }
}

/// The output of one rank, to its end.
async fn one(context: &Context, args: &Logs, rank: u32, sink: &mut dyn Sink) -> Result<(), Failure> {
    let mut offset = 0;
    let mut empty = 0;
    loop {
        let request = v1::LogsRequest {
            job_id: args.id,
            rank,
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
                    if chunk.offset > offset {
                        sink.gap(context, chunk.offset - offset)?;
                    }
                    sink.data(context, &chunk.data)?;
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

//! `muster events export`: the event log of a running cluster, for the fairness referee.
//!
//! What must stay true: a log has no gap. A call that breaks off is continued at the next revision, at any control node; where none has the
//! changes in between any more, the command fails and says so. It keeps what the log needs of live jobs, and one part of a reply.

use crate::args::events::{Events, Export as Args};
use crate::commands::{Context, now_ms};
use crate::event_file::EventFile;
use crate::failure::Failure;
use crate::output::{Out, note};
use muster_control_server::event_export::{Export, LogLine};
use muster_model::Revision;
use muster_proto::v1;
use muster_proto::v1::admin_client::AdminClient;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tonic::{Code, Response, Status, Streaming};

/// A control node that has said nothing for so long is gone: with nothing to tell it says so every two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Calls in a row that may break off without a new revision, while the log is not followed.
const TRIES_MAX: u32 = 5;
/// Between two calls when one broke off.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs one of `muster events`.
///
/// # Errors
/// When the cluster stays away, its history does not reach back so far, or the log cannot be written.
pub async fn run(context: &Context, command: &Events) -> Result<(), Failure> {
    let Events::Export(args) = command;
    let mut sink = Sink::open(&context.out, args.out.as_deref())?;
    let mut export = Export::new(Revision(args.since.unwrap_or(0)), 1_000 * args.stop_max.0);
    let ended = tokio::select! {
        ended = write_all(context, args, &mut export, &mut sink) => ended,
        interrupt = interrupted() => {
            interrupt.map_err(|error| Failure::io("listening for signals", error))?;
            // What was observed is a whole log.
            let last = export.end(now_ms());
            sink.write(last.as_slice(), true)
        }
    };
    // What was written stays readable, whatever else went wrong.
    let finished = sink.finish();
    ended.and(finished)
}

/// Ctrl-C, or the end of the service that it is.
async fn interrupted() -> std::io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt,
        _ = terminated.recv() => Ok(()),
    }
}

/// Writes until the end, or for ever.
async fn write_all(context: &Context, args: &Args, export: &mut Export, sink: &mut Sink<'_>) -> Result<(), Failure> {
    let mut tries = 0;
    loop {
        let began = export.at();
        let mut parts = open(context, args.follow, export).await?;
        let broken = loop {
            let part = match tokio::time::timeout(SILENCE_MAX, parts.message()).await {
                Ok(Ok(Some(part))) => part,
                Ok(Ok(None)) => break Status::unavailable("the copy of the history ended early"),
                Ok(Err(status)) => break status,
                Err(_) => break Status::unavailable("the control node has gone silent"),
            };
            let end = part.end;
            let begun = export.has_begun();
            let lines = export
                .take(part)
                .map_err(|error| Failure::Server { what: "events export".to_owned(), why: error.to_string() })?;
            sink.write(&lines, args.follow)?;
            if !begun && export.has_begun() {
                note(&format!("the log begins with the state at revision {}", export.at()));
            }
            if end {
                return Ok(());
            }
        };
        tries = if export.at() > began { 0 } else { tries + 1 };
        if tries >= TRIES_MAX && !args.follow {
            return Err(Failure::from_status("events export", &broken));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A call that continues the log. Where the history of one control node does not reach back so far, that of another may.
async fn open(context: &Context, follow: bool, export: &mut Export) -> Result<Streaming<v1::CopyHistoryPart>, Failure> {
    let request = export.request(follow, context.consistency);
    let mut refused = None;
    for _ in context.client.endpoints() {
        let call = |channel| {
            let mut client = AdminClient::new(channel).max_decoding_message_size(crate::client::reply_bytes_max());
            async move {
                match client.copy_history(request).await {
                    Err(status) if status.code() == Code::OutOfRange => Ok(Response::new(Err(status))),
                    other => other.map(|reply| reply.map(Ok)),
                }
            }
        };
        match context.client.call("events export", call).await? {
            Ok(parts) => return Ok(parts),
            Err(status) => refused = Some(status),
        }
        context.client.pass_on();
    }
    let why = refused.map_or_else(String::new, |status| status.message().to_owned());
    match export.has_begun() {
        false => Err(Failure::Usage(format!("--since: {why}"))),
        true => Err(Failure::Refused(format!("the log ends with revision {}: {why}", export.at()))),
    }
}

/// Where the lines go.
enum Sink<'o> {
    Output(&'o Out),
    File(EventFile, PathBuf),
}

impl<'o> Sink<'o> {
    fn open(out: &'o Out, path: Option<&Path>) -> Result<Self, Failure> {
        Ok(match path {
            Some(path) => Sink::File(EventFile::create(path)?, path.to_owned()),
            None => Sink::Output(out),
        })
    }

    /// Writes whole lines; `at_once` so that whoever follows the file sees them.
    fn write(&mut self, lines: &[LogLine], at_once: bool) -> Result<(), Failure> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line)
                .map_err(|error| Failure::Server { what: "events export".to_owned(), why: error.to_string() })?;
            text.push(b'\n');
        }
        match self {
            Sink::Output(out) => out.bytes(&text),
            Sink::File(file, path) => {
                let written = file.write_all(&text).and_then(|()| if at_once { file.flush() } else { Ok(()) });
                written.map_err(|error| Failure::io(format!("writing {}", path.display()), error))
            }
        }
    }

    fn finish(self) -> Result<(), Failure> {
        match self {
            Sink::Output(_) => Ok(()),
            Sink::File(file, path) => {
                file.finish().map_err(|error| Failure::io(format!("writing {}", path.display()), error))
            }
        }
    }
}

//! `muster audit export`: every record of the audit, to a file or a receiver outside of the cluster.
//!
//! What must stay true: a batch is sent only after the one before it has arrived, and how far the export has come is kept after that; a destination that is
//! away is tried again, and what will not get better ends the export; a signed head goes out only right after the record that it is about.

use crate::args::audit::Export as Args;
use crate::audit_export::destination::Destination;
use crate::audit_export::file::AuditFile;
use crate::audit_export::progress::{Progress, Stopped};
use crate::audit_export::{Head, NotTaken, Outgoing, SignedHead, batches, position, post, syslog};
use crate::commands::Context;
use crate::commands::audit::source;
use crate::failure::Failure;
use crate::output::note;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Between two looks for new records with `--follow`.
const POLL_EVERY: Duration = Duration::from_secs(2);
/// Between two signed heads with `--follow`: each is as long as ten records.
const SIGN_EVERY: Duration = Duration::from_secs(60);
/// The pause after the first failure to deliver; it doubles to the second value.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Failures in a row before an export without `--follow` gives up: after a minute or so.
const TRIES_MAX: u32 = 9;
/// Looks in a row that may show no record although there is one: a control node that has just applied it may still be writing it.
const NOT_SHOWN_MAX: u32 = 10;
/// Between two of them.
const NOT_SHOWN_PAUSE: Duration = Duration::from_millis(100);

/// Runs it.
///
/// # Errors
/// When the destination cannot be used, the cluster stays away, or its audit does not continue what was exported.
pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let (sink, last) = Sink::open(args)?;
    let progress = begin(args, last)?;
    // Not where records between the two are left out.
    let last = last.filter(|last| last.number.saturating_add(1) == progress.next());
    let signed = last.filter(|_| sink.ends_signed());
    let mut export = Export { context, args, sink, progress, last, signed, signed_at: None, count: 0 };
    tokio::select! {
        ended = export.run() => ended?,
        signal = interrupted() => {
            signal.map_err(|error| Failure::io("listening for signals", error))?;
            if !args.follow {
                return Err(Failure::Interrupted(format!("exported {} records", export.count)));
            }
        }
    }
    let (count, to) = (export.count, export.sink.name());
    let records = if count == 1 { "record" } else { "records" };
    context.out.line(&match export.progress.next() - 1 {
        0 => format!("there are no records yet to export to {to}"),
        last => format!("exported {count} {records} to {to}; the last is {last}"),
    })
}

/// Ctrl-C, or the end of the service that it is.
async fn interrupted() -> std::io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt,
        _ = terminated.recv() => Ok(()),
    }
}

/// Where an export begins that has come so far.
fn begin(args: &Args, last: Option<Head>) -> Result<Progress, Failure> {
    match (last, args.from) {
        (None, from) => Ok(Progress::from_record(from.unwrap_or(1))),
        (Some(last), Some(from)) if from > last.number.saturating_add(1) => {
            if args.position.is_none() {
                let problem = format!("is {from}, and the file ends with record {}", last.number);
                return Err(Failure::field("from", problem, "a file has no gaps: begin a new one with --to"));
            }
            let skipped = format!("records {} to {} are not exported", last.number.saturating_add(1), from - 1);
            note(&format!("{skipped}, since the export goes on with --from {from}"));
            Ok(Progress::from_record(from))
        }
        (Some(last), _) => Ok(Progress::after(last)),
    }
}

/// An export under way.
struct Export<'a> {
    context: &'a Context,
    args: &'a Args,
    sink: Sink,
    progress: Progress,
    /// The last record that has arrived, in this export or in one before it that this one continues.
    last: Option<Head>,
    /// The record of the last signed head that has arrived, where it is known.
    signed: Option<Head>,
    signed_at: Option<Instant>,
    /// Records that have arrived.
    count: u64,
}

impl Export<'_> {
    /// To the newest record, or for ever.
    async fn run(&mut self) -> Result<(), Failure> {
        let (mut away, mut not_shown) = (false, 0);
        loop {
            let answer = source::read(self.context, self.progress.ask_after(), self.wants_signature()).await;
            let (page, signed) = match answer {
                Err(failure @ Failure::Unavailable { .. }) if self.args.follow => {
                    if !away {
                        note(&format!("{failure}; trying again"));
                    }
                    away = true;
                    tokio::time::sleep(POLL_EVERY).await;
                    continue;
                }
                answer => answer?,
            };
            if std::mem::take(&mut away) {
                note("the cluster answers again");
            }
            let newest = page.newest.number;
            let records = self.progress.take(page).map_err(failure)?;
            let next = self.progress.next();
            if records.is_empty() && next <= newest {
                not_shown += 1;
                if not_shown >= NOT_SHOWN_MAX {
                    let hint = "an export needs the role auditor or operator, which see every record";
                    return Err(Failure::Refused(format!(
                        "record {next} of the audit exists and was not sent; {hint}"
                    )));
                }
                tokio::time::sleep(NOT_SHOWN_PAUSE).await;
                continue;
            }
            not_shown = 0;
            let outgoing: Result<Vec<Outgoing>, String> = records.iter().map(Outgoing::new).collect();
            let outgoing = outgoing.and_then(|outgoing| self.with_signed(outgoing, signed));
            let outgoing = outgoing.map_err(|why| Failure::Server { what: "the audit".to_owned(), why })?;
            for batch in batches(outgoing) {
                self.deliver(&batch).await?;
                self.has_arrived(&batch);
            }
            if next > newest {
                if !self.args.follow {
                    return Ok(());
                }
                tokio::time::sleep(POLL_EVERY).await;
            }
        }
    }

    /// Whether the next page is to come with a signature. Without `--follow` always, since it may be the last page.
    fn wants_signature(&self) -> bool {
        let is_time = self.signed_at.is_none_or(|at| at.elapsed() >= SIGN_EVERY);
        !self.args.follow || (is_time && self.signed != self.last)
    }

    /// These records, with a signed head after its record, if that is one of them or the last before them. Of another record it is left out: where more
    /// pages follow, the next one has another.
    fn with_signed(&self, mut records: Vec<Outgoing>, signed: Option<SignedHead>) -> Result<Vec<Outgoing>, String> {
        let Some(signed) = signed.filter(|signed| self.signed != Some(signed.head)) else { return Ok(records) };
        let place = match self.last {
            Some(last) if last == signed.head => Some(0),
            _ => records.iter().position(|record| record.head == signed.head).map(|at| at + 1),
        };
        if let Some(place) = place {
            records.insert(place, signed.outgoing()?);
        }
        Ok(records)
    }

    fn has_arrived(&mut self, batch: &[Outgoing]) {
        for line in batch {
            if line.is_record {
                (self.count, self.last) = (self.count + 1, Some(line.head));
            } else {
                (self.signed, self.signed_at) = (Some(line.head), Some(Instant::now()));
            }
        }
    }

    /// Sends a batch until it has arrived.
    async fn deliver(&mut self, batch: &[Outgoing]) -> Result<(), Failure> {
        let (mut pause, mut tries, mut said) = (PAUSE.0, 0, String::new());
        loop {
            match self.sink.deliver(batch).await {
                Ok(()) => break,
                Err(NotTaken::ForGood(failure)) => return Err(failure),
                Err(NotTaken::ForNow(why)) => {
                    tries += 1;
                    if tries >= TRIES_MAX && !self.args.follow {
                        let what = format!("{} did not take the records after {tries} tries", self.sink.name());
                        return Err(Failure::Server { what, why });
                    }
                    if said != why {
                        note(&format!("{} did not take the records: {why}; trying again", self.sink.name()));
                        said = why;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
        if tries > 0 {
            note(&format!("{} takes records again", self.sink.name()));
        }
        Ok(())
    }
}

fn failure(stopped: Stopped) -> Failure {
    match &stopped {
        Stopped::NotYet { .. } => Failure::Usage(stopped.to_string()),
        Stopped::Removed { .. } | Stopped::Older => Failure::Refused(stopped.to_string()),
        Stopped::Rewritten(_) | Stopped::CutOff { .. } | Stopped::Broken(_) => {
            Failure::Server { what: "the audit cannot be exported".to_owned(), why: stopped.to_string() }
        }
    }
}

/// Where records go, and how far they have come there.
enum Sink {
    File(AuditFile, String),
    Syslog(syslog::Receiver, PathBuf, String),
    Post(post::Receiver, PathBuf, String),
}

impl Sink {
    /// Opens it, and gives the last record that it has.
    fn open(args: &Args) -> Result<(Self, Option<Head>), Failure> {
        let destination = Destination::parse(&args.to)?;
        let name = destination.name();
        if !matches!(destination, Destination::Post(_)) {
            for (flag, given) in [("authorization-file", &args.authorization_file), ("ca-file", &args.ca_file)] {
                if given.is_some() {
                    return Err(Failure::field(flag, "is for https alone", "leave it out"));
                }
            }
        }
        let position = |args: &Args| -> Result<(PathBuf, Option<Head>), Failure> {
            let path = args.position.clone().ok_or_else(|| {
                let problem = "is missing, and a receiver does not say what it has";
                Failure::field("position", problem, "name a file that keeps how far the export has come")
            })?;
            let last = position::read(&path)?;
            Ok((path, last))
        };
        Ok(match destination {
            Destination::File(_) if args.position.is_some() => {
                let problem = "is not used with file: the file itself says how far the export has come";
                return Err(Failure::field("position", problem, "leave it out"));
            }
            Destination::File(path) => {
                let (file, last, torn) = AuditFile::open(&path)?;
                if torn > 0 {
                    note(&format!(
                        "{name}: {torn} bytes of a line that was not whole were cut off; the export goes on after the line before it"
                    ));
                }
                (Sink::File(file, name), last)
            }
            Destination::Syslog(address) => {
                let (path, last) = position(args)?;
                (Sink::Syslog(syslog::Receiver::new(&address), path, name), last)
            }
            Destination::Post(url) => {
                let (path, last) = position(args)?;
                let authorization = args.authorization_file.as_deref();
                let receiver = post::Receiver::new(&url, args.ca_file.as_deref(), authorization)?;
                (Sink::Post(receiver, path, name), last)
            }
        })
    }

    /// Whether its last record is known to be signed. Receivers do not say what they have.
    fn ends_signed(&self) -> bool {
        match self {
            Sink::File(file, _) => file.ends_signed(),
            Sink::Syslog(..) | Sink::Post(..) => false,
        }
    }

    fn name(&self) -> &str {
        match self {
            Sink::File(_, name) | Sink::Syslog(_, _, name) | Sink::Post(_, _, name) => name,
        }
    }

    /// Sends a batch, and keeps that it has arrived.
    async fn deliver(&mut self, batch: &[Outgoing]) -> Result<(), NotTaken> {
        let Some(last) = batch.last() else { return Ok(()) };
        let keep = |path: &Path| position::write(path, last.head).map_err(NotTaken::ForGood);
        match self {
            Sink::File(file, _) => file.append(batch).map_err(NotTaken::ForGood),
            Sink::Syslog(receiver, path, _) => {
                receiver.send(batch).await?;
                keep(path)
            }
            Sink::Post(receiver, path, _) => {
                let (receiver, batch) = (receiver.clone(), batch.to_vec());
                let sent = tokio::task::spawn_blocking(move || receiver.send(&batch)).await;
                sent.map_err(|lost| NotTaken::ForNow(lost.to_string()))??;
                keep(path)
            }
        }
    }
}

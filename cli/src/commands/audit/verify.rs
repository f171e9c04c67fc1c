//! `muster audit verify`: whether every record follows from the one before it, in the cluster or in a file that was exported.
//!
//! What must stay true: a chain is verified here, from the records alone; a record that is missing, altered or out of its place is named, and so is the line of
//! a signed head that is wrong.

use super::signatures::Signatures;
use super::{PAGE, page, record, source};
use crate::args::audit::Verify as Args;
use crate::audit_export::Head;
use crate::audit_export::chain::follow;
use crate::audit_export::file::{Next, Records};
use crate::commands::Context;
use crate::config::read_roots;
use crate::failure::Failure;
use crate::output::note;
use muster_proto::v1;
use muster_runtime::pki::Roots;
use std::path::Path;

/// Runs it.
///
/// # Errors
/// When the chain is broken, or cannot be read.
pub(super) async fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let Some(path) = &args.file else { return cluster(context).await };
    let roots = match &args.roots {
        Some(roots) => Some(read_roots("roots", roots)?),
        None => context.config.roots()?,
    };
    let verified = file(path, roots.as_ref())?;
    if args.roots.is_some() && verified.signed == 0 {
        let why = "none of its heads is signed, so --roots checks nothing".to_owned();
        return Err(Failure::Server { what: path.display().to_string(), why });
    }
    context.out.line(&verified.text)?;
    if !args.against_cluster {
        return Ok(());
    }
    against_cluster(context, verified.last).await?;
    context.out.line(&format!("record {} is the cluster's", verified.last.number))
}

fn broken(number: u64, why: &str) -> Failure {
    Failure::Server { what: format!("record {number} of the audit"), why: why.to_owned() }
}

/// The cluster's own records.
async fn cluster(context: &Context) -> Result<(), Failure> {
    let mut request = v1::AuditQueryRequest {
        oldest_first: true,
        page_size: PAGE,
        consistency: context.consistency.into(),
        ..v1::AuditQueryRequest::default()
    };
    let mut last: Option<Head> = None;
    let mut count = 0_u64;
    loop {
        let reply = page(context, request.clone()).await?;
        for wire in reply.records {
            let record = record(wire)?;
            if last.is_none() && record.number != reply.trimmed.saturating_add(1) {
                return Err(broken(record.number, "it is the first, and records before it are missing"));
            }
            last = Some(follow(last, &record)?);
            count += 1;
        }
        if reply.next_page_token.is_empty() {
            let last = last.unwrap_or(Head { number: 0, hash: [0; 32] });
            // Records may have come since the last page was read.
            if last.number == reply.last_number && last.hash[..] != reply.last_hash[..] {
                return Err(broken(last.number, "its hash is not the one that the cluster keeps"));
            }
            if last.number < reply.last_number {
                let why = "it is the cluster's last, and was not sent; are you an auditor?";
                return Err(broken(reply.last_number, why));
            }
            let number = last.number;
            return context
                .out
                .line(&format!("{count} records, each follows from the one before it; the last is {number}"));
        }
        request.page_token = reply.next_page_token;
    }
}

/// A file that is whole.
struct Verified {
    last: Head,
    /// Signed heads in it.
    signed: u64,
    /// What was found.
    text: String,
}

/// The records and signed heads of a file.
fn file(path: &Path, roots: Option<&Roots>) -> Result<Verified, Failure> {
    let mut records = Records::open(path)?;
    let mut signatures = Signatures::new(roots);
    let (mut first, mut last): (u64, Option<Head>) = (0, None);
    loop {
        let next = records.read().map_err(|error| Failure::io(format!("reading {}", path.display()), error))?;
        let at = |why: String| Failure::Server { what: format!("{}, line {}", path.display(), records.line()), why };
        match next {
            Next::Record(record) => {
                let head = follow(last, &record).map_err(|broken| at(broken.to_string()))?;
                if last.is_none() {
                    first = head.number;
                }
                last = Some(head);
            }
            Next::Signed(signed) => signatures.take(last, &signed).map_err(|bad| at(bad.to_string()))?,
            Next::Bad(bad) => {
                let after = match last {
                    Some(last) => format!("after record {}: ", last.number),
                    None => String::new(),
                };
                return Err(at(format!("{after}{bad}")));
            }
            Next::Torn => {
                let at = format!("{}, line {}", path.display(), records.line());
                note(&format!(
                    "{at}: the line is not whole and was left out; the next export to this file replaces it"
                ));
                break;
            }
            Next::End => break,
        }
    }
    let Some(last) = last else {
        return Err(Failure::Server { what: path.display().to_string(), why: "it has no records".to_owned() });
    };
    let count = (last.number - first).saturating_add(1);
    let mut text = format!("{count} records, each follows from the one before it; the last is {}", last.number);
    if first > 1 {
        text.push_str(&format!("\nthe file begins with record {first}, and what was before it is not checked"));
    }
    text.push_str(&format!("\n{}", signatures.text(last.number)));
    Ok(Verified { last, signed: signatures.count, text })
}

/// Whether the cluster has the same record under the same number.
async fn against_cluster(context: &Context, last: Head) -> Result<(), Failure> {
    let page = source::page(context, last.number.saturating_sub(1)).await?;
    if last.number <= page.removed {
        let why =
            format!("it was removed from the cluster, which keeps records from {} on", page.removed.saturating_add(1));
        return Err(broken(last.number, &why));
    }
    let there = page.records.iter().find(|record| record.number == last.number);
    let newest = page.newest.number;
    match there {
        Some(record) if record.hash == last.hash => Ok(()),
        Some(_) => {
            let why = "the one in the file is not the one in the cluster; one of the two was rewritten, or the file is of another cluster";
            Err(broken(last.number, why))
        }
        None if newest < last.number => {
            let why = format!(
                "it is in the file, and the cluster's audit ends with record {newest}; records were taken from the cluster, or the file is of another cluster"
            );
            Err(broken(last.number, &why))
        }
        None => Err(broken(last.number, "the cluster did not send it; are you an auditor?")),
    }
}

//! The cluster's audit, read from a record on.
//!
//! What must stay true: it is read as of now: an older state would look as if records were missing.

use super::{PAGE, page as ask, record, signed_head};
use crate::audit_export::progress::Page;
use crate::audit_export::{Head, SignedHead};
use crate::commands::Context;
use crate::failure::Failure;
use muster_proto::v1;

/// The records after a number, the oldest first.
///
/// # Errors
/// When the cluster does not answer, or with what is no record.
pub(super) async fn page(context: &Context, after: u64) -> Result<Page, Failure> {
    read(context, after, false).await.map(|(page, _)| page)
}

/// The same, and the last record of the cluster as the control node signs it, if it was asked to and can.
///
/// # Errors
/// As [`page`].
pub(super) async fn read(context: &Context, after: u64, sign: bool) -> Result<(Page, Option<SignedHead>), Failure> {
    let request = v1::AuditQueryRequest {
        oldest_first: true,
        after_number: after,
        page_size: PAGE,
        sign,
        consistency: v1::Consistency::Linearizable.into(),
        ..v1::AuditQueryRequest::default()
    };
    let reply = ask(context, request).await?;
    let bad =
        |_| Failure::Server { what: "the last record of the audit".to_owned(), why: "it has no valid hash".to_owned() };
    let newest = Head { number: reply.last_number, hash: reply.last_hash.try_into().map_err(bad)? };
    let records = reply.records.into_iter().map(record).collect::<Result<_, _>>()?;
    let signed = reply.signed_head.map(signed_head).transpose()?;
    Ok((Page { records, newest, removed: reply.trimmed }, signed))
}

//! `muster audit`: who changed what, and whether the chain of records is whole.
//!
//! What must stay true: a chain is verified here, from the records alone; a record that is missing, altered or out of its place is named.

use crate::args::access::Audit;
use crate::client::Client;
use crate::commands::{Context, now_ms};
use crate::failure::Failure;
use crate::view::access::{AuditView, audit as table};
use muster_control_core::audit_link;
use muster_model::{AuditRecord, Author};
use muster_proto::v1;
use muster_proto::v1::audit_client::AuditClient;

/// Records of one page.
const PAGE: u32 = 1_000;

/// Runs one of them.
///
/// # Errors
/// What is refused, that the cluster stays away, or that the chain is broken.
pub async fn run(context: &Context, command: &Audit) -> Result<(), Failure> {
    match command {
        Audit::List { tenant, by, since, limit } => {
            let request = v1::AuditQueryRequest {
                tenant: tenant.clone(),
                principal: by.clone(),
                since_ms: since.map_or(0, |since| now_ms().saturating_sub(since.0.saturating_mul(1_000))),
                consistency: context.consistency.into(),
                ..v1::AuditQueryRequest::default()
            };
            let views = list(context, request, *limit).await?;
            context.out.show(&views, |_| table(&views))
        }
        Audit::Denials { limit } => {
            let mut views = Vec::new();
            for endpoint in context.client.each() {
                views.extend(denials(&endpoint, *limit).await?);
            }
            views.sort_by_key(|view: &AuditView| std::cmp::Reverse(view.at_ms));
            context.out.show(&views, |_| table(&views))
        }
        Audit::Verify => verify(context).await,
    }
}

async fn page(context: &Context, request: v1::AuditQueryRequest) -> Result<v1::AuditQueryReply, Failure> {
    let ask = |channel| {
        let request = request.clone();
        async move { AuditClient::new(channel).query(request).await }
    };
    context.client.call("read the audit", ask).await
}

async fn list(context: &Context, mut request: v1::AuditQueryRequest, limit: usize) -> Result<Vec<AuditView>, Failure> {
    let mut views = Vec::new();
    while views.len() < limit {
        request.page_size = u32::try_from(limit - views.len()).unwrap_or(PAGE).min(PAGE);
        let reply = page(context, request.clone()).await?;
        views.extend(reply.records.iter().map(AuditView::from));
        if reply.next_page_token.is_empty() {
            break;
        }
        request.page_token = reply.next_page_token;
    }
    Ok(views)
}

/// What one control node has refused.
async fn denials(client: &Client, limit: usize) -> Result<Vec<AuditView>, Failure> {
    let (mut views, mut page_token) = (Vec::new(), String::new());
    while views.len() < limit {
        let page_size = u32::try_from(limit - views.len()).unwrap_or(PAGE).min(PAGE);
        let request = v1::DenialsRequest { page_size, page_token };
        let ask = |channel| {
            let request = request.clone();
            async move { AuditClient::new(channel).denials(request).await }
        };
        let reply: v1::DenialsReply = client.call("read the refusals", ask).await?;
        views.extend(reply.records.iter().map(AuditView::from));
        if reply.next_page_token.is_empty() {
            break;
        }
        page_token = reply.next_page_token;
    }
    Ok(views)
}

async fn verify(context: &Context) -> Result<(), Failure> {
    let mut request = v1::AuditQueryRequest {
        oldest_first: true,
        page_size: PAGE,
        consistency: context.consistency.into(),
        ..v1::AuditQueryRequest::default()
    };
    let mut last: Option<(u64, [u8; 32])> = None;
    let mut count = 0_u64;
    let broken =
        |number: u64, why: &str| Failure::Server { what: format!("record {number} of the audit"), why: why.to_owned() };
    loop {
        let reply = page(context, request.clone()).await?;
        for wire in reply.records {
            let (record, hash) = record(wire)?;
            let number = record.number;
            match last {
                // The one before the first that is kept is known by its number alone.
                None if number != reply.trimmed + 1 => {
                    return Err(broken(number, "it is the first, and records before it are missing"));
                }
                None if number == 1 && audit_link(&[0; 32], &record) != hash => {
                    return Err(broken(number, "its hash does not follow from its content"));
                }
                Some((before, _)) if number != before + 1 => {
                    return Err(broken(number, &format!("it follows record {before}, so some are missing")));
                }
                Some((_, before)) if audit_link(&before, &record) != hash => {
                    return Err(broken(number, "its hash does not follow from its content and the record before it"));
                }
                _ => {}
            }
            last = Some((number, hash));
            count += 1;
        }
        if reply.next_page_token.is_empty() {
            let (number, hash) = last.unwrap_or_default();
            // Records may have come since the last page was read.
            if number == reply.last_number && hash[..] != reply.last_hash[..] {
                return Err(broken(number, "its hash is not the one that the cluster keeps"));
            }
            if number < reply.last_number {
                return Err(broken(
                    reply.last_number,
                    "it is the cluster's last, and was not sent; are you an auditor?",
                ));
            }
            return context
                .out
                .line(&format!("{count} records, each follows from the one before it; the last is {number}"));
        }
        request.page_token = reply.next_page_token;
    }
}

fn record(wire: v1::AuditRecord) -> Result<(AuditRecord, [u8; 32]), Failure> {
    let number = wire.number;
    let bad = |what: &str| Failure::Server {
        what: format!("record {number} of the audit"),
        why: format!("it has no valid {what}"),
    };
    let hash: [u8; 32] = wire.hash.try_into().map_err(|_| bad("hash"))?;
    let request_sha256 = match wire.request_sha256.len() {
        0 => None,
        _ => Some(wire.request_sha256.try_into().map_err(|_| bad("hash of its request"))?),
    };
    let author = Author {
        principal: wire.principal.parse().map_err(|_| bad("principal"))?,
        credential: (wire.credential > 0).then_some(wire.credential),
        from: wire.from,
        request_sha256,
    };
    Ok((AuditRecord { number, at_ms: wire.at_ms, author, rpc: wire.rpc, target: wire.target, hash }, hash))
}

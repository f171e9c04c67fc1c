//! `muster audit`: who changed what, what was refused, and copies of it outside of the cluster.
//!
//! What must stay true: a record is taken from a reply only with all that its hash covers, and a signed head with all that its signature covers.

mod export;
mod signatures;
mod source;
mod verify;

use crate::args::access::Audit;
use crate::audit_export::{Head, SignedHead};
use crate::client::Client;
use crate::commands::{Context, now_ms};
use crate::failure::Failure;
use crate::view::access::{AuditView, audit as table};
use muster_model::{AuditRecord, Author};
use muster_proto::v1;
use muster_proto::v1::audit_client::AuditClient;
use muster_runtime::pki::{Certificate, Signed};

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
        Audit::Verify(args) => verify::run(context, args).await,
        Audit::Export(args) => export::run(context, args).await,
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

fn record(wire: v1::AuditRecord) -> Result<AuditRecord, Failure> {
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
    Ok(AuditRecord { number, at_ms: wire.at_ms, author, rpc: wire.rpc, target: wire.target, hash })
}

fn signed_head(wire: v1::SignedAuditHead) -> Result<SignedHead, Failure> {
    let v1::SignedAuditHead { number, hash, at_ms, signature, chain } = wire;
    let bad = |what: &str| Failure::Server {
        what: format!("the signed head of record {number} of the audit"),
        why: format!("it has no valid {what}"),
    };
    let head = Head { number, hash: hash.try_into().map_err(|_| bad("hash"))? };
    let chain = chain.into_iter().map(Certificate::from_bytes).collect::<Result<_, _>>().map_err(|_| bad("chain"))?;
    Ok(SignedHead { head, at_ms, signed: Signed { signature, chain } })
}

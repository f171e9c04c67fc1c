//! `muster.v1.Audit`: the records of what was changed, and by whom.
//!
//! What must stay true: whoever sees the whole fleet sees every record, so that a copy can be verified; others see those of their own doing and those about
//! tenants that they administer. The end of the chain is signed for the former alone.

use super::App;
use super::paging::{self, Page};
use crate::api::{auth, refusal};
use muster_control_core::authz::Rights;
use muster_control_core::authz::{About, Allowed, Ask};
use muster_control_core::{State, audit_head_statement};
use muster_model::identity::Author;
use muster_model::object::Number;
use muster_model::{AccessMode, AuditRecord, Role, Rpc, TenantId};
use muster_proto::v1;
use muster_runtime::pki::{Signed, sign_statement};
use std::collections::BTreeSet;
use tonic::{Request, Response, Status};

/// Records that one page looks through.
const LOOKED_AT_MAX: usize = 20_000;
/// Records read from disk at a time.
const CHUNK: usize = 1_000;

/// The service.
pub(crate) struct AuditService(pub(crate) App);

/// Whose records are wanted, and which the caller may see.
struct Filter {
    principal: String,
    since_ms: u64,
    tenant: String,
    /// Paths of tenants whose records the caller sees; none: all records.
    administered: Option<BTreeSet<String>>,
    own: String,
}

#[tonic::async_trait]
impl v1::audit_server::Audit for AuditService {
    async fn query(&self, request: Request<v1::AuditQueryRequest>) -> Result<Response<v1::AuditQueryReply>, Status> {
        let (author, request) = auth::split(request);
        let size = paging::size(request.page_size)?;
        let v1::AuditQueryRequest { tenant, principal, since_ms, oldest_first, after_number, .. } = &request;
        if *after_number > 0 && !oldest_first {
            return Err(refusal::field("after_number", format!("is {after_number}"), "use it with oldest_first"));
        }
        let question = format!("audit|{tenant}|{principal}|{since_ms}|{oldest_first}|{after_number}");
        let after = paging::after(&question, &request.page_token)?;
        let after = after.map(|last| last.parse::<u64>()).transpose().map_err(|_| {
            refusal::field("page_token", "is not a token", "use next_page_token of the last reply, or leave it empty")
        })?;
        let after = after.or((*after_number > 0).then_some(*after_number));
        let now_ms = self.0.consensus.now_ms();
        let look = |state: &State, revision, allowed: &Allowed| {
            let administered = administered(state, now_ms, allowed);
            (administered, state.meta.audited, state.meta.audit_head, state.meta.audit_trimmed, revision)
        };
        let ask = Ask { rpc: Rpc::AuditQuery, about: About::Nothing };
        let (administered, last_number, last_hash, trimmed, revision): (_, u64, [u8; 32], u64, muster_model::Revision) =
            self.0.look(&author, ask, request.consistency, look).await?;
        let signs = request.sign && administered.is_none();
        let signed_head = signs.then(|| signed_head(&self.0, last_number, last_hash)).flatten();
        let filter = Filter {
            principal: request.principal,
            since_ms: request.since_ms,
            tenant: request.tenant,
            administered,
            own: author.principal.to_string(),
        };
        let (records, next) = self.page(&filter, after, !request.oldest_first, size)?;
        Ok(Response::new(v1::AuditQueryReply {
            records,
            next_page_token: next.map(|last| paging::token(&question, &last.to_string())).unwrap_or_default(),
            revision: revision.0,
            last_number,
            last_hash: last_hash.to_vec(),
            trimmed,
            signed_head,
        }))
    }

    async fn denials(&self, request: Request<v1::DenialsRequest>) -> Result<Response<v1::DenialsReply>, Status> {
        let (author, request) = auth::split(request);
        self.0.allow(&author, Rpc::AuditDenials, About::Nothing)?;
        denials(&self.0, &request).map(Response::new)
    }
}

/// The end of the chain as this node signs it; none where it has no identity, and where there are no records.
fn signed_head(app: &App, number: u64, hash: [u8; 32]) -> Option<v1::SignedAuditHead> {
    let own = app.host.net.credentials().filter(|_| number > 0)?;
    let at_ms = app.consensus.now_ms();
    let statement = audit_head_statement(own.roots().cluster(), number, &hash, at_ms);
    match sign_statement(&*app.host.pki, &own, &statement, at_ms) {
        Ok(Signed { signature, chain }) => {
            let chain = chain.iter().map(|certificate| certificate.bytes().to_vec()).collect();
            Some(v1::SignedAuditHead { number, hash: hash.to_vec(), at_ms, signature, chain })
        }
        Err(error) => {
            tracing::debug!(%error, "the end of the audit is not signed");
            None
        }
    }
}

/// The page of this node's own chain.
fn denials(app: &App, request: &v1::DenialsRequest) -> Result<v1::DenialsReply, Status> {
    let size = paging::size(request.page_size)?;
    let before = paging::after("denials", &request.page_token)?;
    let before = before.map(|last| last.parse::<u64>()).transpose().map_err(|_| {
        refusal::field("page_token", "is not a token", "use next_page_token of the last reply, or leave it empty")
    })?;
    let records = app.denials.newest(before, size).map_err(|error| refusal::disk(&error))?;
    let next = records.last().filter(|last| records.len() == size && last.number > 1).map(|last| last.number);
    let member = app.consensus.id();
    let head = app.consensus.read(|state, _| state.audit_heads.get(&Number(member)).cloned());
    Ok(v1::DenialsReply {
        member,
        records: records.iter().map(view).collect(),
        next_page_token: next.map(|last| paging::token("denials", &last.to_string())).unwrap_or_default(),
        committed_number: head.as_ref().map_or(0, |head| head.number),
        committed_hash: head.map(|head| head.hash.to_vec()).unwrap_or_default(),
    })
}

impl AuditService {
    /// Records after the one with the number `after`, and the last that was looked at, if there may be more.
    fn page(
        &self,
        filter: &Filter,
        after: Option<u64>,
        newest_first: bool,
        size: usize,
    ) -> Result<(Vec<v1::AuditRecord>, Option<u64>), Status> {
        let mut page = Page::new(size);
        let (mut from, mut looked_at) =
            (if newest_first { after } else { after.map(|after| after.saturating_add(1)) }, 0);
        let mut last = after;
        while looked_at < LOOKED_AT_MAX {
            let chunk =
                self.0.consensus.audit_records(from, newest_first, CHUNK).map_err(|error| refusal::disk(&error))?;
            let ends = chunk.len() < CHUNK;
            for record in chunk {
                if page.is_full() {
                    return Ok((page.items(), last));
                }
                if newest_first && record.at_ms < filter.since_ms {
                    return Ok((page.items(), None));
                }
                looked_at += 1;
                last = Some(record.number);
                from = Some(if newest_first { record.number } else { record.number + 1 });
                if filter.shows(&record) {
                    page.push(view(&record));
                }
            }
            if ends {
                return Ok((page.items(), None));
            }
        }
        Ok((page.items(), last))
    }
}

impl Filter {
    fn shows(&self, record: &AuditRecord) -> bool {
        let principal = record.author.principal.to_string();
        let of_tenant = |path: &str| names_tenant(&record.target, path);
        let seen = match &self.administered {
            None => true,
            Some(paths) => principal == self.own || paths.iter().any(|path| of_tenant(path)),
        };
        seen && record.at_ms >= self.since_ms
            && (self.principal.is_empty() || principal == self.principal)
            && (self.tenant.is_empty() || of_tenant(&self.tenant))
    }
}

/// Whether a record's target names a tenant, or one below it.
fn names_tenant(target: &str, path: &str) -> bool {
    target.split([' ', ',']).any(|word| muster_model::tenant::lies_under(word, path))
}

/// Paths of the tenants that the caller administers; none where every record is shown.
fn administered(state: &State, now_ms: u64, allowed: &Allowed) -> Option<BTreeSet<String>> {
    if state.meta.access == AccessMode::Open || allowed.sees().shows_fleet() {
        return None;
    }
    let author: &Author = allowed.author();
    let Ok(rights) = Rights::of(state, now_ms, author) else { return Some(BTreeSet::new()) };
    let tops: Vec<TenantId> = rights.tops().into_iter().flatten().collect();
    let admin = tops.into_iter().filter(|top| rights.has(Role::Admin, Some(*top)));
    Some(admin.filter_map(|top| state.tenants.get(&top)).map(|tenant| tenant.path.clone()).collect())
}

fn view(record: &AuditRecord) -> v1::AuditRecord {
    let author = &record.author;
    v1::AuditRecord {
        number: record.number,
        at_ms: record.at_ms,
        principal: author.principal.to_string(),
        credential: author.credential.unwrap_or_default(),
        from: author.from.clone(),
        rpc: record.rpc.clone(),
        target: record.target.clone(),
        request_sha256: author.request_sha256.map(|hash| hash.to_vec()).unwrap_or_default(),
        hash: record.hash.to_vec(),
    }
}

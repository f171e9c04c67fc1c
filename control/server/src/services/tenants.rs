//! `muster.v1.Tenants`: the quota tree.

use super::App;
use super::paging::{self, Page};
use crate::api::{auth, refusal};
use muster_control_core::authz::{About, Allowed, Ask, Visibility};
use muster_control_core::quota::waiting;
use muster_control_core::standing::{self, Sentence, Standing};
use muster_control_core::{Command, Done, State, plan};
use muster_model::floor_account::{FloorAccount, floor_accounts};
use muster_model::identity::Author;
use muster_model::quota_tree::{QuotaUse, quota_tree};
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::{TenantChange, TenantEdit};
use muster_model::validate::bounds::TENANTS_PER_APPLY_MAX;
use muster_model::{FieldError, ResourceVec, Revision, Rpc, TenantHistory, TenantId};
use muster_proto::convert::tenant::by_resource_to_wire;
use muster_proto::v1;
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct TenantsService(pub(crate) App);

impl TenantsService {
    /// What the state machine would answer now.
    async fn would(&self, author: &Author, command: &Command) -> Result<(Done, Revision), Status> {
        self.0.catch_up(v1::Consistency::Linearizable.into()).await?;
        self.0.judge(author, command)?;
        let look = |state: &State, revision| (plan(state, state.meta.now_ms, command), revision);
        let (planned, revision) = self.0.consensus.read(look);
        let (_, done) = planned.map_err(|reject| refusal::reject(&reject))?;
        Ok((done, revision))
    }
}

#[tonic::async_trait]
impl v1::tenants_server::Tenants for TenantsService {
    async fn apply(
        &self,
        request: Request<v1::ApplyTenantsRequest>,
    ) -> Result<Response<v1::ApplyTenantsReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::ApplyTenantsRequest { tenants, edits, dry_run, prune, half_life_s } = request;
        let named = tenants.len() + edits.len();
        let command = command(tenants, edits, prune, half_life_s).map_err(|faults| refusal::fields(&faults))?;
        let (done, revision) =
            if dry_run { self.would(&author, &command).await? } else { self.0.decide(&author, command).await? };
        let Changed { changes, removed, half_life_before_s } = changed(done)?;
        let half_life_s = half_life_s.filter(|_| half_life_before_s.is_some());
        if !dry_run {
            tracing::info!(
                named, changed = changes.len(), removed = removed.len(), half_life_s, %revision, "tenants applied"
            );
        }
        let unchanged = u32::try_from(named.saturating_sub(changes.len())).unwrap_or(u32::MAX);
        let changes = changes.iter().map(Into::into).collect();
        let removed = removed.iter().map(Into::into).collect();
        Ok(Response::new(v1::ApplyTenantsReply {
            revision: revision.0,
            changes,
            unchanged,
            removed,
            half_life_before_s,
            half_life_s,
        }))
    }

    async fn r#move(&self, request: Request<v1::MoveTenantRequest>) -> Result<Response<v1::MoveTenantReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::MoveTenantRequest { path, to, dry_run } = request;
        for (field, value) in [("path", &path), ("to", &to)] {
            if value.is_empty() {
                return Err(refusal::field(field, "is empty", "name the tenant, such as research/nlp"));
            }
        }
        let command = Command::MoveTenant { path: path.clone(), to: to.clone() };
        let (done, revision) =
            if dry_run { self.would(&author, &command).await? } else { self.0.decide(&author, command).await? };
        let Changed { changes, .. } = changed(done)?;
        if !dry_run {
            tracing::info!(tenant = path, to, changed = changes.len(), %revision, "tenant moved");
        }
        let changes = changes.iter().map(Into::into).collect();
        Ok(Response::new(v1::MoveTenantReply { revision: revision.0, changes }))
    }

    async fn list(&self, request: Request<v1::ListTenantsRequest>) -> Result<Response<v1::ListTenantsReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::ListTenantsRequest { under, consistency, page_size, page_token, quota } = request;
        let size = paging::size(page_size)?;
        let question = format!("tenants|{under}");
        let after = paging::after(&question, &page_token)?;
        let look = |state: &State, revision, allowed: &Allowed| {
            (page(state, allowed.sees(), &under, after.as_deref(), size, quota), revision)
        };
        let ask = Ask { rpc: Rpc::TenantsList, about: About::Nothing };
        let ((tenants, last), revision) = self.0.look(&author, ask, consistency, look).await?;
        if tenants.is_empty() && after.is_none() && !under.is_empty() {
            return Err(refusal::not_found("tenant", under));
        }
        let next_page_token = last.map(|last| paging::token(&question, &last)).unwrap_or_default();
        Ok(Response::new(v1::ListTenantsReply { tenants, revision: revision.0, next_page_token }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteTenantRequest>,
    ) -> Result<Response<v1::DeleteTenantReply>, Status> {
        let (author, request) = auth::split(request);
        let path = request.path;
        if path.is_empty() {
            return Err(refusal::field("path", "is empty", "name the tenant, such as research/nlp"));
        }
        let (_, revision) = self.0.decide(&author, Command::DeleteTenant { path: path.clone() }).await?;
        tracing::info!(tenant = path, %revision, "tenant deleted");
        Ok(Response::new(v1::DeleteTenantReply { revision: revision.0 }))
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainTenantRequest>,
    ) -> Result<Response<v1::ExplainTenantReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::ExplainTenantRequest { path, consistency } = request;
        if path.is_empty() {
            return Err(refusal::field("path", "is empty", "name the tenant, such as research/nlp"));
        }
        let look = |state: &State, revision: Revision, allowed: &Allowed| {
            let seen = |path: &str| {
                let id = state.index().tenant_ids.get(path);
                id.is_some_and(|id| allowed.sees().shows(state, *id))
            };
            let explained = standing::explain(state, &path).map(|explained| {
                let neighbours =
                    explained.neighbours.iter().filter(|one| seen(&one.path)).map(standing_to_wire).collect();
                (explained, neighbours)
            });
            (explained, state.meta.now_ms, revision)
        };
        let ask = Ask { rpc: Rpc::TenantsExplain, about: About::Tenant(&path) };
        let (explained, now_ms, revision) = self.0.look(&author, ask, consistency, look).await?;
        let Some((explained, neighbours)) = explained else { return Err(refusal::not_found("tenant", path)) };
        Ok(Response::new(v1::ExplainTenantReply {
            revision: revision.0,
            now_ms,
            reasons: explained.sentences().into_iter().map(reason_to_wire).collect(),
            tenant: Some(standing_to_wire(&explained.tenant)),
            neighbours,
            more_neighbours: u32::try_from(explained.more).unwrap_or(u32::MAX),
            half_life_s: explained.half_life_s,
        }))
    }

    async fn history(
        &self,
        request: Request<v1::TenantHistoryRequest>,
    ) -> Result<Response<v1::TenantHistoryReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::TenantHistoryRequest { path, consistency } = request;
        if path.is_empty() {
            return Err(refusal::field("path", "is empty", "name the tenant, such as research/nlp"));
        }
        let look = |state: &State, revision: Revision, allowed: &Allowed| {
            let found = histories(state, &path).into_iter().filter(|history| shows(state, allowed.sees(), history));
            (found.cloned().collect::<Vec<TenantHistory>>(), revision)
        };
        let ask = Ask { rpc: Rpc::TenantsHistory, about: About::Nothing };
        let (found, revision) = self.0.look(&author, ask, consistency, look).await?;
        if found.is_empty() {
            return Err(refusal::not_found("tenant", path));
        }
        let histories = found.iter().map(Into::into).collect();
        Ok(Response::new(v1::TenantHistoryReply { revision: revision.0, histories }))
    }
}

/// Whether a history may be shown: as its tenant; that of a removed one as the tenant that it belonged to last.
fn shows(state: &State, sees: &Visibility, history: &TenantHistory) -> bool {
    let parent = history.versions.last().and_then(|last| last.parent);
    sees.shows_fleet() || sees.shows(state, history.tenant) || parent.is_some_and(|parent| sees.shows(state, parent))
}

/// Histories that one answer has: paths are seldom given again.
const HISTORIES_MAX: usize = 16;

/// The history of the tenant at `path` (or of that id, `#17`), and of removed tenants that had the path last, the newest first.
fn histories<'a>(state: &'a State, path: &str) -> Vec<&'a TenantHistory> {
    if let Some(id) = path.strip_prefix('#').and_then(|id| id.parse().ok()) {
        return state.tenant_histories.get(&TenantId(id)).into_iter().collect();
    }
    let live = state.index().tenant_ids.get(path).and_then(|id| state.tenant_histories.get(id));
    let had = |history: &&TenantHistory| history.versions.last().is_some_and(|last| last.path == path);
    let removed = state.tenant_histories.values().rev().filter(|history| history.removed_ms.is_some()).filter(had);
    live.into_iter().chain(removed).take(HISTORIES_MAX).collect()
}

/// How a tenant stands, as it is sent.
fn standing_to_wire(of: &Standing) -> v1::TenantStanding {
    v1::TenantStanding {
        path: of.path.clone(),
        guarantee: Some((&of.guarantee).into()),
        max: Some((&of.max).into()),
        weight: of.weight,
        lend: of.lend,
        used: Some((&of.used).into()),
        covered: Some((&of.covered).into()),
        waiting: Some((&of.waiting).into()),
        floor_share: of.floor_share,
        burst_share: of.burst.map(|(_, share)| share),
        burst_over_weight: of.burst_over_weight(),
        burst_resource: of.burst.map(|(resource, _)| resource.to_string()).unwrap_or_default(),
        used_since_ms: of.used_since_ms,
        waiting_since_ms: of.waiting_since_ms,
        historic_share: of.historic_share,
        weights: by_resource_to_wire(&of.weights),
        lends: by_resource_to_wire(&of.lends),
    }
}

fn reason_to_wire(said: Sentence) -> v1::TenantReason {
    v1::TenantReason { code: said.code.to_owned(), text: said.text, subject: said.subject }
}

/// What an edit or a move changed.
struct Changed {
    changes: Vec<TenantChange>,
    removed: Vec<TenantSpec>,
    /// The half-life as it was, if that changed.
    half_life_before_s: Option<u64>,
}

fn changed(done: Done) -> Result<Changed, Status> {
    match done {
        Done::Tenants { changes, removed, half_life_before_s } => Ok(Changed { changes, removed, half_life_before_s }),
        done => Err(Status::internal(format!("a change of tenants was answered {done:?}"))),
    }
}

/// Tenants at `under` and below it, after the path `after`, and where to go on.
fn page(
    state: &State,
    sees: &Visibility,
    under: &str,
    after: Option<&str>,
    size: usize,
    quota: bool,
) -> (Vec<v1::Tenant>, Option<String>) {
    let quotas = quota.then(|| (quota_tree(state.capacity()), waiting(state)));
    let accounts = if quota { floor_accounts(state.capacity()) } else { Default::default() };
    let in_use = state.capacity().tenants();
    let mut page = Page::new(size);
    let mut last = None;
    for tenant in state.index().tenants_below(under, after).filter_map(|id| state.tenants.get(&id)) {
        if page.is_full() {
            return (page.items(), last);
        }
        if !sees.shows(state, tenant.id) {
            // Of those above the caller's own: what bounds them, and nothing of what others do.
            if sees.shows_limits(state, tenant.id) {
                page.push(v1::Tenant::from(tenant));
                last = Some(tenant.path.clone());
            }
            continue;
        }
        let used = in_use.get(&tenant.id).map(|at| at.used).unwrap_or_default();
        let quota = quotas.as_ref().map(|(quotas, waiting)| {
            let of = quotas.get(&tenant.id).copied().unwrap_or_default();
            let historic = state.use_histories.get(&tenant.id).map(|record| record.burst_at(state.meta.now_ms));
            quota_to_wire(&of, &waiting.get(&tenant.id).copied().unwrap_or_default(), historic.as_ref())
        });
        let account = accounts.get(&tenant.id).map(account_to_wire);
        page.push(v1::Tenant { used: Some((&used).into()), quota, account, ..v1::Tenant::from(tenant) });
        last = Some(tenant.path.clone());
    }
    (page.items(), None)
}

fn account_to_wire(of: &FloorAccount) -> v1::FloorAccount {
    v1::FloorAccount {
        size: Some((&of.size).into()),
        busy: Some((&of.busy).into()),
        idle: Some((&of.idle).into()),
        lent: Some((&of.lent).into()),
        unmet: Some((&of.unmet).into()),
    }
}

fn quota_to_wire(of: &QuotaUse, waiting: &ResourceVec, historic: Option<&ResourceVec>) -> v1::QuotaUse {
    v1::QuotaUse {
        guaranteed: Some((&of.guaranteed).into()),
        borrowed: Some((&of.borrowed).into()),
        lent: Some((&of.lent).into()),
        waiting: Some(waiting.into()),
        unmet: Some((&of.unmet).into()),
        historic: historic.map(Into::into),
    }
}

/// The command that a call asks for: whole descriptions, or edits.
fn command(
    tenants: Vec<v1::TenantSpec>,
    edits: Vec<v1::TenantEdit>,
    prune: bool,
    half_life_s: Option<u64>,
) -> Result<Command, Vec<FieldError>> {
    if !tenants.is_empty() && !edits.is_empty() {
        let fix = "send either tenants or edits";
        return Err(vec![FieldError::new("tenants", "is sent together with edits", fix)]);
    }
    if !tenants.is_empty() && half_life_s.is_some() {
        let fix = "send edits with it, or it alone";
        return Err(vec![FieldError::new("half_life_s", "is sent together with tenants", fix)]);
    }
    if edits.is_empty() && (prune || half_life_s.is_none()) {
        if prune {
            let fix = "send edits, which are a tree";
            return Err(vec![FieldError::new("prune", "needs edits", fix)]);
        }
        return Ok(Command::ApplyTenants { tenants: check(tenants)? });
    }
    let (mut good, mut faults) = (Vec::with_capacity(edits.len()), Vec::new());
    for (index, wire) in edits.into_iter().enumerate() {
        match TenantEdit::try_from(wire) {
            Ok(edit) => good.push(edit),
            Err(fault) => faults.push(fault.under(&format!("edits[{index}]"))),
        }
    }
    // What comes of an edit is judged by the state machine, which knows what it changes.
    if faults.is_empty() { Ok(Command::EditTenants { edits: good, prune, half_life_s }) } else { Err(faults) }
}

fn check(wire: Vec<v1::TenantSpec>) -> Result<Vec<TenantSpec>, Vec<FieldError>> {
    if wire.is_empty() || wire.len() > TENANTS_PER_APPLY_MAX {
        let problem = format!("has {} tenants", wire.len());
        return Err(vec![FieldError::new("tenants", problem, "send 1 to 10,000 tenants in one call")]);
    }
    let (mut specs, mut faults) = (Vec::with_capacity(wire.len()), Vec::new());
    for (index, tenant) in wire.into_iter().enumerate() {
        let prefix = format!("tenants[{index}]");
        let checked =
            TenantSpec::try_from(tenant).map_err(|error| vec![error]).and_then(|spec| spec.validate().map(|()| spec));
        match checked {
            Ok(spec) => specs.push(spec),
            Err(errors) => faults.extend(errors.into_iter().map(|error| error.under(&prefix))),
        }
    }
    if faults.is_empty() { Ok(specs) } else { Err(faults) }
}

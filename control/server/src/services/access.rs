//! `muster.v1.Auth`: who the caller is, sessions and tokens, grants, and whether the cluster asks at all.
//!
//! What must stay true: the text of a token is in one reply only; lists show what the caller administers or has themselves, and never what
//! proves it.

use super::calls::number;
use super::paging::{self, Page};
use super::{App, login};
use crate::api::{auth, credential_text, refusal};
use muster_control_core::authz::{About, Allowed, Ask, Rights};
use muster_control_core::{Command, State};
use muster_model::identity::{Author, CredentialKind, Subject};
use muster_model::object::Number;
use muster_model::tenant::lies_under;
use muster_model::{AccessMode, Credential, Grant, Principal, Role, Rpc, UnknownWord};
use muster_proto::v1;
use sha2::{Digest, Sha256};
use tonic::{Request, Response, Status};

/// The service.
pub(crate) struct AuthService(pub(crate) App);

#[tonic::async_trait]
impl v1::auth_server::Auth for AuthService {
    async fn who_am_i(&self, request: Request<v1::WhoAmIRequest>) -> Result<Response<v1::WhoAmIReply>, Status> {
        let author = auth::author_of(&request);
        let now_ms = self.0.consensus.now_ms();
        self.0.allow(&author, Rpc::AuthWhoAmI, About::Nothing)?;
        Ok(Response::new(self.0.consensus.read(|state, _| who(state, now_ms, &author))))
    }

    async fn logout(&self, request: Request<v1::LogoutRequest>) -> Result<Response<v1::LogoutReply>, Status> {
        let author = auth::author_of(&request);
        let Some(id) = author.credential else {
            return Err(refusal::field("authorization", "is missing", "send the session that is to end"));
        };
        let (_, revision) = self.0.decide(&author, Command::RevokeCredential { id }).await?;
        Ok(Response::new(v1::LogoutReply { revision: revision.0 }))
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsReply>, Status> {
        let (author, request) = auth::split(request);
        let (rpc, about) = match request.all {
            true => (Rpc::AuthSecure, About::WholeTree),
            false => (Rpc::AuthListSessions, About::Nothing),
        };
        let look = |state: &State, revision, _: &Allowed| {
            let sessions = state.credentials.values().filter(|one| one.kind == CredentialKind::Session);
            let seen = sessions.filter(|one| request.all || one.principal == author.principal);
            (seen.map(|one| credential_view(state, one)).collect(), revision)
        };
        let (sessions, revision): (_, muster_model::Revision) =
            self.0.look(&author, Ask { rpc, about }, request.consistency, look).await?;
        Ok(Response::new(v1::ListSessionsReply { sessions, revision: revision.0 }))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::CreateTokenRequest { service, role, ttl_s, from, note } = request;
        let role: Role = role.parse().map_err(|word| unknown("role", &word))?;
        let Some((tenant, _)) = service.rsplit_once('/') else {
            return Err(refusal::field("service", "has no tenant", "write TENANT/NAME, such as research/nlp/ci"));
        };
        let (secret, ttl_ms) = (credential_text::secret(&self.0.host.chance), ttl_s.saturating_mul(1_000));
        let command = Command::PutCredential {
            kind: CredentialKind::Token,
            principal: Principal::Service(service.clone()),
            groups: Vec::new(),
            secret_sha256: Sha256::digest(&secret).into(),
            ttl_ms,
            scope: Some((role, tenant.to_owned())),
            from,
            note,
        };
        let (done, revision) = self.0.decide(&author, command).await?;
        let id = number(done)?;
        let token = credential_text::text(CredentialKind::Token, id, &secret);
        let expires_ms = self.0.ends_ms(id, ttl_ms);
        tracing::info!(service, id, %revision, "token made");
        Ok(Response::new(v1::CreateTokenReply { id, token, expires_ms, revision: revision.0 }))
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensReply>, Status> {
        let (author, request) = auth::split(request);
        let now_ms = self.0.consensus.now_ms();
        let look = |state: &State, revision, allowed: &Allowed| {
            let seen = |one: &&Credential| {
                let tenant = one.scope.and_then(|(_, at)| state.tenants.get(&at));
                tenant.is_some_and(|tenant| {
                    let below = request.under.is_empty() || lies_under(&tenant.path, &request.under);
                    below && administers(state, now_ms, allowed, tenant.id)
                })
            };
            let tokens = state.credentials.values().filter(|one| one.kind == CredentialKind::Token).filter(seen);
            (tokens.map(|one| credential_view(state, one)).collect(), revision)
        };
        let ask = Ask { rpc: Rpc::AuthListTokens, about: About::Nothing };
        let (tokens, revision): (_, muster_model::Revision) =
            self.0.look(&author, ask, request.consistency, look).await?;
        Ok(Response::new(v1::ListTokensReply { tokens, revision: revision.0 }))
    }

    async fn revoke(&self, request: Request<v1::RevokeRequest>) -> Result<Response<v1::RevokeReply>, Status> {
        let (author, request) = auth::split(request);
        let (_, revision) = self.0.decide(&author, Command::RevokeCredential { id: request.id }).await?;
        tracing::info!(id = request.id, %revision, "session or token revoked");
        Ok(Response::new(v1::RevokeReply { revision: revision.0 }))
    }

    async fn grant(&self, request: Request<v1::GrantRequest>) -> Result<Response<v1::GrantReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::GrantRequest { subject, role, tenant, ttl_s, reason } = request;
        let subject: Subject =
            subject.parse().map_err(|fix| refusal::field("subject", format!("is {subject:?}"), fix))?;
        let role: Role = role.parse().map_err(|word| unknown("role", &word))?;
        let until_ms = (ttl_s > 0).then(|| self.0.consensus.now_ms().saturating_add(ttl_s.saturating_mul(1_000)));
        let at = (!tenant.is_empty()).then_some(tenant);
        let command = Command::PutGrant { subject: subject.clone(), role, at: at.clone(), until_ms, reason };
        let (done, revision) = self.0.decide(&author, command).await?;
        tracing::info!(%subject, %role, ?at, %revision, "granted");
        Ok(Response::new(v1::GrantReply { id: number(done)?, revision: revision.0 }))
    }

    async fn list_grants(
        &self,
        request: Request<v1::ListGrantsRequest>,
    ) -> Result<Response<v1::ListGrantsReply>, Status> {
        let (author, request) = auth::split(request);
        let size = paging::size(request.page_size)?;
        let question = format!("grants|{}|{}", request.under, request.subject);
        let after = paging::after(&question, &request.page_token)?;
        let after = after.map(|last| last.parse::<u64>()).transpose().map_err(|_| {
            refusal::field("page_token", "is not a token", "use next_page_token of the last reply, or leave it empty")
        })?;
        let now_ms = self.0.consensus.now_ms();
        let look = |state: &State, revision, allowed: &Allowed| {
            let mut page = Page::new(size);
            let mut last = None;
            for grant in state.grants.values().filter(|grant| after.is_none_or(|after| grant.id > after)) {
                if page.is_full() {
                    return ((page.items(), last), revision);
                }
                if shows_grant(state, now_ms, allowed, grant, &request) {
                    page.push(grant_view(state, grant));
                    last = Some(grant.id);
                }
            }
            ((page.items(), None), revision)
        };
        let ask = Ask { rpc: Rpc::AuthListGrants, about: About::Nothing };
        let ((grants, last), revision): ((_, Option<u64>), muster_model::Revision) =
            self.0.look(&author, ask, request.consistency, look).await?;
        let next_page_token = last.map(|last| paging::token(&question, &last.to_string())).unwrap_or_default();
        Ok(Response::new(v1::ListGrantsReply { grants, next_page_token, revision: revision.0 }))
    }

    async fn revoke_grant(
        &self,
        request: Request<v1::RevokeGrantRequest>,
    ) -> Result<Response<v1::RevokeGrantReply>, Status> {
        let (author, request) = auth::split(request);
        let (_, revision) = self.0.decide(&author, Command::RevokeGrant { id: request.id }).await?;
        tracing::info!(id = request.id, %revision, "grant revoked");
        Ok(Response::new(v1::RevokeGrantReply { revision: revision.0 }))
    }

    async fn login(&self, request: Request<v1::LoginRequest>) -> Result<Response<v1::LoginReply>, Status> {
        let (author, request) = auth::split(request);
        login::login(&self.0, &author, request).await.map(Response::new)
    }

    async fn login_settings(
        &self,
        _: Request<v1::LoginSettingsRequest>,
    ) -> Result<Response<v1::LoginSettingsReply>, Status> {
        login::settings(&self.0).map(Response::new)
    }

    async fn secure(&self, request: Request<v1::SecureRequest>) -> Result<Response<v1::SecureReply>, Status> {
        let (author, request) = auth::split(request);
        let mode: AccessMode = request.access.parse().map_err(|word| unknown("access", &word))?;
        let (_, revision) = self.0.decide(&author, Command::SetAccess { mode }).await?;
        tracing::warn!(%mode, %revision, "access mode changed");
        Ok(Response::new(v1::SecureReply { revision: revision.0 }))
    }
}

pub(super) fn unknown(field: &str, word: &UnknownWord) -> Status {
    refusal::field(field, word.problem(), &word.fix())
}

fn who(state: &State, now_ms: u64, author: &Author) -> v1::WhoAmIReply {
    let credential = author.credential.and_then(|id| state.credentials.get(&Number(id)));
    let rights = Rights::of(state, now_ms, author).map(|rights| rights.in_words()).unwrap_or_default();
    v1::WhoAmIReply {
        principal: author.principal.to_string(),
        groups: credential.map(|one| one.groups.clone()).unwrap_or_default(),
        rights,
        credential: author.credential.unwrap_or_default(),
        expires_ms: credential.map_or(0, |one| one.expires_ms),
        access: state.meta.access.to_string(),
    }
}

/// Whether the caller is admin of the tenant; everybody is while the cluster is open.
fn administers(state: &State, now_ms: u64, allowed: &Allowed, tenant: muster_model::TenantId) -> bool {
    if state.meta.access == AccessMode::Open {
        return true;
    }
    let rights = Rights::of(state, now_ms, allowed.author());
    rights.is_ok_and(|rights| rights.has(Role::Admin, Some(tenant)))
}

fn shows_grant(state: &State, now_ms: u64, allowed: &Allowed, grant: &Grant, request: &v1::ListGrantsRequest) -> bool {
    let own = Subject::of(&allowed.author().principal).as_ref() == Some(&grant.subject);
    let sees = match grant.at {
        Some(tenant) => administers(state, now_ms, allowed, tenant),
        None => allowed.sees().shows_fleet(),
    };
    let path = grant.at.and_then(|at| state.tenants.get(&at)).map_or("", |tenant| &tenant.path);
    let below = request.under.is_empty() || lies_under(path, &request.under);
    let of = request.subject.is_empty() || grant.subject.to_string() == request.subject;
    (own || sees) && below && of
}

fn credential_view(state: &State, one: &Credential) -> v1::CredentialView {
    let tenant = one.scope.and_then(|(_, at)| state.tenants.get(&at));
    v1::CredentialView {
        id: one.id,
        kind: match one.kind {
            CredentialKind::Session => "session".to_owned(),
            CredentialKind::Token => "token".to_owned(),
        },
        principal: one.principal.to_string(),
        role: one.scope.map(|(role, _)| role.to_string()).unwrap_or_default(),
        tenant: tenant.map(|tenant| tenant.path.clone()).unwrap_or_default(),
        expires_ms: one.expires_ms,
        since_ms: one.since_ms,
        by: one.by.to_string(),
        from: one.from.clone(),
        note: one.note.clone(),
    }
}

fn grant_view(state: &State, grant: &Grant) -> v1::GrantView {
    let tenant = grant.at.and_then(|at| state.tenants.get(&at));
    v1::GrantView {
        id: grant.id,
        subject: grant.subject.to_string(),
        role: grant.role.to_string(),
        tenant: tenant.map(|tenant| tenant.path.clone()).unwrap_or_default(),
        until_ms: grant.until_ms.unwrap_or_default(),
        by: grant.by.to_string(),
        reason: grant.reason.clone(),
        since_ms: grant.since_ms,
    }
}

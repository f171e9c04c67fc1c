//! Sessions and service tokens: made and ended.
//!
//! What must stay true: what is kept of a secret is its hash; every credential ends at a time; a user has a bounded number of sessions and a tenant of
//! tokens.

use super::{access, level};
use crate::bounds::{
    CREDENTIALS_MAX, DRAIN_REASON_BYTES_MAX, GROUPS_MAX, SESSION_TTL_MS_MAX, SESSIONS_PER_USER_MAX, TOKEN_TTL_MS_MAX,
    TOKENS_PER_TENANT_MAX,
};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::bounds::TOKEN_RANGES_MAX;
use muster_model::identity::CredentialKind;
use muster_model::object::{Key, Number};
use muster_model::{Credential, Object, Principal, Role, TenantId};

/// What proves it.
pub(super) struct Secret {
    pub(super) kind: CredentialKind,
    pub(super) sha256: [u8; 32],
    pub(super) ttl_ms: u64,
}

/// Whom, and what for.
pub(super) struct Of<'a> {
    pub(super) principal: &'a Principal,
    pub(super) groups: &'a [String],
    pub(super) scope: Option<(Role, &'a str)>,
    pub(super) from: &'a [String],
    pub(super) note: &'a str,
}

pub(super) fn put(draft: &mut Draft<'_>, secret: Secret, of: Of<'_>) -> Result<Done, Reject> {
    level::need(draft.state, level::ACCESS, "credential")?;
    check_bounds(&secret, &of)?;
    let scope = match secret.kind {
        CredentialKind::Session => session(&of)?,
        CredentialKind::Token => Some(token(draft.state, &of)?),
    };
    if draft.state.credentials.len() >= CREDENTIALS_MAX {
        return Err(Reject::Full {
            what: "the table of sessions and tokens".to_owned(),
            limit: CREDENTIALS_MAX as u64,
        });
    }
    if secret.kind == CredentialKind::Session {
        end_oldest(draft, of.principal);
    }
    let id = access::next(draft);
    let by = draft.author.map(|author| author.principal.clone()).unwrap_or(Principal::System);
    let since_ms = draft.now_ms;
    draft.put(Object::Credential(Credential {
        id,
        kind: secret.kind,
        principal: of.principal.clone(),
        groups: of.groups.to_vec(),
        secret_sha256: secret.sha256,
        expires_ms: since_ms.saturating_add(secret.ttl_ms),
        since_ms,
        by,
        scope,
        from: of.from.to_vec(),
        note: of.note.to_owned(),
    }));
    Ok(Done::Numbered { id })
}

pub(super) fn revoke(draft: &mut Draft<'_>, id: u64) -> Result<Done, Reject> {
    if !draft.state.credentials.contains_key(&Number(id)) {
        return Err(Reject::not_found("credential", id));
    }
    draft.delete(Key::Credential(Number(id)));
    Ok(Done::Ok)
}

fn check_bounds(secret: &Secret, of: &Of<'_>) -> Result<(), Reject> {
    let ttl_ms_max = match secret.kind {
        CredentialKind::Session => SESSION_TTL_MS_MAX,
        CredentialKind::Token => TOKEN_TTL_MS_MAX,
    };
    if secret.ttl_ms == 0 || secret.ttl_ms > ttl_ms_max {
        let fix = format!("use 1 to {} s", ttl_ms_max / 1_000);
        return Err(Reject::field("ttl_s", format!("is {}", secret.ttl_ms / 1_000), fix));
    }
    let long = |text: &str| text.len() > DRAIN_REASON_BYTES_MAX || text.chars().any(char::is_control);
    if of.groups.len() > GROUPS_MAX || of.groups.iter().any(|group| long(group)) {
        let problem = format!("has {} groups, or a long name", of.groups.len());
        return Err(Reject::field(
            "groups",
            problem,
            "use at most 256 groups with names of at most 256 printable bytes",
        ));
    }
    if of.from.len() > TOKEN_RANGES_MAX || of.from.iter().any(|range| long(range)) {
        return Err(Reject::field("from", format!("has {} ranges", of.from.len()), "use at most 16 address ranges"));
    }
    if long(of.note) {
        return Err(Reject::field("note", "is too long, or has control characters", "use at most 256 printable bytes"));
    }
    Ok(())
}

fn session(of: &Of<'_>) -> Result<Option<(Role, TenantId)>, Reject> {
    match of.principal {
        Principal::User(name) => {
            Principal::check_user(name)
                .map_err(|why| Reject::field("principal", why, "use the name that the identity provider gives"))?;
            Ok(None)
        }
        other => Err(Reject::field("principal", format!("is {other}"), "only users have sessions")),
    }
}

fn token(state: &State, of: &Of<'_>) -> Result<(Role, TenantId), Reject> {
    let Principal::Service(name) = of.principal else {
        return Err(Reject::field(
            "principal",
            format!("is {}", of.principal),
            "only services have tokens: service:TENANT/NAME",
        ));
    };
    Principal::check_service(name).map_err(|why| Reject::field("principal", why, "write service:TENANT/NAME"))?;
    let Some((role, at)) = of.scope else {
        return Err(Reject::field("role", "is missing", "say what the token may do: viewer, submitter or admin"));
    };
    if !role.is_on_tenants() {
        return Err(Reject::field("role", format!("is {role}"), "use viewer, submitter or admin"));
    }
    let owner = name.rsplit_once('/').map_or("", |(tenant, _)| tenant);
    if owner != at {
        let fix = "give the token a right on the tenant that the service belongs to";
        return Err(Reject::field("principal", format!("belongs to {owner}, and the right is on {at}"), fix));
    }
    let at = access::tenant(state, at)?;
    let tokens = state.credentials.values().filter(|one| one.scope.is_some_and(|(_, of)| of == at)).count();
    if tokens >= TOKENS_PER_TENANT_MAX {
        return Err(Reject::Full { what: format!("tokens of {owner}"), limit: TOKENS_PER_TENANT_MAX as u64 });
    }
    Ok((role, at))
}

/// Makes room for another session of the user.
fn end_oldest(draft: &mut Draft<'_>, principal: &Principal) {
    let state = draft.state;
    let own: Vec<u64> = state.index().access.credentials_of(principal).collect();
    let excess = (own.len() + 1).saturating_sub(SESSIONS_PER_USER_MAX);
    // Numbers grow, so the lowest is the oldest.
    own.into_iter().take(excess).for_each(|id| draft.delete(Key::Credential(Number(id))));
}

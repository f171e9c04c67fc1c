//! Rights: given, taken away, and asked for at commit.
//!
//! What must stay true: a command of somebody is judged on the state that it changes; a closed cluster always has somebody who is admin of the root of the
//! tree; nothing here is done below its feature level.

use super::level;
use crate::authz::{Asks, Denied, authorize_all};
use crate::bounds::{DRAIN_REASON_BYTES_MAX, GRANTS_MAX, RECOVERY_TTL_MS_MAX, SWEEP_MAX};
use crate::command::Command;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::identity::{Author, Subject};
use muster_model::object::{Key, Number};
use muster_model::{AccessMode, Credential, Grant, Object, Principal, Role, TenantId};

/// Whether `author` may have `command` decided.
///
/// # Errors
/// [`Reject::Denied`].
pub(super) fn judge(state: &State, now_ms: u64, author: &Author, command: &Command) -> Result<(), Reject> {
    level::need(state, level::ACCESS, "author")?;
    let only = |needs: &str| Denied::Forbidden {
        who: author.principal.to_string(),
        rpc: "this command".to_owned(),
        needs: needs.to_owned(),
    };
    if matches!(author.principal, Principal::System) {
        return Err(only("nobody may act as the cluster itself").into());
    }
    if let (Principal::Member(_), Command::PutGrant { until_ms: Some(until_ms), .. }) = (&author.principal, command)
        && *until_ms <= now_ms.saturating_add(RECOVERY_TTL_MS_MAX)
    {
        // For whoever has the machine of a control node, which vouches for them.
        return Ok(());
    }
    if let (Principal::Member(_), Command::SuspendMachine { machine: Principal::Member(_), .. }) =
        (&author.principal, command)
    {
        // Of a control node that was removed from the cluster: the leader has removed it.
        return Ok(());
    }
    match Asks::of(command) {
        Asks::OfSystem => Err(only("only the leader decides it, by itself").into()),
        Asks::OfMembers if matches!(author.principal, Principal::Member(_)) => Ok(()),
        Asks::OfMembers => Err(only("only a control node may vouch for a login").into()),
        Asks::All(asks) => Ok(authorize_all(state, now_ms, author, asks)?),
    }
}

pub(super) fn wrapped_twice() -> Reject {
    Reject::field("author", "is named twice", "name whoever makes the call")
}

pub(super) fn grant(
    draft: &mut Draft<'_>,
    subject: &Subject,
    role: Role,
    at: Option<&str>,
    until_ms: Option<u64>,
    reason: &str,
) -> Result<Done, Reject> {
    level::need(draft.state, level::ACCESS, "grant")?;
    let at = at.map(|path| tenant(draft.state, path)).transpose()?;
    if !role.is_on_tenants() && at.is_some() {
        return Err(Reject::field("at", format!("is set, but {role} is a role on the fleet"), "leave it out"));
    }
    let is_new = level::has(draft.state, level::ENROLMENT);
    if is_new && role.is_on_tenants() && matches!(subject, Subject::Service(_)) {
        let fix = "give the role with the token: `muster token create`; a service itself is given operator or auditor";
        return Err(Reject::field("subject", format!("is {subject}, and {role} is a role on a tenant"), fix));
    }
    if is_new && !role.is_on_tenants() {
        no_tokens_of_others(draft, subject, role)?;
    }
    if until_ms.is_some_and(|until_ms| until_ms <= draft.now_ms) {
        return Err(Reject::field("until_ms", "is in the past", "give a later time, or leave it out"));
    }
    if reason.len() > DRAIN_REASON_BYTES_MAX || reason.chars().any(char::is_control) {
        let problem = format!("has {} bytes, or control characters", reason.len());
        return Err(Reject::field("reason", problem, "use at most 256 printable bytes"));
    }
    let state = draft.state;
    let same = |grant: &&Grant| grant.subject == *subject && grant.role == role && grant.at == at;
    let before = state.index().access.grants_of(subject).filter_map(|id| state.grants.get(&Number(id))).find(same);
    if before.is_none() && state.grants.len() >= GRANTS_MAX {
        return Err(Reject::Full { what: "the table of grants".to_owned(), limit: GRANTS_MAX as u64 });
    }
    let id = before.map_or_else(|| next(draft), |grant| grant.id);
    let by = draft.author.map(|author| author.principal.clone()).unwrap_or(Principal::System);
    let since_ms = draft.now_ms;
    let grant = Grant { id, subject: subject.clone(), role, at, until_ms, by, reason: reason.to_owned(), since_ms };
    draft.put(Object::Grant(grant));
    Ok(Done::Numbered { id })
}

/// A token that somebody else has made for a service would have the role too, without whoever gives it knowing.
fn no_tokens_of_others(draft: &Draft<'_>, subject: &Subject, role: Role) -> Result<(), Reject> {
    let giver = draft.author.map_or(&Principal::System, |author| &author.principal);
    let of_service = |one: &Credential| one.scope.is_some() && Subject::of(&one.principal).as_ref() == Some(subject);
    let is_others = |one: &Credential| one.expires_ms > draft.now_ms && one.by != *giver;
    let mut credentials = draft.state.credentials.values();
    let Some(token) = credentials.find(|one| of_service(one) && is_others(one)) else { return Ok(()) };
    let why = format!("{} has made it for {subject}, and it would be {role} too; revoke it first", token.by);
    Err(Reject::InUse { what: "token".to_owned(), id: token.id.to_string(), why })
}

pub(super) fn revoke_grant(draft: &mut Draft<'_>, id: u64) -> Result<Done, Reject> {
    let Some(grant) = draft.state.grants.get(&Number(id)) else {
        return Err(Reject::not_found("grant", id));
    };
    if is_root(grant) && draft.state.meta.access == AccessMode::Closed && !has_root(draft.state, draft.now_ms, Some(id))
    {
        let why =
            "it is the last that makes somebody admin of the root of the tree; give that right to somebody else first";
        return Err(Reject::InUse { what: "grant".to_owned(), id: id.to_string(), why: why.to_owned() });
    }
    draft.delete(Key::Grant(Number(id)));
    Ok(Done::Ok)
}

pub(super) fn set_mode(draft: &mut Draft<'_>, mode: AccessMode) -> Result<Done, Reject> {
    level::need(draft.state, level::ACCESS, "access")?;
    if mode == AccessMode::Closed && !has_root(draft.state, draft.now_ms, None) {
        let fix = "give somebody role admin at the root of the tree first: `muster grant add user:NAME admin`";
        return Err(Reject::field("mode", "is closed, and nobody would be admin of the root of the tree", fix));
    }
    draft.meta.access = mode;
    Ok(Done::Ok)
}

/// Forgets grants and credentials that have ended by themselves.
pub(super) fn forget(draft: &mut Draft<'_>) {
    let state = draft.state;
    let ended = state.index().access.ended_by(draft.now_ms).take(SWEEP_MAX);
    for key in ended.collect::<Vec<_>>() {
        draft.delete(key);
    }
}

/// The id of a tenant that is named by its path.
pub(super) fn tenant(state: &State, path: &str) -> Result<TenantId, Reject> {
    state.index().tenant_ids.get(path).copied().ok_or_else(|| Reject::not_found("tenant", path))
}

/// The next number of a grant or credential.
pub(super) fn next(draft: &mut Draft<'_>) -> u64 {
    draft.meta.next_credential += 1;
    draft.meta.next_credential
}

fn is_root(grant: &Grant) -> bool {
    grant.role == Role::Admin && grant.at.is_none()
}

/// Whether somebody is admin of the root of the tree for good, other than by grant `but`.
fn has_root(state: &State, now_ms: u64, but: Option<u64>) -> bool {
    let lasts = |grant: &Grant| grant.until_ms.is_none() && grant.holds_at(now_ms);
    state.grants.values().any(|grant| is_root(grant) && lasts(grant) && Some(grant.id) != but)
}

//! Join tokens: made, ended, and used by machines that join.
//!
//! What must stay true: of a secret its hash is kept; a token enrols the machines that it names, each with one key, and nothing else; whoever shows a wrong
//! secret learns nothing of the token; a name that has a key already gets another one only by a token that says so.

use super::{access, level, machines};
use crate::authz::Denied;
use crate::bounds::{JOIN_TOKEN_TTL_MS_MAX, JOIN_TOKENS_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::bounds::{JOIN_TOKEN_NAMES_MAX, LABELS_MAX, NAME_BYTES_MAX};
use muster_model::identity::{Enrolled, JoinToken, Machine, MachineRole};
use muster_model::object::{Key, Number};
use muster_model::{Object, Principal};
use std::collections::BTreeSet;

/// What is asked for.
pub(super) struct Token<'a> {
    pub(super) role: MachineRole,
    pub(super) names: &'a BTreeSet<String>,
    pub(super) enrolled: &'a Enrolled,
    pub(super) ttl_ms: u64,
    pub(super) rejoin: bool,
}

pub(super) fn put(draft: &mut Draft<'_>, secret_sha256: [u8; 32], token: &Token<'_>) -> Result<Done, Reject> {
    level::need(draft.state, level::ENROLMENT, "join token")?;
    check(token)?;
    if draft.state.join_tokens.len() >= JOIN_TOKENS_MAX {
        return Err(Reject::Full { what: "the table of join tokens".to_owned(), limit: JOIN_TOKENS_MAX as u64 });
    }
    let id = access::next(draft);
    let by = draft.author.map(|author| author.principal.clone()).unwrap_or(Principal::System);
    let since_ms = draft.now_ms;
    draft.put(Object::JoinToken(JoinToken {
        id,
        secret_sha256,
        role: token.role,
        names: token.names.clone(),
        claimed: BTreeSet::new(),
        enrolled: token.enrolled.clone(),
        expires_ms: since_ms.saturating_add(token.ttl_ms),
        incarnation: draft.state.meta.incarnation,
        by,
        since_ms,
        rejoin: token.rejoin,
    }));
    Ok(Done::Numbered { id })
}

pub(super) fn revoke(draft: &mut Draft<'_>, id: u64) -> Result<Done, Reject> {
    if !draft.state.join_tokens.contains_key(&Number(id)) {
        return Err(Reject::not_found("join token", id));
    }
    draft.delete(Key::JoinToken(Number(id)));
    Ok(Done::Ok)
}

/// A machine with this key joins. Asked again after a lost answer, it changes nothing.
pub(super) fn enroll(
    draft: &mut Draft<'_>,
    (id, secret_sha256): (u64, &[u8; 32]),
    machine: &Principal,
    key_sha256: [u8; 32],
) -> Result<Done, Reject> {
    level::need(draft.state, level::ENROLMENT, "join token")?;
    let token = draft.state.join_tokens.get(&Number(id)).filter(|token| token.secret_sha256 == *secret_sha256);
    let Some(token) = token.filter(|token| token.incarnation == draft.state.meta.incarnation) else {
        return Err(refused(
            "the join token does not exist (any more), or its secret is wrong; make one anew: `muster machine token create`",
        ));
    };
    if draft.now_ms >= token.expires_ms {
        return Err(refused("the join token has expired; make one anew: `muster machine token create`"));
    }
    let named = token.names.iter().find(|name| token.role.named(name).as_ref() == Some(machine));
    let Some(name) = named else {
        return Err(refused(&format!("the join token is not for {machine}; make one with its role and name")));
    };
    let known = draft.state.machines.get(&machine.to_string());
    let has_this = known.is_some_and(|known| known.key_sha256 == key_sha256);
    if token.claimed.contains(name) {
        return match has_this && known.is_some_and(Machine::is_active) {
            true => Ok(Done::Ok),
            false => Err(refused(&format!("{machine} was enrolled with this token already, with another key"))),
        };
    }
    if known.is_some() && !has_this && !token.rejoin {
        return Err(refused(&format!(
            "{machine} is enrolled already, with another key; if that one is lost, make a token with --rejoin"
        )));
    }
    machines::has_space(draft.state, known)?;
    let pinned = machines::pinned(draft, machine, key_sha256);
    let enrolled = Machine { enrolled: token.enrolled.clone(), join_token: id, ..pinned };
    let mut token = token.clone();
    token.claimed.insert(name.clone());
    draft.put(Object::Machine(enrolled));
    draft.put(Object::JoinToken(token));
    Ok(Done::Ok)
}

fn check(token: &Token<'_>) -> Result<(), Reject> {
    if token.role == MachineRole::Control {
        let fix = "make its identity with `muster ca control`, and pin its key with `muster machine pin`";
        return Err(Reject::field("role", "is control, whose certificate the root signs", fix));
    }
    let count = token.names.len();
    if count == 0 || count > JOIN_TOKEN_NAMES_MAX {
        let fix = format!("name 1 to {JOIN_TOKEN_NAMES_MAX} machines");
        return Err(Reject::field("names", format!("has {count} names"), fix));
    }
    let bad = |name: &&String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain)
    };
    if let Some(name) = token.names.iter().find(bad) {
        let fix = format!("use 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'");
        return Err(Reject::field("names", format!("has {name:?}"), fix));
    }
    if token.ttl_ms == 0 || token.ttl_ms > JOIN_TOKEN_TTL_MS_MAX {
        let fix = format!("use 1 to {} s", JOIN_TOKEN_TTL_MS_MAX / 1_000);
        return Err(Reject::field("ttl_s", format!("is {}", token.ttl_ms / 1_000), fix));
    }
    let labels = token.enrolled.labels.as_ref().map_or(0, std::collections::BTreeMap::len);
    if labels > LABELS_MAX {
        return Err(Reject::field("labels", format!("has {labels}"), format!("use at most {LABELS_MAX}")));
    }
    let Enrolled { cell: _, pool, gpus_max, labels } = token.enrolled;
    let of_nodes = !pool.is_empty() || gpus_max.is_some() || labels.is_some();
    if token.role == MachineRole::Shard && of_nodes {
        return Err(Reject::field("pool", "is set for shards", "leave out pool, GPUs and labels: they bound nodes"));
    }
    Ok(())
}

fn refused(why: &str) -> Reject {
    Denied::Unauthenticated { why: why.to_owned() }.into()
}

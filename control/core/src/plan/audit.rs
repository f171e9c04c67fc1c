//! Forgetting old records of the audit, and how far the chains of control nodes go. What must stay true: the oldest go first, and never the last one.

use super::level;
use crate::bounds::AUDIT_TRIM_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::identity::AuditHead;
use muster_model::object::{Key, Number};
use muster_model::{Object, Principal};

pub(super) fn trim(draft: &mut Draft<'_>, through: u64) -> Result<Done, Reject> {
    let meta = &draft.meta;
    if through >= meta.audited || through < meta.audit_trimmed {
        let problem = format!("is {through}; records {} to {} are kept", meta.audit_trimmed + 1, meta.audited);
        return Err(Reject::field("through", problem, "name one of them, and not the last"));
    }
    let through = through.min(meta.audit_trimmed + AUDIT_TRIM_MAX);
    for number in meta.audit_trimmed + 1..=through {
        draft.delete(Key::Audited(Number(number)));
    }
    draft.meta.audit_trimmed = through;
    Ok(Done::Ok)
}

/// A member says it of itself alone, and never less than before: a chain that was cut off shows.
pub(super) fn commit_head(draft: &mut Draft<'_>, member: u64, number: u64, hash: [u8; 32]) -> Result<Done, Reject> {
    level::need(draft.state, level::ACCESS, "member")?;
    if draft.author.is_none_or(|author| author.principal != Principal::Member(member)) {
        return Err(Reject::field("member", format!("is {member}"), "each control node speaks for itself"));
    }
    if let Some(known) = draft.state.audit_heads.get(&Number(member)).filter(|known| known.number > number) {
        let problem = format!("is {number}, and {} records were told before", known.number);
        return Err(Reject::field("number", problem, "records of that node are missing; find out why"));
    }
    let at_ms = draft.now_ms;
    draft.put(Object::AuditHead(AuditHead { member, number, hash, at_ms }));
    Ok(Done::Ok)
}

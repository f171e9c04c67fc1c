//! Forgetting old records of the audit. What must stay true: the oldest go first, and never the last one.

use crate::bounds::AUDIT_TRIM_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::object::{Key, Number};

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

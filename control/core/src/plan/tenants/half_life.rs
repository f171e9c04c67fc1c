//! The half-life of past use, one for the whole fleet: set, changed, turned off.
//!
//! What must stay true: every record of use is brought up by the old half-life before it goes on by the new one; without a half-life there are no records.

use crate::draft::Draft;
use crate::plan::level;
use crate::reject::Reject;
use muster_model::Object;
use muster_model::object::Key;
use muster_model::use_history::{HALF_LIFE_S_MAX, HALF_LIFE_S_MIN, UseHistory};

/// Past use counts by this half-life from now on; 0: not at all. Answers what it was, if that differs.
pub(super) fn set(draft: &mut Draft<'_>, half_life_s: u64) -> Result<Option<u64>, Reject> {
    level::need(draft.state, level::QUOTAS, "half_life_s")?;
    if half_life_s != 0 && !(HALF_LIFE_S_MIN..=HALF_LIFE_S_MAX).contains(&half_life_s) {
        let problem = format!("is {half_life_s} seconds");
        let fix = format!("use {HALF_LIFE_S_MIN} to {HALF_LIFE_S_MAX} seconds (366 days), or 0 to count no past use");
        return Err(Reject::field("half_life_s", problem, fix));
    }
    let (state, now_ms, before) = (draft.state, draft.now_ms, draft.meta.half_life_s);
    if before == half_life_s {
        return Ok(None);
    }
    draft.meta.half_life_s = half_life_s;
    if half_life_s == 0 {
        state.use_histories.keys().for_each(|id| draft.delete(Key::UseHistory(*id)));
        return Ok(Some(before));
    }
    for (id, at) in state.capacity().tenants() {
        let (burst, own) = (at.burst(), at.own);
        let known = state.use_histories.get(id).cloned();
        if known.is_none() && burst.is_empty() && own.is_empty() {
            continue;
        }
        let mut record = known.unwrap_or_else(|| UseHistory::new(*id, half_life_s, now_ms));
        record.set_half_life(now_ms, half_life_s);
        record.uses(now_ms, burst, own);
        draft.put(Object::UseHistory(record));
    }
    Ok(Some(before))
}

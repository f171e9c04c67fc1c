//! What each tenant was over time: written by every command that changes tenants, and forgotten after a horizon.
//!
//! What must stay true: from feature level 3 on each tenant has a history whose last version is what it is; a removed tenant's history stays until its
//! horizon. The time of a version is that of the entry.

use crate::bounds::{PAST_VERSIONS_MAX, SWEEP_MAX, TENANT_VERSION_HORIZON_MS};
use crate::draft::Draft;
use crate::plan::level;
use muster_model::ids::TenantId;
use muster_model::object::Key;
use muster_model::{Object, Tenant, TenantHistory, TenantVersion};

/// The tenant is this from now on.
pub(super) fn note(draft: &mut Draft<'_>, tenant: &Tenant) {
    if !level::has(draft.state, level::QUOTAS) {
        return;
    }
    let version = TenantVersion::of(tenant, draft.now_ms);
    match draft.state.tenant_histories.get(&tenant.id) {
        None => draft.put(Object::TenantHistory(TenantHistory::new(tenant.id, version, false))),
        Some(known) => {
            let mut history = known.clone();
            if history.note(version) {
                draft.put(Object::TenantHistory(history));
            }
        }
    }
}

/// The tenant is removed.
pub(super) fn note_removed(draft: &mut Draft<'_>, id: TenantId) {
    let Some(mut history) = draft.state.tenant_histories.get(&id).cloned() else { return };
    history.remove(draft.now_ms);
    draft.put(Object::TenantHistory(history));
}

/// Histories are kept from now on: what each tenant was before is not known.
pub(crate) fn begin(draft: &mut Draft<'_>) {
    for tenant in draft.state.tenants.values() {
        let first = TenantVersion::of(tenant, draft.now_ms);
        draft.put(Object::TenantHistory(TenantHistory::new(tenant.id, first, true)));
    }
}

/// Forgets versions that ended before the horizon, and beyond the bound on all of them those that ended first.
pub(crate) fn forget(draft: &mut Draft<'_>) {
    let before_ms = draft.now_ms.saturating_sub(TENANT_VERSION_HORIZON_MS);
    let state = draft.state;
    let past = &state.index().past_versions;
    let mut excess = past.count().saturating_sub(PAST_VERSIONS_MAX);
    for id in past.first_ended(before_ms, excess).take(SWEEP_MAX) {
        let Some(mut history) = state.tenant_histories.get(&id).cloned() else { continue };
        let due = history.ended_before(before_ms).max(usize::from(excess > 0));
        excess = excess.saturating_sub(due);
        if history.removed_ms.is_some() && due >= history.ended() {
            draft.delete(Key::TenantHistory(id));
        } else {
            history.forget(due);
            draft.put(Object::TenantHistory(history));
        }
    }
}

//! The table of request ids: by it a retry is known for one.
//!
//! It is shared. A tenant's ids are kept for a day; when the table is full, room is made at the tenant that has most of them, the
//! oldest first, and never by refusing anybody. What must stay true (law 5): a submission whose id may have been forgotten is refused,
//! never run again. So whatever is forgotten before its day is over leaves a floor behind: of that tenant, nothing that was issued at
//! or before the floor is accepted.

use crate::bounds::{REQUEST_HORIZON_MS, REQUESTS_MAX, SWEEP_MAX};
use crate::draft::Draft;
use crate::reject::Reject;
use crate::state::State;
use muster_model::identity::Author;
use muster_model::ids::TenantId;
use muster_model::object::{Key, RequestFloor, RequestRecord};
use muster_model::{Object, Principal};
use std::borrow::Cow;

/// Under what a request id is remembered: everybody has names of their own, so that nobody learns of, or takes, another's.
pub(super) fn key<'a>(author: Option<&Author>, request_id: &'a str) -> Cow<'a, str> {
    match author.map(|author| &author.principal) {
        None | Some(Principal::Anonymous) => Cow::Borrowed(request_id),
        // Neither part has a line break.
        Some(principal) => Cow::Owned(format!("{principal}\n{request_id}")),
    }
}

/// Whether a submission of the tenant at `path`, issued then, is young enough for its id to be known if it came before.
///
/// # Errors
/// When it may have been forgotten.
pub(super) fn check_age(draft: &Draft<'_>, id: &str, path: &str, issued_ms: u64) -> Result<(), Reject> {
    let age_ms = draft.now_ms.saturating_sub(issued_ms);
    let too_old = |horizon_ms: u64| Err(Reject::RequestTooOld { id: id.to_owned(), age_ms, horizon_ms });
    if age_ms > REQUEST_HORIZON_MS {
        return too_old(REQUEST_HORIZON_MS);
    }
    let of_tenant_ms = draft.state.request_floors.get(path).map_or(0, |floor| floor.issued_ms);
    let floor_ms = of_tenant_ms.max(draft.state.meta.requests_floor_ms);
    if floor_ms > 0 && issued_ms <= floor_ms { too_old(draft.now_ms.saturating_sub(floor_ms)) } else { Ok(()) }
}

/// Makes room for one more.
pub(super) fn make_room(draft: &mut Draft<'_>) {
    let state = draft.state;
    if (state.requests.len() as u64) < REQUESTS_MAX {
        return;
    }
    let known = &state.index().requests;
    if let Some(oldest) = known.oldest().next().filter(|oldest| is_over(oldest, draft.now_ms)) {
        // Nobody needs it any more; the next sweep would have taken it.
        draft.delete(Key::Request(oldest.id.to_string()));
    } else if let Some(request) = known.greediest().and_then(|(tenant, _)| known.oldest_of(tenant)) {
        draft.delete(Key::Request(request.id.to_string()));
        raise_floor(draft, request.tenant, request.issued_ms);
    }
}

/// A tenant is deleted: its ids are told by number, and another tenant of the same path would have another.
pub(super) fn tenant_goes(draft: &mut Draft<'_>, tenant: TenantId) {
    let state = draft.state;
    if let Some(newest) = state.index().requests.newest_of(tenant) {
        raise_floor(draft, tenant, newest.issued_ms);
    }
}

/// Forgets what is older than a day, and floors below which everything is.
pub(super) fn forget(draft: &mut Draft<'_>) {
    let (state, now_ms) = (draft.state, draft.now_ms);
    let old = state.index().requests.oldest().take_while(|request| is_over(request, now_ms));
    for request in old.take(SWEEP_MAX) {
        draft.delete(Key::Request(request.id.to_string()));
    }
    let passed = state.request_floors.values().filter(|floor| floor.issued_ms + REQUEST_HORIZON_MS < now_ms);
    for floor in passed.take(SWEEP_MAX) {
        draft.delete(Key::RequestFloor(floor.tenant.clone()));
    }
}

/// Whether its age alone refuses every retry.
fn is_over(request: &RequestRecord, now_ms: u64) -> bool {
    request.issued_ms.saturating_add(REQUEST_HORIZON_MS) < now_ms
}

fn raise_floor(draft: &mut Draft<'_>, tenant: TenantId, issued_ms: u64) {
    if tenant == TenantId::default() {
        // It was accepted before records named their tenant: the floor is everybody's.
        draft.meta.requests_floor_ms = draft.meta.requests_floor_ms.max(issued_ms);
        return;
    }
    // Of a tenant that was deleted the floor is above all its ids already.
    let Some(path) = path_of(draft.state, tenant) else { return };
    let known = draft.state.request_floors.get(&path).map_or(0, |floor| floor.issued_ms);
    if issued_ms > known {
        draft.put(Object::RequestFloor(RequestFloor { tenant: path, issued_ms }));
    }
}

fn path_of(state: &State, tenant: TenantId) -> Option<String> {
    state.tenants.get(&tenant).map(|tenant| tenant.path.clone())
}

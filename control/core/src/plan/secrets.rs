//! Secrets of tenants: given their values, removed, and asked for by jobs.
//!
//! What must stay true: a value is here sealed only; a job uses secrets of its own tenant alone; no live job names a secret that is gone.

use super::level;
use crate::bounds::{ERRORS_SHOWN_MAX, SECRETS_PER_TENANT_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::bounds::SECRET_BYTES_MAX;
use muster_model::identity::{Sealed, Secret};
use muster_model::ids::TenantId;
use muster_model::object::Key;
use muster_model::{FieldError, JobSpec, Object, Principal, Tenant};
use std::collections::BTreeSet;

/// What the seal adds to a value.
const TAG_BYTES: usize = 16;

pub(super) fn put(
    draft: &mut Draft<'_>,
    at: &str,
    tenant: TenantId,
    name: &str,
    sealed: &Sealed,
) -> Result<Done, Reject> {
    level::need(draft.state, level::ENROLMENT, "secret")?;
    let state = draft.state;
    // It opens for the tenant for which it was sealed, and for no other that has the path by now.
    if state.index().tenant_ids.get(at) != Some(&tenant) {
        return Err(Reject::not_found("tenant", at));
    }
    muster_model::validate::check_name("name", name).map_err(Reject::Invalid)?;
    if sealed.text.len() > SECRET_BYTES_MAX + TAG_BYTES {
        let problem = format!("has {} bytes", sealed.text.len().saturating_sub(TAG_BYTES));
        return Err(Reject::field("value", problem, format!("use at most {SECRET_BYTES_MAX}")));
    }
    let id = Secret::id_of(tenant, name);
    if !state.secrets.contains_key(&id) && state.secrets_of(tenant).count() >= SECRETS_PER_TENANT_MAX {
        let limit = SECRETS_PER_TENANT_MAX as u64;
        return Err(Reject::Full { what: format!("the table of secrets of tenant {at}"), limit });
    }
    let by = draft.author.map(|author| author.principal.clone()).unwrap_or(Principal::Anonymous);
    let (name, sealed, since_ms) = (name.to_owned(), sealed.clone(), draft.now_ms);
    draft.put(Object::Secret(Secret { tenant, name, sealed, by, since_ms }));
    Ok(Done::Ok)
}

pub(super) fn delete(draft: &mut Draft<'_>, at: &str, name: &str) -> Result<Done, Reject> {
    let state = draft.state;
    let Some(&tenant) = state.index().tenant_ids.get(at) else { return Err(Reject::not_found("tenant", at)) };
    let id = Secret::id_of(tenant, name);
    if !state.secrets.contains_key(&id) {
        return Err(Reject::not_found("secret", name));
    }
    let uses = |spec: &JobSpec| spec.secret_env.values().any(|used| used == name);
    if let Some(job) = state.jobs.values().find(|job| job.tenant == tenant && uses(&job.spec)) {
        let why = format!("job {} uses it; wait until it has ended, or cancel it first", job.id);
        return Err(Reject::InUse { what: "secret".to_owned(), id: name.to_owned(), why });
    }
    draft.delete(Key::Secret(id));
    Ok(Done::Ok)
}

/// The tenant goes, with its secrets.
pub(super) fn tenant_goes(draft: &mut Draft<'_>, tenant: TenantId) {
    let ids: Vec<String> = draft.state.secrets_of(tenant).map(|secret| Secret::id_of(tenant, &secret.name)).collect();
    for id in ids {
        draft.delete(Key::Secret(id));
    }
}

/// What a job asks for must be there.
pub(super) fn check_named(state: &State, tenant: &Tenant, spec: &JobSpec) -> Result<(), FieldError> {
    if spec.secret_env.is_empty() {
        return Ok(());
    }
    level::field(state, level::ENROLMENT, "secret_env")?;
    let known: BTreeSet<&str> = state.secrets_of(tenant.id).map(|secret| secret.name.as_str()).collect();
    let Some((_, name)) = spec.secret_env.iter().find(|(_, name)| !known.contains(name.as_str())) else {
        return Ok(());
    };
    let problem = format!("names secret {name:?}, which tenant {} does not have", tenant.path);
    let others: Vec<&str> = known.into_iter().take(ERRORS_SHOWN_MAX).collect();
    let fix = match others.is_empty() {
        true => "have an admin of the tenant make it with `muster secret put`".to_owned(),
        false => format!("use one of {}, or have it made with `muster secret put`", others.join(", ")),
    };
    Err(FieldError::new("secret_env", problem, fix))
}

impl State {
    /// The secrets of a tenant, in the order of their names.
    pub fn secrets_of(&self, tenant: TenantId) -> impl Iterator<Item = &Secret> {
        // Ids begin with the number of the tenant.
        let from = Secret::id_of(tenant, "");
        self.secrets.range(from..).map(|(_, secret)| secret).take_while(move |secret| secret.tenant == tenant)
    }
}

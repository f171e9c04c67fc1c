//! What a gang is charged, and whether its tenants may ever be charged so much.
//!
//! What must stay true: a submission, its binding and the check of the laws mean the same charge.

use crate::state::State;
use muster_model::{FieldError, GpuModel, JobSpec, ResourceVec, Tenant};

/// The max that the gang alone would pass on `model`, if any.
pub(super) fn over_max(state: &State, tenant: &Tenant, spec: &JobSpec, model: Option<GpuModel>) -> Option<FieldError> {
    let charge = charge_of(spec, model);
    let mut line = state.capacity().line_of(tenant.id);
    let (path, (resource, max)) = line.find_map(|(_, at)| Some((&at.path, at.max.first_passed_by(&charge)?)))?;
    let (asked, max) = (resource.in_words(charge.get(resource)), resource.in_words(max));
    let problem = format!("all tasks together need {asked}, but the max of tenant {path} is {max}");
    Some(FieldError::new("tasks", problem, "request less, or ask an operator to raise the max"))
}

/// What the gang is charged on `model`.
pub(crate) fn charge_of(spec: &JobSpec, model: Option<GpuModel>) -> ResourceVec {
    // A gang without GPUs is charged no units, whatever the model.
    spec.charge_on(model.unwrap_or(GpuModel::ALL[0]))
}

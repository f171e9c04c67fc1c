//! Priority classes: made and removed by admins, resolved when a job is accepted.
//!
//! What must stay true: the priority of an accepted job changes only by an update of the job; whom a class may preempt is read when it preempts; no
//! live job names a class that does not exist.

use super::level;
use crate::bounds::{ERRORS_SHOWN_MAX, PRIORITY_CLASSES_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::state::State;
use muster_model::object::Key;
use muster_model::priority_class::DEFAULT_PRIORITY_CLASS;
use muster_model::{FieldError, JobSpec, Object, PriorityClass, Tenant};

/// Classes that it may preempt must exist: a slip of the pen would mark nobody.
pub(super) fn put(draft: &mut Draft<'_>, class: &PriorityClass) -> Result<Done, Reject> {
    level::need(draft.state, level::QUOTAS, "priority_class")?;
    class.validate().map_err(Reject::Invalid)?;
    let classes = &draft.state.priority_classes;
    let exists = |name: &String| name == DEFAULT_PRIORITY_CLASS || *name == class.name || classes.contains_key(name);
    if let Some(unknown) = class.preempts.iter().find(|name| !exists(name)) {
        let fix = "apply that class first, or leave it out";
        return Err(Reject::field("preempts", format!("names {unknown}, which does not exist"), fix));
    }
    if !classes.contains_key(&class.name) && classes.len() >= PRIORITY_CLASSES_MAX {
        let limit = PRIORITY_CLASSES_MAX as u64;
        return Err(Reject::Full { what: "the table of priority classes".to_owned(), limit });
    }
    if classes.get(&class.name) != Some(class) {
        draft.put(Object::PriorityClass(class.clone()));
    }
    Ok(Done::Ok)
}

pub(super) fn delete(draft: &mut Draft<'_>, name: &str) -> Result<Done, Reject> {
    let state = draft.state;
    if !state.priority_classes.contains_key(name) {
        return Err(Reject::not_found("priority class", name));
    }
    let in_use = |why: String| Reject::InUse { what: "priority class".to_owned(), id: name.to_owned(), why };
    if let Some(job) = state.jobs.values().find(|job| job.spec.priority_class.as_deref() == Some(name)) {
        return Err(in_use(format!("job {} of {} has it; wait until it has ended", job.id, job.spec.tenant)));
    }
    if let Some(other) =
        state.priority_classes.values().find(|other| other.name != name && other.preempts.contains(name))
    {
        return Err(in_use(format!("priority class {} may preempt it; change that class first", other.name)));
    }
    draft.delete(Key::PriorityClass(name.to_owned()));
    Ok(Done::Ok)
}

/// The priority that the class of a submission sets.
pub(super) fn priority_of(state: &State, tenant: &Tenant, spec: &JobSpec) -> Result<i32, FieldError> {
    let Some(name) = spec.priority_class.as_deref().filter(|name| *name != DEFAULT_PRIORITY_CLASS) else {
        return Ok(spec.priority);
    };
    level::field(state, level::QUOTAS, "priority_class")?;
    let mine = || state.priority_classes.values().filter(|class| class.allows(&tenant.path));
    let Some(class) = mine().find(|class| class.name == name) else {
        let exists = state.priority_classes.contains_key(name);
        let problem = if exists { "is not for this tenant" } else { "does not exist" };
        let known: Vec<&str> = mine().map(|class| class.name.as_str()).take(ERRORS_SHOWN_MAX).collect();
        let fix = match known.is_empty() {
            true => "leave it out, or have an admin apply it with `muster priority-classes apply`".to_owned(),
            false => format!("use one of {}, or leave it out", known.join(", ")),
        };
        return Err(FieldError::new("priority_class", format!("{name:?} {problem}"), fix));
    };
    if spec.priority != 0 && spec.priority != class.priority {
        let problem = format!("is {}, but priority class {name} sets {}", spec.priority, class.priority);
        return Err(FieldError::new("priority", problem, "leave the priority or the class out"));
    }
    Ok(class.priority)
}

//! Completes a submission: the device class it names becomes part of its selector, the priority class sets its priority, and its needs become a
//! request.
//!
//! What must stay true: the result depends on the state and the submission alone, and is complete in itself: nothing that an admin
//! changes later changes what was accepted.

use super::priority_classes;
use crate::bounds::ERRORS_SHOWN_MAX;
use crate::routing::{refusal_of_pool, rules};
use crate::state::State;
use muster_model::needs::{self, Asker, Offer};
use muster_model::{FieldError, GpuModel, JobSpec, Pool, Selector, Tenant, Trust, ValidJobSpec};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Faults of one submission that are worth naming: the first stands for the rest.
fn first(faults: Vec<FieldError>) -> FieldError {
    faults.into_iter().next().unwrap_or_else(|| FieldError::new("request", "is not valid", "fix it"))
}

/// The submission as it is accepted; most need nothing done.
pub(super) fn resolve<'a>(
    state: &State,
    tenant: &Tenant,
    spec: &'a ValidJobSpec,
) -> Result<Cow<'a, ValidJobSpec>, FieldError> {
    if spec.asked.choice.is_some() {
        return Err(FieldError::new("choice", "is given", "leave it out: Muster sets it"));
    }
    let priority = priority_classes::priority_of(state, tenant, spec)?;
    if spec.asked.device_class.is_none() && spec.asked.needs.is_none() && priority == spec.priority {
        return Ok(Cow::Borrowed(spec));
    }
    let mut whole = JobSpec::clone(spec);
    whole.priority = priority;
    if let Some(name) = &spec.asked.device_class {
        whole.asked.selector = Some(selector_of(state, tenant, spec, name)?);
    }
    if let Some(needs) = &spec.asked.needs {
        let asker = Asker { tasks: spec.tasks, class: spec.class, untrusted: tenant.trust == Trust::Untrusted };
        let (devices, choice) = needs::choose(needs, &asker, &offers(state, &whole))?;
        if devices.cards() > 1 && whole.topology.segment_tasks.is_none() {
            // Each task on one island: a segment of one.
            whole.topology.segment_tasks = Some(1);
        }
        whole.request.devices = devices;
        whole.asked.choice = Some(choice);
    }
    whole.validate().map(Cow::Owned).map_err(first)
}

/// The selector of the class, and the job's own beside it.
fn selector_of(state: &State, tenant: &Tenant, spec: &JobSpec, name: &str) -> Result<Selector, FieldError> {
    let mine = || state.device_classes.values().filter(|class| class.allows(&tenant.path));
    let class = mine().find(|class| class.name == *name).ok_or_else(|| {
        let exists = state.device_classes.contains_key(name);
        let problem = if exists { "is not for this tenant" } else { "does not exist" };
        let known: Vec<&str> = mine().map(|class| class.name.as_str()).take(ERRORS_SHOWN_MAX).collect();
        let fix = if known.is_empty() {
            "leave it out, or have an admin apply it with `muster device-classes apply`".to_owned()
        } else {
            format!("use one of {}", known.join(", "))
        };
        FieldError::new("device_class", format!("{name:?} {problem}"), fix)
    })?;
    let Some(own) = &spec.asked.selector else { return Ok(class.selector.clone()) };
    class.selector.and(own).map_err(|error| {
        FieldError::new("selector", format!("together with device class {name} it {}", error.problem), error.fix)
    })
}

/// What pools that serve the job have for it, by model and pool; any model under the rules of its pool while there is no fleet.
fn offers<'a>(state: &'a State, spec: &JobSpec) -> Vec<Offer<'a>> {
    let mut islands: BTreeMap<(GpuModel, &str), u32> = BTreeMap::new();
    for shape in state.index().cells.values().flat_map(|cell| cell.shapes.keys()) {
        // The mode is what is to be chosen: a spec without devices asks for none.
        if refusal_of_pool(state, &shape.pool, spec).is_some() {
            continue;
        }
        let mut sizes: BTreeMap<(GpuModel, u8), u32> = BTreeMap::new();
        for card in &shape.cards {
            *sizes.entry((card.model, card.island)).or_default() += 1;
        }
        for ((model, _), size) in sizes {
            if shape.may_serve(spec, Some(model)) {
                let largest = islands.entry((model, shape.pool.as_str())).or_default();
                *largest = size.max(*largest);
            }
        }
    }
    let shares = state.capacity().share_rule();
    if state.nodes.is_empty() {
        let name = spec.pool.as_deref().unwrap_or(Pool::standard_rules().name.as_str());
        let pool = rules(state, name);
        return GpuModel::ALL.into_iter().map(|model| Offer { model, pool, island_cards: 8, shares }).collect();
    }
    islands
        .into_iter()
        .map(|((model, pool), island_cards)| Offer { model, pool: rules(state, pool), island_cards, shares })
        .collect()
}

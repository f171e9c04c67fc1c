//! Submissions: jobs enter here, all of a call or none.
//!
//! What must stay true: the same request id with the same content never makes a second set of jobs (law 5); a job is queued only
//! if its tenant and some cell could ever run it (unless the fleet is empty); waiting jobs are bounded.

use crate::bounds::{
    ISSUED_AHEAD_MS_MAX, REQUEST_HORIZON_MS, REQUEST_ID_BYTES_MAX, REQUESTS_MAX, WAITING_MAX, WAITING_PER_TENANT_MAX,
};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::routing::{Models, Router, models_of, refusal_of_pool, tasks_held};
use crate::state::State;
use muster_model::ids::{Attempt, CellId, TenantId};
use muster_model::object::RequestRecord;
use muster_model::request::SharingMode;
use muster_model::validate::bounds::JOBS_PER_SUBMIT_MAX;
use muster_model::{FieldError, GpuModel, Job, JobPhase, JobSpec, Object, ResourceVec, Tenant, Trust, ValidJobSpec};
use std::collections::{BTreeMap, BTreeSet};

/// Wrong fields that one answer lists; a thousand jobs may all be wrong in the same way.
const ERRORS_SHOWN_MAX: usize = 20;

pub(super) fn submit(
    draft: &mut Draft<'_>,
    request_id: &str,
    issued_ms: u64,
    payload_hash: u64,
    specs: &[ValidJobSpec],
) -> Result<Done, Reject> {
    let state = draft.state;
    if let Some(known) = state.requests.get(request_id) {
        return repeated(known, payload_hash);
    }
    check_request(draft, request_id, issued_ms)?;
    if specs.is_empty() || specs.len() > JOBS_PER_SUBMIT_MAX {
        return Err(Reject::field("jobs", format!("has {} jobs", specs.len()), "submit 1 to 1,000 jobs at once"));
    }
    let mut router = Router::new(state);
    let mut admitted: Vec<(TenantId, Option<CellId>)> = Vec::with_capacity(specs.len());
    let mut wrong = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        match admit(state, &mut router, spec) {
            Ok(place) => admitted.push(place),
            Err(error) if specs.len() == 1 => wrong.push(error),
            Err(error) => wrong.push(error.under(&format!("jobs[{index}]"))),
        }
        if wrong.len() == ERRORS_SHOWN_MAX {
            break;
        }
    }
    if !wrong.is_empty() {
        return Err(Reject::Invalid(wrong));
    }
    check_room(state, &admitted)?;
    let first = draft.meta.next_job;
    for (spec, (tenant, cell)) in specs.iter().zip(admitted) {
        let job = queued(draft, spec, tenant, cell);
        draft.put(Object::Job(job));
    }
    let jobs = specs.len() as u32;
    let accepted_ms = draft.now_ms;
    let id = request_id.to_owned();
    draft.put(Object::Request(RequestRecord { id, payload_hash, accepted_ms, first_job: first, jobs }));
    Ok(Done::Submitted { first, count: jobs })
}

fn repeated(known: &RequestRecord, payload_hash: u64) -> Result<Done, Reject> {
    if known.payload_hash == payload_hash {
        Ok(Done::Submitted { first: known.first_job, count: known.jobs })
    } else {
        Err(Reject::RequestReused { id: known.id.clone() })
    }
}

fn check_request(draft: &Draft<'_>, id: &str, issued_ms: u64) -> Result<(), Reject> {
    if id.is_empty() || id.len() > REQUEST_ID_BYTES_MAX {
        let problem = format!("has {} bytes", id.len());
        return Err(Reject::field("request_id", problem, "use 1 to 128 bytes, such as a UUID"));
    }
    if issued_ms > draft.now_ms.saturating_add(ISSUED_AHEAD_MS_MAX) {
        let problem = format!("is {} ms ahead of the cluster's time", issued_ms - draft.now_ms);
        return Err(Reject::field("issued_ms", problem, "set the client's clock"));
    }
    let age_ms = draft.now_ms.saturating_sub(issued_ms);
    if age_ms > REQUEST_HORIZON_MS {
        return Err(Reject::RequestTooOld { id: id.to_owned(), age_ms, horizon_ms: REQUEST_HORIZON_MS });
    }
    if draft.state.requests.len() as u64 >= REQUESTS_MAX {
        return Err(Reject::Full { what: "the table of request ids".to_owned(), limit: REQUESTS_MAX });
    }
    Ok(())
}

/// The tenant that pays and the cell that is to place it; no cell while the fleet is empty.
fn admit(
    state: &State,
    router: &mut Router<'_>,
    spec: &ValidJobSpec,
) -> Result<(TenantId, Option<CellId>), FieldError> {
    let tenant = state.index().tenant_ids.get(&spec.tenant).and_then(|id| state.tenants.get(id));
    let Some(tenant) = tenant else {
        let problem = format!("{:?} does not exist", spec.tenant);
        return Err(FieldError::new("tenant", problem, "see `muster tenants list`, or apply it first"));
    };
    check_trust(tenant, spec)?;
    let models = affordable(state, tenant, spec)?;
    let cell = router.route(spec, &models);
    if cell.is_none() && !state.nodes.is_empty() {
        return Err(why_nowhere(state, spec, &models));
    }
    Ok((tenant.id, cell))
}

fn check_trust(tenant: &Tenant, spec: &JobSpec) -> Result<(), FieldError> {
    let mode = spec.request.devices.mode();
    let field = match mode {
        Some(SharingMode::Mps) => "request.mps",
        Some(SharingMode::TimeSlice) => "request.time_slice",
        _ => return Ok(()),
    };
    if tenant.trust == Trust::Trusted {
        return Ok(());
    }
    let problem = format!("tenant {} is untrusted and shares a card only through MIG", tenant.path);
    Err(FieldError::new(field, problem, "ask for a MIG profile or whole GPUs"))
}

/// The models on which the gang's charge stays under every max of the tenant's line.
fn affordable(state: &State, tenant: &Tenant, spec: &JobSpec) -> Result<Models, FieldError> {
    let mut passed = None;
    let mut models = models_of(spec);
    models.retain(|model| {
        let charge = charge_of(spec, *model);
        let mut line = state.capacity().line_of(tenant.id);
        let over = line.find_map(|(_, at)| Some((at.path.clone(), charge, at.max.first_passed_by(&charge)?)));
        let fits = over.is_none();
        passed = over.or_else(|| passed.take());
        fits
    });
    match passed {
        Some((path, charge, (resource, max))) if models.is_empty() => {
            let (asked, max) = (resource.in_words(charge.get(resource)), resource.in_words(max));
            let problem = format!("the gang needs {asked}, the max of tenant {path} is {max}");
            Err(FieldError::new("tasks", problem, "ask for less, or have the max raised"))
        }
        _ => Ok(models),
    }
}

/// What the gang is charged on `model`.
pub(crate) fn charge_of(spec: &JobSpec, model: Option<GpuModel>) -> ResourceVec {
    // A gang without GPUs is charged no units, whatever the model.
    spec.charge_on(model.unwrap_or(GpuModel::ALL[0]))
}

fn check_room(state: &State, admitted: &[(TenantId, Option<CellId>)]) -> Result<(), Reject> {
    let mut more: BTreeMap<TenantId, u64> = BTreeMap::new();
    for (tenant, _) in admitted {
        *more.entry(*tenant).or_default() += 1;
    }
    for (tenant, count) in more {
        if state.index().jobs_of(tenant).waiting + count > WAITING_PER_TENANT_MAX {
            let path = state.tenants.get(&tenant).map_or("", |tenant| tenant.path.as_str());
            return Err(Reject::Full { what: format!("the queue of tenant {path}"), limit: WAITING_PER_TENANT_MAX });
        }
    }
    if state.index().phases.queued + admitted.len() as u64 > WAITING_MAX {
        return Err(Reject::Full { what: "the queue of all tenants".to_owned(), limit: WAITING_MAX });
    }
    Ok(())
}

fn queued(draft: &mut Draft<'_>, spec: &ValidJobSpec, tenant: TenantId, cell: Option<CellId>) -> Job {
    Job {
        id: draft.next_job(),
        tenant,
        spec: spec.clone(),
        phase: JobPhase::Queued,
        attempt: Attempt(0),
        failures: 0,
        cancelled: false,
        cell,
        visited: BTreeSet::new(),
        routed_ms: draft.now_ms,
        submitted_ms: draft.now_ms,
        bound_ms: None,
        started_ms: None,
        finished_ms: None,
        nodes: Vec::new(),
        last_allocation: None,
        requeue_reason: None,
    }
}

/// Why no cell could ever hold the gang, with the figures of the one that comes nearest.
fn why_nowhere(state: &State, spec: &JobSpec, models: &Models) -> FieldError {
    let mut largest = (0, None);
    for (id, cell) in &state.index().cells {
        for &model in models {
            let held = tasks_held(state, cell, spec, model, u64::MAX);
            if held > largest.0 {
                largest = (held, Some((*id, model)));
            }
        }
    }
    let (held, Some((cell, model))) = largest else { return why_not_one(state, spec) };
    let name = state.cells.get(&cell).map_or("", |cell| cell.name.as_str());
    let on = model.map(|model| format!(" on {model}")).unwrap_or_default();
    let inside = spec.topology.required.map(|level| format!(" inside one {level}")).unwrap_or_default();
    let problem = format!("{} tasks{inside}, the largest cell ({name}) could hold {held}{on}", spec.tasks);
    let fix = if spec.topology.required.is_some() {
        format!("ask for at most {held} tasks, or a wider topology level")
    } else {
        format!("ask for at most {held} tasks, or split the job")
    };
    FieldError::new("tasks", problem, fix)
}

/// Why no node could run even one task.
fn why_not_one(state: &State, spec: &JobSpec) -> FieldError {
    let index = state.index();
    if let Some(pool) = spec.pool.as_ref().filter(|pool| !index.pool_nodes.contains_key(*pool)) {
        let known: Vec<&str> = index.pool_nodes.keys().map(String::as_str).take(ERRORS_SHOWN_MAX).collect();
        let fix = format!("use one of {}, or leave it out", known.join(", "));
        return FieldError::new("pool", format!("{pool:?} has no node"), fix);
    }
    let refusals: Vec<String> =
        index.pool_nodes.keys().filter_map(|name| refusal_of_pool(state, name, spec)).take(ERRORS_SHOWN_MAX).collect();
    if refusals.len() == index.pool_nodes.len() {
        let problem = format!("fits no pool: {}", refusals.join("; "));
        return FieldError::new("request", problem, "change class, sharing mode or pool");
    }
    let shapes = index.cells.values().flat_map(|cell| cell.shapes.keys());
    let kinds: BTreeSet<String> = shapes
        .map(|shape| {
            let card = shape.cards.first().map(|card| format!("{}x{} ", shape.cards.len(), card.model));
            format!("{}{}m CPU {} MiB", card.unwrap_or_default(), shape.cpu_milli, shape.memory_mib)
        })
        .collect();
    let kinds: Vec<String> = kinds.into_iter().take(ERRORS_SHOWN_MAX).collect();
    let problem = format!("no node could run one task of it, even empty; nodes are {}", kinds.join(", "));
    FieldError::new("request", problem, "ask for what one node has, or for another model")
}

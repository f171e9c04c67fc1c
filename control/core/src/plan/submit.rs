//! Submissions: jobs enter here, all of a call or none.
//!
//! What must stay true: the same request id with the same content never makes a second set of jobs (law 5); a job is queued only
//! if its tenant and some cell could ever run it (unless the fleet is empty); waiting jobs are bounded.

use super::charge::over_max;
use super::conditions::Known;
use super::resolve::resolve;
use super::{infeasible, pools, priority_classes, requests, secrets, windows};
use crate::bounds::{ERRORS_SHOWN_MAX, ISSUED_AHEAD_MS_MAX, REQUEST_ID_BYTES_MAX, WAITING_MAX, WAITING_PER_TENANT_MAX};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::routing::{Models, Router, models_of};
use crate::state::State;
use muster_model::ids::{Attempt, CellId, TenantId};
use muster_model::object::RequestRecord;
use muster_model::request::SharingMode;
use muster_model::validate::bounds::JOBS_PER_SUBMIT_MAX;
use muster_model::validate::nearest;
use muster_model::{
    ArrayState, EndedJob, FieldError, Job, JobPhase, JobSpec, Object, Tenant, Trust, Unmet, ValidJobSpec,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) fn submit(
    draft: &mut Draft<'_>,
    request_id: &str,
    issued_ms: u64,
    payload_hash: u64,
    specs: &[ValidJobSpec],
    ended: &[EndedJob],
) -> Result<Done, Reject> {
    let state = draft.state;
    let key = requests::key(draft.author, request_id);
    if let Some(known) = state.requests.get(&key) {
        return repeated(known, request_id, payload_hash);
    }
    check_request(draft, request_id, issued_ms)?;
    let payer = specs.first().map_or("", |spec| spec.tenant.as_str());
    requests::check_age(draft, request_id, payer, issued_ms)?;
    if specs.is_empty() || specs.len() > JOBS_PER_SUBMIT_MAX {
        return Err(Reject::field("jobs", format!("has {} jobs", specs.len()), "submit 1 to 1,000 jobs at once"));
    }
    let mut router = Router::new(state);
    let mut admitted: Vec<Admitted<'_>> = Vec::with_capacity(specs.len());
    let mut known = Known::of(ended);
    let mut wrong = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let admit = admit(state, &mut router, spec).and_then(|one| {
            let (unmet, array) = known.unmet(draft, one.tenant, spec)?;
            Ok(Admitted { unmet, array, ..one })
        });
        match admit {
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
    known.complete()?;
    check_room(state, &admitted)?;
    let first = draft.meta.next_job;
    let tenant = admitted.first().map(|one| one.tenant).unwrap_or_default();
    for one in admitted {
        let job = queued(draft, one);
        draft.put(Object::Job(job));
    }
    let jobs = specs.len() as u32;
    let (id, accepted_ms) = (Arc::from(&*key), draft.now_ms);
    requests::make_room(draft);
    let record = RequestRecord { id, payload_hash, accepted_ms, first_job: first, jobs, issued_ms, tenant };
    draft.put(Object::Request(record));
    Ok(Done::Submitted { first, count: jobs })
}

fn repeated(known: &RequestRecord, request_id: &str, payload_hash: u64) -> Result<Done, Reject> {
    if known.payload_hash == payload_hash {
        Ok(Done::Submitted { first: known.first_job, count: known.jobs })
    } else {
        Err(Reject::RequestReused { id: request_id.to_owned() })
    }
}

fn check_request(draft: &Draft<'_>, id: &str, issued_ms: u64) -> Result<(), Reject> {
    if id.is_empty() || id.len() > REQUEST_ID_BYTES_MAX {
        let problem = format!("has {} bytes", id.len());
        return Err(Reject::field("request_id", problem, "use 1 to 128 bytes, such as a UUID"));
    }
    if issued_ms > draft.now_ms.saturating_add(ISSUED_AHEAD_MS_MAX) {
        let problem = format!("is {} ms ahead of the cluster's time", issued_ms - draft.now_ms);
        return Err(Reject::field("issued_ms", problem, "correct the clock of the client"));
    }
    Ok(())
}

/// A job that may enter.
struct Admitted<'a> {
    /// Who pays.
    tenant: TenantId,
    /// The cell that is to place it; none while the fleet is empty.
    cell: Option<CellId>,
    /// What is accepted: class and needs resolved.
    spec: Cow<'a, ValidJobSpec>,
    /// What keeps it from being eligible.
    unmet: Unmet,
    /// The record of an array.
    array: Option<Box<ArrayState>>,
}

/// The tenant and the cell of a pending job whose specification has changed. What it was resolved to stays; a tenant that may not use that
/// is refused.
pub(super) fn readmit(
    state: &State,
    spec: &ValidJobSpec,
    moves: bool,
) -> Result<(TenantId, Option<CellId>), FieldError> {
    let tenant = tenant_of(state, &spec.tenant)?;
    if moves && (spec.asked.device_class.is_some() || spec.asked.needs.is_some()) {
        let problem = "cannot change: what its device class or its needs came to depends on the tenant";
        return Err(FieldError::new("tenant", problem, "cancel the job, and submit it for the other tenant"));
    }
    check_trust(tenant, spec)?;
    secrets::check_named(state, tenant, spec)?;
    windows::check_named(state, tenant, spec.reservation.as_deref())?;
    priority_classes::priority_of(state, tenant, spec)?;
    let models = affordable(state, tenant, spec)?;
    let cell = Router::new(state).route(spec, &models);
    if cell.is_none() && !state.nodes.is_empty() {
        return Err(infeasible::why(state, tenant, spec, &models));
    }
    Ok((tenant.id, cell))
}

fn tenant_of<'a>(state: &'a State, path: &str) -> Result<&'a Tenant, FieldError> {
    let tenant = state.index().tenant_ids.get(path).and_then(|id| state.tenants.get(id));
    tenant.ok_or_else(|| {
        let fix = "use a tenant of `muster tenants list`, or create it with `muster tenants apply`";
        FieldError::new("tenant", format!("{path:?} does not exist"), fix)
    })
}

fn admit<'a>(state: &State, router: &mut Router<'_>, spec: &'a ValidJobSpec) -> Result<Admitted<'a>, FieldError> {
    let tenant = tenant_of(state, &spec.tenant)?;
    check_pool(state, spec)?;
    secrets::check_named(state, tenant, spec)?;
    windows::check_named(state, tenant, spec.reservation.as_deref())?;
    let spec = resolve(state, tenant, spec)?;
    check_trust(tenant, &spec)?;
    let models = affordable(state, tenant, &spec)?;
    let cell = router.route(&spec, &models);
    if cell.is_none() && !state.nodes.is_empty() {
        return Err(infeasible::why(state, tenant, &spec, &models));
    }
    Ok(Admitted { tenant: tenant.id, cell, spec, unmet: Unmet::default(), array: None })
}

/// A pool that has no node and that nobody has described is a slip, also while there is no node at all.
fn check_pool(state: &State, spec: &JobSpec) -> Result<(), FieldError> {
    let Some(name) = spec.pool.as_deref() else { return Ok(()) };
    let nodes = &state.index().pool_nodes;
    let known = || nodes.keys().map(String::as_str).chain(pools::known(state)).collect::<BTreeSet<_>>();
    if nodes.contains_key(name) || (state.nodes.is_empty() && known().contains(name)) {
        return Ok(());
    }
    let problem = if known().contains(name) { "has no nodes" } else { "does not exist" };
    let others = || known().into_iter().filter(|other| *other != name && nodes.contains_key(*other));
    let fix = match nearest(name, known().into_iter().filter(|other| *other != name)) {
        Some(meant) => format!("did you mean {meant}? Or leave it out"),
        None if nodes.is_empty() => "leave it out".to_owned(),
        None => format!("use one of {}, or leave it out", pools::some_of(others())),
    };
    Err(FieldError::new("pool", format!("{name:?} {problem}"), fix))
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
    let problem = format!("tenant {} is untrusted and may share a GPU only through MIG", tenant.path);
    Err(FieldError::new(field, problem, "request a MIG profile or whole GPUs"))
}

/// The models on which the gang's charge stays under every max of the tenant's line.
fn affordable(state: &State, tenant: &Tenant, spec: &JobSpec) -> Result<Models, FieldError> {
    let mut models = models_of(spec);
    if state.capacity().line_of(tenant.id).all(|(_, at)| at.max.is_empty()) {
        return Ok(models);
    }
    let mut passed = None;
    models.retain(|model| {
        let over = over_max(state, tenant, spec, *model);
        let fits = over.is_none();
        passed = over.or_else(|| passed.take());
        fits
    });
    match passed {
        Some(over) if models.is_empty() => Err(over),
        _ => Ok(models),
    }
}

fn check_room(state: &State, admitted: &[Admitted<'_>]) -> Result<(), Reject> {
    let mut more: BTreeMap<TenantId, u64> = BTreeMap::new();
    for one in admitted {
        *more.entry(one.tenant).or_default() += 1;
    }
    for (tenant, count) in more {
        room_of(state, tenant, count)?;
    }
    if state.index().phases.queued + admitted.len() as u64 > WAITING_MAX {
        return Err(Reject::Full { what: "the queue of all tenants".to_owned(), limit: WAITING_MAX });
    }
    Ok(())
}

/// Whether a tenant may have one more job waiting.
pub(super) fn waiting_room(state: &State, tenant: TenantId) -> Result<(), Reject> {
    room_of(state, tenant, 1)
}

fn room_of(state: &State, tenant: TenantId, count: u64) -> Result<(), Reject> {
    if state.index().jobs_of(tenant).waiting + count <= WAITING_PER_TENANT_MAX {
        return Ok(());
    }
    let path = state.tenants.get(&tenant).map_or("", |tenant| tenant.path.as_str());
    Err(Reject::Full { what: format!("the queue of tenant {path}"), limit: WAITING_PER_TENANT_MAX })
}

fn queued(draft: &mut Draft<'_>, one: Admitted<'_>) -> Job {
    let Admitted { tenant, cell, spec, unmet, array } = one;
    Job {
        id: draft.next_job(),
        tenant,
        spec: spec.into_owned(),
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
        reserved: None,
        bypassed_cards: 0,
        attempts: Vec::new(),
        start_faults: 0,
        claim: None,
        preemptions: 0,
        checkpoint_ms: None,
        checkpoint_note: String::new(),
        requeue_asked: false,
        unmet,
        array,
        array_task: None,
        preemptor: muster_model::Preemptor::default(),
        moving: None,
        growth: muster_model::Growth::default(),
    }
}

//! Why a job stands where it stands, at a stated revision.
//!
//! What must stay true: only what the state says is told, with its figures; every waiting job gets at least one reason.

use super::unknown;
use crate::services::{App, refusal};
use muster_control_core::State;
use muster_model::capacity::OverMax;
use muster_model::resources::Resource;
use muster_model::{CellId, GpuUnits, Job, JobId, JobPhase, Outcome};
use muster_proto::v1;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tonic::Status;

pub(super) async fn explain(app: &App, request: v1::ExplainRequest) -> Result<v1::ExplainReply, Status> {
    let id = JobId(request.job_id);
    let live = app
        .look(v1::Consistency::Linearizable.into(), |state, revision| {
            let reply = state.jobs.get(&id).map(|job| v1::ExplainReply {
                revision: revision.0,
                phase: job.phase.word().to_owned(),
                reasons: reasons(state, job),
                position: position(state, job),
            });
            (reply, revision)
        })
        .await?;
    let (Some(reply), _) = live else {
        let finished = app.consensus.finished_job(id).map_err(|error| refusal::disk(&error))?;
        let job = finished.ok_or_else(|| unknown(id))?;
        let (phase, reasons) = (job.phase.word().to_owned(), vec![ended(&job)]);
        return Ok(v1::ExplainReply { revision: live.1.0, phase, reasons, position: None });
    };
    Ok(reply)
}

fn reason(code: &str, text: impl Into<String>) -> v1::Reason {
    v1::Reason { code: code.to_owned(), text: text.into(), ..v1::Reason::default() }
}

fn ended(job: &Job) -> v1::Reason {
    match &job.phase {
        JobPhase::Finished(Outcome::Failed { reason: why }) => {
            let mut reason = reason("failed", why.clone());
            if job.spec.max_retries == 0 {
                reason.fix = "see its output with `muster logs`; max_retries lets it try again".to_owned();
            }
            reason
        }
        JobPhase::Finished(Outcome::TimedOut) => v1::Reason {
            fix: "give a longer time limit".to_owned(),
            ..reason("timed_out", format!("ran into its limit of {} s", job.spec.time_limit_s.unwrap_or(0)))
        },
        phase => reason(phase.word(), format!("is {}", phase.word())),
    }
}

/// Jobs that its cell looks at before it: higher priority first, then age. Shards also weigh the tenants' shares, so this is where
/// it stands in the queue and not a promise.
fn position(state: &State, job: &Job) -> Option<u64> {
    if !matches!(job.phase, JobPhase::Queued) {
        return None;
    }
    let rank = |job: &Job| (Reverse(job.spec.priority), job.id);
    let queue = state.index().queued_in(job.cell).filter_map(|id| state.jobs.get(&id));
    Some(queue.filter(|other| rank(other) < rank(job)).count() as u64)
}

fn reasons(state: &State, job: &Job) -> Vec<v1::Reason> {
    match &job.phase {
        JobPhase::Queued => waiting(state, job),
        JobPhase::Starting(_) => vec![reason("starting", "holds its devices; not every task has been seen running yet")],
        JobPhase::Running(_) => vec![reason("running", format!("runs on {} nodes", distinct(&job.nodes)))],
        JobPhase::Stopping(_) => vec![reason("stopping", "its attempt ends; devices are held until the last task is gone")],
        JobPhase::Finished(_) => vec![ended(job)],
    }
}

fn distinct(nodes: &[muster_model::NodeId]) -> usize {
    nodes.iter().collect::<std::collections::BTreeSet<_>>().len()
}

fn waiting(state: &State, job: &Job) -> Vec<v1::Reason> {
    let mut reasons = Vec::new();
    if let Some(why) = &job.requeue_reason {
        reasons.push(reason("requeued", why.clone()));
    }
    reasons.extend(over_max(state, job));
    match job.cell {
        None if state.nodes.is_empty() => {
            reasons.push(v1::Reason {
                fix: "start an agent with `muster node` on a GPU host".to_owned(),
                ..reason("no_nodes", "there is no node in the fleet yet")
            });
        }
        None => {
            reasons.push(v1::Reason {
                fix: "ask for fewer tasks or fewer cards per task, or for another model".to_owned(),
                ..reason("larger_than_any_cell", "no cell could hold the gang, even when empty")
            });
        }
        Some(cell) => reasons.extend(in_cell(state, job, cell)),
    }
    if reasons.is_empty() {
        reasons.push(reason("just_queued", "nothing is known to be in the way; its shard will look at it next"));
    }
    reasons
}

/// The ceiling in the way, when no model it accepts fits under it.
fn over_max(state: &State, job: &Job) -> Option<v1::Reason> {
    let books = state.capacity();
    let models: Vec<_> = job.spec.request.devices.possible_models().collect();
    let charges: Vec<_> = if models.is_empty() {
        vec![job.spec.charge_on(muster_model::GpuModel::ALL[0])]
    } else {
        models.into_iter().map(|model| job.spec.charge_on(model)).collect()
    };
    let mut first = None;
    for charge in charges {
        match books.max_allows(job.tenant, &charge) {
            Ok(()) => return None,
            Err(over) => first = first.or(Some(over)),
        }
    }
    first.map(|over| over_max_reason(&over))
}

fn over_max_reason(over: &OverMax) -> v1::Reason {
    let shown = |amount: u64| match over.resource {
        Resource::Gpu(_) => GpuUnits(amount).to_string(),
        Resource::Cpu | Resource::Memory => amount.to_string(),
    };
    let (resource, would, max) = (over.resource, shown(over.would_use), shown(over.max));
    v1::Reason {
        subject: over.path.clone(),
        fix: format!("raise the max of {} to {would} of {resource}, or wait until {} of it is released", over.path, shown(over.would_use - over.max)),
        figures: BTreeMap::from([
            ("resource".to_owned(), resource.to_string()),
            ("would_use".to_owned(), over.would_use.to_string()),
            ("max".to_owned(), over.max.to_string()),
        ]),
        ..reason("over_max", format!("{} would use {would} of {resource}, its max is {max}", over.path))
    }
}

fn in_cell(state: &State, job: &Job, id: CellId) -> Vec<v1::Reason> {
    let mut reasons = Vec::new();
    let Some(cell) = state.cells.get(&id) else { return reasons };
    if cell.holder.is_none() {
        reasons.push(v1::Reason {
            subject: cell.name.clone(),
            fix: "start `muster shard`; a standby takes the cell over within seconds".to_owned(),
            ..reason("cell_without_shard", format!("no scheduler shard holds cell {}", cell.name))
        });
    }
    let devices = &job.spec.request.devices;
    let wanted = u64::from(devices.cards()) * u64::from(job.spec.tasks);
    let whole = devices.mode() == Some(muster_model::request::SharingMode::Whole);
    if whole && wanted > 0 {
        let free = free_cards(state, id, devices);
        if free < wanted {
            reasons.push(v1::Reason {
                subject: cell.name.clone(),
                fix: format!("wait until {} more cards are free, or accept further models", wanted - free),
                figures: BTreeMap::from([
                    ("wanted".to_owned(), wanted.to_string()),
                    ("free".to_owned(), free.to_string()),
                ]),
                ..reason("no_free_gpus", format!("{free} acceptable cards of one model are free in cell {}, {wanted} are needed", cell.name))
            });
        }
    }
    reasons
}

/// Free whole cards in the cell of the acceptable model that has most of them.
fn free_cards(state: &State, cell: CellId, devices: &muster_model::DeviceRequest) -> u64 {
    let mut by_model: BTreeMap<muster_model::GpuModel, u64> = BTreeMap::new();
    let nodes = state.index().cells.get(&cell).into_iter().flat_map(|cell| &cell.nodes);
    for there in nodes.filter_map(|node| state.capacity().nodes().get(node)) {
        if !there.node.accepts_work() {
            continue;
        }
        for (card, gpu) in there.cards.iter().zip(&there.node.spec.gpus) {
            let free = matches!(card, muster_model::capacity::CardUse::Free) && gpu.withheld.is_none();
            if free && devices.possible_on(gpu.model) {
                *by_model.entry(gpu.model).or_default() += 1;
            }
        }
    }
    by_model.into_values().max().unwrap_or(0)
}

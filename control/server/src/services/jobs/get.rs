//! One job, live or over, with what it holds.

use super::{allow_ended, limited, unknown};
use crate::api::refusal;
use crate::secrets;
use crate::services::App;
use muster_control_core::State;
use muster_control_core::authz::Allowed;
use muster_model::identity::Author;
use muster_model::{Allocation, AllocationState, Job, JobId, NodeId, QuotaClass, Rpc, TaskState, TenantId};
use muster_proto::v1;
use std::collections::BTreeSet;
use std::sync::Arc;
use tonic::Status;

pub(super) async fn get(app: &App, author: &Author, request: v1::GetJobRequest) -> Result<v1::GetJobReply, Status> {
    let id = JobId(request.job_id);
    app.catch_up(request.consistency).await?;
    let (live, revision) = app.consensus.read(|state, revision| {
        let found = state.jobs.get(&id).map(|job| {
            let allocation = job.phase.allocation().and_then(|held| state.allocations.get(&held)).map(Arc::clone);
            let parts = job.growth.parts.iter().filter_map(|part| state.allocations.get(part));
            let runs = |part: &&Arc<Allocation>| part.state == AllocationState::Active;
            let growth: Vec<Arc<Allocation>> = parts.filter(runs).map(Arc::clone).collect();
            (Arc::clone(job), (allocation, growth))
        });
        (found, revision)
    });
    let (live, held) = live.unzip();
    let (job, allowed) = find(app, author, Rpc::JobsGet, live, id)?;
    let (allocation, growth) = held.unwrap_or_default();
    let (growth_nodes, node_names, failure_nodes, cell_name, account_paths) = app.consensus.read(|state, _| {
        let failed = job.attempts.iter().flat_map(|record| &record.failures).map(|failure| failure.node);
        let failed: Vec<NodeId> = failed.collect::<BTreeSet<_>>().into_iter().collect();
        let failure_nodes = failed.iter().map(|node| node.0).zip(names(state, &failed)).collect();
        let cell = job.cell.and_then(|cell| state.cells.get(&cell));
        let records = job.attempts.iter().map(|record| &record.classes);
        let records = records.chain(allocation.iter().chain(&growth).map(|held| &held.classes));
        let classes = records.flat_map(|record| {
            record.segments.iter().map(|segment| segment.class).chain(record.sums.iter().map(|sum| sum.class))
        });
        let paid = classes.filter_map(QuotaClass::account);
        let account_paths =
            paid.collect::<BTreeSet<_>>().into_iter().map(|id| (id.0, account_path(state, id))).collect();
        let cell_name = cell.map(|cell| cell.name.clone()).unwrap_or_default();
        let on: BTreeSet<NodeId> = growth.iter().flat_map(|part| &part.tasks).map(|task| task.node).collect();
        let on: Vec<NodeId> = on.into_iter().collect();
        let growth_nodes = on.iter().map(|node| node.0).zip(names(state, &on)).collect();
        (growth_nodes, names(state, &job.nodes), failure_nodes, cell_name, account_paths)
    });
    let secrets_missing = allocation.as_deref().and_then(|held| secrets_missing(app, &allowed, &job, held));
    Ok(v1::GetJobReply {
        secrets_missing: secrets_missing.unwrap_or_default(),
        job: Some(shown(app, &allowed, &job)),
        allocation: allocation.map(|held| held_as_shown(app, &allowed, &held)),
        revision: revision.0,
        node_names,
        cell_name,
        failure_nodes,
        account_paths,
        growth: growth.iter().map(|part| held_as_shown(app, &allowed, part)).collect(),
        growth_nodes,
    })
}

/// Why tasks that are to start wait for their secrets, as far as this control node knows: the one that serves their node may have another key.
fn secrets_missing(app: &App, allowed: &Allowed, job: &Job, held: &Allocation) -> Option<String> {
    let waits = held.state == AllocationState::Active && held.task_states.contains(&TaskState::Pending);
    if !waits || job.spec.secret_env.is_empty() {
        return None;
    }
    let named = |state: &State| {
        let content = allowed.sees().shows_content(state, job.tenant);
        content.then(|| state.secret_env_of(job))
    };
    let secrets = app.consensus.read(|state, _| named(state))?;
    secrets::missing(&app.host, app.hub.cluster().unwrap_or_default(), secrets)
}

/// The path of a tenant, for instance of the one whose floor account pays; of one that is gone the last that it had, as far as that is known.
pub(in crate::services) fn account_path(state: &State, id: TenantId) -> String {
    if let Some(tenant) = state.tenants.get(&id) {
        return tenant.path.clone();
    }
    let last = state.tenant_histories.get(&id).and_then(|history| history.versions.last());
    last.map_or_else(|| format!("#{}", id.0), |last| format!("{} (removed)", last.path))
}

/// Names of nodes, in the given order; one that has left the fleet keeps its number.
fn names(state: &State, nodes: &[NodeId]) -> Vec<String> {
    let name = |id: &NodeId| state.nodes.get(id).map_or_else(|| format!("#{id}"), |node| node.spec.name.clone());
    nodes.iter().map(name).collect()
}

/// The job, live as it was found or from the history, if the caller may have it for `rpc`. A job that leaves memory is in the history at the same moment,
/// so looking there second misses none.
///
/// # Errors
/// NOT_FOUND, what the caller may not, or a failing disk.
pub(super) fn find(
    app: &App,
    author: &Author,
    rpc: Rpc,
    live: Option<Arc<Job>>,
    id: JobId,
) -> Result<(Arc<Job>, Allowed), Status> {
    let job = match live {
        Some(job) => job,
        None => {
            let finished = app.consensus.finished_job(id).map_err(|error| refusal::disk(&error))?;
            finished.map(Arc::new).ok_or_else(|| unknown(app, author, id))?
        }
    };
    let allowed = allow_ended(app, author, rpc, &job)?;
    Ok((job, allowed))
}

/// An allocation of the job as it is sent.
fn held_as_shown(app: &App, allowed: &Allowed, held: &Allocation) -> v1::Allocation {
    let mut shown = v1::Allocation::from(held);
    if !allowed.sees().shows_fleet() {
        app.consensus.read(|state, _| limited::allocation(state, allowed.sees(), &mut shown));
    }
    shown
}

/// The job as it is sent; its command and environment only to those who may read what its tenant wrote.
fn shown(app: &App, allowed: &Allowed, job: &Job) -> v1::Job {
    let mut shown = v1::Job::from(job);
    let content = app.consensus.read(|state, _| {
        limited::job(state, allowed.sees(), &mut shown);
        allowed.sees().shows_content(state, job.tenant)
    });
    if content {
        super::note_read(app, allowed, job, "command and environment");
    }
    if let (false, Some(spec)) = (content, &mut shown.spec) {
        spec.command.clear();
        spec.env.clear();
        spec.secret_env.clear();
        spec.workdir.clear();
    }
    shown
}

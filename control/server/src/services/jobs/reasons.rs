//! Why the pending jobs of a page wait, in a line each: the first reason that [`super::explain`] would give.
//!
//! What must stay true: a page costs one search, in which jobs that ask for the same share an answer; reasons are beside the list and never in
//! its way: when too many searches are under way, the page comes without them.

use super::limited;
use crate::services::App;
use muster_control_core::authz::Visibility;
use muster_model::{Job, JobId, JobPhase, Revision};
use muster_proto::v1;
use muster_scheduler_core::View;
use muster_scheduler_core::explain::{Names, brief};
use std::sync::Arc;

/// The reasons of those of `jobs` that wait; none where there are too many different ones or the searches are full.
pub(super) async fn reasons(
    app: &App,
    jobs: &[Arc<Job>],
    revision: Revision,
    (now_ms, sees): (u64, &Visibility),
) -> Vec<v1::PendingReason> {
    let pending = jobs.iter().filter(|job| matches!(job.phase, JobPhase::Queued));
    let (pending, waiting): (Vec<_>, Vec<_>) = pending.partition(|job| job.is_eligible());
    let waiting = waiting.iter().filter_map(|job| Some((job.id, job.not_eligible().into_iter().next()?)));
    let mut reasons: Vec<v1::PendingReason> = waiting.map(|(id, why)| said(id, why.code(), &why.text())).collect();
    let pending: Vec<JobId> = pending.iter().map(|job| job.id).collect();
    if !pending.is_empty() {
        reasons.extend(of_eligible(app, pending, revision, (now_ms, sees)).await);
    }
    reasons
}

/// Of jobs that wait for devices alone.
async fn of_eligible(
    app: &App,
    pending: Vec<JobId>,
    revision: Revision,
    (now_ms, sees): (u64, &Visibility),
) -> Vec<v1::PendingReason> {
    let no_nodes = app.consensus.read(|state, _| state.nodes.is_empty());
    if no_nodes {
        return pending.into_iter().map(|id| said(id, "no_nodes", "the fleet has no nodes yet")).collect();
    }
    let now_ms = now_ms.max(app.consensus.now_ms());
    let looked = move |view: &mut View, _: Revision| brief(view, &pending, now_ms);
    let Ok(search) = app.searches.enter() else { return Vec::new() };
    let mut told = search.look(app, revision, looked).await.unwrap_or_default();
    if !sees.shows_fleet() {
        told = app.consensus.read(|state, _| {
            let limited = |names: &Names<'_>| told.into_iter().map(|(id, brief)| (id, brief.limited(names))).collect();
            limited::with_names(state, sees, limited)
        });
    }
    told.into_iter().map(|(id, brief)| said(id, brief.code(), &brief.text())).collect()
}

fn said(job: JobId, code: &str, text: &str) -> v1::PendingReason {
    v1::PendingReason { job_id: job.0, code: code.to_owned(), text: text.to_owned() }
}

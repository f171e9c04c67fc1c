//! Why the pending jobs of a page wait, in a line each: the first reason that [`super::explain`] would give.
//!
//! What must stay true: a page costs a bounded number of searches, since jobs that ask for the same share one; reasons are beside the
//! list and never in its way: when too many searches are under way, the page comes without them.

use crate::services::App;
use muster_model::{Job, JobId, JobPhase, JobSpec, Revision};
use muster_proto::v1;
use muster_scheduler_core::View;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Searches for one page. Jobs that ask for the same have one together, so most pages take a few.
const SEARCHES_MAX: usize = 64;
/// Why a job went back to the queue is known to the job itself; a list says what holds it now.
const REQUEUED: &str = "requeued";

/// Pending jobs that wait for the same, by what they ask for.
#[derive(Default)]
struct Groups(BTreeMap<Vec<u8>, Vec<JobId>>);

impl Groups {
    fn of<'a>(jobs: impl Iterator<Item = &'a Arc<Job>>) -> Self {
        let mut groups = Groups::default();
        for job in jobs.filter(|job| matches!(job.phase, JobPhase::Queued)) {
            let Some(key) = key(job) else { continue };
            groups.0.entry(key).or_default().push(job.id);
        }
        groups
    }
}

/// What decides how a job waits: its tenant, its cell, what is kept for it, and all it asks for beside names and what it runs.
fn key(job: &Job) -> Option<Vec<u8>> {
    let mut spec = JobSpec::clone(&job.spec);
    (spec.name, spec.user, spec.command, spec.workdir) = Default::default();
    spec.env.clear();
    postcard::to_stdvec(&(job.tenant, job.cell, &job.reserved, &spec)).ok()
}

/// The reasons of those of `jobs` that wait; none where there are too many different ones or the searches are full.
pub(super) async fn reasons(app: &App, jobs: &[Arc<Job>], revision: Revision, now_ms: u64) -> Vec<v1::PendingReason> {
    let groups = Groups::of(jobs.iter());
    if groups.0.is_empty() {
        return Vec::new();
    }
    let no_nodes = app.consensus.read(|state, _| state.nodes.is_empty());
    if no_nodes {
        let none = |id: &JobId| said(*id, "no_nodes", "there is no node in the fleet yet");
        return groups.0.values().flatten().map(none).collect();
    }
    let now_ms = now_ms.max(app.consensus.now_ms());
    let looked = move |view: &View, _: Revision| {
        let mut found = Vec::new();
        for ids in groups.0.values().take(SEARCHES_MAX) {
            let explained = ids.first().and_then(|id| muster_scheduler_core::explain(view, *id, now_ms));
            let reason =
                explained.and_then(|explained| explained.reasons.into_iter().find(|reason| reason.code() != REQUEUED));
            let Some(reason) = reason else { continue };
            let (code, text) = (reason.code(), reason.text());
            found.extend(ids.iter().map(|id| said(*id, code, &text)));
        }
        found
    };
    let Ok(search) = app.searches.enter() else { return Vec::new() };
    search.look(app, revision, looked).await.unwrap_or_default()
}

fn said(job: JobId, code: &str, text: &str) -> v1::PendingReason {
    v1::PendingReason { job_id: job.0, code: code.to_owned(), text: text.to_owned() }
}

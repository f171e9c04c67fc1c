//! Lists of jobs: live ones from memory and finished ones from the history, merged in the order of their ids.
//!
//! What must stay true: pages are bounded, in items and in what is looked through for them (a page may be short and still have a
//! next one); following the tokens shows every job that matched throughout once, whatever is submitted or ends meanwhile.

use super::get::account_path;
use super::{limited, reasons};
use crate::api::refusal;
use crate::services::App;
use crate::services::paging::{self, Page};
use muster_control_core::State;
use muster_control_core::authz::{About, Ask, Visibility};
use muster_model::identity::Author;
use muster_model::{CellId, Job, JobId, JobPhase, Rpc, TenantId};
use muster_proto::convert::job::job_in_brief;
use muster_proto::v1;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use tonic::Status;

/// Jobs that one page looks through in memory, and again on disk: some tens of milliseconds.
const LOOKED_AT_MAX: usize = 20_000;
/// Finished jobs read from disk at a time.
const HISTORY_CHUNK: usize = 500;

/// Which jobs are wanted.
struct Filter {
    tenant: String,
    phases: Vec<v1::JobPhase>,
    name: String,
    user: String,
    newest_first: bool,
}

/// Jobs found in one of the two places, and how far it was looked through: `None` is to its end.
struct Found {
    jobs: Vec<Arc<Job>>,
    looked_to: Option<JobId>,
}

pub(super) async fn list(
    app: &App,
    author: &Author,
    request: v1::ListJobsRequest,
) -> Result<v1::ListJobsReply, Status> {
    let size = paging::size(request.page_size)?;
    let filter = Filter::of(&request)?;
    let question = filter.question();
    let after = paging::after(&question, &request.page_token)?.map(|last| parse_job(&last)).transpose()?;

    // Memory first, the history second: a job that ends in between is then seen in both and never in neither.
    let ask = Ask { rpc: Rpc::JobsList, about: About::Nothing };
    let (live, known, now_ms, revision, sees) = app
        .look(author, ask, request.consistency, |state, revision, allowed| {
            let sees = allowed.sees().clone();
            (
                filter.live(state, &sees, after, size),
                filter.tenant_known(state, &sees),
                state.meta.now_ms,
                revision,
                sees,
            )
        })
        .await?;
    if !known && !filter.wants_finished() {
        return Err(refusal::not_found("tenant", &filter.tenant));
    }
    let history = if filter.wants_finished() { filter.finished(app, &sees, after, size)? } else { Found::nothing() };
    let (jobs, next_page_token) = filter.page(live, history, size, &question);
    let reasons =
        if request.reasons { reasons::reasons(app, &jobs, revision, (now_ms, &sees)).await } else { Vec::new() };
    let cells: BTreeSet<CellId> = jobs.iter().filter_map(|job| job.cell).collect();
    let named = |state: &State| {
        let cells = cells.iter().filter_map(|id| state.cells.get(id));
        cells.map(|cell| (cell.id.0, cell.name.clone())).collect()
    };
    let account = |state: &State, job: &Job| {
        let held = job.phase.allocation().and_then(|held| state.allocations.get(&held))?;
        Some(held.account().map(|id| account_path(state, id)).unwrap_or_default())
    };
    let paid = |state: &State| jobs.iter().filter_map(|job| Some((job.id.0, account(state, job)?))).collect();
    let mut shown: Vec<v1::Job> = jobs.iter().map(|job| job_in_brief(job)).collect();
    let (cell_names, accounts) = app.consensus.read(|state, _| {
        shown.iter_mut().for_each(|job| limited::job(state, &sees, job));
        (named(state), paid(state))
    });
    Ok(v1::ListJobsReply { jobs: shown, next_page_token, revision: revision.0, reasons, cell_names, accounts })
}

fn parse_job(text: &str) -> Result<JobId, Status> {
    text.parse().map_err(|_| {
        refusal::field("page_token", "is not a token", "use next_page_token of the last reply, or leave it empty")
    })
}

impl Found {
    fn nothing() -> Self {
        Found { jobs: Vec::new(), looked_to: None }
    }
}

impl Filter {
    fn of(request: &v1::ListJobsRequest) -> Result<Self, Status> {
        let mut phases = Vec::new();
        for (index, phase) in request.phases.iter().enumerate() {
            match v1::JobPhase::try_from(*phase) {
                Ok(known) if known != v1::JobPhase::Unspecified => phases.push(known),
                _ => {
                    let field = format!("phases[{index}]");
                    return Err(refusal::field(&field, format!("is {phase}"), "use a phase such as JOB_PHASE_RUNNING"));
                }
            }
        }
        phases.sort_unstable();
        phases.dedup();
        Ok(Filter {
            tenant: request.tenant.clone(),
            phases,
            name: request.name.clone(),
            user: request.user.clone(),
            newest_first: request.newest_first,
        })
    }

    /// What a token is bound to.
    fn question(&self) -> String {
        format!("{}|{:?}|{}|{}|{}", self.tenant, self.phases, self.name, self.user, self.newest_first)
    }

    fn wants_finished(&self) -> bool {
        self.phases.iter().any(|phase| *phase as i32 >= v1::JobPhase::Completed as i32)
    }

    fn wants_live(&self) -> bool {
        self.phases.is_empty() || self.phases.iter().any(|phase| (*phase as i32) < v1::JobPhase::Completed as i32)
    }

    fn tenant_known(&self, state: &State, sees: &Visibility) -> bool {
        let known = |id: &TenantId| sees.shows(state, *id);
        self.tenant.is_empty() || state.index().tenant_ids.get(&self.tenant).is_some_and(known)
    }

    fn matches(&self, job: &Job) -> bool {
        let phase = match &job.phase {
            JobPhase::Finished(_) => self.phases.contains(&v1::JobPhase::from(&job.phase)),
            live => self.phases.is_empty() || self.phases.contains(&v1::JobPhase::from(live)),
        };
        let exactly = |wanted: &str, given: &str| wanted.is_empty() || wanted == given;
        // An array is one line for the tasks that have no job yet; its other tasks are jobs themselves.
        let all_started = job.array.as_ref().is_some_and(|array| array.left.is_empty());
        phase
            && !(all_started && job.phase == JobPhase::Queued)
            && exactly(&self.name, &job.spec.name)
            && exactly(&self.user, &job.spec.user)
            && below(&self.tenant, &job.spec.tenant)
    }

    fn live(&self, state: &State, sees: &Visibility, after: Option<JobId>, size: usize) -> Found {
        if !self.wants_live() {
            return Found::nothing();
        }
        let jobs: Box<dyn Iterator<Item = &Arc<Job>>> = match (after, self.newest_first) {
            (None, false) => Box::new(state.jobs.values()),
            (None, true) => Box::new(state.jobs.values().rev()),
            (Some(id), false) => {
                Box::new(state.jobs.range((Bound::Excluded(id), Bound::Unbounded)).map(|(_, job)| job))
            }
            (Some(id), true) => Box::new(state.jobs.range(..id).rev().map(|(_, job)| job)),
        };
        let mut found = Found::nothing();
        for (looked_at, job) in jobs.enumerate() {
            if looked_at >= LOOKED_AT_MAX || found.jobs.len() > size {
                return found;
            }
            found.looked_to = Some(job.id);
            if self.matches(job) && sees.shows(state, job.tenant) {
                found.jobs.push(Arc::clone(job));
            }
        }
        found.looked_to = None;
        found
    }

    fn finished(&self, app: &App, sees: &Visibility, after: Option<JobId>, size: usize) -> Result<Found, Status> {
        let mut found = Found { jobs: Vec::new(), looked_to: after };
        let mut looked_at = 0;
        while looked_at < LOOKED_AT_MAX && found.jobs.len() <= size {
            let chunk = app
                .consensus
                .finished_jobs(found.looked_to, self.newest_first, HISTORY_CHUNK)
                .map_err(|error| refusal::disk(&error))?;
            let last = chunk.len() < HISTORY_CHUNK;
            looked_at += chunk.len();
            let seen = app
                .consensus
                .read(|state, _| chunk.iter().map(|job| sees.shows(state, job.tenant)).collect::<Vec<bool>>());
            for (job, seen) in chunk.into_iter().zip(seen) {
                found.looked_to = Some(job.id);
                if seen && self.matches(&job) {
                    found.jobs.push(Arc::new(job));
                }
            }
            if last {
                found.looked_to = None;
                break;
            }
        }
        Ok(found)
    }

    /// Merges what was found, as far as both places were looked through; with the token of the next page, if there is one.
    fn page(&self, live: Found, history: Found, size: usize, question: &str) -> (Vec<Arc<Job>>, String) {
        let looked_to = match (live.looked_to, history.looked_to) {
            (Some(a), Some(b)) if self.newest_first => Some(a.max(b)),
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let within = |job: &Arc<Job>| match looked_to {
            None => true,
            Some(to) if self.newest_first => job.id >= to,
            Some(to) => job.id <= to,
        };
        // A job that ended meanwhile is in both: it is shown as it was at the revision.
        let found = history.jobs.into_iter().chain(live.jobs).filter(within).map(|job| (job.id, job));
        let merged: BTreeMap<JobId, Arc<Job>> = found.collect();
        let ordered: Box<dyn Iterator<Item = &Arc<Job>>> =
            if self.newest_first { Box::new(merged.values().rev()) } else { Box::new(merged.values()) };
        let mut page = Page::new(size);
        for job in ordered {
            if page.is_full() {
                break;
            }
            page.push_sized(Arc::clone(job), job_in_brief(job).encoded_len());
        }
        let jobs: Vec<Arc<Job>> = page.items();
        let more = merged.len() > jobs.len();
        let last = if more { jobs.last().map(|job| job.id) } else { looked_to };
        (jobs, last.map(|last| paging::token(question, &last.to_string())).unwrap_or_default())
    }
}

/// Whether `path` is `root` or below it; everything is below the empty root.
pub(super) fn below(root: &str, path: &str) -> bool {
    root.is_empty() || path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

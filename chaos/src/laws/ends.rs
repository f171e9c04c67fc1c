//! Tasks that are ended over who may do what: none. What was acknowledged needs no session any more.
//!
//! A job is stopped because a client asked for that, because of its own tasks and limit, because a node was lost, or for another job: every other cause is
//! reported, and so is a cancellation that nobody asked for. The match has no wildcard: a new cause must be judged here.

use super::{Findings, Violation};
use crate::history::{Call, History};
use muster_model::ids::JobId;
use muster_model::{AllocationState, Change, EndCause, JobPhase, Object, Outcome};
use std::collections::BTreeSet;

/// Reports ends that nobody asked for.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("no other ends");
    let asked = asked(history);
    for (revision, change) in history.changes() {
        match change {
            Change::Put(object) => {
                let Object::Allocation(allocation) = *object else { continue };
                let AllocationState::Stopping(cause) = &allocation.state else { continue };
                let explained = match cause {
                    EndCause::Cancelled => asked.contains(&allocation.job),
                    EndCause::RankFailed { .. }
                    | EndCause::TimeLimit
                    | EndCause::NodeLost { .. }
                    | EndCause::Preempted { .. }
                    | EndCause::Completed => true,
                    EndCause::Requeued | EndCause::Deadline | EndCause::Window { .. } | EndCause::Shrunk { .. } => {
                        false
                    }
                };
                findings.add_if(!explained, || {
                    let (id, job) = (allocation.id, allocation.job);
                    format!("revision {revision}: allocation {id} of job {job} is stopped: {cause:?}, which nobody asked for")
                });
            }
            Change::Retire(job) => {
                let JobPhase::Finished(outcome) = &job.phase else { continue };
                let explained = match outcome {
                    Outcome::Cancelled => asked.contains(&job.id),
                    Outcome::Completed | Outcome::Failed { .. } | Outcome::TimedOut => true,
                    Outcome::DeadlineMissed => false,
                };
                findings.add_if(!explained, || {
                    format!("revision {revision}: job {} is {}, which nobody asked for", job.id, outcome.word())
                });
            }
            Change::Delete(_) | Change::Audit(_) => {}
        }
    }
    findings.found
}

/// The jobs of submissions of which a client has asked to cancel one.
fn asked(history: &History) -> BTreeSet<JobId> {
    let cancelled = history.operations.iter().filter(|operation| matches!(operation.call, Call::Cancel { .. }));
    let cancelled: BTreeSet<&str> = cancelled.map(|operation| operation.of.as_str()).collect();
    let of = history.submissions.iter().filter(|one| cancelled.contains(one.request_id.as_str()));
    of.flat_map(|one| one.acknowledged.iter().flatten().copied()).collect()
}

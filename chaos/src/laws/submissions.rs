//! Law 5: "An acknowledged submission is never lost; at most one attempt of a job is live; an id is never used twice."
//!
//! Also what makes a retry safe: one request id always answers the same job ids, whatever node answered and however often.

use super::{Findings, Violation};
use crate::history::History;
use muster_model::ids::{AllocationId, Attempt, JobId};
use muster_model::object::Key;
use muster_model::{Change, JobPhase, Object};
use std::collections::{BTreeMap, BTreeSet};

const LAW: &str = "law 5";

/// Reports lost or doubled acknowledgements, ids used twice and attempts that live together.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of(LAW);
    acknowledgements(history, &mut findings);
    ids(history, &mut findings);
    attempts(history, &mut findings);
    findings.found
}

fn acknowledgements(history: &History, findings: &mut Findings) {
    let known: BTreeSet<JobId> = history
        .changes()
        .filter_map(|(_, change)| match change {
            Change::Put(object) => match *object {
                Object::Job(job) => Some(job.id),
                _ => None,
            },
            Change::Retire(job) => Some(job.id),
            Change::Delete(_) | Change::Audit(_) => None,
        })
        .collect();
    let mut owners: BTreeMap<JobId, &str> = BTreeMap::new();
    for submission in &history.submissions {
        let request = submission.request_id.as_str();
        let Some(first) = submission.acknowledged.first() else { continue };
        for other in &submission.acknowledged {
            findings
                .add_if(other != first, || format!("request {request:?} was answered {first:?} and then {other:?}"));
        }
        findings.add_if(first.len() != submission.jobs, || {
            format!("request {request:?} for {} jobs was answered {first:?}", submission.jobs)
        });
        for job in first {
            findings.add_if(!known.contains(job), || {
                format!("job {job} of request {request:?} was acknowledged and is lost")
            });
            if let Some(other) = owners.insert(*job, request) {
                findings.add(|| format!("job {job} was given to requests {other:?} and {request:?}"));
            }
        }
    }
}

fn ids(history: &History, findings: &mut Findings) {
    let (mut live, mut ended) = (BTreeMap::<JobId, u64>::new(), BTreeSet::new());
    let (mut allocations, mut released) = (BTreeSet::new(), BTreeSet::new());
    for (revision, change) in history.changes() {
        match change {
            Change::Put(object) => match *object {
                Object::Job(job) => {
                    findings.add_if(ended.contains(&job.id), || {
                        format!("revision {revision}: job {} is back from its end", job.id)
                    });
                    let submitted = *live.entry(job.id).or_insert(job.submitted_ms);
                    findings.add_if(submitted != job.submitted_ms, || format!("job id {} was used twice", job.id));
                }
                Object::Allocation(allocation) => {
                    findings.add_if(released.contains(&allocation.id), || {
                        format!("revision {revision}: allocation id {} was used twice", allocation.id)
                    });
                    allocations.insert(allocation.id);
                }
                _ => {}
            },
            Change::Retire(job) => {
                findings.add_if(!live.contains_key(&job.id), || format!("job {} ended and never was", job.id));
                findings.add_if(!ended.insert(job.id), || format!("revision {revision}: job {} ended twice", job.id));
            }
            Change::Delete(Key::Job(id)) => {
                findings.add(|| format!("revision {revision}: job {id} vanished without an end"))
            }
            Change::Delete(Key::Allocation(id)) => {
                released.insert(id);
            }
            Change::Delete(Key::Finished(job)) => {
                findings.add_if(!ended.contains(&job.id), || {
                    format!("revision {revision}: job {} was forgotten before its end", job.id)
                });
            }
            Change::Delete(_) | Change::Audit(_) => {}
        }
    }
}

fn attempts(history: &History, findings: &mut Findings) {
    let mut live: BTreeMap<AllocationId, JobId> = BTreeMap::new();
    let mut last: BTreeMap<JobId, (Attempt, AllocationId)> = BTreeMap::new();
    for (revision, change) in history.changes() {
        match change {
            Change::Put(object) => {
                let Object::Allocation(allocation) = *object else { continue };
                let (id, job) = (allocation.id, allocation.job);
                if live.insert(id, job).is_none() {
                    let other = live.iter().find(|(other, its_job)| **its_job == job && **other != id);
                    findings.add_if(other.is_some(), || {
                        format!("revision {revision}: job {job} has allocations {other:?} and {id}")
                    });
                    let before = last.insert(job, (allocation.attempt, id));
                    findings.add_if(before.is_some_and(|(attempt, _)| attempt >= allocation.attempt), || {
                        format!("revision {revision}: attempt {} of job {job} after {before:?}", allocation.attempt)
                    });
                }
            }
            Change::Delete(Key::Allocation(id)) => {
                live.remove(&id);
            }
            Change::Retire(job) => {
                let held = live.iter().find(|(_, its_job)| **its_job == job.id);
                findings.add_if(held.is_some(), || {
                    format!("revision {revision}: job {} ended and still holds {held:?}", job.id)
                });
            }
            Change::Delete(_) | Change::Audit(_) => {}
        }
    }
}

/// Reports acknowledged jobs that have not ended: once the faults are over everything has to come to its end. One that is not kept any
/// more has.
pub(super) fn check_ended(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of(LAW);
    let forgotten: BTreeSet<JobId> = history
        .changes()
        .filter_map(|(_, change)| match change {
            Change::Delete(Key::Finished(job)) => Some(job.id),
            _ => None,
        })
        .collect();
    for submission in &history.submissions {
        for job in submission.acknowledged.first().into_iter().flatten() {
            let ended = history.finished.get(job).is_some_and(|job| matches!(job.phase, JobPhase::Finished(_)));
            findings.add_if(!ended && !forgotten.contains(job), || {
                format!("job {job} of request {:?} has not ended", submission.request_id)
            });
        }
    }
    findings.found
}

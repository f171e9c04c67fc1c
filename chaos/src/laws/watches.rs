//! Watches are ordered, without gap or rewind: after its snapshot, a watch is told every change of every job it follows, once, in
//! the order of revisions, up to where it breaks off.

use super::{Findings, Violation};
use crate::history::{History, WatchRecord};
use muster_model::ids::{JobId, Revision};
use muster_model::{Change, Object};

/// Reports every gap, rewind and repetition.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("the order of watches");
    // One event for each job and revision: several changes of a job in one revision are seen as the last of them.
    let mut all: Vec<(Revision, JobId)> = Vec::new();
    for (revision, changes) in &history.log {
        for change in changes.iter() {
            let job = match change {
                Change::Put(object) => match &**object {
                    Object::Job(job) => job.id,
                    _ => continue,
                },
                Change::Retire(job) => job.id,
                Change::Delete(_) | Change::Audit(_) => continue,
            };
            all.push((*revision, job));
        }
    }
    all.sort_unstable();
    all.dedup();
    for watch in &history.watches {
        if let Some(what) = judge(watch, &all) {
            findings.add(|| format!("{}: {what}", watch.watcher));
        }
    }
    findings.found
}

fn judge(watch: &WatchRecord, all: &[(Revision, JobId)]) -> Option<String> {
    let after = watch.snapshot.as_ref().map_or(watch.from, |(revision, _)| *revision);
    if let Some(rewind) = watch.events.windows(2).find(|pair| pair[1].0 < pair[0].0) {
        return Some(format!("revision {} came after {}", rewind[1].0, rewind[0].0));
    }
    let last = watch.events.last()?.0;
    let mut told = watch.events.clone();
    told.sort_unstable();
    told.dedup();
    // The last revision may have broken off in the middle; everything before it must be whole.
    let should: Vec<_> = all.iter().filter(|(at, _)| *at > after && *at < last).copied().collect();
    let before_last: Vec<_> = told.iter().filter(|(at, _)| *at < last).copied().collect();
    if let Some(missed) = should.iter().find(|event| before_last.binary_search(event).is_err()) {
        return Some(format!("after {after} it was not told of job {} at revision {}", missed.1, missed.0));
    }
    if let Some(extra) = told.iter().find(|event| all.binary_search(event).is_err() || event.0 <= after) {
        return Some(format!(
            "after {after} it was told of job {} at revision {}, where nothing happened",
            extra.1, extra.0
        ));
    }
    None
}

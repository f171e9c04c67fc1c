//! An exported event log tells what was applied: from the state that it begins with, the events of every revision, once, in order.
//!
//! What a log says of a change is not judged here: the same function makes the lines from the record. Whether what they say is fair is for the
//! referee, which shares nothing with it.

use super::{Findings, Violation};
use crate::history::{ExportRecord, History};
use muster_control_core::events::{About, Event, Follower};
use muster_model::ids::Revision;
use muster_model::object::Key;
use muster_model::{Change, Object};
use std::collections::BTreeMap;

/// Reports lines that are missing, repeated or invented.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("the event log");
    for record in &history.exports {
        if let Some(what) = judge(history, record) {
            findings.add(|| what);
        }
    }
    findings.found
}

fn judge(history: &History, record: &ExportRecord) -> Option<String> {
    let header = record.header.as_ref()?;
    let since = Revision(header.since_rev);
    let objects = state_at(history, since);
    let now_ms = history.times.get(&since).map_or(header.since_t, |(now_ms, _)| *now_ms);
    let about = About { stop_ms_max: header.stop_ms_max, card_units_max: header.card_units_max };
    let (mut follower, first, mut lines) = Follower::begin(objects.into_values(), (since.0, now_ms), about);
    if first != *header {
        return Some(format!(
            "the log that begins at revision {since} has another header than the state then: {header:?}"
        ));
    }
    let after = (std::ops::Bound::Excluded(since), std::ops::Bound::Included(record.to));
    for (revision, changes) in history.log.range(after) {
        let now_ms = history.times.get(revision).map_or(0, |(now_ms, _)| *now_ms);
        lines.extend(follower.follow(revision.0, now_ms, changes));
    }
    let told: Vec<_> = record.lines.iter().filter(|line| line.event != Event::End {}).collect();
    let differ = lines.iter().zip(&told).find(|(line, told)| line != *told);
    if let Some((line, told)) = differ {
        return Some(format!("the log that begins at revision {since} has {told:?} instead of {line:?}"));
    }
    if lines.len() != told.len() {
        let (is, to) = (told.len(), record.to);
        return Some(format!("the log from revision {since} to {to} has {is} events instead of {}", lines.len()));
    }
    None
}

fn state_at(history: &History, at: Revision) -> BTreeMap<Key, Object> {
    let mut objects = BTreeMap::new();
    for (_, change) in history.changes().take_while(|(revision, _)| *revision <= at) {
        match change {
            Change::Put(object) => drop(objects.insert(object.key(), *object)),
            Change::Delete(key) => drop(objects.remove(&key)),
            Change::Retire(job) => drop(objects.remove(&Key::Job(job.id))),
            Change::Audit(_) => {}
        }
    }
    objects
}

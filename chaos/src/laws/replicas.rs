//! Law 10: "The same log gives the same state, byte for byte, on every replica and every replay, at one feature level."
//!
//! Three ways to break it are looked for: two replicas publish different changes for one revision; a replica leaves out a revision that
//! another published; a replica's whole state at some revision, also after a restart from its disk or from a snapshot, is not what the
//! published changes add up to. The state's own check of its ledger is taken along.

use super::{Findings, Violation};
use crate::history::{History, ReplicaRecord, Sample, digest};
use muster_control_core::State;
use muster_model::ids::Revision;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reports every difference between replicas.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("law 10");
    for replica in &history.replicas {
        for revision in &replica.differs_at {
            findings.add(|| format!("{} published other changes at revision {revision}", replica.name));
        }
        if let Some(gap) = first_gap(history, replica) {
            findings.add(|| format!("{} left out revision {gap}", replica.name));
        }
    }
    compare_samples(history, &mut findings);
    findings.found
}

/// The first revision with changes that the replica should have published and did not.
fn first_gap(history: &History, replica: &ReplicaRecord) -> Option<Revision> {
    let last = *replica.revisions.last()?;
    let should = history.log.range(replica.after.next()..=last).filter(|(_, changes)| !changes.is_empty());
    let skipped = |revision: Revision| replica.skipped.iter().any(|(after, to)| *after < revision && revision <= *to);
    should.map(|(revision, _)| *revision).find(|revision| !replica.revisions.contains(revision) && !skipped(*revision))
}

/// Adds up the published changes and compares at every revision at which a replica showed its state.
fn compare_samples(history: &History, findings: &mut Findings) {
    let mut samples: BTreeMap<Revision, Vec<&Sample>> = BTreeMap::new();
    for sample in &history.samples {
        if let Some(broken) = &sample.broken {
            findings.add(|| format!("{} at revision {}: {broken}", sample.replica, sample.revision));
        }
        samples.entry(sample.revision).or_default().push(sample);
    }
    let mut state = State::from_objects(history.base.iter().cloned());
    let mut log = history.log.iter().peekable();
    for (revision, samples) in samples {
        while let Some((at, changes)) = log.next_if(|(at, _)| **at <= revision) {
            // Changes that break the capacity ledger make the state panic; that is a finding, and ends the comparison.
            let applied = catch_unwind(AssertUnwindSafe(|| changes.iter().for_each(|change| state.apply(change))));
            if applied.is_err() {
                findings.add(|| format!("the changes of revision {at} cannot be applied"));
                return;
            }
        }
        let expected = digest(state.objects());
        for sample in samples {
            findings.add_if(sample.digest != expected && revision >= history.base_revision, || {
                format!("{} at revision {revision} is not what the changes so far add up to", sample.replica)
            });
        }
    }
}

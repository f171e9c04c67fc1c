//! Elastic gangs by example: into what they grow, and who gets it back.

use super::fleet::*;
use crate::explain::explain;
use crate::{Bounds, Proposal};
use muster_model::elastic::{GROW_AFTER_MS, GROW_AFTER_SHRINK_MS};
use muster_model::*;
use std::collections::BTreeSet;

fn elastic(spec: JobSpec, tasks_max: u32) -> JobSpec {
    JobSpec { elastic: Some(Elastic { tasks_max, signal: None }), ..spec }
}

/// Starts the job, whose tasks run from now on.
fn runs(fleet: &mut Fleet, spec: JobSpec) -> JobId {
    let id = fleet.submit(spec);
    assert_eq!(fleet.settle(), [id]);
    let job = fleet.jobs[&id].clone();
    let allocation = fleet.allocation_of(id).expect("it runs").id;
    fleet.put_job(Job { phase: JobPhase::Running(allocation), started_ms: Some(fleet.now_ms), ..job });
    fleet.deliver(usize::MAX);
    id
}

/// The tasks that the job grows by in one pass, which is committed.
fn grows(fleet: &mut Fleet, in_ms: u64) -> Vec<(JobId, usize)> {
    fleet.now_ms += in_ms;
    let proposals = fleet.pass();
    let grown = proposals.iter().filter_map(|proposal| match proposal {
        Proposal::Grow(binding) => Some((binding.job, binding.tasks.len())),
        _ => None,
    });
    let grown = grown.collect();
    for proposal in proposals {
        fleet.decide(proposal);
    }
    fleet.deliver(usize::MAX);
    grown
}

/// What a pass takes back, for whom; it is committed.
fn shrinks(fleet: &mut Fleet) -> Vec<(JobId, BTreeSet<JobId>, usize)> {
    let proposals = fleet.pass();
    let taken = proposals.iter().filter_map(|proposal| match proposal {
        Proposal::Shrink { binding, parts } => {
            let whose = parts.iter().map(|part| fleet.allocations[part].job).collect();
            Some((binding.job, whose, parts.len()))
        }
        _ => None,
    });
    let taken = taken.collect();
    for proposal in proposals {
        fleet.decide(proposal);
    }
    fleet.deliver(usize::MAX);
    taken
}

fn host(name: &'static str) -> Host {
    Host::new(name, GpuModel::H100, 8)
}

/// One node, full: two tasks are the minimum of a gang, six its growth.
fn grown() -> (Fleet, JobId) {
    let mut fleet = Fleet::new([host("a")]);
    let gang = runs(&mut fleet, elastic(gang(2, 1), 16));
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [(gang, 2)]);
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [(gang, 4)]);
    (fleet, gang)
}

#[test]
fn a_gang_doubles_at_most_and_waits_between_its_sizes() {
    let mut fleet = Fleet::new([host("a"), host("b")]);
    let gang = runs(&mut fleet, elastic(gang(1, 1), 7));
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS - 1), []);
    assert_eq!(grows(&mut fleet, 1), [(gang, 1)]);
    assert_eq!(grows(&mut fleet, 0), []);
    assert_eq!(fleet.view.next_wake_ms(), Some(fleet.now_ms + GROW_AFTER_MS), "the shard wakes for it");
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [(gang, 2)]);
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [(gang, 3)], "seven at most");
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), []);
    fleet.check().expect("the laws hold");
}

#[test]
fn a_gang_takes_what_is_idle_where_that_is_less_than_it_could_use() {
    let mut fleet = Fleet::new([host("a")]);
    runs(&mut fleet, gang(1, 5));
    let two = runs(&mut fleet, elastic(gang(2, 1), 16));
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [(two, 1)]);
    assert_eq!(grows(&mut fleet, 2 * GROW_AFTER_MS), [], "nothing is idle");
}

#[test]
fn who_waits_goes_first() {
    let mut fleet = Fleet::new([host("a")]);
    let elastic = runs(&mut fleet, elastic(gang(2, 1), 16));
    let waits = fleet.submit(gang(1, 5));
    fleet.deliver(usize::MAX);
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [(elastic, 1)], "one is left");
    assert!(fleet.runs(waits));
}

#[test]
fn growth_keeps_the_limits_of_its_tenant_and_what_its_job_requires() {
    let mut fleet = Fleet::new([host("a").at("b1", "l1"), host("b").at("b1", "l2")]);
    fleet.tenant("org", |tenant| tenant.max.gpu = [(GpuModel::H100, GpuUnits::cards(5))].into());
    let limited = runs(&mut fleet, elastic(gang(4, 1), 16));
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [(limited, 1)], "five at most");
    let mut fleet = Fleet::new([host("a").at("b1", "l1"), host("b").at("b1", "l2")]);
    let topology = Topology { required: Some(TopologyLevel::Leaf), ..Topology::default() };
    let close = runs(&mut fleet, JobSpec { topology, ..elastic(gang(6, 1), 16) });
    // The search for several tasks prefers the empty leaf, so it grows task by task beside what it has.
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [(close, 1)], "its leaf has two more");
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [(close, 1)]);
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [], "the other leaf is idle, and is not for it");
}

#[test]
fn growth_is_given_back_for_a_job_that_waits_and_no_more_of_it_than_it_needs() {
    let (mut fleet, gang_id) = grown();
    let waits = fleet.submit(gang(1, 3));
    fleet.deliver(usize::MAX);
    assert_eq!(shrinks(&mut fleet), [(waits, BTreeSet::from([gang_id]), 3)]);
    assert_eq!(shrinks(&mut fleet), [], "what ends for it is enough");
    assert_eq!(grows(&mut fleet, GROW_AFTER_MS), [], "what gets free is not grown into");

    let told = explain(&fleet.view, waits, fleet.now_ms).expect("it is live");
    let [reason] = &told.reasons[..] else { panic!("one reason: {:?}", told.reasons) };
    assert_eq!((reason.code(), reason.subject()), ("growth_given_back", gang_id.to_string()));
    let text = reason.text();
    assert!(text.contains(&format!("job {gang_id} gives back what it has grown by on a for it")), "{text}");
    assert_eq!((told.estimates[0].basis(), told.estimates[0].is_bound()), ("growth_ends", false));

    fleet.stopped();
    assert_eq!(fleet.settle(), [waits]);
    fleet.check().expect("the laws hold");
    fleet.end(waits, false);
    fleet.deliver(usize::MAX);
    assert_eq!(grows(&mut fleet, GROW_AFTER_SHRINK_MS - GROW_AFTER_MS - 1), [], "not so soon after it shrank");
    assert_eq!(grows(&mut fleet, 1), [(gang_id, 2)], "five more do not fit, and half of them do");
}

#[test]
fn growth_that_ends_for_one_job_is_not_counted_for_another() {
    let (mut fleet, gang_id) = grown();
    let (first, second) = (fleet.submit(gang(1, 4)), fleet.submit(gang(1, 4)));
    fleet.deliver(usize::MAX);
    assert_eq!(shrinks(&mut fleet), [(first, BTreeSet::from([gang_id]), 4)], "two more are not enough for the second");
    fleet.stopped();
    assert_eq!(fleet.settle(), [first]);
    assert!(!fleet.runs(second));
    // It ends: the minimum is not touched, whoever waits.
    let minimum = fleet.allocations.values().find(|held| held.job == gang_id && !held.is_growth);
    assert_eq!(minimum.map(|held| held.state.clone()), Some(AllocationState::Active));
}

#[test]
fn nothing_is_taken_back_where_that_starts_nobody() {
    let (mut fleet, _) = grown();
    fleet.submit(gang(1, 7));
    fleet.deliver(usize::MAX);
    assert_eq!(shrinks(&mut fleet), [], "six can end, and it needs seven");
    let fits = fleet.submit(gang(1, 6));
    fleet.deliver(usize::MAX);
    assert_eq!(shrinks(&mut fleet).iter().map(|(job, _, parts)| (*job, *parts)).collect::<Vec<_>>(), [(fits, 6)]);
}

#[test]
fn a_refused_proposal_is_as_if_it_had_not_been_made() {
    let (mut fleet, gang_id) = grown();
    let waits = fleet.submit(gang(1, 3));
    fleet.deliver(usize::MAX);
    let before = fleet.view.clone();
    let found = crate::plan(&mut fleet.view, CELL, &Bounds::default(), fleet.now_ms).proposals;
    assert!(matches!(&found[..], [Proposal::Shrink { .. }]), "{found:?}");
    fleet.view.refused(waits, fleet.now_ms);
    let growth = |view: &crate::View| view.growth_of(gang_id).count();
    assert_eq!((growth(&fleet.view), growth(&before)), (6, 6));
}

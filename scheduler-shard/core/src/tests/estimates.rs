//! Estimated starts: what they rest on, and that they come true when what they assume does.

use super::fleet::*;
use crate::explain;
use crate::explain::{Basis, Estimate};
use crate::job_class::START_MS;
use muster_model::*;
use proptest::prelude::*;

const HOUR_MS: u64 = 3_600_000;

fn limited(tasks: u32, gpus: u32, limit_s: u64) -> JobSpec {
    JobSpec { time_limit_s: Some(limit_s), grace_s: 0, ..gang(tasks, gpus) }
}

fn estimates(fleet: &Fleet, job: JobId) -> Vec<Estimate> {
    explain(&fleet.view, job, fleet.now_ms).expect("it is live").estimates
}

fn with(basis: &str, estimates: &[Estimate]) -> Option<Estimate> {
    estimates.iter().find(|estimate| estimate.basis() == basis).cloned()
}

/// Jobs of 8 GPUs of this tenant ran for a quarter of their time limits.
fn run_for_a_quarter(fleet: &mut Fleet) {
    let mut record = RunTimes::new(fleet.tenants["org"].id);
    (0..20).for_each(|_| record.note(8, Some(14_400), HOUR_MS));
    fleet.view.apply(&Change::put(Object::RunTimes(record)));
}

#[test]
fn a_job_waits_until_the_time_limit_of_what_runs_unless_it_is_known_to_run_shorter() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    fleet.now_ms = 1_000_000;
    fleet.submit(limited(1, 8, 7_200));
    fleet.settle();
    let waits = fleet.submit(limited(1, 1, 600));
    fleet.settle();
    let limits = with("time_limits", &estimates(&fleet, waits)).expect("by the limit");
    assert_eq!((limits.start_ms, limits.is_bound()), (1_000_000 + START_MS + 2 * HOUR_MS, false));
    assert_eq!(limits.basis, Basis::TimeLimits { ends: 1 });

    run_for_a_quarter(&mut fleet);
    let known = estimates(&fleet, waits);
    let predicted = with("predicted", &known).expect("by what is known");
    // A quarter of two hours is the sixth twentieth, up to its end.
    assert_eq!(predicted.start_ms, 1_000_000 + 2 * HOUR_MS / 20 * 6);
    assert_eq!(predicted.errors_percent(), (Some(125), Some(125)));
    assert_eq!(with("time_limits", &known), Some(limits), "the limit is told beside it");
    assert_eq!(known.first(), Some(&predicted), "the earliest first");
    assert!(!predicted.is_bound() && predicted.text().contains("20 earlier attempts"), "{}", predicted.text());
}

#[test]
fn a_job_that_can_start_starts_at_the_next_pass_and_one_that_never_can_has_no_estimate() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    let job = fleet.submit(gang(1, 8));
    fleet.deliver(usize::MAX);
    assert_eq!(estimates(&fleet, job).iter().map(Estimate::basis).collect::<Vec<_>>(), ["next_pass"]);
    fleet.settle();
    // What runs has no limit.
    let waits = fleet.submit(gang(1, 1));
    fleet.settle();
    assert_eq!(estimates(&fleet, waits), []);
}

/// A floor's owner knows how long it waits at most: the cool-down that is left, the grace, and the time to stop.
#[test]
fn the_owner_of_a_floor_waits_for_the_cool_down_and_the_grace_at_most() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    fleet.now_ms = 1_000_000;
    fleet.put_pool(Pool { cool_down_s: 300, ..Pool::standard() });
    fleet.tenant("owner", |tenant| tenant.guarantee = ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(8)));
    let preemption = Preemption { grace_s: Some(40), ..Preemption::default() };
    let borrows = fleet.submit(JobSpec { preemption, ..gang(1, 8) });
    fleet.settle();
    fleet.now_ms += 100_000;
    let owner = fleet.submit(JobSpec { tenant: "owner".into(), ..gang(1, 4) });
    fleet.settle();
    let found = estimates(&fleet, owner);
    let bound = with("reclaim", &found).expect("it may preempt");
    let basis = Basis::Reclaim { victims: vec![borrows], cool_down_ms: 200_000, grace_ms: 40_000 };
    assert_eq!((&bound.basis, bound.in_ms, bound.is_bound()), (&basis, 200_000 + 5_000 + 40_000 + 10_000, true));
    assert!(fleet.view.cells().len() == 1 && fleet.runs(borrows), "the view is as it was");
}

/// One job after the other ends at its time limit, and nobody new comes.
fn until_it_starts(mut fleet: Fleet, job: JobId) -> Option<u64> {
    loop {
        if fleet.runs(job) {
            return Some(fleet.now_ms);
        }
        let end_ms = |held: &Allocation| {
            let limit_s = fleet.jobs[&held.job].spec.time_limit_s.expect("every job has a limit");
            held.bound_ms + START_MS + 1_000 * limit_s
        };
        let (at_ms, _) = fleet.allocations.values().map(|held| (end_ms(held), held.job)).min()?;
        fleet.now_ms = at_ms.max(fleet.now_ms);
        let over = fleet.allocations.values().filter(|held| end_ms(held) == at_ms).map(|held| held.job);
        over.collect::<Vec<_>>().into_iter().for_each(|job| fleet.end(job, false));
        fleet.settle();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// When what runs uses up its time limits and nobody new comes, a job starts when its estimate says.
    #[test]
    fn estimates_by_time_limits_come_true(jobs in prop::collection::vec((1..4_u32, 1..9_u32, 1..8_u64, 0..600_u64), 3..14)) {
        let hosts = ["a", "b", "c"].map(|name| Host::new(name, GpuModel::H100, 8));
        let mut fleet = Fleet::new(hosts);
        // Reservations and the starvation guard act at times of their own.
        fleet.now_ms = 1_000_000;
        for (tasks, gpus, quarters, later_s) in jobs {
            fleet.submit(limited(tasks, gpus, 900 * quarters));
            fleet.settle();
            fleet.now_ms += 1_000 * later_s;
        }
        fleet.settle();
        for job in fleet.jobs.values().filter(|job| job.phase == JobPhase::Queued).map(|job| job.id).collect::<Vec<_>>() {
            let Some(said) = with("time_limits", &estimates(&fleet, job)) else { continue };
            let bypassed = fleet.jobs.values().any(|job| job.bypassed_cards > 0 || job.reserved.is_some());
            let Some(started_ms) = until_it_starts(fleet.clone(), job) else { continue };
            if !bypassed {
                prop_assert_eq!(started_ms, said.start_ms, "job {}", job);
            }
        }
    }
}

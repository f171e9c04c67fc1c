//! Who is next, what is left alone, what is kept for whom, and what is handed over.

use super::fleet::*;
use crate::policy::guard::BYPASSED_SIZES_MAX;
use crate::policy::hand_over::HAND_OVER_AFTER_MS;
use crate::{Bounds, Proposal, plan};
use muster_model::*;

fn cards(count: u64) -> ResourceVec {
    ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(count))
}

fn of(tenant: &str, spec: JobSpec) -> JobSpec {
    JobSpec { tenant: tenant.into(), ..spec }
}

/// Submits one-card jobs for the tenants named and says in which order they start on one card, one at a time.
fn order(fleet: &mut Fleet, tenants: &[&str]) -> Vec<usize> {
    let jobs: Vec<JobId> = tenants.iter().map(|tenant| fleet.submit(of(tenant, gang(1, 1)))).collect();
    let mut started = Vec::new();
    while started.len() < jobs.len() {
        let bound = fleet.settle();
        assert!(!bound.is_empty(), "something starts");
        for job in bound {
            started.extend(jobs.iter().position(|id| *id == job));
            fleet.end(job, false);
        }
    }
    started
}

#[test]
fn inside_a_tenant_priority_then_age() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    let jobs: Vec<JobId> =
        [0, 5, 0, 5].into_iter().map(|priority| fleet.submit(JobSpec { priority, ..gang(1, 1) })).collect();
    let mut started = Vec::new();
    while let [job] = fleet.settle()[..] {
        started.push(job);
        fleet.end(job, false);
    }
    assert_eq!(started, [jobs[1], jobs[3], jobs[0], jobs[2]]);
}

#[test]
fn what_a_guarantee_covers_goes_first_and_the_emptiest_guarantee_before_others() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    fleet.tenant("org/burst", |_| {});
    fleet.tenant("org/half", |t| t.guarantee = cards(4));
    fleet.tenant("org/empty", |t| t.guarantee = cards(4));
    for _ in 0..2 {
        fleet.submit(of("org/half", gang(1, 1)));
    }
    fleet.submit(of("org/burst", gang(1, 5)));
    fleet.settle();
    assert_eq!(order(&mut fleet, &["org/burst", "org/half", "org/empty"]), [2, 1, 0]);
}

/// CPU and memory count where they are guaranteed, beside GPUs too.
#[test]
fn a_guarantee_of_cpu_counts_beside_gpus() {
    let mut fleet = Fleet::new(["a", "b", "c"].map(|name| Host::new(name, GpuModel::H100, 8)));
    let guaranteed = |cpu_milli| ResourceVec::of_host(cpu_milli, 0).plus(&cards(8));
    fleet.tenant("org", |t| t.guarantee = guaranteed(65_000).plus(&cards(16)));
    fleet.tenant("org/short", |t| t.guarantee = guaranteed(1_000));
    fleet.tenant("org/plain", |t| t.guarantee = cards(8));
    fleet.tenant("org/rich", |t| t.guarantee = guaranteed(64_000));
    let of_cpu = |tenant: &str| {
        let request = request::TaskRequest { cpu_milli: 8_000, ..gang(1, 1).request };
        of(tenant, JobSpec { request, ..gang(1, 1) })
    };
    let jobs: Vec<JobId> =
        ["org/short", "org/rich", "org/plain"].iter().map(|tenant| fleet.submit(of_cpu(tenant))).collect();
    let mut view = fleet.snapshot();
    let plan = crate::plan(&mut view, CELL, &crate::Bounds { proposals_max: 2, ..fleet.bounds }, fleet.now_ms);
    let first: Vec<JobId> = plan.proposals.iter().map(crate::Proposal::job).collect();
    // CPU counts for all, since the organisation guarantees some: neither 1 CPU nor none covers 8. The older of these two goes first.
    assert_eq!(first, [jobs[1], jobs[0]]);
}

#[test]
fn above_guarantees_weights_decide_at_each_level() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    fleet.tenant("one", |t| t.weight = 1);
    fleet.tenant("three", |t| t.weight = 3);
    for tenant in ["one", "three"] {
        for _ in 0..8 {
            fleet.submit(of(tenant, gang(1, 1)));
        }
    }
    fleet.settle();
    let held = |fleet: &Fleet, tenant| fleet.allocations.values().filter(|a| a.tenant == TenantId(tenant)).count();
    assert_eq!((held(&fleet, 2), held(&fleet, 3)), (2, 6));
}

#[test]
fn a_weight_for_one_model_divides_the_share_of_that_model_alone() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8), Host::new("t", GpuModel::T4, 8)]);
    fleet.tenant("three", |t| {
        t.weights.insert(resources::Resource::Gpu(GpuModel::H100), 3);
    });
    fleet.tenant("one", |_| {});
    for tenant in ["one", "three"] {
        for model in [GpuModel::H100, GpuModel::T4] {
            for _ in 0..8 {
                fleet.submit(of(tenant, job(1, DeviceRequest::Whole { count: 1, models: vec![model] })));
            }
        }
    }
    fleet.settle();
    let held = |tenant, model| {
        let of_it = |held: &&Allocation| held.tenant == TenantId(tenant) && held.model == Some(model);
        fleet.allocations.values().filter(of_it).count()
    };
    assert_eq!((held(2, GpuModel::H100), held(3, GpuModel::H100)), (6, 2));
    assert_eq!((held(2, GpuModel::T4), held(3, GpuModel::T4)), (4, 4));
}

#[test]
fn what_is_idle_of_one_model_is_kept_and_of_another_lent() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 4), Host::new("t", GpuModel::T4, 4)]);
    let both = cards(2).plus(&ResourceVec::of_gpu(GpuModel::T4, GpuUnits::cards(4)));
    fleet.tenant("owner", |t| {
        t.guarantee = both;
        t.lends.insert(resources::Resource::Gpu(GpuModel::H100), false);
    });
    fleet.tenant("guest", |_| {});
    let submit = |fleet: &mut Fleet, model| {
        fleet.submit(of("guest", job(1, DeviceRequest::Whole { count: 1, models: vec![model] })))
    };
    let kept: Vec<JobId> = (0..3).map(|_| submit(&mut fleet, GpuModel::H100)).collect();
    let lent: Vec<JobId> = (0..4).map(|_| submit(&mut fleet, GpuModel::T4)).collect();
    fleet.settle();
    // Two H100s are guaranteed and kept, the other two are nobody's.
    assert_eq!(kept.iter().filter(|job| fleet.runs(**job)).count(), 2);
    assert!(lent.iter().all(|job| fleet.runs(*job)));
    fleet.tenant("owner", |t| {
        t.guarantee = both;
        t.lends.clear();
    });
    fleet.settle();
    assert!(kept.iter().all(|job| fleet.runs(*job)), "it lends from now on");
}

#[test]
fn a_parents_use_counts_among_its_siblings() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    fleet.tenant("big", |_| {});
    fleet.tenant("big/x", |_| {});
    fleet.tenant("big/y", |_| {});
    fleet.tenant("small", |_| {});
    for tenant in ["big/x", "big/y", "small"] {
        for _ in 0..8 {
            fleet.submit(of(tenant, gang(1, 1)));
        }
    }
    fleet.settle();
    let held = |tenant| fleet.allocations.values().filter(|a| a.tenant == TenantId(tenant)).count();
    assert_eq!((held(3), held(4), held(5)), (2, 2, 4), "two organisations share alike, then big's two projects");
}

#[test]
fn a_gang_that_cannot_start_keeps_no_other_tenant_from_starting() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 4)]);
    fleet.tenant("other", |_| {});
    let big = fleet.submit(gang(5, 1));
    let small = fleet.submit(of("other", gang(1, 1)));
    let own = fleet.submit(gang(1, 1));
    fleet.settle();
    assert_eq!([big, small, own].map(|job| fleet.runs(job)), [false, true, true]);
}

#[test]
fn what_did_not_fit_is_left_alone_until_something_helps() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 2), Host::new("t", GpuModel::T4, 2)]);
    fleet.tenant("capped", |t| t.max.gpu.insert(GpuModel::H100, GpuUnits::cards(0)).map_or((), |_| ()));
    let running = fleet.submit(gang(1, 2));
    let on_t4 = fleet.submit(job(1, DeviceRequest::Whole { count: 1, models: vec![GpuModel::T4] }));
    fleet.settle();
    for _ in 0..1_000 {
        fleet.submit(gang(1, 2));
    }
    fleet.submit(of("capped", gang(1, 1)));
    fleet.deliver(usize::MAX);
    let decisions = |fleet: &mut Fleet| {
        fleet.deliver(usize::MAX);
        plan(&mut fleet.view, CELL, &Bounds::default(), 0).decisions
    };
    assert_eq!(decisions(&mut fleet), 2, "a thousand equal jobs are one question, the capped one another");
    assert_eq!(decisions(&mut fleet), 0, "and it is not asked again");
    fleet.end(on_t4, false);
    assert_eq!(decisions(&mut fleet), 0, "a T4 helps nobody who wants an H100");
    fleet.tenant("capped", |t| t.max.gpu.insert(GpuModel::H100, GpuUnits::cards(1)).map_or((), |_| ()));
    assert_eq!(decisions(&mut fleet), 1, "more quota: the capped one is tried again, and only it");
    fleet.end(running, false);
    assert!(decisions(&mut fleet) >= 2, "room: the others are");
}

#[test]
fn a_refused_proposal_is_undone_and_its_job_rests() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    let job = fleet.submit(gang(1, 1));
    fleet.deliver(usize::MAX);
    assert_eq!(fleet.pass().len(), 1);
    assert_eq!((fleet.view.pending(), fleet.pass().len()), (1, 0), "proposed once, and charged meanwhile");
    fleet.view.refused(job, fleet.now_ms);
    assert_eq!((fleet.view.pending(), fleet.pass().len()), (0, 0));
    fleet.now_ms = fleet.view.next_wake_ms().expect("it rests");
    assert_eq!(fleet.pass().len(), 1, "planned again after the rest");
}

#[test]
fn a_pass_is_bounded_and_the_next_goes_on() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    for _ in 0..8 {
        fleet.submit(gang(1, 1));
    }
    fleet.deliver(usize::MAX);
    let few = Bounds { proposals_max: 3, ..Bounds::default() };
    let mut found = Vec::new();
    loop {
        let pass = plan(&mut fleet.view, CELL, &few, 0);
        found.push(pass.proposals.len());
        if !pass.more {
            break;
        }
    }
    assert_eq!(found, [3, 3, 2]);
}

/// A stream of one-card jobs flows past a gang of eight, but not for ever.
#[test]
fn a_gang_that_was_passed_over_too_often_starts_at_last() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    fleet.tenant("stream", |_| {});
    let mut running: Vec<JobId> = (0..8).map(|_| fleet.submit(of("stream", gang(1, 1)))).collect();
    fleet.settle();
    let big = fleet.submit(gang(8, 1));
    fleet.settle();
    let mut passed = 0;
    while !fleet.runs(big) {
        // One ends, the next takes its place: eight are never free together unless they are kept free.
        if let Some(job) = running.pop() {
            fleet.end(job, false);
        }
        let next = fleet.submit(of("stream", gang(1, 1)));
        fleet.settle();
        if fleet.runs(next) {
            passed += 1;
            running.insert(0, next);
        }
        assert!(passed <= BYPASSED_SIZES_MAX * 8, "it starves");
    }
    assert!(passed >= BYPASSED_SIZES_MAX * 8 - 1, "but short jobs flowed past for a while: {passed}");
    fleet.end(big, false);
    assert!(!fleet.settle().is_empty(), "and go on when it is through");
}

/// Cards were held back for a gang; in the pass in which it starts, what was held back starts too and is not offered to another cell.
#[test]
fn what_was_held_back_for_a_gang_starts_in_the_same_pass_as_the_gang() {
    let mut fleet = Fleet::new(["a", "b"].map(|name| Host::new(name, GpuModel::H100, 8)));
    fleet.cell(CellId(2), Some("s2"));
    let [running, _] = [8, 6].map(|cards| {
        let job = fleet.submit(gang(1, cards));
        fleet.settle();
        job
    });
    let bypassed = fleet.submit(gang(1, 8));
    fleet.put_job(Job { bypassed_cards: 1_000, ..fleet.jobs[&bypassed].clone() });
    let small = fleet.submit(of("org", gang(1, 1)));
    fleet.settle();
    assert!(!fleet.runs(bypassed) && !fleet.runs(small));
    fleet.end(running, false);
    fleet.now_ms += 60_000;
    fleet.deliver(usize::MAX);
    let started = fleet.pass().into_iter().map(|proposal| match proposal {
        Proposal::Bind(binding) => binding.job,
        other => panic!("{other:?}"),
    });
    assert_eq!(started.collect::<Vec<_>>(), [bypassed, small]);
}

/// A node of eight one-card jobs of another tenant, and a gang of eight that waits; with how many single cards passed it so far.
fn one_by_one() -> (Fleet, JobId, Vec<JobId>) {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    fleet.tenant("stream", |_| {});
    let running: Vec<JobId> = (0..8).map(|_| fleet.submit(of("stream", gang(1, 1)))).collect();
    fleet.settle();
    let gang = fleet.submit(gang(8, 1));
    fleet.settle();
    (fleet, gang, running)
}

/// One running job ends and another comes; answers whether that one started past the gang.
fn next_of_stream(fleet: &mut Fleet, running: &mut Vec<JobId>) -> bool {
    if let Some(job) = running.pop() {
        fleet.end(job, false);
    }
    let next = fleet.submit(of("stream", gang(1, 1)));
    fleet.now_ms += 1_000;
    fleet.settle();
    if fleet.runs(next) {
        running.insert(0, next);
    }
    fleet.runs(next)
}

/// The count is part of the job: a shard that takes over, or a fresh snapshot, goes on from it and does not begin anew.
#[test]
fn the_starvation_guard_survives_fail_overs_and_snapshots() {
    let (mut fleet, gang, mut running) = one_by_one();
    let mut passed = 0;
    // A new shard after every twenty cards, so often that a count which it began anew would never be enough.
    for step in 1.. {
        passed += u64::from(next_of_stream(&mut fleet, &mut running));
        if fleet.runs(gang) {
            break;
        }
        if step % 20 == 0 {
            fleet.deliver(usize::MAX);
            fleet.view = fleet.snapshot();
        }
        assert!(passed <= 3 * 8 * BYPASSED_SIZES_MAX, "it starves");
    }
    let lost_at_most = passed.div_ceil(20) * (8 + 10);
    assert!(passed <= 8 * BYPASSED_SIZES_MAX + lost_at_most, "{passed} passed it");
}

/// Once a gang is protected, whoever plans next protects it from the first pass on, and an explanation that never planned knows it.
#[test]
fn a_fresh_view_protects_whom_the_last_one_did() {
    let (mut fleet, gang, mut running) = one_by_one();
    while next_of_stream(&mut fleet, &mut running) {}
    assert!(!fleet.runs(gang));
    fleet.deliver(usize::MAX);
    let enough = 8 * BYPASSED_SIZES_MAX;
    assert_eq!(fleet.jobs[&gang].bypassed_cards, enough);
    let waits = *fleet.jobs.keys().next_back().expect("the last of the stream");
    fleet.view = fleet.snapshot();
    fleet.settle();
    assert!(!fleet.runs(waits), "a fresh view holds cards back from its first pass on");
    let mut replaced = fleet.snapshot();
    replaced.replace(fleet.snapshot());
    assert_eq!(plan(&mut replaced, CELL, &Bounds::default(), fleet.now_ms).proposals, []);
}

/// One that could never start keeps nothing.
#[test]
fn a_gang_that_no_emptying_would_help_keeps_nothing() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    fleet.tenant("stream", |_| {});
    fleet.submit(gang(9, 1));
    for _ in 0..40 * BYPASSED_SIZES_MAX {
        let job = fleet.submit(of("stream", gang(1, 1)));
        fleet.settle();
        assert!(fleet.runs(job));
        fleet.end(job, false);
    }
}

#[test]
fn a_job_without_room_is_offered_to_other_cells_once() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 1)]);
    let job = fleet.submit(gang(1, 2));
    fleet.settle();
    fleet.now_ms = HAND_OVER_AFTER_MS;
    assert_eq!(fleet.pass(), [], "there is no other cell");
    fleet.cell(CellId(2), None);
    fleet.now_ms = HAND_OVER_AFTER_MS - 1;
    assert_eq!(fleet.pass(), [], "it waits a little first");
    fleet.now_ms = HAND_OVER_AFTER_MS;
    assert_eq!(fleet.pass(), [Proposal::HandOver(job)]);
    assert_eq!(fleet.pass(), [], "the answer is awaited");
    let until_ms = fleet.now_ms + 30_000;
    fleet.view.not_offered_before(job, until_ms);
    fleet.now_ms = until_ms - 1;
    assert_eq!(fleet.pass(), []);
    fleet.now_ms = until_ms;
    assert_eq!(fleet.pass(), [Proposal::HandOver(job)]);
}

/// The example of Bhattacharya and others (2013) of how a naive hierarchical DRF starves a tenant with a complementary demand: organisation `cpu`
/// wants CPUs alone; `mixed` has a project that wants CPUs and one that wants GPUs. The more GPUs the latter gets, which nobody else wants, the
/// larger is the dominant share of `mixed`, and the naive order gives each CPU that gets free to `cpu`.
#[test]
fn a_project_is_not_starved_of_cpus_by_its_siblings_gpus() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    for tenant in ["cpu", "mixed", "mixed/cpu", "mixed/gpu"] {
        fleet.tenant(tenant, |_| {});
    }
    // Eight tasks of an eighth of the node's CPUs, and GPUs that need none.
    let cpus = fleet.nodes.values().next().expect("a node").spec.cpu_milli;
    let cpu = |tenant: &str| {
        let mut spec = of(tenant, job(1, DeviceRequest::None));
        (spec.request.cpu_milli, spec.request.memory_mib) = (cpus / 8, 0);
        spec
    };
    let gpu = || {
        let mut spec = of("mixed/gpu", gang(1, 1));
        (spec.request.cpu_milli, spec.request.memory_mib) = (0, 0);
        spec
    };
    for _ in 0..40 {
        fleet.submit(cpu("cpu"));
        fleet.submit(cpu("mixed/cpu"));
    }
    for _ in 0..8 {
        fleet.submit(gpu());
    }
    let mut started = fleet.settle();
    let held = |fleet: &Fleet, tenant: &str| {
        let id = fleet.tenants[tenant].id;
        fleet.allocations.values().filter(|held| held.tenant == id).count()
    };
    assert_eq!(held(&fleet, "mixed/gpu"), 8, "every GPU is in use");
    // CPU tasks end one after the other; whoever is next gets the place.
    let mut of_mixed = 0;
    for _ in 0..40 {
        let by_age: Vec<JobId> = started.iter().copied().filter(|job| fleet.runs(*job)).collect();
        let ends = by_age.into_iter().find(|job| fleet.allocation_of(*job).is_some_and(|held| held.model.is_none()));
        fleet.end(ends.expect("a task of CPUs runs"), false);
        let bound = fleet.settle();
        let mixed = fleet.tenants["mixed/cpu"].id;
        of_mixed += bound.iter().filter(|job| fleet.jobs[*job].tenant == mixed).count();
        started.extend(bound);
    }
    assert!((18..=22).contains(&of_mixed), "half of the CPUs that get free are its own, it got {of_mixed} of 40");
    assert_eq!((held(&fleet, "cpu"), held(&fleet, "mixed/cpu")), (4, 4));
}

#[test]
fn jobs_for_any_model_count_the_use_of_all_models_that_the_fleet_has() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8), Host::new("b", GpuModel::A100_80, 8)]);
    fleet.tenant("org/heavy", |_| {});
    fleet.tenant("org/light", |_| {});
    let on = |model, cards| job(1, DeviceRequest::Whole { count: cards, models: vec![model] });
    // Heavy has all cards of one model, light half of the other; the other half is of a job that ends.
    fleet.submit(of("org/heavy", on(GpuModel::H100, 8)));
    fleet.submit(of("org/light", on(GpuModel::A100_80, 4)));
    let ends = fleet.submit(of("org/heavy", on(GpuModel::A100_80, 4)));
    fleet.settle();
    let any = || job(1, DeviceRequest::Whole { count: 4, models: Vec::new() });
    let older = fleet.submit(of("org/heavy", any()));
    let younger = fleet.submit(of("org/light", any()));
    assert_eq!(fleet.settle(), []);
    fleet.end(ends, false);
    assert_eq!(fleet.settle(), [younger], "job {older} is the older one, but its tenant uses twice as much");
}

/// A job that stands in the tournament for what was offered may leave before its turn comes: the pass after must end, and bind nobody who is gone.
#[test]
fn a_job_that_leaves_while_it_is_offered_room_is_tried_no_more() {
    let mut fleet = Fleet::new([Host::new("a", GpuModel::H100, 8)]);
    fleet.tenant("org/one", |_| {});
    fleet.tenant("org/two", |_| {});
    let runs = fleet.submit(of("org/one", gang(1, 8)));
    fleet.settle();
    let first = fleet.submit(of("org/one", gang(1, 4)));
    let second = fleet.submit(of("org/two", gang(1, 4)));
    assert_eq!(fleet.settle(), []);
    fleet.end(runs, false);
    fleet.deliver(usize::MAX);
    let one = Bounds { proposals_max: 1, ..Bounds::default() };
    let found = plan(&mut fleet.view, CELL, &one, fleet.now_ms).proposals;
    let bound: Vec<JobId> = found.iter().map(Proposal::job).collect();
    let other = if bound == [first] { second } else { first };
    fleet.cancel(other);
    fleet.deliver(usize::MAX);
    let found = plan(&mut fleet.view, CELL, &Bounds::default(), fleet.now_ms).proposals;
    assert!(found.iter().all(|proposal| proposal.job() != other), "{found:?}");
}

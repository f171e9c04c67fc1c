//! Explanations over random states: the gate that is named is closed, and a change that is told starts the job.

use super::fleet::*;
use crate::explain;
use crate::explain::{Change as Remedial, Explanation, Reason, Remedy, Why};
use crate::policy::guard::BYPASSED_SIZES_MAX;
use muster_model::*;
use proptest::prelude::*;
use proptest::sample::Index as Pick;
use std::collections::BTreeSet;

const SECOND: CellId = CellId(2);

/// What happens before somebody asks.
#[derive(Clone, Debug)]
enum Event {
    Submit(usize, usize, Option<u64>),
    End(Pick),
    Drain(Pick, bool),
    Health(Pick, NodeHealth),
    Withhold(Pick, Pick),
    /// A tenant's max of H100, or of CPUs.
    Max(usize, bool, Option<u64>),
    /// So much has started past a waiting gang.
    Bypassed(Pick, u64),
    Apart(Option<AntiAffinityLevel>),
    Later(u64),
    Snapshot,
}

fn event() -> impl Strategy<Value = Event> {
    event_of((0..KINDS).collect(), TENANTS.len())
}

/// Events among which the same few kinds of jobs come again and again, of few tenants: many wait behind others of their own kind.
fn few_kinds() -> impl Strategy<Value = Vec<Event>> {
    let kinds = prop::collection::vec(0..KINDS, 2..5);
    (kinds, 1..3_usize).prop_flat_map(|(kinds, tenants)| prop::collection::vec(event_of(kinds, tenants), 5..50))
}

/// Of these kinds of jobs, by the first so many tenants.
fn event_of(kinds: Vec<usize>, tenants: usize) -> impl Strategy<Value = Event> {
    let submit = (prop::sample::select(kinds), 0..tenants);
    let limit = prop::option::weighted(0.8, prop::sample::select(vec![60, 600, 3_600, 7_200]));
    let healths = vec![NodeHealth::Ready, NodeHealth::Ready, NodeHealth::Silent, NodeHealth::Down];
    let levels =
        vec![None, Some(AntiAffinityLevel::Card), Some(AntiAffinityLevel::Node), Some(AntiAffinityLevel::Node)];
    prop_oneof![
        14 => (submit, limit).prop_map(|((kind, tenant), limit)| Event::Submit(kind, tenant, limit)),
        3 => any::<Pick>().prop_map(Event::End),
        2 => (any::<Pick>(), any::<bool>()).prop_map(|(node, drained)| Event::Drain(node, drained)),
        2 => (any::<Pick>(), prop::sample::select(healths)).prop_map(|(node, health)| Event::Health(node, health)),
        1 => (any::<Pick>(), any::<Pick>()).prop_map(|(node, gpu)| Event::Withhold(node, gpu)),
        1 => (0..4_usize, any::<bool>(), prop::option::of(0..14_u64)).prop_map(|(t, gpus, max)| Event::Max(t, gpus, max)),
        1 => (any::<Pick>(), 0..20_u64).prop_map(|(gang, sizes)| Event::Bypassed(gang, sizes)),
        2 => prop::sample::select(levels).prop_map(Event::Apart),
        1 => (1..3_600_u64).prop_map(Event::Later),
        1 => Just(Event::Snapshot),
    ]
}

const TENANTS: [&str; 4] = ["org/a", "org/b", "other", "guest"];

/// Kinds of jobs that [`spec`] knows.
const KINDS: usize = 21;

fn spec(kind: usize, tenant: usize, time_limit_s: Option<u64>) -> JobSpec {
    let any = |count| DeviceRequest::Whole { count, models: Vec::new() };
    let mut spec = match kind {
        0 | 1 => gang(1, 1),
        2 => gang(1, 4),
        3 => gang(3, 4),
        4 => gang(5, 2),
        5 => gang(4, 2),
        6 => mig("3g.40gb"),
        7 => mps(40, 20_000),
        8 => slice(30_000),
        9 => job(2, DeviceRequest::None),
        10 => gang(6, 1),
        11 => job(1, any(2)),
        12 => gang(3, 1),
        13 => gang(2, 2),
        14 => gang(1, 2),
        15 => gang(1, 3),
        16 => gang(9, 1),
        17 => gang(1, 1),
        18 => gang(2, 1),
        19 => job(3, DeviceRequest::Mps { percent: 30, memory_mib: 9_000, models: vec![GpuModel::H100] }),
        _ => gang(7, 4),
    };
    spec.tenant = TENANTS[tenant].into();
    spec.time_limit_s = time_limit_s;
    // What comes later may go before what has a reservation, or is protected, among its own kind.
    spec.priority = i32::from(time_limit_s == Some(3_600));
    spec.grace_s = 0;
    match kind {
        4 => spec.topology.required = Some(TopologyLevel::Leaf),
        5 => spec.topology.required = Some(TopologyLevel::Block),
        9 => spec.request.cpu_milli = 15_000,
        10 => spec.topology.segment_tasks = Some(2),
        12 => spec.topology.spread = Some(Spread { level: TopologyLevel::Node, tasks_max: 1, required: true }),
        13 => spec.topology.required = Some(TopologyLevel::Island),
        14 => spec.numa = NumaPolicy::SingleNumaNode,
        0 | 1 | 15 => spec.request.cpu_milli = 20_000,
        16 => spec.pool = Some("gold".into()),
        17 => spec.driver_min = Some(DriverVersion::major(570)),
        18 => spec.class = WorkloadClass::Inference,
        _ => {}
    }
    spec
}

/// Two cells: five nodes of four H100 in two islands, two of them in a pool of their own, and a node of A100; then two nodes of H100.
fn world() -> Fleet {
    let host = |name, block, leaf| Host { per_island: 2, ..Host::new(name, GpuModel::H100, 4).at(block, leaf) };
    let mut fleet = Fleet::new([
        host("a", "b1", "l1"),
        host("b", "b1", "l1"),
        host("c", "b1", "l2"),
        host("d", "b2", "l3"),
        host("e", "b2", "l3"),
        Host { model: GpuModel::A100_80, ..host("f", "b2", "l4") },
        host("g", "b3", "l5"),
        host("h", "b3", "l5"),
    ]);
    fleet.cell(SECOND, Some("s2"));
    let modes = [request::SharingMode::Whole].into();
    fleet.put_pool(Pool { name: "gold".into(), modes, ..Pool::standard() });
    let nodes: Vec<Node> = fleet.nodes.values().cloned().collect();
    for mut node in nodes {
        match node.spec.name.as_str() {
            "d" | "e" => node.spec.pool = "gold".into(),
            "g" | "h" => (node.cell, node.spec.cell) = (SECOND, "cell-2".into()),
            "c" => node.spec.driver = "575".into(),
            _ => {}
        }
        node.spec.gpus.iter_mut().enumerate().for_each(|(at, gpu)| gpu.numa = (at % 2) as u8);
        node.spec.cpu_milli = 32_000;
        fleet.put_node(node);
    }
    for tenant in TENANTS {
        fleet.tenant(tenant, |tenant| {
            if tenant.path == "guest" {
                tenant.trust = Trust::Untrusted;
            }
        });
    }
    fleet.deliver(usize::MAX);
    fleet.now_ms = 1_000_000;
    fleet
}

fn limits(gpus: bool, max: Option<u64>) -> Limits {
    match (gpus, max) {
        (_, None) => Limits::default(),
        (true, Some(cards)) => Limits { gpu: [(GpuModel::H100, GpuUnits::cards(cards))].into(), ..Limits::default() },
        (false, Some(cores)) => Limits { cpu_milli: Some(10_000 * cores), ..Limits::default() },
    }
}

fn happen(fleet: &mut Fleet, event: Event) {
    let pick = |pick: Pick, nodes: Vec<Node>| pick.get(&nodes).clone();
    let nodes: Vec<Node> = fleet.nodes.values().cloned().collect();
    match event {
        Event::Submit(kind, tenant, limit) => {
            fleet.submit(spec(kind, tenant, limit));
        }
        Event::End(pick) => {
            let running: Vec<JobId> = fleet.allocations.values().map(|held| held.job).collect();
            if !running.is_empty() {
                fleet.end(*pick.get(&running), false);
            }
        }
        Event::Drain(at, drained) => fleet.put_node(Node { drained, ..pick(at, nodes) }),
        Event::Health(at, health) => fleet.put_node(Node { health, ..pick(at, nodes) }),
        Event::Withhold(at, gpu) => {
            let mut node = pick(at, nodes);
            let card = gpu.index(node.spec.gpus.len());
            let withheld = &mut node.spec.gpus[card].withheld;
            *withheld = if withheld.is_none() { Some("fault".into()) } else { None };
            fleet.put_node(node);
        }
        Event::Max(tenant, gpus, max) => {
            let old = fleet.tenants[TENANTS[tenant]].clone();
            fleet.tenant(TENANTS[tenant], |now| *now = Tenant { max: limits(gpus, max), ..old.clone() });
        }
        Event::Bypassed(pick, sizes) => {
            let waits = |job: &&Job| job.phase == JobPhase::Queued;
            let gangs: Vec<Job> = fleet.jobs.values().filter(waits).cloned().collect();
            if !gangs.is_empty() {
                let job = pick.get(&gangs).clone();
                let cards = u64::from(job.spec.tasks) * u64::from(job.spec.request.devices.cards());
                fleet.put_job(Job { bypassed_cards: sizes * cards, ..job });
            }
        }
        Event::Apart(level) => {
            let old = fleet.tenants["org/a"].clone();
            let rules = level.map(|level| AntiAffinity { tenant: "other".into(), level });
            let rules: Vec<AntiAffinity> = rules.into_iter().collect();
            fleet.tenant("org/a", |now| *now = Tenant { anti_affinity: rules.clone(), ..old.clone() });
        }
        Event::Later(seconds) => fleet.now_ms += 1_000 * seconds,
        Event::Snapshot => {
            fleet.deliver(usize::MAX);
            fleet.view = fleet.snapshot();
        }
    }
}

/// A state in which nothing is left to start.
fn settled(events: Vec<Event>) -> Fleet {
    let mut fleet = world();
    // With the production's part a cell of six nodes keeps some for one gang alone.
    fleet.bounds.reserved_part = if events.len().is_multiple_of(2) { 1 } else { crate::RESERVED_PART };
    for event in events {
        happen(&mut fleet, event);
        fleet.settle_all(CELL);
    }
    rest(&mut fleet);
    fleet
}

/// Rests end, and gangs get reservations.
fn rest(fleet: &mut Fleet) {
    for _ in 0..3 {
        fleet.now_ms += 120_000;
        fleet.settle_all(CELL);
    }
}

fn free_cards(fleet: &Fleet, job: &Job, model: GpuModel) -> u64 {
    let held: BTreeSet<(NodeId, u16)> = fleet
        .allocations
        .values()
        .flat_map(|held| held.tasks.iter().flat_map(|task| task.devices.iter().map(move |hold| (task.node, hold.gpu))))
        .collect();
    let open = fleet.nodes.values().filter(|node| Some(node.cell) == job.cell && node.accepts_work());
    let pool = |node: &Node| job.spec.pool.as_ref().is_none_or(|pool| *pool == node.spec.pool);
    let driver = |node: &Node| job.spec.eligibility().has_driver_on(node);
    let cards = open.filter(|node| pool(node) && driver(node)).flat_map(|node| {
        let usable =
            (0_u16..).zip(&node.spec.gpus).filter(move |(_, gpu)| gpu.model == model && gpu.withheld.is_none());
        usable.map(|(at, _)| (node.id, at))
    });
    cards.filter(|card| !held.contains(card)).count() as u64
}

/// Whether what the reason says is so, told from the committed state by hand.
fn is_true(fleet: &Fleet, job: &Job, reason: &Reason) -> Result<(), String> {
    let claim = |holds: bool, what: &str| if holds { Ok(()) } else { Err(format!("{what}: {}", reason.text())) };
    match &reason.why {
        Why::JustQueued { .. } => claim(false, "it was settled"),
        Why::OverMax { tenant, resource, used, asked, max } => {
            let under = |held: &&Allocation| {
                let path = fleet.tenants.values().find(|at| at.id == held.tenant).map_or("", |at| at.path.as_str());
                tenant::lies_under(path, tenant)
            };
            let in_use: u64 = fleet.allocations.values().filter(under).map(|held| held.charge.get(*resource)).sum();
            let bound = fleet.tenants[tenant].max.get(*resource);
            claim(in_use == *used && bound == Some(*max) && used + asked > *max, "a max is passed")
        }
        Why::Untrusted => claim(job.spec.tenant == "guest", "it is untrusted"),
        Why::StarvationGuard { gang, cards, .. } => {
            let other = &fleet.jobs[gang];
            let size = u64::from(other.spec.tasks) * u64::from(other.spec.request.devices.cards());
            let own = u64::from(job.spec.tasks) * u64::from(job.spec.request.devices.cards());
            let protected = other.bypassed_cards >= BYPASSED_SIZES_MAX * size && other.phase == JobPhase::Queued;
            claim(protected && size == *cards && size > own && gang != &job.id, "a gang is protected")
        }
        Why::ReservedForGang(kept) => {
            claim(fleet.jobs[&kept.job].reserved.is_some() && kept.job != job.id, "nodes are reserved for another")
        }
        Why::NodesClosed { closed, .. } => {
            let shut = |name: &str| fleet.nodes.values().any(|node| node.spec.name == *name && !node.accepts_work());
            claim(!closed.is_empty() && closed.iter().all(|node| shut(&node.name)), "nodes take no work")
        }
        Why::NoFreeGpus { model: Some(model), free, reserved, needed, .. } => {
            let whole = free_cards(fleet, job, *model) == *free;
            claim(whole && free - reserved < *needed, "too few are free")
        }
        Why::NodesTooFull { model: Some(model), free, slots, tasks, .. } => {
            claim(free_cards(fleet, job, *model) == *free && slots < tasks, "too few lie together")
        }
        Why::Reserved(_) => claim(job.reserved.is_some(), "it has a reservation"),
        Why::NoPool { refusals, .. } => claim(!refusals.is_empty(), "pools refuse it"),
        Why::AntiAffinityConflict(kept) => claim(
            !fleet.tenants["org/a"].anti_affinity.is_empty() && kept.tenant != kept.other,
            "tenants are kept apart",
        ),
        _ => Ok(()),
    }
}

/// The request after a change, as its tenant would submit it.
fn edited(mut spec: JobSpec, change: &Remedial) -> JobSpec {
    let model = |devices: &mut DeviceRequest, model| match devices {
        DeviceRequest::None => {}
        DeviceRequest::Whole { models, .. }
        | DeviceRequest::Mig { models, .. }
        | DeviceRequest::Mps { models, .. }
        | DeviceRequest::TimeSlice { models, .. } => models.push(model),
    };
    match change {
        Remedial::Topology { to, .. } => spec.topology.required = *to,
        Remedial::AnyPool(_) => spec.pool = None,
        Remedial::AnyDriver => spec.driver_min = None,
        Remedial::AnyCard => spec.asked.selector = None,
        Remedial::Model(more) => model(&mut spec.request.devices, *more),
        Remedial::Tasks { to, .. } => spec.tasks = *to,
        Remedial::Numa(policy) => spec.numa = *policy,
        Remedial::TasksMax { tasks, .. } => {
            spec.topology.spread = spec.topology.spread.map(|spread| Spread { tasks_max: *tasks, ..spread });
        }
        Remedial::TimeLimit(seconds) => spec.time_limit_s = Some(*seconds),
        Remedial::Cpu(milli) => spec.request.cpu_milli = *milli,
        Remedial::Memory(mib) => spec.request.memory_mib = *mib,
        Remedial::Priority(priority) => spec.priority = *priority,
        Remedial::RaiseMax { .. }
        | Remedial::RaiseGuarantee { .. }
        | Remedial::Lend { .. }
        | Remedial::Trust { .. }
        | Remedial::Open(_)
        | Remedial::End(_) => {}
    }
    spec
}

/// Does in the committed state what the remedy says.
fn apply(fleet: &mut Fleet, id: JobId, remedy: &Remedy) {
    for change in &remedy.0 {
        match change {
            Remedial::RaiseMax { path, resource, to, .. } => {
                let mut tenant = fleet.tenants[path].clone();
                tenant.max.set(*resource, *to);
                fleet.tenant(path, |now| *now = tenant.clone());
            }
            Remedial::RaiseGuarantee { path, resource, to, .. } => {
                let mut tenant = fleet.tenants[path].clone();
                tenant.guarantee.set(*resource, *to);
                fleet.tenant(path, |now| *now = tenant.clone());
            }
            Remedial::Lend { path, resource, .. } => {
                let mut tenant = fleet.tenants[path].clone();
                tenant.lends.insert(*resource, true);
                fleet.tenant(path, |now| *now = tenant.clone());
            }
            Remedial::Trust { path, .. } => {
                let tenant = Tenant { trust: Trust::Trusted, ..fleet.tenants[path].clone() };
                fleet.tenant(path, |now| *now = tenant.clone());
            }
            Remedial::Open(nodes) => {
                for node in nodes {
                    let node = fleet.nodes[&node.node].clone();
                    fleet.put_node(Node { drained: false, health: NodeHealth::Ready, ..node });
                }
            }
            Remedial::End(jobs) => {
                for job in jobs {
                    fleet.end(*job, false);
                    fleet.cancel(*job);
                }
            }
            edit => {
                let job = fleet.jobs[&id].clone();
                let spec = edited((*job.spec).clone(), edit).validate();
                let spec = spec.unwrap_or_else(|errors| panic!("{edit:?} is not a request: {errors:?}"));
                fleet.put_job(Job { spec, ..job });
            }
        }
    }
}

fn explained(fleet: &Fleet, job: JobId) -> Explanation {
    let said = explain(&fleet.view, job, fleet.now_ms).expect("it is live");
    super::limited::check_names_no_other(fleet, job, &said);
    said
}

fn check(fleet: &Fleet) -> Result<(), TestCaseError> {
    for job in fleet.jobs.values().filter(|job| job.phase == JobPhase::Queued) {
        let said = explained(fleet, job.id);
        prop_assert!(!said.reasons.is_empty(), "job {} has no reason", job.id);
        for reason in &said.reasons {
            is_true(fleet, job, reason).map_err(|why| TestCaseError::fail(format!("job {}: {why}", job.id)))?;
            // What may take preemption is tried where the real control plane decides it: in the simulator's random histories.
            let preempting = |remedy: &&Remedy| matches!(remedy.kind(), "raise_guarantee" | "priority");
            for remedy in reason.remedies.iter().filter(|remedy| !preempting(remedy)) {
                let mut then = fleet.clone();
                apply(&mut then, job.id, remedy);
                let ran: BTreeSet<JobId> = then.allocations.values().map(|held| held.job).collect();
                then.settle_all(job.cell.expect("routed"));
                let started = then.allocations.values().map(|held| held.job).filter(|id| !ran.contains(id));
                prop_assert!(
                    then.runs(job.id),
                    "job {} ({:?}) does not start after {:?} ({}), told for {}: {}; instead start: {:?}",
                    job.id,
                    job.spec.request.devices,
                    remedy,
                    remedy.text(),
                    reason.code(),
                    reason.text(),
                    started.collect::<Vec<_>>()
                );
            }
        }
    }
    Ok(())
}

/// Random histories found it: two cards of one NUMA node lay on two islands, and the search looked for them on one. The job waited on an empty
/// cell until others had started and left it no island to look at; of that start nobody is woken.
#[test]
fn a_job_on_one_numa_node_starts_at_once_where_numa_nodes_and_islands_cross() {
    let mut fleet = world();
    let job = fleet.submit(spec(14, 0, None));
    fleet.settle_all(CELL);
    assert!(fleet.runs(job), "{}", explained(&fleet, job).reasons[0].text());

    // A kind that tenant `org/a` submits without a limit; none: what has run longest ends.
    let mut fleet = world();
    for kind in [Some(2), Some(14), Some(4), None, Some(18), Some(0), None, Some(7)] {
        match kind {
            Some(kind) => {
                fleet.submit(spec(kind, 0, None));
            }
            None => {
                let first = fleet.allocations.values().next().expect("something runs").job;
                fleet.end(first, false);
            }
        }
        fleet.settle_all(CELL);
    }
    rest(&mut fleet);
    check(&fleet).expect("nothing waits that could start");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For every job that waits, in any state: the gate that is named is closed, and each change that is told starts the job.
    #[test]
    fn explanations_name_a_closed_gate_and_changes_that_start_the_job(events in prop::collection::vec(event(), 1..40)) {
        check(&settled(events))?;
    }

    /// The same where few kinds of jobs meet.
    #[test]
    fn explanations_hold_where_many_wait_behind_their_own_kind(events in few_kinds()) {
        check(&settled(events))?;
    }

    /// A view that never planned gives the same reasons as the shard's own.
    #[test]
    fn a_fresh_view_explains_as_the_shard_does(events in prop::collection::vec(event(), 1..30)) {
        let mut fleet = settled(events);
        fleet.deliver(usize::MAX);
        let fresh = fleet.snapshot();
        for job in fleet.jobs.values().filter(|job| job.phase == JobPhase::Queued) {
            let codes = |view: &crate::View| -> Vec<&'static str> {
                explain(view, job.id, fleet.now_ms).expect("live").reasons.iter().map(Reason::code).collect()
            };
            prop_assert_eq!(codes(&fleet.view), codes(&fresh), "job {}", job.id);
        }
    }
}

/// The tests above see every kind of reason and of remedy in so many histories; one that is never seen would be tested by nobody.
#[test]
fn the_random_states_reach_the_gates_and_the_remedies() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let histories = prop_oneof![prop::collection::vec(event(), 20..40), few_kinds()];
    let (mut codes, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..320 {
        let fleet = settled(histories.new_tree(&mut runner).expect("a history").current());
        for job in fleet.jobs.values().filter(|job| job.phase == JobPhase::Queued) {
            for reason in explained(&fleet, job.id).reasons {
                codes.insert(reason.code());
                kinds.extend(reason.remedies.iter().map(Remedy::kind));
            }
        }
    }
    let expected = [
        "driver_too_old",
        "host_too_full",
        "anti_affinity",
        "reserved_for_gang",
        "larger_than_cell",
        "no_free_gpus",
        "no_free_share",
        "nodes_closed",
        "nodes_too_full",
        "over_max",
        "reserved",
        "starvation_guard",
        "topology",
        "untrusted",
    ];
    let missing: Vec<&str> = expected.into_iter().filter(|code| !codes.contains(code)).collect();
    assert_eq!(missing, Vec::<&str>::new(), "reached: {codes:?}");
    let expected = ["end_jobs", "model", "open_nodes", "raise_max", "tasks", "time_limit", "topology"];
    let missing: Vec<&str> = expected.into_iter().filter(|kind| !kinds.contains(kind)).collect();
    assert_eq!(missing, Vec::<&str>::new(), "reached: {kinds:?}");
}

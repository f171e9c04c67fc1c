//! What goes out and comes back is the same, and what cannot be converted names its field.

use muster_model::array::SameIndex;
use muster_model::attempt::{AttemptRecord, EndCount, NodeRun, PreemptedBy};
use muster_model::elastic::GrowthEnd;
use muster_model::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, Rank, TenantId};
use muster_model::mig::{MigPlacement, MigShape, PinnedLayout};
use muster_model::movable::Movable;
use muster_model::needs::{Choice, Isolation, Needs, Rule};
use muster_model::node::{
    ClearedGpu, NodeNotes, NodeSpec, Quarantine, Repair, Rival, Verdicts, Withheld, WithheldSlice,
};
use muster_model::node_links::{Nic, NodeLinks};
use muster_model::ports::PORT_BLOCKS;
use muster_model::request::{SharingMode, TaskRequest};
use muster_model::resources::Resource;
use muster_model::sharing::TimeSlice;
use muster_model::task::{CleanUp, RankFailure, TaskEnd};
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::{AmountsEdit, AntiAffinityEdit, Edit, LendsEdit, TenantEdit, WeightsEdit};
use muster_model::usage::{UsageInterval, UseKind};
use muster_model::{
    Allocation, AllocationState, AntiAffinity, AntiAffinityLevel, ArraySpec, ArrayState, ArrayTask, Asked, BurstTier,
    Cell, Change, Claim, ClassRecord, ClassSegment, ClassSum, Dependency, DependencyKind, DeviceHold, DeviceRequest,
    Elastic, EndCause, FieldError, Gpu, GpuModel, GpuUnits, Growth, HeldTask, HoldMode, Holder, IndexSet,
    IsolationLevel, Job, JobPhase, JobSpec, Key, LimitSignal, Limits, Mount, MountRule, MoveFate, MoveRecord, MovedJob,
    NetworkPolicy, Node, NodeHealth, NumaPolicy, Object, Outcome, Place, Pool, PortBlock, Ports, PreemptReason,
    Preemption, Preemptor, Proof, Protection, QuotaClass, RequiredTopology, Reservation, ResourceVec, Restored, Spread,
    StartConditions, StopSignal, TaskPlacement, TaskState, Tenant, Topology, TopologyLevel, Trust, Unmet, UseHistory,
    WindowKind, WorkloadClass,
};
use muster_proto::convert::{
    change_from_control_plane, change_to_wire, clean_up_from_wire, clean_up_to_wire, report_from_wire, report_to_wire,
};
use muster_proto::{status, v1};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

fn models() -> impl Strategy<Value = Vec<GpuModel>> {
    subsequence(GpuModel::ALL.to_vec(), 0..3).prop_shuffle()
}

fn devices() -> impl Strategy<Value = DeviceRequest> {
    prop_oneof![
        Just(DeviceRequest::None),
        (1..9_u32, models()).prop_map(|(count, models)| DeviceRequest::Whole { count, models }),
        select(vec!["1g.10gb", "3g.40gb"])
            .prop_map(|profile| DeviceRequest::Mig { profile: profile.into(), models: vec![GpuModel::H100] }),
        (1..101_u8, 1..8_000_u64, models()).prop_map(|(percent, memory_mib, models)| DeviceRequest::Mps {
            percent,
            memory_mib,
            models
        }),
        (1..8_000_u64, models()).prop_map(|(memory_mib, models)| DeviceRequest::TimeSlice { memory_mib, models }),
    ]
}

fn topology() -> impl Strategy<Value = Topology> {
    let levels = TopologyLevel::ALL.to_vec();
    (option::of(select(levels.clone())), option::of(select(levels))).prop_map(|(a, b)| match (a, b) {
        (Some(a), Some(b)) => {
            // Any spread of one task is allowed.
            let level = if a == TopologyLevel::Island { TopologyLevel::Node } else { a };
            let spread = Spread { level, tasks_max: b as u32 + 1, required: a > b };
            Topology { required: Some(a.max(b)), preferred: Some(a.min(b)), segment_tasks: None, spread: Some(spread) }
        }
        (required, preferred) => Topology { required, preferred, segment_tasks: Some(1), spread: None },
    })
}

prop_compose! {
    fn asked()(
        selected in any::<bool>(), class in option::of("[a-z]{1,5}"), choice in (select(RULES.to_vec()), 0..200_u32, any::<u64>()),
        numbers in (1..8_000_u64, 0..100_u32), flags in (any::<bool>(), any::<bool>(), any::<bool>()), models in models(),
    ) -> Asked {
        let read = |text: &str| text.parse().expect("a selector");
        let needs = Needs {
            memory_mib: numbers.0, compute_percent: numbers.1, isolation: Isolation::Trusted, bursty: flags.0,
            latency_critical: flags.1, models,
        };
        let (rule, compute_percent, memory_mib) = choice;
        let choice = Choice { rule, model: GpuModel::H200, compute_percent, memory_mib };
        Asked {
            selector: selected.then(|| read("device.memory_mib > 1 && (!(node.labels[\"a\\\"b\"] == 'c') || \"d\" in node.labels)")),
            device_class: class,
            gpu_memory_mib: None,
            needs: flags.2.then_some(needs),
            choice: flags.2.then_some(choice),
        }
    }
}

fn edit<T: Clone + std::fmt::Debug + 'static>(value: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Edit<T>> {
    prop_oneof![Just(Edit::Keep), value.prop_map(Edit::Set), Just(Edit::Remove)].boxed()
}

const RULES: [Rule; 7] = [
    Rule::LargerThanACard,
    Rule::StrictIsolation,
    Rule::LatencyCritical,
    Rule::BorrowsIdleTime,
    Rule::SizedForPeak,
    Rule::SteadyAndSmall,
    Rule::NothingSmaller,
];

const PREEMPT_REASONS: [PreemptReason; 7] = [
    PreemptReason::Reclaim,
    PreemptReason::Priority,
    PreemptReason::Class,
    PreemptReason::Move,
    PreemptReason::Maintenance,
    PreemptReason::Reservation,
    PreemptReason::Drain,
];

/// An image and mounts.
fn files() -> BoxedStrategy<(Option<String>, Vec<Mount>)> {
    let mount = |(at, (source, read_only))| Mount { source, target: format!("/mnt/{at}"), read_only };
    let mounts = vec(("(/[a-z]{1,5}){1,3}", any::<bool>()), 0..3);
    let mounts = mounts.prop_map(move |mounts| mounts.into_iter().enumerate().map(mount).collect());
    (option::of("dir:(/[a-z]{1,5}){1,3}"), mounts).boxed()
}

prop_compose! {
    fn spec()(
        name in "[a-z][a-z0-9-]{0,12}",
        devices in devices(),
        topology in topology(),
        class in select(vec![WorkloadClass::Inference, WorkloadClass::Interactive, WorkloadClass::Batch]),
        pool in option::of("[a-z]{1,8}"),
        priority in -5..5_i32,
        command in vec("[ -~]{1,10}", 1..4),
        env in btree_map("[A-Z]{1,5}", "[ -~]{0,5}", 0..3),
        workdir in option::of("/[a-z]{0,5}"),
        numa in select(NumaPolicy::ALL.to_vec()),
        driver in option::of("[1-9][0-9]{0,3}(\\.[1-9][0-9]?){0,2}"),
        asked in asked(),
        times in (option::of(1..1000_u64), 0..100_u64, 10..100_u64, 0..9_u32),
        movable in option::of((option::of(1..9_u64), 0..9_u64)),
        priority_class in option::of("[a-z]{1,8}"),
        reservation in option::of("[a-z]{1,8}"),
        user in "[a-z@.]{0,9}",
        preemption in (select(StopSignal::ALL.to_vec()), option::of(0..3_600_u64), any::<u32>(), 0..9_u64),
        start in start_conditions(),
        array in option::of((index_set(), option::of(1..9_u32))),
        files in files(),
        elastic in option::of((2..9_u32, option::of(select(StopSignal::ALL.to_vec())))),
    ) -> JobSpec {
        let may_grow = array.is_none() && asked.needs.is_none();
        let may_grow = may_grow && matches!(devices, DeviceRequest::Whole { .. } | DeviceRequest::None);
        let unit = topology.segment_tasks.unwrap_or(1).max(1);
        let elastic = elastic.filter(|_| may_grow).map(|(tasks, signal)| Elastic { tasks_max: tasks * unit, signal });
        let cards = devices.cards() > 0;
        let asked = if cards { asked } else { Asked { choice: None, needs: asked.needs, ..Asked::default() } };
        let cards = cards || asked.needs.is_some();
        JobSpec {
            tenant: "org/team".into(), name, tasks: 1,
            request: TaskRequest { devices, cpu_milli: 500, memory_mib: 64 },
            topology, numa: if cards { numa } else { NumaPolicy::None },
            driver_min: driver.filter(|_| cards).map(|text| text.parse().expect("generated versions are versions")), asked, class, pool, priority, command, env, workdir,
            time_limit_s: times.0, grace_s: times.1, disconnect_grace_s: times.2, max_retries: times.3,
            movable: movable.map(|(checkpoint_every_s, restart_s)| Movable { checkpoint_every_s, restart_s }),
            limit_signal: times.0.filter(|limit_s| *limit_s > 9).map(|_| LimitSignal { signal: preemption.0, before_s: preemption.3 }),
            preemption: Preemption {
                signal: preemption.0, grace_s: preemption.1, checkpoint_bytes: preemption.2.into(), restart_cost_s: preemption.3,
            },
            start, array: array.map(|(indices, max_running)| ArraySpec { indices, max_running }),
            priority_class, reservation, elastic, image: files.0, mounts: files.1, compute_instances: 0,
            comment: format!("{user} wants it"), user,
            secret_env: [("TOKEN".to_owned(), "registry".to_owned())].into(),
        }
    }
}

fn growth() -> impl Strategy<Value = Growth> {
    let parts = btree_set(any::<u64>().prop_map(AllocationId), 0..3);
    let end = (any::<u64>(), "[ -~]{0,9}").prop_map(|(id, reason)| GrowthEnd { allocation: AllocationId(id), reason });
    let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
    (parts, numbers, option::of(end)).prop_map(|(parts, (tasks, generation, grown_ms, shrunk_ms, ends), last_end)| {
        Growth { parts, tasks, generation, grown_ms, shrunk_ms, ends, last_end }
    })
}

fn phase() -> impl Strategy<Value = JobPhase> {
    prop_oneof![
        Just(JobPhase::Queued),
        any::<u64>().prop_map(|id| JobPhase::Starting(AllocationId(id))),
        any::<u64>().prop_map(|id| JobPhase::Running(AllocationId(id))),
        any::<u64>().prop_map(|id| JobPhase::Stopping(AllocationId(id))),
        Just(JobPhase::Finished(Outcome::Completed)),
        "[ -~]{0,9}".prop_map(|reason| JobPhase::Finished(Outcome::Failed { reason })),
        Just(JobPhase::Finished(Outcome::Cancelled)),
        Just(JobPhase::Finished(Outcome::TimedOut)),
        Just(JobPhase::Finished(Outcome::DeadlineMissed)),
    ]
}

prop_compose! {
    fn dependency()(
        kind in select(vec![DependencyKind::AfterOk, DependencyKind::AfterAny, DependencyKind::AfterNotOk, DependencyKind::AfterCorr]),
        job in 1..99_u64, after in option::of(0..99_u64),
    ) -> Dependency {
        let kind = if after.is_some() { DependencyKind::After } else { kind };
        Dependency { kind, job: JobId(job), delay_s: after.unwrap_or(0) }
    }
}

prop_compose! {
    fn start_conditions()(
        flags in any::<[bool; 4]>(), begin_ms in option::of(1..9_u64), deadline_ms in option::of(2_000_000..3_000_000_u64),
        dependencies in vec(dependency(), 0..3),
    ) -> StartConditions {
        let any_dependency = flags[3] && dependencies.iter().all(|on: &Dependency| on.kind != DependencyKind::AfterCorr);
        StartConditions {
            held: flags[0], begin_ms, deadline_ms, dependencies, singleton: flags[1], kill_on_invalid_dependency: flags[2],
            any_dependency,
        }
    }
}

prop_compose! {
    fn index_set()(indices in btree_set(0..99_u32, 1..9)) -> IndexSet {
        indices.into_iter().collect()
    }
}

prop_compose! {
    fn array_state()(
        sets in (index_set(), index_set(), index_set()), max_running in option::of(any::<u32>()),
        same in vec((any::<u64>(), index_set(), any::<bool>()), 0..2),
    ) -> ArrayState {
        let same = same.into_iter().map(|(array, completed, over)| SameIndex { array: JobId(array), completed, over });
        ArrayState { left: sets.0, completed: sets.1, failed: sets.2, max_running, with_same_index: same.collect() }
    }
}

prop_compose! {
    fn unmet()(
        held in option::of(select(vec![Holder::User, Holder::Admin])), begin_ms in option::of(any::<u64>()),
        dependencies in vec(dependency(), 0..3), never in option::of(dependency()), singleton in any::<bool>(),
        any_dependency in any::<bool>(),
    ) -> Unmet {
        Unmet { held, begin_ms, dependencies, never, singleton, any_dependency }
    }
}

prop_compose! {
    fn job()(
        // On the heap: the tree of a whole job is too large for the stack of a test.
        id in any::<u64>(), spec in spec().boxed(), phase in phase(),
        numbers in (any::<u32>(), any::<u32>(), any::<bool>(), any::<u64>(), any::<u64>(), any::<u64>()),
        cell in option::of(any::<u32>().prop_map(CellId)),
        visited in btree_set(any::<u32>().prop_map(CellId), 0..3),
        times in (option::of(any::<u64>()), option::of(any::<u64>()), option::of(any::<u64>())),
        nodes in vec(any::<u32>().prop_map(NodeId), 0..3),
        last_allocation in option::of(any::<u64>().prop_map(AllocationId)),
        requeue_reason in option::of("[ -~]{1,9}"),
        reserved in option::of((any::<u64>(), vec(any::<u32>().prop_map(NodeId), 0..3))),
        attempts in vec(attempt_record(), 0..3),
        claim in option::of(claim().boxed()), unmet in unmet().boxed(), array in option::of(array_state().boxed()), task in option::of((any::<u64>(), any::<u32>())),
        growth in growth().boxed(),
    ) -> Job {
        let reserved = reserved.map(|(start_ms, nodes)| Reservation { start_ms, nodes });
        Job {
            id: JobId(id), tenant: TenantId(numbers.0), spec: spec.validate().expect("generated specs are valid"), phase,
            attempt: Attempt(numbers.1), failures: numbers.0, cancelled: numbers.2, cell, visited,
            routed_ms: numbers.3, submitted_ms: numbers.4,
            bound_ms: times.0, started_ms: times.1, finished_ms: times.2, nodes, last_allocation, requeue_reason, reserved,
            bypassed_cards: numbers.5,
            attempts, start_faults: numbers.1, preemptions: numbers.0,
            checkpoint_ms: times.0, checkpoint_note: format!("step {}", numbers.1), requeue_asked: numbers.2,
            unmet,
            array: array.map(Box::new),
            array_task: task.map(|(array, index)| ArrayTask { array: JobId(array), index }),
            claim: claim.map(Box::new),
            preemptor: Preemptor { attempt: cell.map(|cell| Attempt(cell.0)), failures: numbers.1 },
            moving: cell.map(|cell| AllocationId(u64::from(cell.0))),
            growth,
        }
    }
}

fn amounts() -> impl Strategy<Value = ResourceVec> {
    (btree_map(select(GpuModel::ALL.to_vec()), 1..99_999_u64, 0..4), any::<u64>(), any::<u64>()).prop_map(
        |(gpus, cpu_milli, memory_mib)| {
            let mut out = ResourceVec::of_host(cpu_milli, memory_mib);
            for (model, units) in gpus {
                out.set_gpu(model, GpuUnits(units));
            }
            out
        },
    )
}

fn limits() -> impl Strategy<Value = Limits> {
    let gpu = btree_map(select(GpuModel::ALL.to_vec()), any::<u64>().prop_map(GpuUnits), 0..4);
    (gpu, option::of(any::<u64>()), option::of(any::<u64>())).prop_map(|(gpu, cpu_milli, memory_mib)| Limits {
        gpu,
        cpu_milli,
        memory_mib,
    })
}

fn hold() -> impl Strategy<Value = DeviceHold> {
    let mode = prop_oneof![
        Just(HoldMode::Whole),
        (select(MigShape::ALL.to_vec()), 0..8_u8)
            .prop_map(|(shape, start)| HoldMode::Mig(MigPlacement { shape, start })),
        (any::<u8>(), any::<u64>()).prop_map(|(percent, memory_mib)| HoldMode::Mps { percent, memory_mib }),
        any::<u64>().prop_map(|memory_mib| HoldMode::TimeSlice { memory_mib }),
    ];
    (any::<u16>(), mode).prop_map(|(gpu, mode)| DeviceHold { gpu, mode })
}

fn tasks() -> impl Strategy<Value = Vec<TaskPlacement>> {
    vec(
        (any::<u32>(), vec(hold(), 0..3)).prop_map(|(node, devices)| TaskPlacement { node: NodeId(node), devices }),
        0..3,
    )
}

fn task_state() -> impl Strategy<Value = TaskState> {
    prop_oneof![
        Just(TaskState::Pending),
        Just(TaskState::Running),
        any::<i32>().prop_map(|code| TaskState::Exited { code }),
        Just(TaskState::Stopped),
        Just(TaskState::TimedOut),
        ("[ -~]{0,9}", any::<bool>()).prop_map(|(reason, by_node)| TaskState::StartFailed { reason, by_node }),
        Just(TaskState::Fenced),
        ("[ -~]{0,9}", any::<bool>()).prop_map(|(reason, by_job)| TaskState::DeviceFault { reason, by_job }),
        "[ -~]{0,9}".prop_map(|reason| TaskState::OverShare { reason }),
        "[ -~]{0,9}".prop_map(|reason| TaskState::OutOfMemory { reason }),
        any::<i32>().prop_map(|signal| TaskState::Signaled { signal }),
    ]
}

fn task_end() -> impl Strategy<Value = TaskEnd> {
    task_state().prop_filter_map("it has ended", |state| TaskEnd::of(&state))
}

fn failure() -> impl Strategy<Value = RankFailure> {
    (any::<u32>(), any::<u32>(), task_end(), "[ -~]{0,9}", any::<u64>()).prop_map(|(rank, node, end, reason, at_ms)| {
        RankFailure { rank: Rank(rank), node: NodeId(node), end, reason, at_ms }
    })
}

fn clean_up() -> impl Strategy<Value = CleanUp> {
    prop_oneof![
        any::<u64>().prop_map(|took_ms| CleanUp::Done { took_ms }),
        Just(CleanUp::UnderWay),
        "[ -~]{1,9}".prop_map(|reason| CleanUp::Failed { reason }),
    ]
}

fn attempt_record() -> impl Strategy<Value = AttemptRecord> {
    let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), option::of(any::<u64>()), any::<u64>(), any::<u32>());
    let ends = vec((task_end(), any::<u32>()).prop_map(|(end, ranks)| EndCount { end, ranks }), 0..3);
    let nodes = vec((any::<u32>(), any::<u32>()).prop_map(|(node, ranks)| NodeRun { node: NodeId(node), ranks }), 0..3);
    let by = (option::of(any::<u64>()), option::of(any::<u32>()), option::of(any::<u32>()), any::<u64>());
    let by = by.prop_map(|(job, tenant, account, lost_gpu_unit_ms)| PreemptedBy {
        job: job.map(JobId),
        tenant: tenant.map(TenantId),
        account: account.map(TenantId),
        reason: PreemptReason::Reclaim,
        lost_gpu_unit_ms,
    });
    let paid = (classes(), required_topology());
    let parts = (numbers, "[ -~]{0,9}", ends, vec(failure(), 0..3), nodes, option::of(by), paid);
    parts.prop_map(|(numbers, reason, ends, failures, nodes, preempted, (classes, topology))| AttemptRecord {
        end_runs: ends.iter().rev().copied().collect(),
        attempt: Attempt(numbers.0),
        allocation: AllocationId(numbers.1),
        bound_ms: numbers.2,
        started_ms: numbers.3,
        ended_ms: numbers.4,
        reason,
        ends,
        others: numbers.5,
        failures,
        nodes,
        preempted,
        cleaned_ms: numbers.2,
        classes,
        topology,
    })
}

fn gpus_of(number: u64) -> u16 {
    (number % 16) as u16
}

fn notes() -> impl Strategy<Value = NodeNotes> {
    let quarantine = (any::<u64>(), "[ -~]{0,9}").prop_map(|(since_ms, reason)| Quarantine { since_ms, reason });
    let rival = (any::<u64>(), "[a-z]{0,4}", "[a-z]{0,4}", any::<u64>())
        .prop_map(|(agent, address, boot_id, asked_ms)| Rival { agent, address, boot_id, asked_ms });
    let failures = vec(any::<u64>().prop_map(JobId), 0..3);
    let cleared =
        (any::<u64>(), "[ -~]{0,9}").prop_map(|(at_ms, reason)| ClearedGpu { uuid: "GPU-1".into(), at_ms, reason });
    let nics = vec(("[a-z0-9_]{1,6}", any::<u8>()).prop_map(|(name, numa)| Nic { name, numa }), 0..3);
    let links = ("[0-9.]{0,4}", any::<u16>(), nics, vec(any::<u8>(), 0..9))
        .prop_map(|(cuda, gpus, nics, matrix)| NodeLinks { cuda, gpus, nics, matrix });
    let texts = ("[ -~]{0,9}", "[ -~]{0,9}");
    (any::<u64>(), texts, failures, option::of(quarantine), option::of(rival), vec(cleared, 0..3), links).prop_map(
        |(agent, (drain_reason, lacks), start_failures, quarantine, rival, cleared_gpus, links)| NodeNotes {
            agent,
            drain_reason,
            start_failures,
            quarantine,
            rival,
            cleared_gpus,
            links,
            drained_by: [("user:alice".to_owned(), lacks.clone())].into(),
            replaced: [(gpus_of(agent), lacks.clone())].into(),
            verdicts: Verdicts {
                followed: [gpus_of(agent), 7].into(),
                spared: vec![Withheld {
                    gpu: gpus_of(agent),
                    slice: None,
                    reason: lacks.clone(),
                    by_verdict: true,
                    repair: Repair::Reboot,
                }],
            },
            restored: (!lacks.is_empty()).then(|| {
                Box::new(Restored {
                    confirmed: agent % 2 == 0,
                    settled: agent % 4 == 0,
                    held: (agent % 3 > 0).then(|| {
                        let (allocation, rank) = (AllocationId(agent), Rank(7));
                        vec![HeldTask {
                            allocation,
                            rank,
                            job: JobId(agent),
                            node_epoch: Epoch(9),
                            disconnect_grace_s: 600,
                        }]
                    }),
                })
            }),
            lacks,
        },
    )
}

fn end_cause() -> impl Strategy<Value = EndCause> {
    prop_oneof![
        Just(EndCause::Cancelled),
        (any::<u32>(), option::of(any::<i32>()))
            .prop_map(|(rank, code)| EndCause::RankFailed { rank: Rank(rank), code }),
        Just(EndCause::TimeLimit),
        Just(EndCause::Deadline),
        Just(EndCause::Completed),
        any::<u32>().prop_map(|node| EndCause::NodeLost { node: NodeId(node) }),
        (option::of(any::<u64>().prop_map(JobId)), select(PREEMPT_REASONS.to_vec()))
            .prop_map(|(by, reason)| EndCause::Preempted { by, reason }),
        Just(EndCause::Requeued),
        ("[a-z]{1,5}", select(WindowKind::ALL.to_vec())).prop_map(|(name, kind)| EndCause::Window { name, kind }),
        option::of(any::<u64>().prop_map(JobId)).prop_map(|by| EndCause::Shrunk { by }),
    ]
}

fn account() -> impl Strategy<Value = Option<TenantId>> {
    option::of(any::<u32>().prop_map(TenantId))
}

fn resource() -> impl Strategy<Value = Resource> {
    prop_oneof![select(GpuModel::ALL.to_vec()).prop_map(Resource::Gpu), Just(Resource::Cpu), Just(Resource::Memory)]
}

fn class() -> impl Strategy<Value = QuotaClass> {
    let tiers = vec![BurstTier::Standard, BurstTier::Spot, BurstTier::Marked];
    prop_oneof![
        any::<u32>().prop_map(|account| QuotaClass::Guaranteed(TenantId(account))),
        select(tiers).prop_map(QuotaClass::Burst),
    ]
}

fn classes() -> impl Strategy<Value = ClassRecord> {
    let segment = (any::<u64>(), class()).prop_map(|(from_ms, class)| ClassSegment { from_ms, class });
    let sum = (any::<u64>(), class()).prop_map(|(ms, class)| ClassSum { class, ms });
    let parts = (vec(segment, 0..3), vec(sum, 0..3), any::<u64>());
    parts.prop_map(|(segments, sums, unattributed_ms)| ClassRecord { segments, sums, unattributed_ms })
}

fn required_topology() -> impl Strategy<Value = RequiredTopology> {
    let parts = (option::of(select(TopologyLevel::ALL.to_vec())), option::of(any::<u32>()));
    parts.prop_map(|(level, segment_tasks)| RequiredTopology { level, segment_tasks })
}

prop_compose! {
    fn claim()(
        ids in (any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>()), model in option::of(select(GpuModel::ALL.to_vec())),
        charge in amounts(), account in account(), tasks in tasks(),
        epochs in btree_map(any::<u32>().prop_map(NodeId), any::<u64>().prop_map(Epoch), 0..3),
        victims in btree_set(any::<u64>().prop_map(AllocationId), 0..3),
    ) -> Claim {
        Claim {
            allocation: AllocationId(ids.0), cell: CellId(ids.1), cell_epoch: Epoch(ids.2), model, charge, account, tasks,
            node_epochs: epochs, victims, made_ms: ids.3,
        }
    }
}

prop_compose! {
    fn allocation()(
        ids in (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>()),
        model in option::of(select(GpuModel::ALL.to_vec())),
        host in (any::<u64>(), any::<u64>(), any::<u64>()),
        charge in amounts(), tasks in tasks(), task_states in vec(task_state(), 0..3),
        epochs in btree_map(any::<u32>().prop_map(NodeId), any::<u64>().prop_map(Epoch), 0..3),
        state in prop_oneof![Just(AllocationState::Active), end_cause().prop_map(AllocationState::Stopping)],
        failures in vec(failure(), 0..3), classes in classes(), priority in any::<i32>(), topology in required_topology(), ports in ports(),
    ) -> Allocation {
        Allocation {
            id: AllocationId(ids.0), job: JobId(ids.1), attempt: Attempt(ids.2), tenant: TenantId(ids.3),
            cell: CellId(ids.4), cell_epoch: Epoch(ids.5), model, cpu_milli: host.0, memory_mib: host.1, charge, tasks,
            task_states, node_epochs: epochs, state, bound_ms: host.2, failures, classes,
            priority, submitted_ms: ids.0, is_growth: priority > 0, cleaning: [Rank(ids.2)].into(), cleaned_ms: host.2, topology, ports,
        }
    }
}

fn ports() -> impl Strategy<Value = Ports> {
    let block = (0..PORT_BLOCKS).prop_map(|number| Ports::Block(PortBlock(number)));
    prop_oneof![Just(Ports::Unassigned), Just(Ports::NoneFree), block]
}

/// In order, some of them.
fn proofs() -> impl Strategy<Value = Vec<Proof>> {
    subsequence(Protection::ALL.to_vec(), 0..=Protection::ALL.len()).prop_flat_map(|tried| {
        let fault = option::of("[ -~]{0,9}");
        vec(fault, tried.len())
            .prop_map(move |faults| tried.iter().zip(faults).map(|(what, why)| Proof::new(*what, why)).collect())
    })
}

prop_compose! {
    fn withheld_slice()(
        shape in select(MigShape::ALL.to_vec()), start in 0_u8..8, reason in "[ -~]{0,9}",
    ) -> WithheldSlice {
        WithheldSlice { place: MigPlacement { shape, start }, reason }
    }
}

prop_compose! {
    fn gpu()(
        uuid in "[a-f0-9-]{1,8}", model in select(GpuModel::ALL.to_vec()), memory_mib in any::<u64>(), numa in any::<u8>(),
        island in any::<u8>(), withheld in option::of("[ -~]{0,9}"), withheld_slices in vec(withheld_slice(), 0..3),
    ) -> Gpu {
        let repair = Repair::ALL[memory_mib as usize % Repair::ALL.len()];
        Gpu { uuid, model, memory_mib, numa, island, withheld, withheld_slices, repair }
    }
}

prop_compose! {
    fn node()(
        words in vec("[a-z0-9]{0,6}", 10..=10), gpus in vec(gpu(), 0..3),
        numbers in (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>()),
        labels in btree_map("[a-z]{1,4}", "[a-z]{0,4}", 0..3),
        health in select(vec![NodeHealth::Ready, NodeHealth::Silent, NodeHealth::Down]), drained in any::<bool>(), notes in notes(), proofs in proofs(),
    ) -> Node {
        let [name, address, region, zone, block, leaf, nvlink_domain, cell, pool, driver] = <[String; 10]>::try_from(words).expect("ten");
        let spec = NodeSpec {
            name, address, place: Place { region, zone, block, leaf, nvlink_domain }, cell, pool, gpus, cpu_milli: numbers.0,
            memory_mib: numbers.1, driver, labels, boot_id: "b".into(), proofs,
        };
        Node { id: NodeId(numbers.2), spec, cell: CellId(numbers.3), epoch: Epoch(numbers.4), health, drained, notes }
    }
}

fn pool() -> impl Strategy<Value = Pool> {
    let modes = vec![SharingMode::Whole, SharingMode::Mig, SharingMode::Mps, SharingMode::TimeSlice];
    let classes = btree_set(select(WorkloadClass::ALL.to_vec()), 0..4);
    (btree_set(select(modes), 0..4), classes, any::<u8>(), any::<u8>(), btree_map(select(pins()), Just(()), 0..3))
        .prop_map(|(modes, classes, time_slice_replicas, mps_clients, pins)| Pool {
            name: "p".into(),
            modes,
            classes,
            time_slice_replicas,
            mps_clients,
            compute_tolerance_percent: mps_clients,
            pinned: pins.into_keys().map(pin).collect(),
            cool_down_s: u64::from(mps_clients),
            preemptions_max: (mps_clients > 9).then_some(u32::from(mps_clients)),
            checkpoint_mib_per_s: (mps_clients > 99).then_some(u64::from(mps_clients)),
            moves_per_hour: u32::from(mps_clients),
            moves_lost_gpu_hours_per_day: u32::from(time_slice_replicas),
            images: vec!["dir:/srv".to_owned(); usize::from(mps_clients % 3)],
            mounts: vec![MountRule { path: "/data".to_owned(), write: mps_clients > 9 }; usize::from(mps_clients % 2)],
            time_slice: TimeSlice::ALL[usize::from(mps_clients % 3)],
            isolation: [IsolationLevel::None, IsolationLevel::Limits, IsolationLevel::Full]
                [usize::from(mps_clients % 3)],
            network: [None, Some(NetworkPolicy::Host), Some(NetworkPolicy::Private)]
                [usize::from(time_slice_replicas % 3)],
            memory_limit_mib: (time_slice_replicas > 9).then_some(u64::from(mps_clients)),
            withheld_max_percent: (time_slice_replicas > 99).then_some(mps_clients),
            withheld_max_gpus: (mps_clients > 99).then_some(u32::from(time_slice_replicas)),
        })
}

type Pin = (GpuModel, Vec<(&'static str, u32)>, Option<u16>);

fn pins() -> Vec<Pin> {
    vec![
        (GpuModel::H100, vec![("1g.10gb", 7)], None),
        (GpuModel::A100_80, vec![("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)], Some(4)),
        (GpuModel::A30, vec![("2g.12gb+me", 1), ("1g.6gb", 1)], Some(1)),
    ]
}

fn pin((model, slices, cards): Pin) -> (GpuModel, PinnedLayout) {
    let slices = slices.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    (model, PinnedLayout::new(model, &slices, cards).expect("legal"))
}

prop_compose! {
    fn tenant()(
        id in any::<u32>(), parent in option::of(any::<u32>().prop_map(TenantId)), path in "[a-z]{1,5}(/[a-z]{1,5}){0,2}",
        guarantee in amounts(), max in limits(), weight in any::<u32>(), untrusted in any::<bool>(),
        apart in btree_map("[A-Z]{1,4}", select(vec![AntiAffinityLevel::Card, AntiAffinityLevel::Node, AntiAffinityLevel::Island]), 0..3),
        lend in any::<bool>(), run_as in option::of(any::<u32>()), weights in btree_map(resource(), any::<u32>(), 0..3), lends in btree_map(resource(), any::<bool>(), 0..3),
    ) -> Tenant {
        let trust = if untrusted { Trust::Untrusted } else { Trust::Trusted };
        let anti_affinity = apart.into_iter().map(|(tenant, level)| AntiAffinity { tenant, level }).collect();
        Tenant { id: TenantId(id), path, parent, guarantee, max, weight, trust, anti_affinity, lend, weights, lends, run_as }
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        tenant().prop_map(|o| Change::put(Object::Tenant(o))),
        pool().prop_map(|o| Change::put(Object::Pool(o))),
        node().prop_map(|o| Change::put(Object::Node(o))),
        job().prop_map(|o| Change::put(Object::Job(o))),
        allocation().prop_map(|o| Change::put(Object::Allocation(o))),
        (any::<u32>(), any::<u64>(), option::of("[ -~]{0,5}")).prop_map(|(id, epoch, holder)| {
            Change::put(Object::Cell(Cell { id: CellId(id), name: "c".into(), epoch: Epoch(epoch), holder }))
        }),
        any::<u32>().prop_map(|id| Change::Delete(Key::Tenant(TenantId(id)))),
        "[a-z]{1,4}".prop_map(|name| Change::Delete(Key::Pool(name))),
        any::<u32>().prop_map(|id| Change::Delete(Key::Cell(CellId(id)))),
        any::<u32>().prop_map(|id| Change::Delete(Key::Node(NodeId(id)))),
        any::<u64>().prop_map(|id| Change::Delete(Key::Job(JobId(id)))),
        any::<u64>().prop_map(|id| Change::Delete(Key::Allocation(AllocationId(id)))),
    ]
}

/// Through the bytes, not only through the structs.
fn sent<M: prost::Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).expect("what was encoded decodes")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn changes_come_back_the_same(change in change()) {
        let wire = change_to_wire(&change).expect("shards are sent this");
        prop_assert_eq!(change_from_control_plane(sent(&wire)).expect("what was sent is understood"), change);
    }

    #[test]
    fn retired_jobs_are_gone(job in job()) {
        let id = job.id;
        let wire = change_to_wire(&Change::Retire(Box::new(job))).expect("sent");
        prop_assert_eq!(change_from_control_plane(wire), Ok(Change::Delete(Key::Job(id))));
    }

    #[test]
    fn edits_of_tenants_come_back_the_same(
        clear in (any::<bool>(), any::<bool>(), any::<bool>()),
        gpu in btree_map(select(GpuModel::ALL.to_vec()), option::of(any::<u64>().prop_map(GpuUnits)), 0..3),
        numbers in (edit(any::<u64>()), edit(any::<u64>()), edit(any::<u64>()), edit(any::<u32>())),
        trust in edit(select(vec![Trust::Trusted, Trust::Untrusted])),
        levels in btree_map("[a-z]{1,3}", option::of(select(vec![AntiAffinityLevel::Card, AntiAffinityLevel::Island])), 0..3),
        lend in edit(any::<bool>()), run_as in edit(any::<u32>()), clears in (any::<bool>(), any::<bool>()),
        weights in btree_map(resource(), option::of(any::<u32>()), 0..3),
        lends in btree_map(resource(), option::of(any::<bool>()), 0..3),
    ) {
        let edit = TenantEdit {
            path: "a/b".into(),
            guarantee: AmountsEdit { clear: clear.0, gpu: gpu.clone(), cpu_milli: numbers.0, memory_mib: Edit::Keep },
            max: AmountsEdit { clear: clear.1, gpu, cpu_milli: numbers.1, memory_mib: numbers.2 },
            weight: numbers.3,
            trust,
            anti_affinity: AntiAffinityEdit { clear: clear.2, levels },
            lend,
            weights: WeightsEdit { clear: clears.0, of: weights },
            lends: LendsEdit { clear: clears.1, of: lends },
            run_as,
        };
        prop_assert_eq!(TenantEdit::try_from(sent(&v1::TenantEdit::from(&edit))), Ok(edit));
    }

    #[test]
    fn specifications_come_back_the_same(spec in spec(), tenant in tenant()) {
        prop_assert_eq!(JobSpec::try_from(sent(&v1::JobSpec::from(&spec))), Ok(spec));
        let spec = TenantSpec {
            path: tenant.path, guarantee: tenant.guarantee, max: tenant.max, weight: tenant.weight, trust: tenant.trust,
            anti_affinity: tenant.anti_affinity, lend: tenant.lend, weights: tenant.weights, lends: tenant.lends, run_as: tenant.run_as,
        };
        prop_assert_eq!(TenantSpec::try_from(sent(&v1::TenantSpec::from(&spec))), Ok(spec));
    }

    #[test]
    fn proposals_and_reports_come_back_the_same(
        tasks in tasks(), model in option::of(select(GpuModel::ALL.to_vec())), state in task_state(),
        numbers in (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>()), clean_up in clean_up(),
    ) {
        let bind = muster_model::Binding { job: JobId(numbers.0), attempt: Attempt(numbers.3), model, tasks };
        prop_assert_eq!(muster_model::Binding::try_from(sent(&v1::Bind::from(&bind))), Ok(bind));
        let report = (AllocationId(numbers.0), Rank(numbers.3), state, numbers.2.checked_sub(9));
        let mut wire = report_to_wire(report.0, report.1, &report.2, report.3);
        clean_up_to_wire(&clean_up, &mut wire);
        prop_assert_eq!(clean_up_from_wire(&sent(&wire)), clean_up);
        prop_assert_eq!(report_from_wire(sent(&wire)), Ok(report));
        let interval = UsageInterval {
            seq: numbers.0, allocation: AllocationId(numbers.1), duration_ms: numbers.2, gpu_unit_ms: numbers.0,
            kind: [UseKind::Run, UseKind::Idle, UseKind::Clean][(numbers.2 % 3) as usize],
        };
        prop_assert_eq!(UsageInterval::from(sent(&v1::UsageInterval::from(&interval))), interval);
    }
}

/// A wire specification that is fine, to be spoilt in one place.
fn plain() -> v1::JobSpec {
    let kind = Some(v1::device_request::Kind::Whole(v1::WholeGpus { count: 8 }));
    let devices = Some(v1::DeviceRequest { kind, models: vec!["h100".into()] });
    v1::JobSpec {
        tenant: "org".into(),
        request: Some(v1::TaskRequest { devices, cpu_milli: 1000, memory_mib: 10 }),
        command: vec!["/usr/bin/torchrun".into(), "train.py".into()],
        ..v1::JobSpec::default()
    }
}

#[test]
fn defaults_are_filled_in() {
    let spec = JobSpec::try_from(plain()).expect("fine");
    assert_eq!((spec.name.as_str(), spec.tasks, spec.grace_s, spec.disconnect_grace_s), ("torchrun", 0, 30, 600));
    assert_eq!(spec.class, WorkloadClass::Batch);
    assert!(spec.validate().is_err_and(|errors| errors.iter().any(|e| e.field == "tasks")));
    let nameless = JobSpec::try_from(v1::JobSpec { command: vec!["/bin/+".into()], ..plain() }).expect("fine");
    assert_eq!(nameless.name, "job");
}

#[test]
fn unknown_words_name_their_field_and_the_fix() {
    let check = |spoil: &dyn Fn(&mut v1::JobSpec), field: &str, fix: &str| {
        let mut wire = plain();
        spoil(&mut wire);
        let error: FieldError = JobSpec::try_from(wire).expect_err(field);
        assert_eq!(error.field, field);
        assert!(error.fix.contains(fix), "{error}");
    };
    let devices = |wire: &mut v1::JobSpec, change: &dyn Fn(&mut v1::DeviceRequest)| {
        change(wire.request.as_mut().and_then(|r| r.devices.as_mut()).expect("has devices"));
    };
    check(&|w| devices(w, &|d| d.models.push("h900".into())), "request.models[1]", "h100");
    check(&|w| devices(w, &|d| d.kind = None), "request.models", "request GPUs");
    let mps = v1::device_request::Kind::Mps(v1::MpsShare { percent: 300, memory_mib: 1 });
    check(&|w| devices(w, &|d| d.kind = Some(mps.clone())), "request.mps.percent", "100");
    check(&|w| w.workload_class = "trainign".into(), "workload_class", "training");
    check(
        &|w| w.topology = Some(v1::Topology { required: "rack".into(), ..Default::default() }),
        "topology.required",
        "leaf",
    );
    check(&|w| w.request = None, "request", "send");

    let twice = v1::ResourceVec { gpu_units: [("h100".into(), 1), ("h100-80".into(), 1)].into(), ..Default::default() };
    let spec = v1::TenantSpec { path: "a".into(), guarantee: Some(twice), ..Default::default() };
    assert_eq!(TenantSpec::try_from(spec).expect_err("twice").field, "guarantee.gpu_units.h100-80");
}

#[test]
fn statuses_carry_what_clients_read_back() {
    let errors =
        vec![FieldError::new("tasks", "is 0", "ask for one; or more"), FieldError::new("name", "is empty", "give one")];
    let bad = status::invalid(&errors);
    assert_eq!(bad.code(), Code::InvalidArgument);
    assert_eq!(status::field_errors(&bad), errors);
    let again = |code, delay_ms| {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(delay_ms)));
        Status::with_error_details(code, "not now", details)
    };
    let busy = again(Code::ResourceExhausted, 250);
    assert_eq!(status::retry_delay(&busy), Some(Duration::from_millis(250)));
    assert!(status::may_retry(&again(Code::Unavailable, 100)) && !status::may_retry(&bad));
    assert!(status::field_errors(&busy).is_empty() && status::retry_delay(&bad).is_none());
}

#[test]
fn moves_come_back_as_they_were_sent() {
    let nodes = |ids: &[u32]| ids.iter().map(|id| NodeId(*id)).collect();
    let moved = MovedJob {
        job: JobId(4),
        from: AllocationId(5),
        to: AllocationId(6),
        units: GpuUnits(14_000),
        from_nodes: nodes(&[1]),
        to_nodes: nodes(&[2, 3]),
        promised_unit_s: 77,
        fate: MoveFate::Requeued,
        stopped_ms: Some(8),
        unsaved_ms: 9,
        resumed_ms: None,
        lost_unit_s: Some(10),
    };
    let record = MoveRecord {
        id: AllocationId(11),
        cell: CellId(1),
        made_ms: 12,
        pool: "training".to_owned(),
        job: JobId(13),
        tenant: TenantId(2),
        model: Some(GpuModel::H100),
        units: GpuUnits(56_000),
        nodes: nodes(&[1]),
        converted_cards: 3,
        due_ms: 14,
        started_ms: None,
        given_up_ms: Some(15),
        moved: vec![moved],
    };
    for change in [Change::put(Object::Move(record)), Change::Delete(Key::Move(AllocationId(11)))] {
        let wire = change_to_wire(&change).expect("shards are sent this");
        assert_eq!(change_from_control_plane(wire), Ok(change));
    }
}

#[test]
fn a_history_of_use_comes_back_the_same() {
    let mut record = UseHistory::new(TenantId(7), 600, 1_000);
    let (burst, own) = (ResourceVec::of_gpu(GpuModel::H100, GpuUnits(3_501)), ResourceVec::of_host(500, 77));
    record.uses(1_000, burst, own);
    record.uses(61_234, ResourceVec::default(), own);
    for change in [Change::put(Object::UseHistory(record)), Change::Delete(Key::UseHistory(TenantId(7)))] {
        let wire = change_to_wire(&change).expect("shards are sent this");
        assert_eq!(change_from_control_plane(wire), Ok(change));
    }
}

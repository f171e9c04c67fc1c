//! A node that takes the steps of a plan at its word, and refuses every one that must not be taken.

use muster_model::ids::{AllocationId, Attempt, Epoch, JobId, Rank, Revision, TenantId};
use muster_model::mig::{self, MigPlacement, MigShape};
use muster_model::request::SharingMode;
use muster_model::task::{DeviceHold, HoldMode, TaskState};
use muster_model::{GpuModel, Stop, StopSignal};
use muster_node_core::{
    CardObserved, CardSetting, CardStep, CardWork, Desired, DesiredTask, MpsLimits, MpsSetting, Observed, ObservedTask,
    Phase, Stamp, Step, Stopping, TaskKey, TaskSpec, TaskUsers,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) const CARDS: u16 = 3;
pub(crate) const NOW_NS: u64 = 1_000_000_000_000;
/// The first of the users that tasks may have.
const USERS: u32 = 2_000;

pub(crate) fn key(allocation: u64, rank: u32) -> TaskKey {
    TaskKey { allocation: AllocationId(allocation), rank: Rank(rank) }
}

/// A task of job `allocation / 10`, so that allocations 10 and 11 are two attempts of job 1.
pub(crate) fn spec(allocation: u64, rank: u32, devices: Vec<DeviceHold>) -> TaskSpec {
    TaskSpec {
        job: JobId(allocation / 10),
        attempt: Attempt((allocation % 10) as u32 + 1),
        tenant: "research/nlp".to_owned(),
        gpu_units: 7_000 * devices.len() as u64,
        devices,
        world_size: 4,
        local_rank: rank,
        local_world_size: 2,
        master_addr: "node-0001".to_owned(),
        cpu_milli: 1_000,
        memory_mib: 1_024,
        grace_s: 30,
        ..TaskSpec::usual(key(allocation, rank), &["true"])
    }
}

pub(crate) fn hold(gpu: u16, mode: HoldMode) -> DeviceHold {
    DeviceHold { gpu, mode }
}

pub(crate) fn mig(shape: MigShape, start: u8) -> HoldMode {
    HoldMode::Mig(MigPlacement { shape, start })
}

/// How desired tasks are stopped, where they are: not as a task that is not desired any more.
pub(crate) const PREEMPTED: Stop = Stop { signal: StopSignal::Usr1, grace_s: 7 };

pub(crate) fn desired(tasks: Vec<(TaskSpec, bool)>, epoch: u64) -> Desired {
    Desired {
        stamp: Stamp { incarnation: 1, revision: Revision(9), node_epoch: Epoch(epoch) },
        tasks: tasks
            .into_iter()
            .map(|(spec, stop)| (spec.key, DesiredTask { spec: Arc::new(spec), stop: stop.then_some(PREEMPTED) }))
            .collect(),
        ..Desired::default()
    }
}

/// A card that was read, and that nobody has touched.
fn whole(model: GpuModel) -> CardObserved {
    CardObserved {
        model,
        setting: Some(CardSetting::Whole),
        changing: false,
        failed: None,
        withheld: None,
        failed_steps: Vec::new(),
        mps_failed: false,
        withheld_slices: Vec::new(),
        asks_for_reset: false,
        mode_needs_reset: false,
    }
}

pub(crate) fn observed(tasks: Vec<(TaskSpec, Phase)>) -> Observed {
    let task = |(spec, phase): (TaskSpec, Phase)| {
        (
            spec.key,
            ObservedTask {
                spec: Arc::new(spec),
                node_epoch: Epoch(1),
                phase,
                stopping: Stopping::No,
                checkpoint: None,
                time_limit_s: None,
                world_generation: None,
            },
        )
    };
    Observed {
        tasks: tasks.into_iter().map(task).collect(),
        acknowledged: BTreeSet::new(),
        cleaning: BTreeSet::new(),
        cards: vec![whole(GpuModel::H100); usize::from(CARDS)],
        now_ns: NOW_NS,
        confirmed_ns: Some(NOW_NS),
        lost: Default::default(),
        users: TaskUsers::default(),
        resets: true,
    }
}

pub(crate) fn running() -> Phase {
    Phase::Running { started_ns: 5 }
}

pub(crate) fn over(state: TaskState) -> Phase {
    Phase::Over { state, started_ns: Some(5), ended_ns: 6 }
}

/// Takes one step, with every check that a real node would fail on.
pub(crate) fn take(step: &Step, wanted: &Desired, node: &mut Observed) {
    let never_ran = |state| Phase::Over { state, started_ns: None, ended_ns: NOW_NS };
    match step {
        Step::Stop(key, _) => node.tasks.get_mut(key).expect("stops what is there").stopping = Stopping::Gracefully,
        Step::Kill(key) => node.tasks.get_mut(key).expect("kills what is there").stopping = Stopping::AtOnce,
        Step::SetTimeLimit(key, limit_s) => {
            node.tasks.get_mut(key).expect("limits what is there").time_limit_s = *limit_s;
        }
        Step::SetWorld(key, world) => {
            node.tasks.get_mut(key).expect("tells what is there").world_generation = Some(world.generation);
        }
        Step::Start(key) => {
            assert_may_start(*key, wanted, node);
            record(*key, Phase::Running { started_ns: NOW_NS }, wanted, node);
        }
        Step::RecordNeverStarted(key) | Step::RecordLost(key) => {
            record(*key, never_ran(TaskState::Stopped), wanted, node);
        }
        Step::RecordCannotStart { key, reason } => {
            record(*key, never_ran(TaskState::StartFailed { reason: reason.clone(), by_node: true }), wanted, node);
        }
        Step::Forget(key) => {
            let task = node.tasks.remove(key).expect("forgets what is there");
            assert!(!task.is_live() && node.acknowledged.remove(key), "{key} is forgotten too early");
            assert!(!node.cleaning.contains(key), "law 13: {key} is forgotten while its devices are cleaned");
        }
    }
}

fn record(key: TaskKey, phase: Phase, wanted: &Desired, node: &mut Observed) {
    let spec = wanted.tasks[&key].spec.clone();
    let time_limit_s = spec.time_limit_s;
    let node_epoch = wanted.stamp.node_epoch;
    let (stopping, world_generation) = (Stopping::No, spec.world.map(|world| world.generation));
    let task = ObservedTask { spec, node_epoch, phase, stopping, checkpoint: None, time_limit_s, world_generation };
    assert!(node.tasks.insert(key, task).is_none(), "{key} has a record already");
}

/// Takes the steps that the cards need.
pub(crate) fn work(cards: &[CardWork], node: &mut Observed) {
    for work in cards {
        for step in &work.steps {
            take_card_step(work.card, *step, node);
        }
    }
}

/// Takes one step of a card, with every check that a driver would fail on.
pub(crate) fn take_card_step(card: u16, step: CardStep, node: &mut Observed) {
    let holds: Vec<HoldMode> = live_holds(node, card);
    let model = node.cards[usize::from(card)].model;
    let setting = node.cards[usize::from(card)].setting.as_mut().expect("a card that was not read is not worked on");
    let none = |mode: SharingMode| !holds.iter().any(|hold| hold.mode() == mode);
    *setting = match (step, setting.clone()) {
        (CardStep::DestroyInstance(place), CardSetting::Mig(mut standing)) => {
            assert!(!holds.contains(&HoldMode::Mig(place)), "a held instance is destroyed");
            assert!(standing.remove(&place).is_some(), "an instance that does not stand is destroyed");
            CardSetting::Mig(standing)
        }
        (CardStep::DisableMig, CardSetting::Mig(standing)) if standing.is_empty() && none(SharingMode::Mig) => {
            CardSetting::Whole
        }
        (CardStep::StopMps, CardSetting::Mps(_)) if none(SharingMode::Mps) => CardSetting::Whole,
        (CardStep::ClearTimeSlice, CardSetting::TimeSlice) if none(SharingMode::TimeSlice) => CardSetting::Whole,
        (CardStep::EnableMig, CardSetting::Whole) if none(SharingMode::Whole) => CardSetting::Mig(BTreeMap::new()),
        (CardStep::CreateInstance(place, count), CardSetting::Mig(mut standing)) => {
            let beside: Vec<MigPlacement> = standing.keys().copied().collect();
            assert!(mig::can_stand(model.facts().mig.expect("has MIG"), &beside, place), "{place} beside {beside:?}");
            standing.insert(place, count);
            CardSetting::Mig(standing)
        }
        (CardStep::StartMps(start), CardSetting::Whole) if none(SharingMode::Whole) => {
            let only_user = start.user.filter(|_| !start.for_all);
            CardSetting::Mps(MpsSetting { limits: Some(start.limits), only_user })
        }
        (CardStep::SetMpsLimits(limits), CardSetting::Mps(server)) => {
            CardSetting::Mps(MpsSetting { limits: Some(limits), ..server })
        }
        (CardStep::SetTimeSlice(_), CardSetting::Whole) if none(SharingMode::Whole) => CardSetting::TimeSlice,
        (step, setting) => panic!("{step:?} on card {card}, which is {setting:?} and held by {holds:?}"),
    };
}

/// What is held of a card: by live tasks, and by those that are over until it is clean of them (law 13).
pub(crate) fn live_holds(node: &Observed, card: u16) -> Vec<HoldMode> {
    let holds = |(key, task): &(&TaskKey, &ObservedTask)| task.is_live() || node.cleaning.contains(key);
    let live = node.tasks.iter().filter(holds).map(|(_, task)| task);
    live.flat_map(|task| &task.spec.devices).filter(|hold| hold.gpu == card).map(|hold| hold.mode).collect()
}

/// Law 6 on this node, and the devices are as the task needs them.
fn assert_may_start(key: TaskKey, wanted: &Desired, node: &Observed) {
    let spec = &wanted.tasks[&key].spec;
    assert!(!node.lost.contains(&key), "{key} ran here already");
    for other in node.tasks.values().filter(|task| task.is_live()) {
        assert!(
            other.spec.job != spec.job || other.spec.key.allocation == key.allocation,
            "law 6: {key} starts while {} of the same job lives",
            other.spec.key
        );
    }
    for hold in &spec.devices {
        let card = &node.cards[usize::from(hold.gpu)];
        assert!(!card.changing, "{key} starts on a card that is being changed: {card:?}");
        let setting = card.setting.as_ref().expect("the card was read");
        let others = live_holds(node, hold.gpu);
        let ready = match (hold.mode, setting) {
            (HoldMode::Whole, CardSetting::Whole) => others.is_empty(),
            (HoldMode::Mig(place), CardSetting::Mig(standing)) => {
                standing.get(&place) == Some(&spec.compute_instances()) && !others.contains(&hold.mode)
            }
            (HoldMode::Mps { percent, .. }, CardSetting::Mps(server)) => {
                let asked = MpsLimits::of(card.model, hold.mode).expect("a share under MPS");
                let limits = server.limits.expect("what the server grants was set");
                let own = node.users.of(spec.tenant_id, spec.run_as).expect("no tenant here has a user of its own");
                let is_own = server.only_user.is_none() || own.is_none() || server.only_user == own;
                is_own && limits.percent >= percent && limits.memory_mib >= asked.memory_mib
            }
            (HoldMode::TimeSlice { .. }, CardSetting::TimeSlice) => true,
            _ => false,
        };
        assert!(ready, "{key} starts on card {} which is {setting:?}, held by {others:?}", hold.gpu);
    }
}

/// Time passes: what was told to end ends, and the control plane hears of everything.
pub(crate) fn pass_time(node: &mut Observed) {
    // What has just ended is cleaned until the next time.
    node.cleaning.clear();
    for (key, task) in &mut node.tasks {
        if task.is_live() && task.stopping != Stopping::No {
            task.phase = Phase::Over { state: TaskState::Stopped, started_ns: Some(5), ended_ns: NOW_NS };
            node.cleaning.insert(*key);
        }
        if task.phase == Phase::Starting {
            task.phase = running();
        }
        if !task.is_live() {
            node.acknowledged.insert(*key);
        }
    }
}

fn any_hold_mode() -> impl Strategy<Value = HoldMode> {
    let places: Vec<HoldMode> = [MigShape::G1, MigShape::G2, MigShape::G3, MigShape::G4, MigShape::G7]
        .into_iter()
        .flat_map(|shape| (0..8).map(move |start| mig(shape, start)))
        .collect();
    prop_oneof![
        Just(HoldMode::Whole),
        prop::sample::select(places),
        (1_u8..=100, 1_u64..=16).prop_map(|(percent, gib)| HoldMode::Mps { percent, memory_mib: gib << 10 }),
        Just(HoldMode::TimeSlice { memory_mib: 1_024 }),
    ]
}

fn any_spec() -> impl Strategy<Value = TaskSpec> {
    // Card CARDS does not exist; allocations 10..13 and 20..23 are attempts of two jobs, 30.. of a third.
    let devices = prop::collection::btree_map(0..=CARDS, any_hold_mode(), 0..3);
    (10_u64..34, 0_u32..3, devices, 1_u32..=3).prop_map(|(allocation, rank, devices, tenant)| TaskSpec {
        tenant_id: TenantId(tenant),
        ..spec(
            allocation - allocation % 10 + allocation % 4,
            rank,
            devices.into_iter().map(|(g, m)| hold(g, m)).collect(),
        )
    })
}

pub(crate) fn any_desired() -> impl Strategy<Value = Desired> {
    let tasks = prop::collection::vec((any_spec(), prop::bool::weighted(0.2)), 0..8);
    (tasks, 1_u64..3, any_pinned()).prop_map(|(tasks, epoch, pinned)| Desired { pinned, ..desired(tasks, epoch) })
}

/// Layouts that some cards keep.
fn any_pinned() -> impl Strategy<Value = BTreeMap<u16, Vec<MigPlacement>>> {
    let layouts = mig::legal_layouts(
        GpuModel::H100.facts().mig.expect("has MIG"),
        &[MigShape::G1, MigShape::G2, MigShape::G3, MigShape::G4, MigShape::G7],
    );
    prop::collection::btree_map(0..CARDS, prop::sample::select(layouts), 0..3)
}

fn any_phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Starting),
        Just(running()),
        Just(over(TaskState::Exited { code: 0 })),
        Just(over(TaskState::Fenced)),
    ]
}

fn any_setting() -> impl Strategy<Value = CardSetting> {
    let layouts = mig::legal_layouts(
        GpuModel::H100.facts().mig.expect("has MIG"),
        &[MigShape::G1, MigShape::G2, MigShape::G3, MigShape::G4, MigShape::G7],
    );
    prop_oneof![
        Just(CardSetting::Whole),
        prop::sample::select(layouts)
            .prop_map(|layout| CardSetting::Mig(layout.into_iter().map(|place| (place, 1)).collect())),
        any_server().prop_map(CardSetting::Mps),
        Just(CardSetting::TimeSlice),
    ]
}

fn any_server() -> impl Strategy<Value = MpsSetting> {
    let limits = (1_u8..=100, 1_u64..=16).prop_map(|(percent, gib)| MpsLimits { percent, memory_mib: gib << 10 });
    (prop::option::of(limits), prop::option::of(USERS..USERS + 3))
        .prop_map(|(limits, only_user)| MpsSetting { limits, only_user })
}

fn any_users() -> impl Strategy<Value = TaskUsers> {
    prop_oneof![Just(TaskUsers::Agent), Just(TaskUsers::One(USERS)), Just(TaskUsers::PerTenant { base: USERS - 1 })]
}

/// Any node whose live tasks fit together, as a record that was not corrupted shows it: each card is set as its holders need,
/// perhaps with more on it than they do.
pub(crate) fn any_observed(from: &Desired) -> impl Strategy<Value = Observed> + use<> {
    // Half of what is observed is what was desired, so that the two meet.
    let known: Vec<TaskSpec> = from.tasks.values().map(|task| (*task.spec).clone()).collect();
    let one = if known.is_empty() {
        any_spec().boxed()
    } else {
        prop_oneof![prop::sample::select(known), any_spec()].boxed()
    };
    let tasks = prop::collection::vec((one, any_phase(), 0_u8..3, any::<bool>()), 0..8);
    let settings = prop::collection::vec(any_setting(), usize::from(CARDS));
    (tasks, settings, any_users(), prop::bool::weighted(0.1)).prop_map(|(tasks, settings, users, t4)| {
        let mut node = Observed { users, ..observed(Vec::new()) };
        for (card, setting) in node.cards.iter_mut().zip(settings) {
            card.setting = Some(setting);
        }
        if t4 {
            node.cards[0] = whole(GpuModel::T4);
        }
        for (spec, phase, stopping, acknowledged) in tasks {
            add_if_consistent(&mut node, spec, phase, stopping, acknowledged);
        }
        node
    })
}

fn add_if_consistent(node: &mut Observed, spec: TaskSpec, phase: Phase, stopping: u8, acknowledged: bool) {
    let stopping = [Stopping::No, Stopping::Gracefully, Stopping::AtOnce][usize::from(stopping)];
    let task = ObservedTask {
        spec: Arc::new(spec),
        node_epoch: Epoch(1),
        phase,
        stopping,
        checkpoint: None,
        time_limit_s: None,
        world_generation: None,
    };
    let key = task.spec.key;
    let live = |other: &ObservedTask| other.is_live() && other.spec.job == task.spec.job;
    let doubled = node.tasks.values().any(|other| live(other) && other.spec.key.allocation != key.allocation);
    let fits = task.spec.devices.iter().all(|hold| {
        let Some(setting) = node.cards.get(usize::from(hold.gpu)).and_then(|card| card.setting.as_ref()) else {
            return false;
        };
        let others = live_holds(node, hold.gpu);
        match (hold.mode, setting) {
            (HoldMode::Whole, CardSetting::Whole) => others.is_empty(),
            (HoldMode::Mig(place), CardSetting::Mig(standing)) => {
                standing.get(&place) == Some(&task.spec.compute_instances()) && !others.contains(&hold.mode)
            }
            (HoldMode::Mps { .. }, CardSetting::Mps(_)) | (HoldMode::TimeSlice { .. }, CardSetting::TimeSlice) => true,
            _ => false,
        }
    });
    if task.is_live() && (doubled || !fits) || node.tasks.contains_key(&key) {
        return;
    }
    if !task.is_live() && acknowledged {
        node.acknowledged.insert(key);
    }
    if !task.is_live() && fits && task.stopping == Stopping::Gracefully {
        node.cleaning.insert(key);
    }
    node.tasks.insert(key, task);
}

//! Plans, stamps, environments, reports and the meter, case by case.

use crate::world::{PREEMPTED, desired, hold, key, mig, observed, over, running, spec, work};
use muster_model::capacity::shares::mps_limit_mib;
use muster_model::ids::{Epoch, Revision, TenantId};
use muster_model::mig::{MigPlacement, MigShape};
use muster_model::sharing::{CardSharing, TimeSlice};
use muster_model::task::{CleanUp, HoldMode, TaskState};
use muster_model::validate::bounds;
use muster_model::{Checkpoint, GpuModel, Stop, World};
use muster_node_core::{
    CardSetting, CardStep, Desired, DeviceNames, Gate, MpsLimits, MpsSetting, MpsStart, Observed, Report, Reports,
    Stamp, Step, TaskKey, TaskSpec, TaskUsers, env, plan,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const WHOLE: HoldMode = HoldMode::Whole;

/// What is desired (with its stop flag), what is observed, and the steps between.
#[track_caller]
fn check(
    wanted: Vec<(TaskSpec, bool)>,
    seen: Vec<(TaskSpec, muster_node_core::Phase)>,
    settings: Vec<CardSetting>,
    steps: &[Step],
) {
    let mut node = observed(seen);
    for (card, setting) in node.cards.iter_mut().zip(settings) {
        card.setting = Some(setting);
    }
    assert_eq!(steps_of(&desired(wanted, 1), &node), steps);
}

fn steps_of(desired: &Desired, node: &Observed) -> Vec<Step> {
    plan(desired, node).steps
}

/// What a card of a node needs.
fn card_steps(desired: &Desired, node: &Observed, card: usize) -> Vec<CardStep> {
    plan(desired, node).cards[card].steps.clone()
}

#[test]
fn a_new_task_has_its_card_prepared_and_starts_when_that_is_seen() {
    let place = MigPlacement { shape: MigShape::G3, start: 4 };
    let wanted = desired(vec![(spec(10, 0, vec![hold(1, mig(MigShape::G3, 4))]), false)], 1);
    let mut node = observed(vec![]);
    assert_eq!(steps_of(&wanted, &node), [], "its card is whole");
    assert_eq!(card_steps(&wanted, &node, 1), [CardStep::EnableMig, CardStep::CreateInstance(place, 1)]);
    work(&plan(&wanted, &node).cards, &mut node);
    node.cards[1].changing = true;
    assert_eq!(steps_of(&wanted, &node), [], "it is still being worked on");
    node.cards[1].changing = false;
    assert_eq!(steps_of(&wanted, &node), [Step::Start(key(10, 0))]);
    assert_eq!(card_steps(&wanted, &node, 1), [], "it is as it should be");
}

#[test]
fn an_instance_is_cut_as_its_task_asks_and_anew_for_the_next() {
    let place = MigPlacement { shape: MigShape::G3, start: 4 };
    let task = |id, compute_instances| {
        let spec = spec(id, 0, vec![hold(1, mig(MigShape::G3, 4))]);
        desired(vec![(TaskSpec { compute_instances, ..spec }, false)], 1)
    };
    let mut node = observed(vec![]);
    let first = task(10, 3);
    assert_eq!(card_steps(&first, &node, 1), [CardStep::EnableMig, CardStep::CreateInstance(place, 3)]);
    work(&plan(&first, &node).cards, &mut node);
    assert_eq!(steps_of(&first, &node), [Step::Start(key(10, 0))]);
    // The first has gone. An instance that is cut otherwise does not serve.
    let second = task(20, 0);
    assert_eq!(steps_of(&second, &node), []);
    assert_eq!(card_steps(&second, &node, 1), [CardStep::DestroyInstance(place), CardStep::CreateInstance(place, 1)]);
    work(&plan(&second, &node).cards, &mut node);
    assert_eq!(steps_of(&second, &node), [Step::Start(key(20, 0))]);
}

#[test]
fn a_card_that_fails_or_is_silent_costs_only_those_who_need_it() {
    let slice = spec(10, 0, vec![hold(1, mig(MigShape::G3, 4))]);
    let wanted = desired(vec![(slice, false), (spec(20, 0, vec![hold(0, WHOLE)]), false)], 1);
    let mut node = observed(vec![]);
    node.cards[1].failed = Some("entering MIG mode failed: Xid 79".to_owned());
    let refused = Step::RecordCannotStart { key: key(10, 0), reason: "entering MIG mode failed: Xid 79".to_owned() };
    assert_eq!(steps_of(&wanted, &node), [refused, Step::Start(key(20, 0))]);
    assert_eq!(card_steps(&wanted, &node, 1), [], "nobody needs it any more");
    node.cards[1].failed = None;
    node.cards[1].setting = None;
    assert_eq!(steps_of(&wanted, &node), [Step::Start(key(20, 0))], "what has not been read is waited for");
    assert_eq!(card_steps(&wanted, &node, 1), [], "and not touched");
}

/// A task that is not desired any more is stopped as its record says.
fn not_desired() -> Step {
    Step::Stop(key(10, 0), Stop::term(spec(10, 0, vec![]).grace_s))
}

#[test]
fn a_task_is_stopped_as_the_cause_asks_for_and_told_so_once() {
    let mut node = observed(vec![(spec(10, 0, vec![]), running())]);
    let wanted = desired(vec![(spec(10, 0, vec![]), true)], 1);
    assert_eq!(steps_of(&wanted, &node), [Step::Stop(key(10, 0), PREEMPTED)]);
    crate::world::take(&Step::Stop(key(10, 0), PREEMPTED), &wanted, &mut node);
    assert_eq!(steps_of(&wanted, &node), [], "its grace has begun");
    check(vec![], vec![(spec(10, 0, vec![]), running())], vec![], &[not_desired()]);
}

#[test]
fn a_card_changes_mode_only_when_its_last_task_is_gone() {
    let wanted = || vec![(spec(20, 0, vec![hold(0, WHOLE)]), false)];
    let share = || spec(10, 0, vec![hold(0, HoldMode::Mps { percent: 30, memory_mib: 1 })]);
    check(wanted(), vec![(share(), running())], vec![mps()], &[not_desired()]);
    check(wanted(), vec![(share(), over(TaskState::Stopped))], vec![mps()], &[]);
    let mut node = observed(vec![(share(), over(TaskState::Stopped))]);
    node.cards[0].setting = Some(mps());
    assert_eq!(card_steps(&desired(wanted(), 1), &node, 0), [CardStep::StopMps]);
}

#[test]
fn the_next_attempt_waits_until_the_last_one_is_gone() {
    let old = || spec(10, 0, vec![]);
    let new = || vec![(spec(11, 0, vec![]), false)];
    check(new(), vec![(old(), running())], vec![], &[Step::Kill(key(10, 0))]);
    check(new(), vec![(old(), over(TaskState::Fenced))], vec![], &[Step::Start(key(11, 0))]);
}

#[test]
fn growth_starts_beside_its_gang_and_every_worker_is_told_the_size_once() {
    let world = |generation, workers, rank| {
        let (local_rank, local_workers, node_rank, workers_min, workers_max) = (rank, workers, 0, 1, 4);
        let signal = Some(muster_model::StopSignal::Winch);
        World { generation, workers, rank, local_rank, local_workers, node_rank, workers_min, workers_max, signal }
    };
    let least = |world| TaskSpec { world: Some(world), ..spec(10, 0, vec![]) };
    // Allocation 12 is of the same attempt as allocation 10.
    let part = TaskSpec { attempt: spec(10, 0, vec![]).attempt, world: Some(world(2, 2, 1)), ..spec(12, 0, vec![]) };
    let wanted = desired(vec![(least(world(2, 2, 0)), false), (part.clone(), false)], 1);
    let mut node = observed(vec![(least(world(1, 1, 0)), running())]);
    let told = Step::SetWorld(key(10, 0), world(2, 2, 0));
    assert_eq!(steps_of(&wanted, &node), [told.clone(), Step::Start(key(12, 0))]);
    crate::world::take(&told, &wanted, &mut node);
    assert_eq!(steps_of(&wanted, &node), [Step::Start(key(12, 0))]);
    let env = env::task_env(&part, &DeviceNames::default()).expect("no devices");
    let said = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MUSTER_WORKERS_MAX", "MUSTER_WORLD_GENERATION"];
    assert_eq!(said.map(|name| env[name].as_str()), ["1", "2", "1", "4", "2"]);
}

#[test]
fn what_can_never_start_is_said_with_its_reason() {
    let refused = |key, reason: &str| Step::RecordCannotStart { key, reason: reason.to_owned() };
    check(
        vec![(spec(10, 0, vec![hold(7, WHOLE)]), false), (spec(20, 0, vec![hold(0, mig(MigShape::G3, 1))]), false)],
        vec![],
        vec![],
        &[
            refused(key(10, 0), "GPU 7 does not exist: this node has 3 GPUs"),
            refused(key(20, 0), "GPU 0: G3@1 is not a valid MIG placement on h100"),
        ],
    );
}

#[test]
fn a_task_to_be_stopped_that_never_started_is_recorded_as_stopped() {
    check(vec![(spec(10, 0, vec![]), true)], vec![], vec![], &[Step::RecordNeverStarted(key(10, 0))]);
}

#[test]
fn a_lower_stamp_changes_nothing() {
    let stamp =
        |incarnation, revision, epoch| Stamp { incarnation, revision: Revision(revision), node_epoch: Epoch(epoch) };
    let mut gate = Gate::default();
    assert_eq!(gate.take(stamp(1, 10, 2)), Ok(true));
    assert_eq!(gate.take(stamp(1, 10, 2)), Ok(false), "the same again is taken, and need not be stored");
    for lower in [stamp(1, 9, 3), stamp(0, 99, 9), stamp(1, 10, 1)] {
        assert!(gate.take(lower).is_err());
        assert_eq!(gate.highest(), Some(stamp(1, 10, 2)));
    }
    assert_eq!(gate.take(stamp(2, 1, 1)), Ok(true), "a restored cluster begins a higher history");
}

#[test]
fn a_stamp_must_be_stored_when_history_or_epoch_is_another() {
    let gate = |incarnation, revision, epoch| {
        let mut gate = Gate::default();
        let stamp = Stamp { incarnation, revision: Revision(revision), node_epoch: Epoch(epoch) };
        gate.take(stamp).expect("the first");
        gate
    };
    let on_disk = gate(1, 10, 2);
    assert!(!gate(1, 10, 2).must_store(&on_disk));
    assert!(!gate(1, 99, 2).must_store(&on_disk), "the next session begins later than that");
    for other in [gate(2, 10, 2), gate(1, 10, 3), gate(2, 1, 1)] {
        assert!(other.must_store(&on_disk), "{other:?}");
    }
    assert!(on_disk.must_store(&Gate::default()));
}

proptest! {
    #[test]
    fn the_gate_never_goes_back(stamps in prop::collection::vec((0_u64..3, 0_u64..5, 0_u64..3), 0..30)) {
        let mut gate = Gate::default();
        for (incarnation, revision, epoch) in stamps {
            let before = gate;
            let stamp = Stamp { incarnation, revision: Revision(revision), node_epoch: Epoch(epoch) };
            if gate.take(stamp).is_err() {
                prop_assert!(before.highest().is_some_and(|highest| stamp < highest));
                prop_assert_eq!(gate, before);
            } else {
                prop_assert!(before.highest() <= gate.highest() && gate.highest() == Some(stamp));
            }
        }
    }

    #[test]
    fn a_key_reads_back(allocation in any::<u64>(), rank in any::<u32>()) {
        prop_assert_eq!(key(allocation, rank).to_string().parse::<TaskKey>(), Ok(key(allocation, rank)));
    }
}

#[test]
fn keys_have_one_name() {
    for bad in ["", "1", "1.", ".1", "01.0", "+1.0", "1.0.0", "a.b", "1.-1"] {
        assert!(bad.parse::<TaskKey>().is_err(), "{bad:?}");
    }
}

/// A server that grants everything.
fn mps() -> CardSetting {
    let limits = Some(MpsLimits { percent: 100, memory_mib: 80 << 10 });
    CardSetting::Mps(MpsSetting { limits, only_user: None })
}

/// What a share of an H100 is granted, with a server for the agent's own user.
fn start(percent: u8, memory_mib: u64) -> MpsStart {
    let limits = MpsLimits { percent, memory_mib: mps_limit_mib(GpuModel::H100, memory_mib) };
    MpsStart { limits, user: None, for_all: false }
}

fn names() -> DeviceNames {
    DeviceNames {
        cards: vec!["GPU-a".to_owned(), "GPU-b".to_owned()],
        models: vec![GpuModel::H100; 2],
        instances: [((1, MigPlacement { shape: MigShape::G1, start: 3 }), vec!["MIG-x".to_owned()])].into(),
        mps_pipes: [(0, "/run/mps-0".to_owned())].into(),
    }
}

#[test]
fn a_rank_sees_its_gang_and_its_devices() {
    let mut task = spec(12, 1, vec![hold(0, WHOLE), hold(1, WHOLE)]);
    task.restart_count = 2;
    task.env = [("RANK".to_owned(), "99".to_owned()), ("LR".to_owned(), "0.1".to_owned())].into();
    let env = env::task_env(&task, &names()).expect("devices are there");
    for (name, value) in [
        ("RANK", "1"),
        ("LOCAL_RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("NODE_RANK", "0"),
        ("MASTER_ADDR", "node-0001"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RESTART_COUNT", "2"),
        ("MUSTER_JOB_ID", "1"),
        ("MUSTER_ATTEMPT", "3"),
        ("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"),
        ("LR", "0.1"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
}

/// A variable that the system sets and a job may give would lose the job's value in silence.
#[test]
fn every_variable_of_the_system_is_refused_in_a_job() {
    let share = HoldMode::Mps { percent: 25, memory_mib: 2_048 };
    for hold in [hold(0, share), hold(0, WHOLE)] {
        let env = env::task_env(&spec(10, 0, vec![hold]), &names()).expect("devices are there");
        let open: Vec<&String> = env.keys().filter(|name| !bounds::ENV_OF_SYSTEM.contains(&name.as_str())).collect();
        assert_eq!(open, Vec::<&String>::new());
    }
}

#[test]
fn shares_and_slices_are_named_so_that_cuda_finds_them() {
    let visible = |mode, gpu| {
        env::task_env(&spec(10, 0, vec![hold(gpu, mode)]), &names()).map(|env| env["CUDA_VISIBLE_DEVICES"].clone())
    };
    assert_eq!(visible(mig(MigShape::G1, 3), 1).as_deref(), Ok("MIG-x"));
    assert_eq!(visible(HoldMode::TimeSlice { memory_mib: 9 }, 1).as_deref(), Ok("GPU-b"));
    assert!(visible(mig(MigShape::G1, 3), 0).is_err(), "an instance that does not stand has no name");
    assert_eq!(env::task_env(&spec(10, 0, vec![]), &names()).expect("nothing to find")["CUDA_VISIBLE_DEVICES"], "");
    let share = HoldMode::Mps { percent: 25, memory_mib: 2_048 };
    let env = env::task_env(&spec(10, 0, vec![hold(0, share)]), &names()).expect("the server runs");
    assert_eq!(env["CUDA_VISIBLE_DEVICES"], "GPU-a");
    assert_eq!(env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "25");
    // The share, and the context beside it.
    assert_eq!(env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=2496M");
    assert_eq!(env["CUDA_MPS_PIPE_DIRECTORY"], "/run/mps-0");
}

const S: u64 = 1_000_000_000;

#[test]
fn a_state_is_sent_until_it_is_acknowledged() {
    let mut reports = Reports::default();
    let task = key(10, 0);
    assert!(reports.observe(task, TaskState::Running, None, CleanUp::default()));
    assert!(!reports.observe(task, TaskState::Running, None, CleanUp::default()), "no news");
    let (first, batch) = reports.next_batch(0).expect("news");
    let clean_up = CleanUp::default();
    assert_eq!(batch, [Report { key: task, state: TaskState::Running, clean_up, ended_ns: None, checkpoint: None }]);
    assert_eq!(reports.next_batch(0), None, "it is under way");

    // A newer state goes out at once; the acknowledgement of the older one does not count for it.
    reports.observe(task, TaskState::Exited { code: 0 }, Some(7), CleanUp::default());
    let (second, _) = reports.next_batch(0).expect("newer news");
    assert!(!reports.acknowledged(first) && !reports.is_acknowledged(task));

    reports.new_session();
    assert!(!reports.acknowledged(second), "another session's number");
    let (third, _) = reports.next_batch(S).expect("sent again");
    assert!(!reports.expire(2 * S) && reports.expire(6 * S), "given up only after a while");
    let (fourth, _) = reports.next_batch(6 * S).expect("sent again");
    assert!(!reports.acknowledged(third) && reports.acknowledged(fourth) && reports.is_acknowledged(task));
    assert_eq!(reports.next_batch(7 * S), None);
}

#[test]
fn checkpoints_are_told_every_ten_seconds_and_the_last_one_with_the_end() {
    const S: u64 = 1_000_000_000;
    let made = |at_ms| Checkpoint { at_ms, note: format!("at {at_ms}") };
    let (task, mut reports) = (key(1, 0), Reports::default());
    assert!(!reports.checkpoint(task, &made(1), false, 0), "a task that nobody has seen");
    reports.observe(task, TaskState::Running, None, CleanUp::default());
    let told = |reports: &mut Reports, now_ns| {
        let (seq, batch) = reports.next_batch(now_ns)?;
        reports.acknowledged(seq);
        batch.into_iter().map(|report| report.checkpoint).next()
    };
    assert_eq!(told(&mut reports, 0), Some(None));
    assert!(reports.checkpoint(task, &made(1), false, S));
    assert!(!reports.checkpoint(task, &made(1), false, 90 * S), "no news");
    assert_eq!(told(&mut reports, 90 * S), Some(Some(made(1))));
    assert!(reports.checkpoint(task, &made(2), false, 100 * S));
    assert_eq!(told(&mut reports, 100 * S), Some(Some(made(2))));
    assert!(!reports.checkpoint(task, &made(3), false, 109 * S), "too soon");
    assert_eq!(told(&mut reports, 109 * S), None);
    assert!(reports.checkpoint(task, &made(3), false, 110 * S));
    assert!(reports.checkpoint(task, &made(4), true, 111 * S), "it is being stopped");
    reports.observe(task, TaskState::Stopped, Some(112 * S), CleanUp::default());
    assert!(reports.checkpoint(task, &made(5), true, 112 * S));
    assert_eq!(told(&mut reports, 112 * S), Some(Some(made(5))), "with the end");
    assert!(reports.is_acknowledged(task));
}

#[test]
fn a_time_limit_that_has_changed_reaches_a_live_task_once() {
    let limited = |limit| TaskSpec { time_limit_s: limit, ..spec(10, 0, vec![]) };
    let wanted = |limit| desired(vec![(limited(limit), false)], 1);
    let mut node = observed(vec![(limited(None), running())]);
    for limit in [Some(60), Some(30), None] {
        let step = Step::SetTimeLimit(key(10, 0), limit);
        assert_eq!(steps_of(&wanted(limit), &node), std::slice::from_ref(&step));
        crate::world::take(&step, &wanted(limit), &mut node);
        assert_eq!(steps_of(&wanted(limit), &node), []);
    }
    let stopping = desired(vec![(limited(Some(9)), true)], 1);
    assert_eq!(steps_of(&stopping, &node), [Step::Stop(key(10, 0), PREEMPTED)], "its end is settled");
    let over = observed(vec![(limited(None), over(TaskState::Stopped))]);
    assert_eq!(steps_of(&wanted(Some(9)), &over), []);
}

#[test]
fn a_failed_mps_server_is_started_again_once_its_clients_have_gone() {
    let share = |id| spec(id, 0, vec![hold(0, HoldMode::Mps { percent: 30, memory_mib: 1 })]);
    let wanted = desired(vec![(share(10), false), (share(20), false)], 1);
    let mut node = observed(vec![(share(10), running())]);
    node.cards[0].setting = Some(mps());
    assert_eq!(steps_of(&wanted, &node), [Step::Start(key(20, 0))]);
    node.cards[0].mps_failed = true;
    assert_eq!((steps_of(&wanted, &node), card_steps(&wanted, &node, 0)), (vec![], vec![]), "a client is there");
    node.tasks.clear();
    let wanted = desired(vec![(share(20), false)], 1);
    assert_eq!(steps_of(&wanted, &node), []);
    assert_eq!(card_steps(&wanted, &node, 0), [CardStep::StopMps, CardStep::StartMps(start(30, 1))]);
    assert_eq!(card_steps(&desired(vec![], 1), &node, 0), [CardStep::StopMps]);
    node.cards[0].mps_failed = false;
    assert_eq!(steps_of(&wanted, &node), [Step::Start(key(20, 0))]);
}

/// A share of an H100 under MPS of a tenant.
fn share(id: u64, tenant: u32, (percent, memory_mib): (u8, u64)) -> TaskSpec {
    let devices = vec![hold(0, HoldMode::Mps { percent, memory_mib })];
    TaskSpec { tenant_id: TenantId(tenant), ..spec(id, 0, devices) }
}

#[test]
fn a_server_grants_the_largest_share_of_those_that_hold_the_card() {
    let limits = |percent, memory_mib| start(percent, memory_mib).limits;
    let (small, large) = (share(10, 1, (30, 2_048)), share(20, 1, (50, 1_024)));
    let wanted = desired(vec![(small.clone(), false)], 1);
    let mut node = observed(vec![]);
    assert_eq!(card_steps(&wanted, &node, 0), [CardStep::StartMps(start(30, 2_048))]);
    work(&plan(&wanted, &node).cards, &mut node);
    assert_eq!((steps_of(&wanted, &node), card_steps(&wanted, &node, 0)), (vec![Step::Start(key(10, 0))], vec![]));

    // A larger one starts when the server grants it, and what it grants goes down again when it has gone.
    let mut node = Observed { cards: node.cards, ..observed(vec![(small.clone(), running())]) };
    let both = desired(vec![(small.clone(), false), (large.clone(), false)], 1);
    assert_eq!(steps_of(&both, &node), [], "the server grants 30 %");
    assert_eq!(card_steps(&both, &node, 0), [CardStep::SetMpsLimits(limits(50, 2_048))]);
    work(&plan(&both, &node).cards, &mut node);
    assert_eq!((steps_of(&both, &node), card_steps(&both, &node, 0)), (vec![Step::Start(key(20, 0))], vec![]));
    assert_eq!(card_steps(&wanted, &node, 0), [CardStep::SetMpsLimits(limits(30, 2_048))]);

    // An agent that comes back does not know what is set.
    node.cards[0].setting = Some(CardSetting::Mps(MpsSetting::default()));
    assert_eq!(steps_of(&both, &node), []);
    assert_eq!(card_steps(&both, &node, 0), [CardStep::SetMpsLimits(limits(50, 2_048))]);
}

#[test]
fn a_server_of_one_user_takes_no_task_of_another() {
    let users = TaskUsers::PerTenant { base: 1_000 };
    let wanted = desired(vec![(share(10, 1, (30, 1)), false), (share(20, 2, (30, 1)), false)], 1);
    let mut node = Observed { users, ..observed(vec![]) };
    let for_all = MpsStart { user: Some(1_001), for_all: true, ..start(30, 1) };
    assert_eq!(card_steps(&wanted, &node, 0), [CardStep::StartMps(for_all)]);
    let server = |only_user| CardSetting::Mps(MpsSetting { limits: Some(for_all.limits), only_user });
    node.cards[0].setting = Some(server(None));
    assert_eq!(steps_of(&wanted, &node), [Step::Start(key(10, 0)), Step::Start(key(20, 0))]);

    // The driver could not do that.
    node.cards[0].setting = Some(server(Some(1_001)));
    assert_eq!(steps_of(&wanted, &node), [Step::Start(key(10, 0))], "the other waits");
    assert_eq!(card_steps(&wanted, &node, 0), []);
    // Once the card is its own it gets a server of its own.
    let wanted = desired(vec![(share(20, 2, (30, 1)), false)], 1);
    assert_eq!(steps_of(&wanted, &node), []);
    let own = MpsStart { user: Some(1_002), ..for_all };
    assert_eq!(card_steps(&wanted, &node, 0), [CardStep::StopMps, CardStep::StartMps(own)]);
    let mut held = Observed { cards: node.cards, users, ..observed(vec![(share(30, 1, (30, 1)), running())]) };
    held.tasks.get_mut(&key(30, 0)).expect("it is there").stopping = muster_node_core::Stopping::Gracefully;
    assert_eq!(card_steps(&wanted, &held, 0), [], "somebody is on it");
    // One user for all tasks needs no more than a server of that user.
    let one = Observed { users: TaskUsers::One(7), ..observed(vec![]) };
    let own = MpsStart { user: Some(7), ..start(30, 1) };
    assert_eq!(card_steps(&wanted, &one, 0), [CardStep::StartMps(own)]);
}

#[test]
fn turns_on_a_card_are_as_long_as_the_pool_has_them() {
    let task = spec(10, 0, vec![hold(0, HoldMode::TimeSlice { memory_mib: 1 })]);
    for length in TimeSlice::ALL {
        let sharing = CardSharing { time_slice: length, ..CardSharing::default() };
        let wanted = Desired { sharing, ..desired(vec![(task.clone(), false)], 1) };
        let mut node = observed(vec![]);
        assert_eq!(card_steps(&wanted, &node, 0), [CardStep::SetTimeSlice(length)]);
        // What is set stays while somebody has it.
        node.cards[0].setting = Some(CardSetting::TimeSlice);
        assert_eq!(card_steps(&wanted, &node, 0), []);
    }
}

/// A pinned layout stands while nobody holds it, so a task that is placed in it waits for no driver.
#[test]
fn a_pinned_layout_stands_before_its_tasks_and_after_them() {
    let place = |shape, start| MigPlacement { shape, start };
    let (large, small) = (place(MigShape::G3, 0), place(MigShape::G2, 4));
    let pin = |tasks| Desired { pinned: [(0, vec![large, small])].into(), ..desired(tasks, 1) };
    let made = [CardStep::EnableMig, CardStep::CreateInstance(small, 1), CardStep::CreateInstance(large, 1)];
    let mut node = observed(vec![]);
    assert_eq!(card_steps(&pin(vec![]), &node, 0), made);
    node.cards[0].setting = Some(CardSetting::Mig([(large, 1), (small, 1)].into()));
    assert_eq!(card_steps(&pin(vec![]), &node, 0), []);
    let task = spec(10, 0, vec![hold(0, HoldMode::Mig(large))]);
    let wanted = pin(vec![(task.clone(), false)]);
    assert_eq!(steps_of(&wanted, &node), [Step::Start(key(10, 0))], "it waits for nothing");
    assert_eq!(card_steps(&wanted, &node, 0), []);
    // What somebody waits for is made first.
    node.cards[0].setting = Some(CardSetting::Whole);
    let first = [CardStep::EnableMig, CardStep::CreateInstance(large, 1), CardStep::CreateInstance(small, 1)];
    assert_eq!(card_steps(&wanted, &node, 0), first);
    // A layout that has gone is taken apart, but for what is held; one that is withheld is not made.
    let mut held = Observed { cards: node.cards.clone(), ..observed(vec![(task, running())]) };
    held.cards[0].setting = Some(CardSetting::Mig([(large, 1), (small, 1)].into()));
    let unpinned = Desired { pinned: Default::default(), ..wanted };
    assert_eq!(card_steps(&unpinned, &held, 0), [CardStep::DestroyInstance(small)]);
    node.cards[0].withheld_slices = vec![(large, "Xid 94".to_owned())];
    assert_eq!(card_steps(&pin(vec![]), &node, 0), [CardStep::EnableMig, CardStep::CreateInstance(small, 1)]);
    node.cards[0].withheld = Some("it is lost".to_owned());
    assert_eq!(card_steps(&pin(vec![]), &node, 0), []);
    // Nor is one that stands taken apart: the card may be kept in use.
    node.cards[0].setting = Some(CardSetting::Mig([(large, 1), (small, 1)].into()));
    assert_eq!(card_steps(&pin(vec![]), &node, 0), []);
    node.cards[0].setting = Some(CardSetting::Whole);
    node.cards[0] = muster_node_core::CardObserved { model: GpuModel::T4, withheld: None, ..node.cards[0].clone() };
    assert_eq!(card_steps(&pin(vec![]), &node, 0), [], "it has no MIG");
}

/// One slot that the driver does not make keeps nobody from the others.
#[test]
fn a_pinned_slot_that_cannot_be_made_keeps_no_task_from_the_others() {
    let place = |shape, start| MigPlacement { shape, start };
    let (large, small) = (place(MigShape::G3, 0), place(MigShape::G2, 4));
    let mut node = observed(vec![]);
    node.cards[0].setting = Some(CardSetting::Mig(BTreeMap::new()));
    node.cards[0].failed = Some("the driver refused".to_owned());
    node.cards[0].failed_steps = vec![CardStep::CreateInstance(small, 1), CardStep::CreateInstance(large, 1)];
    let wanted = |slot| Desired {
        pinned: [(0, vec![large, small])].into(),
        ..desired(vec![(spec(10, 0, vec![hold(0, HoldMode::Mig(slot))]), false)], 1)
    };
    assert_eq!(steps_of(&wanted(large), &node), [], "it waits until its own was tried");
    assert_eq!(card_steps(&wanted(large), &node, 0)[0], CardStep::CreateInstance(large, 1));
    assert!(matches!(steps_of(&wanted(small), &node)[..], [Step::RecordCannotStart { .. }]));
}

//! Each checker is quiet about a good record and reports a doctored one.

mod clients;
mod sessions;

use super::{check, check_rest};
use crate::history::{History, Interval, ReplicaRecord, Run, Sample, Submission, WatchRecord, digest};
use crate::specs;
use muster_control_core::{Command, Done, Entry, LeasedBinding, State, TaskReport, execute};
use muster_model::identity::{Enrolled, Machine, MachineStanding};
use muster_model::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, Rank, Revision, TenantId};
use muster_model::object::{FinishedJob, Key};
use muster_model::usage::{AllocationUsage, UseKind};
use muster_model::{
    Change, DeviceHold, DeviceRequest, HoldMode, JobSpec, Object, Principal, TaskPlacement, TaskState, ValidJobSpec,
};
use std::sync::Arc;

fn spec(number: u64) -> ValidJobSpec {
    let chance = muster_runtime::Chance::seeded(number);
    let mut spec: JobSpec = specs::job(&chance, number);
    spec.tenant = "research".to_owned();
    spec.tasks = 2;
    spec.request.devices = DeviceRequest::Whole { count: 2, models: vec![specs::MODEL] };
    spec.validate().expect("a good job")
}

/// Plays commands on the real state machine and records them as one replica would publish them.
struct Stage {
    state: State,
    history: History,
    revision: u64,
}

impl Stage {
    fn new() -> Self {
        let state = State::new(7);
        let mut history = History { base: state.objects().collect(), ..History::default() };
        history.replicas.push(ReplicaRecord { name: "one".to_owned(), ..ReplicaRecord::default() });
        Stage { state, history, revision: 0 }
    }

    fn play(&mut self, command: Command) -> Done {
        self.revision += 1;
        let entry = Entry { now_ms: 1_000 * self.revision, commands: vec![command] };
        let executed = execute(&mut self.state, &entry);
        self.history.wall_ms = 1_000 * self.revision;
        self.history.published(0, Revision(self.revision), self.state.meta.now_ms, &Arc::new(executed.changes));
        let done = executed.decided.into_iter().next().expect("one command");
        done.expect("the command is accepted")
    }
}

/// Two jobs of two tasks with two cards each: the first bound on node 1 in cell 1, run and done; the second bound and running.
fn good() -> History {
    let mut stage = Stage::new();
    stage.play(Command::ApplyTenants { tenants: specs::tenants() });
    stage.play(Command::JoinNode { spec: specs::node(0, "boot"), usage_incarnation: None, agent: 1 });
    let submit = Command::Submit {
        request_id: "r-1".to_owned(),
        issued_ms: 2_000,
        payload_hash: 1,
        specs: vec![spec(1), spec(2)],
        ended: Vec::new(),
    };
    stage.play(submit);
    stage.play(Command::AcquireCell { cell: CellId(1), shard: "shard-1".to_owned() });
    for job in [1, 2] {
        let tasks = [0, 2].map(|first| TaskPlacement {
            node: NodeId(1),
            devices: [first, first + 1].map(|gpu| DeviceHold { gpu, mode: HoldMode::Whole }).to_vec(),
        });
        let binding = LeasedBinding {
            cell: CellId(1),
            epoch: Epoch(1),
            job: JobId(job),
            attempt: Attempt(1),
            model: Some(specs::MODEL),
            tasks: tasks.to_vec(),
        };
        let Done::Bound { allocation } = stage.play(Command::Bind(binding)) else { panic!("bound") };
        let report = |state: TaskState| {
            let reports = [0, 1].map(|rank| TaskReport {
                allocation,
                rank: Rank(rank),
                state: state.clone(),
                ended_ms: None,
                checkpoint: None,
                clean_up: muster_model::task::CleanUp::default(),
            });
            Command::ReportTasks { node: NodeId(1), epoch: Epoch(1), reports: reports.to_vec() }
        };
        stage.play(report(TaskState::Running));
        if job == 1 {
            stage.play(report(TaskState::Exited { code: 0 }));
        }
    }
    let Stage { state, mut history, revision } = stage;
    let replica = "one".to_owned();
    let sample = Sample { replica, revision: Revision(revision), digest: digest(state.objects()), broken: None };
    history.samples.push(sample);
    let acknowledged = vec![vec![JobId(1), JobId(2)]; 2];
    history.submissions.push(Submission { request_id: "r-1".to_owned(), jobs: 2, acknowledged, refused: None });
    let run = |job: u64, rank, from_ns, to_ns| Run {
        node: "node-0".to_owned(),
        allocation: AllocationId(job),
        job: JobId(job),
        attempt: Attempt(1),
        rank: Rank(rank),
        from_ns,
        to_ns,
    };
    history.runs = vec![run(1, 0, 0, Some(5)), run(1, 1, 0, Some(6)), run(2, 0, 7, None), run(2, 1, 7, None)];
    let jobs = [JobId(1), JobId(2)].into();
    let events = job_events(&history);
    history.watches.push(WatchRecord {
        watcher: "w".to_owned(),
        from: Revision(0),
        snapshot: Some((Revision(3), jobs)),
        events: events.into_iter().filter(|(at, _)| at.0 > 3).collect(),
    });
    for (seq, kind, gpu_unit_ms) in [(1, UseKind::Run, 4), (2, UseKind::Run, 6), (3, UseKind::Idle, 3)] {
        history.metered(interval(seq), ((AllocationId(1), kind), gpu_unit_ms));
    }
    count(&mut history, 10);
    history
}

fn interval(seq: u64) -> Interval {
    Interval { node: "node-0".to_owned(), incarnation: 1, seq, removals: 0 }
}

/// Adds a revision at which so much of allocation 1 is counted.
fn count(history: &mut History, gpu_unit_ms: u128) {
    count_all(history, gpu_unit_ms, 3);
}

/// The same, with so much idle time.
fn count_all(history: &mut History, gpu_unit_ms: u128, idle_gpu_unit_ms: u128) {
    let (allocation, tenant) = (AllocationId(1), TenantId(1));
    let usage = AllocationUsage { allocation, tenant, gpu_unit_ms, idle_gpu_unit_ms, ..Default::default() };
    let revision = history.log.keys().next_back().expect("a log").next();
    history.published(0, revision, 9_000, &Arc::new(vec![Change::put(Object::AllocationUsage(usage))]));
}

fn job_events(history: &History) -> Vec<(Revision, JobId)> {
    let of = |change: &Change| match change {
        Change::Put(object) => match &**object {
            Object::Job(job) => Some(job.id),
            _ => None,
        },
        Change::Retire(job) => Some(job.id),
        Change::Delete(_) | Change::Audit(_) => None,
    };
    history.log.iter().flat_map(|(at, changes)| changes.iter().filter_map(of).map(move |job| (*at, job))).collect()
}

/// Changes every change of the log.
fn doctor(history: &mut History, mut change: impl FnMut(&mut Change)) {
    for changes in history.log.values_mut() {
        let mut doctored = Vec::clone(changes);
        doctored.iter_mut().for_each(&mut change);
        *changes = Arc::new(doctored);
    }
}

fn doctor_allocations(history: &mut History, mut change: impl FnMut(&mut muster_model::Allocation)) {
    doctor(history, |one| {
        if let Change::Put(object) = one
            && let Object::Allocation(allocation) = &mut **object
        {
            change(allocation);
        }
    });
}

fn reported(history: &History, law: &str, what: &str) {
    let all: Vec<_> = check(history).into_iter().chain(check_rest(history)).collect();
    let found = all.iter().any(|violation| violation.law == law && violation.what.contains(what));
    assert!(found, "{law} ({what:?}) is not among {all:#?}");
}

#[test]
fn a_good_record_is_good() {
    assert_eq!(check(&good()), []);
}

#[test]
fn law_1_a_card_held_twice_is_reported() {
    // The release of the first allocation is taken out, so the second holds the same cards.
    let mut history = good();
    for changes in history.log.values_mut() {
        let kept = changes.iter().filter(|change| !matches!(change, Change::Delete(Key::Allocation(_)))).cloned();
        *changes = Arc::new(kept.collect());
    }
    reported(&history, "law 1", "a whole card is shared");
}

#[test]
fn law_1_shares_beyond_the_card_are_reported() {
    for (mode, what) in [
        (HoldMode::Mps { percent: 60, memory_mib: 1 }, "120 % of its threads"),
        (HoldMode::TimeSlice { memory_mib: 50_000 }, "MiB of"),
    ] {
        let mut history = good();
        doctor_allocations(&mut history, |allocation| {
            let same = DeviceHold { gpu: 0, mode };
            allocation.tasks.iter_mut().for_each(|task| task.devices = vec![same]);
        });
        reported(&history, "law 1", what);
    }
}

#[test]
fn law_1_a_card_given_away_too_early_is_reported() {
    // On paper the first allocation was released before the second was bound; its tasks ran on.
    let mut history = good();
    history.runs[0].to_ns = Some(8);
    reported(&history, "law 1", "a whole card is shared");
}

#[test]
fn law_2_a_part_of_a_gang_is_reported() {
    let mut history = good();
    doctor_allocations(&mut history, |allocation| {
        allocation.tasks.pop();
        allocation.task_states.pop();
    });
    reported(&history, "law 2", "has 1 tasks");
}

#[test]
fn law_5_a_lost_acknowledgement_is_reported() {
    let mut history = good();
    history.submissions[0].acknowledged = vec![vec![JobId(1), JobId(99)]];
    reported(&history, "law 5", "job 99 of request \"r-1\" was acknowledged and is lost");
}

#[test]
fn law_5_a_retry_that_ran_twice_is_reported() {
    let mut history = good();
    history.submissions[0].acknowledged[1] = vec![JobId(3), JobId(4)];
    reported(&history, "law 5", "was answered");
}

#[test]
fn law_5_a_job_given_to_two_requests_is_reported() {
    let mut history = good();
    let again = Submission { request_id: "r-2".to_owned(), ..history.submissions[0].clone() };
    history.submissions.push(again);
    reported(&history, "law 5", "was given to requests");
}

#[test]
fn law_5_two_live_attempts_are_reported() {
    let mut history = good();
    doctor_allocations(&mut history, |allocation| allocation.job = JobId(1));
    doctor(&mut history, |change| {
        if matches!(change, Change::Delete(Key::Allocation(_))) {
            *change = Change::Delete(Key::Request("nothing".to_owned()));
        }
    });
    reported(&history, "law 5", "has allocations");
}

#[test]
fn law_5_a_job_back_from_its_end_is_reported() {
    let mut history = good();
    let retired = history.changes().find_map(|(_, change)| match change {
        Change::Retire(job) => Some(*job),
        _ => None,
    });
    let back = Change::put(Object::Job(retired.expect("one job ended")));
    history.log.insert(Revision(1_000), Arc::new(vec![back]));
    reported(&history, "law 5", "back from its end");
}

#[test]
fn law_5_a_job_forgotten_before_its_end_is_reported() {
    let mut history = good();
    let early = FinishedJob { finished_ms: 1, id: JobId(1) };
    history.log.insert(Revision(1), Arc::new(vec![Change::Delete(Key::Finished(early))]));
    reported(&history, "law 5", "was forgotten before its end");
}

#[test]
fn law_5_a_job_that_never_ends_is_reported() {
    reported(&good(), "law 5", "has not ended");
}

#[test]
fn law_6_a_rank_in_two_places_is_reported() {
    let mut history = good();
    let again = Run {
        node: "node-1".to_owned(),
        allocation: AllocationId(9),
        from_ns: 4,
        to_ns: Some(9),
        ..history.runs[0].clone()
    };
    history.runs.push(again);
    reported(&history, "law 6", "ran twice at once");
}

#[test]
fn law_6_a_task_started_twice_is_reported() {
    let mut history = good();
    let again = Run { from_ns: 8, to_ns: Some(9), ..history.runs[0].clone() };
    history.runs.push(again);
    reported(&history, "law 6", "was started twice");
}

#[test]
fn law_7_a_binding_under_an_old_epoch_is_reported() {
    let mut history = good();
    doctor(&mut history, |change| {
        if let Change::Put(object) = change
            && let Object::Cell(cell) = &mut **object
            && cell.holder.is_some()
        {
            cell.epoch = Epoch(2);
        }
    });
    reported(&history, "law 7", "bound under epoch 1");
}

/// The record of a machine that is not taken at its word.
fn suspended(principal: Principal) -> Object {
    let standing = MachineStanding::Suspended { since_ms: 1, reason: "stolen".to_owned() };
    Object::Machine(Machine {
        principal,
        key_sha256: [1; 32],
        next_key_sha256: None,
        generation: 0,
        nonce: 0,
        standing,
        enrolled: Enrolled::default(),
        since_ms: 1,
        join_token: 0,
    })
}

#[test]
fn sl5_suspended_machines_that_act_are_reported() {
    let name = good().changes().find_map(|(_, change)| match change {
        Change::Put(object) => match *object {
            Object::Node(node) => Some(node.spec.name),
            _ => None,
        },
        _ => None,
    });
    let mut history = good();
    history.base.push(suspended(Principal::Node(name.expect("a node joins"))));
    reported(&history, "SL5", "is suspended and becomes ready");
    let mut history = good();
    history.base.push(suspended(Principal::Shard("shard-1".to_owned())));
    doctor(&mut history, |change| {
        if let Change::Put(object) = change
            && let Object::Cell(cell) = &mut **object
            && let Some(holder) = &mut cell.holder
        {
            *holder = "shard-1-a1b2".to_owned();
        }
    });
    reported(&history, "SL5", "takes cell");
    // One that was resumed may.
    let mut history = good();
    let mut resumed = suspended(Principal::Shard("shard-1".to_owned()));
    history.base.push(resumed.clone());
    if let Object::Machine(machine) = &mut resumed {
        machine.standing = MachineStanding::Active;
    }
    let first = history.log.values_mut().next().expect("a log");
    *first = Arc::new(std::iter::once(Change::put(resumed)).chain(first.iter().cloned()).collect());
    assert!(check(&history).iter().all(|violation| violation.law != "SL5"));
}

#[test]
fn law_7_a_lease_that_changes_hands_within_an_epoch_is_reported() {
    let mut history = good();
    let cell = history.changes().filter_map(|(_, change)| match change {
        Change::Put(object) => match *object {
            Object::Cell(cell) if cell.holder.is_some() => Some(cell),
            _ => None,
        },
        _ => None,
    });
    let mut cell = cell.last().expect("a lease was taken");
    cell.holder = Some("shard-2".to_owned());
    history.log.insert(Revision(1_000), Arc::new(vec![Change::put(Object::Cell(cell))]));
    reported(&history, "law 7", "became");
}

#[test]
fn law_9_usage_lost_or_counted_twice_is_reported() {
    assert_eq!(check_rest(&good()).iter().filter(|violation| violation.law == "law 9").count(), 0);
    for counted in [4, 16] {
        let mut history = good();
        count(&mut history, counted);
        reported(&history, "law 9", "agents metered 10 unit-ms");
    }
    // The sums are right together, and each of them is wrong.
    let mut history = good();
    count_all(&mut history, 13, 0);
    reported(&history, "law 9", "Idle: agents metered 3 unit-ms, 0 were counted");
    let mut history = good();
    history.metered.clear();
    reported(&history, "law 9", "nobody metered");
    let mut history = good();
    history.metered(interval(1), ((AllocationId(1), UseKind::Run), 5));
    reported(&history, "law 9", "has changed its content");
}

#[test]
fn law_10_other_changes_at_one_revision_are_reported() {
    let mut history = good();
    history.replicas.push(ReplicaRecord { name: "two".to_owned(), ..ReplicaRecord::default() });
    history.published(1, Revision(1), 1_000, &Arc::new(Vec::new()));
    reported(&history, "law 10", "two published other changes");
}

#[test]
fn law_10_a_revision_left_out_is_reported() {
    let mut history = good();
    history.replicas.push(ReplicaRecord { name: "two".to_owned(), ..ReplicaRecord::default() });
    for revision in [1, 2, 4] {
        let changes = Arc::clone(&history.log[&Revision(revision)]);
        history.published(1, Revision(revision), 1_000 * revision, &changes);
    }
    reported(&history, "law 10", "two left out revision 3");
    history.replicas[1].skipped.push((Revision(2), Revision(3)));
    assert_eq!(check(&history), [], "a snapshot explains it");
}

#[test]
fn law_10_a_state_that_differs_is_reported() {
    let mut history = good();
    history.samples[0].digest ^= 1;
    reported(&history, "law 10", "is not what the changes so far add up to");
    let mut history = good();
    history.samples[0].broken = Some("law 1 is broken: the capacity ledger is wrong".to_owned());
    reported(&history, "law 10", "the capacity ledger is wrong");
}

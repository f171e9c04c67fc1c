//! What stopped attempts lead to, for every way in which the ranks of a gang may end.

use super::{observe, settle, stop};
use crate::command::Command;
use crate::draft::Draft;
use crate::entry::Entry;
use crate::execute::execute;
use crate::leased_binding::LeasedBinding;
use crate::outcome::Done;
use crate::state::State;
use crate::task_report::TaskReport;
use muster_model::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, Rank};
use muster_model::node::NodeSpec;
use muster_model::request::TaskRequest;
use muster_model::tenant::TenantSpec;
use muster_model::{
    Checkpoint, DeviceRequest, EndCause, Job, JobPhase, JobSpec, Object, Outcome, PreemptReason, TaskPlacement,
    TaskState,
};

const RANKS: u32 = 3;
const JOB: JobId = JobId(1);
const SUBMITTED_MS: u64 = 1_000;

/// A gang of three, bound and starting, and the job as it was submitted.
fn bound() -> (State, AllocationId, Job) {
    let mut state = State::new(7);
    let request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 1_000, memory_mib: 1 };
    let spec = JobSpec { tasks: RANKS, priority: 5, max_retries: 0, ..JobSpec::usual("t", request, &["true"]) };
    let submit = Command::Submit {
        request_id: "r".to_owned(),
        issued_ms: SUBMITTED_MS,
        payload_hash: 1,
        specs: vec![spec.validate().expect("a good job")],
        ended: Vec::new(),
    };
    let join = Command::JoinNode { spec: NodeSpec::usual("n1", Vec::new()), usage_incarnation: None, agent: 0 };
    let acquire = Command::AcquireCell { cell: CellId(1), shard: "s".to_owned() };
    let tasks = vec![TaskPlacement { node: NodeId(1), devices: Vec::new() }; RANKS as usize];
    let bind = LeasedBinding { cell: CellId(1), epoch: Epoch(1), job: JOB, attempt: Attempt(1), model: None, tasks };
    let tenants = Command::ApplyTenants { tenants: vec![TenantSpec::usual("t")] };
    for command in [tenants, join, acquire, submit] {
        run(&mut state, SUBMITTED_MS, command);
    }
    let before = Job::clone(&state.jobs[&JOB]);
    let Done::Bound { allocation } = run(&mut state, 2_000, Command::Bind(bind)) else { panic!("not bound") };
    (state, allocation, before)
}

fn run(state: &mut State, now_ms: u64, command: Command) -> Done {
    let entry = Entry { now_ms, commands: vec![command] };
    execute(state, &entry).decided.remove(0).expect("accepted")
}

/// What becomes of the job when its attempt is stopped for `cause` and its ranks then end in this way.
fn ends(cause: &EndCause, ends: &[TaskState], cancelled: bool) -> (State, Option<Outcome>, Job) {
    let (mut state, held, before) = bound();
    let mut draft = Draft::new(&state, 3_000);
    stop(&mut draft, held, cause.clone());
    if let Some(job) = draft.job_mut(JOB) {
        job.cancelled = cancelled;
    }
    for (rank, end) in ends.iter().enumerate() {
        observe(&mut draft, held, Rank(rank as u32), end, None);
    }
    settle(&mut draft, held);
    let (changes, _) = draft.finish(Done::Ok);
    let mut outcome = None;
    for change in &changes {
        if let muster_model::Change::Retire(job) = change
            && let JobPhase::Finished(ended) = &job.phase
        {
            outcome = Some(ended.clone());
        }
        state.apply(change);
    }
    (state, outcome, before)
}

fn apply(state: &mut State, changes: &[muster_model::Change]) {
    changes.iter().for_each(|change| state.apply(change));
}

/// Every way in which three ranks may end.
fn all_ends() -> impl Iterator<Item = Vec<TaskState>> {
    let ways = [
        TaskState::Exited { code: 0 },
        TaskState::Exited { code: 1 },
        TaskState::Signaled { signal: 9 },
        TaskState::Stopped,
        TaskState::TimedOut,
        TaskState::StartFailed { reason: "no such file".to_owned(), by_node: false },
        TaskState::StartFailed { reason: "disk".to_owned(), by_node: true },
        TaskState::Fenced,
    ];
    let count = ways.len();
    (0..count.pow(RANKS))
        .map(move |index| (0..RANKS).map(|rank| ways[index / count.pow(rank) % count].clone()).collect::<Vec<_>>())
}

fn causes() -> [EndCause; 3] {
    [
        EndCause::Preempted { by: Some(JobId(9)), reason: PreemptReason::Reclaim },
        EndCause::Preempted { by: None, reason: PreemptReason::Move },
        EndCause::Requeued,
    ]
}

#[test]
fn a_stopped_attempt_goes_back_to_its_place_whatever_its_ranks_exit_with() {
    let (mut back, mut over) = (0, 0);
    for cause in causes() {
        let preempted = matches!(cause, EndCause::Preempted { .. });
        for ends_with in all_ends() {
            let completed = ends_with.iter().all(|end| *end == TaskState::Exited { code: 0 });
            let late = ends_with.contains(&TaskState::TimedOut);
            let (state, outcome, before) = ends(&cause, &ends_with, false);
            state.check().unwrap_or_else(|broken| panic!("{broken:?} after {ends_with:?}"));
            assert!(state.allocations.is_empty(), "the devices are still held after {ends_with:?}");
            if preempted && (completed || late) {
                over += 1;
                assert_eq!(outcome, Some(if late { Outcome::TimedOut } else { Outcome::Completed }), "{ends_with:?}");
                continue;
            }
            back += 1;
            assert_eq!(outcome, None, "{cause:?}, then {ends_with:?}");
            let job = &state.jobs[&JOB];
            assert_eq!(job.phase, JobPhase::Queued);
            // Its place: tenant, priority and age are as they were, and no retry is used up.
            assert_eq!((job.submitted_ms, job.tenant, &job.spec), (SUBMITTED_MS, before.tenant, &before.spec));
            assert_eq!((job.failures, job.start_faults), (0, 0));
            assert_eq!(job.preemptions, u32::from(preempted));
            assert_eq!(job.attempt, Attempt(1), "the next one is 2: a restart");
            assert!(job.requeue_reason.as_ref().is_some_and(|reason| !reason.is_empty()));
        }
    }
    assert!(back > 1_000 && over > 100, "{back} went back, {over} were over");
}

/// Also where the attempt was already being stopped for another reason, and where every task had already succeeded.
#[test]
fn a_requeue_wins_over_the_exit_that_follows() {
    let lost = EndCause::NodeLost { node: NodeId(1) };
    let failed = EndCause::RankFailed { rank: Rank(0), code: Some(1) };
    for cause in causes().into_iter().map(Some).chain([None, Some(failed), Some(lost), Some(EndCause::TimeLimit)]) {
        for ends_with in all_ends() {
            let (mut state, held, before) = bound();
            if let Some(cause) = &cause {
                let mut draft = Draft::new(&state, 3_000);
                stop(&mut draft, held, cause.clone());
                let changes = draft.finish(Done::Ok).0;
                apply(&mut state, &changes);
            }
            assert_eq!(run(&mut state, 3_500, Command::Requeue { job: JOB }), Done::Ok);
            assert!(matches!(state.jobs[&JOB].phase, JobPhase::Stopping(_)), "its devices are still held");
            let mut draft = Draft::new(&state, 4_000);
            for (rank, end) in ends_with.iter().enumerate() {
                observe(&mut draft, held, Rank(rank as u32), end, None);
            }
            settle(&mut draft, held);
            let changes = draft.finish(Done::Ok).0;
            apply(&mut state, &changes);
            let job = state.jobs.get(&JOB).unwrap_or_else(|| panic!("over after {cause:?} and {ends_with:?}"));
            assert_eq!((&job.phase, job.requeue_asked), (&JobPhase::Queued, false));
            assert_eq!((job.submitted_ms, job.failures), (before.submitted_ms, 0));
            assert_eq!(job.preemptions, u32::from(matches!(cause, Some(EndCause::Preempted { .. }))));
        }
    }
}

/// Of a job that waits, a requeue changes nothing, and a cancellation is not taken back.
#[test]
fn a_requeue_needs_something_to_stop() {
    let (mut state, _, _) = bound();
    run(&mut state, 3_000, Command::Cancel { job: JOB });
    let entry =
        Entry { now_ms: 3_000, commands: vec![Command::Requeue { job: JOB }, Command::Requeue { job: JobId(7) }] };
    let refused: Vec<String> = execute(&mut state, &entry)
        .decided
        .into_iter()
        .map(|decided| decided.expect_err("refused").to_string())
        .collect();
    assert!(refused[0].contains("being cancelled") && refused[1].contains("does not exist"), "{refused:?}");
}

/// Each checkpoint that counts is newer than the last, by ten seconds while the job runs.
#[test]
fn checkpoints_move_forward_and_the_last_one_counts() {
    let (mut state, held, _) = bound();
    let report = |state, at_ms| TaskReport {
        allocation: held,
        rank: Rank(0),
        state,
        ended_ms: None,
        checkpoint: Some(Checkpoint { at_ms, note: format!("at\n{at_ms}") }),
        clean_up: muster_model::task::CleanUp::default(),
    };
    let mut told = |now_ms, seen, at_ms| {
        let reports = vec![report(seen, at_ms)];
        run(&mut state, now_ms, Command::ReportTasks { node: NodeId(1), epoch: Epoch(1), reports });
        let job = &state.jobs[&JOB];
        (job.checkpoint_ms, job.checkpoint_note.clone())
    };
    let at = |at_ms: u64, note: u64| (Some(at_ms), format!("at {note}"));
    assert_eq!(told(3_000, TaskState::Running, 500), at(2_000, 500), "not before the binding");
    assert_eq!(told(11_000, TaskState::Running, 11_000), at(2_000, 500), "too soon");
    assert_eq!(told(12_000, TaskState::Running, 99_000), at(12_000, 99_000), "not ahead of the state");
    assert_eq!(told(50_000, TaskState::Running, 11_000), at(12_000, 99_000), "an older one");
    assert_eq!(told(50_000, TaskState::Stopped, 13_000), at(13_000, 13_000), "the last one");
}

#[test]
fn a_cancellation_wins_over_both() {
    for cause in causes() {
        for ends_with in all_ends() {
            let (state, outcome, _) = ends(&cause, &ends_with, true);
            assert_eq!(outcome, Some(Outcome::Cancelled), "{cause:?}, then {ends_with:?}");
            assert!(state.jobs.is_empty());
        }
    }
}

#[test]
fn people_are_told_who_needed_the_devices() {
    for (cause, said) in
        causes().into_iter().zip(["preempted by job 9 (reclaim)", "preempted (move)", "requeued on request"])
    {
        let (state, _, _) = ends(&cause, &[const { TaskState::Stopped }; RANKS as usize], false);
        let job = &state.jobs[&JOB];
        assert_eq!(job.requeue_reason.as_deref(), Some(said));
        assert_eq!(job.attempts[0].reason, said);
    }
}

/// The history of objects has the cause too, for whoever watches.
#[test]
fn the_cause_stands_in_the_allocation_while_it_stops() {
    let (state, held, _) = bound();
    let cause = EndCause::Preempted { by: Some(JobId(9)), reason: PreemptReason::Priority };
    let mut draft = Draft::new(&state, 3_000);
    stop(&mut draft, held, cause.clone());
    observe(&mut draft, held, Rank(0), &TaskState::Exited { code: 7 }, None);
    settle(&mut draft, held);
    let stopping = draft.allocation(held).map(|held| held.state.clone());
    assert_eq!(stopping, Some(muster_model::AllocationState::Stopping(cause)), "a failure does not replace it");
    let (changes, _) = draft.finish(Done::Ok);
    let is_held = |change: &muster_model::Change| matches!(change, muster_model::Change::Put(object) if matches!(&**object, Object::Allocation(_)));
    assert!(changes.iter().any(is_held));
}

/// All ranks are seen in this state.
fn all_seen(state: &mut State, now_ms: u64, held: AllocationId, seen: &TaskState) {
    let report = |rank| TaskReport {
        allocation: held,
        rank: Rank(rank),
        state: seen.clone(),
        ended_ms: None,
        checkpoint: None,
        clean_up: muster_model::task::CleanUp::default(),
    };
    let reports = (0..RANKS).map(report).collect();
    run(state, now_ms, Command::ReportTasks { node: NodeId(1), epoch: Epoch(1), reports });
}

/// Run times are those of attempts that came to their own end.
#[test]
fn an_attempt_that_ends_by_itself_is_counted_and_no_other() {
    let counted = |level: u32, cause: Option<EndCause>, end: &TaskState| {
        let (mut state, held, _) = bound();
        if level > state.meta.feature_level {
            run(&mut state, 2_500, Command::RaiseFeatureLevel { level });
        }
        all_seen(&mut state, 3_000, held, &TaskState::Running);
        if let Some(cause) = cause {
            let mut draft = Draft::new(&state, 50_000);
            stop(&mut draft, held, cause);
            let changes = draft.finish(Done::Ok).0;
            apply(&mut state, &changes);
        }
        all_seen(&mut state, 63_000, held, end);
        let job = state.jobs.get(&JOB).map(|job| Job::clone(job));
        (state.run_times.values().cloned().collect::<Vec<_>>(), job)
    };
    let done = TaskState::Exited { code: 0 };
    let (records, _) = counted(3, None, &done);
    let mut expected = muster_model::RunTimes::new(records[0].tenant);
    expected.note(0, None, 60_000);
    assert_eq!(records, [expected]);
    assert_eq!(counted(3, None, &TaskState::Exited { code: 1 }).0.len(), 1, "a failure is an end too");
    assert_eq!(counted(2, None, &done).0, [], "older voters could not read it");
    assert_eq!(counted(3, Some(EndCause::NodeLost { node: NodeId(1) }), &TaskState::Fenced).0, []);
    assert_eq!(counted(3, Some(EndCause::Cancelled), &TaskState::Stopped).0, []);
    let cause = EndCause::Preempted { by: Some(JobId(9)), reason: PreemptReason::Reclaim };
    let (records, job) = counted(3, Some(cause), &TaskState::Stopped);
    assert_eq!(records, []);
    let taken = job.expect("it is pending again").attempts[0].preempted.expect("it says who");
    assert_eq!((taken.job, taken.tenant, taken.reason), (Some(JobId(9)), None, PreemptReason::Reclaim));
}

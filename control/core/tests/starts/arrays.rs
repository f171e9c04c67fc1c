//! Arrays: one record, as many live tasks as the limit allows, and ends that reach those who wait.

use super::Small;
use crate::common::{Step, holds};
use muster_control_core::Command;
use muster_control_core::bounds::ARRAY_PENDING_MAX;
use muster_model::array::ArrayTask;
use muster_model::ids::JobId;
use muster_model::{ArraySpec, ArrayState, Change, DependencyKind, Holder, JobPhase, Outcome, StartConditions};

fn spec(indices: &str, max_running: Option<u32>) -> Option<ArraySpec> {
    Some(ArraySpec { indices: indices.parse().expect("indices"), max_running })
}

impl Small {
    fn record(&self, id: JobId) -> &ArrayState {
        self.state.jobs[&id].array.as_deref().expect("an array")
    }

    fn tasks(&self, id: JobId) -> Vec<(JobId, u32)> {
        let task = |job: JobId| Some((job, self.state.jobs.get(&job)?.array_task?.index));
        self.state.index().starts.tasks_of(id).filter_map(task).collect()
    }

    fn indices(&self, id: JobId) -> Vec<u32> {
        self.tasks(id).into_iter().map(|(_, index)| index).collect()
    }
}

/// A task gets a job only while the array is under its limit; the limits that were lowered meanwhile let none be added.
#[test]
fn an_array_never_gets_more_live_tasks_than_its_limit() {
    holds("an_array_never_gets_more_live_tasks_than_its_limit", || {
        |step: &Step<'_>| {
            for record in step.after.jobs.values() {
                let Some(array) = record.array.as_deref() else { continue };
                let of_array = |task: Option<ArrayTask>| task.is_some_and(|task| task.array == record.id);
                let tasks = || step.after.jobs.values().filter(|job| of_array(job.array_task));
                let (live, pending) = (tasks().count(), tasks().filter(|job| job.phase == JobPhase::Queued).count());
                let is_new = tasks().any(|job| !step.before.jobs.contains_key(&job.id));
                if is_new && array.max_running.is_some_and(|limit| live > limit as usize) {
                    return Err(format!(
                        "array {} has {live} live tasks, its limit is {:?}",
                        record.id, array.max_running
                    ));
                }
                if is_new && pending as u64 > ARRAY_PENDING_MAX {
                    return Err(format!("array {} has {pending} pending tasks", record.id));
                }
                if live == 0 && array.left.is_empty() {
                    return Err(format!("array {} is over and lives on", record.id));
                }
                if record.array_may_start() && live == 0 && array.ready().next().is_some() {
                    return Err(format!("array {} may start tasks and has none", record.id));
                }
            }
            Ok(())
        }
    });
}

#[test]
fn ten_thousand_tasks_are_one_record_and_a_few_jobs() {
    let mut small = Small::new();
    let array = small.submit_array(spec("0-9999", None), StartConditions::default()).expect("an array");
    assert_eq!(small.state.jobs.len() as u64, 1 + ARRAY_PENDING_MAX);
    assert_eq!(small.record(array).left.to_string(), format!("{ARRAY_PENDING_MAX}-9999"));
    assert_eq!(small.state.jobs[&array].not_eligible()[0].code(), "array_tasks");
}

#[test]
fn tasks_follow_each_other_under_the_limit_and_the_array_ends_with_the_last() {
    let mut small = Small::new();
    let array = small.submit_array(spec("3-6", Some(2)), StartConditions::default()).expect("an array");
    let after = small.submit(Small::on(DependencyKind::AfterNotOk, array), &[]).expect("a job");
    assert_eq!(small.indices(array), [3, 4]);
    let (first, _) = small.tasks(array)[0];
    small.run(&Command::Cancel { job: first }).expect("it is pending");
    assert_eq!(small.indices(array), [4, 5]);
    small.run(&Command::SetArrayLimit { job: array, max_running: None }).expect("an array");
    assert_eq!(small.indices(array), [4, 5, 6]);
    small.run(&Command::CancelTasks { job: array, indices: "4-5".parse().expect("indices") }).expect("an array");
    assert_eq!((small.indices(array), small.record(array).failed.to_string()), (vec![6], "3-5".to_owned()));
    assert!(!small.why(after).is_empty());
    let (last, _) = small.tasks(array)[0];
    let changes = small.run(&Command::Cancel { job: last }).expect("it is pending");
    let failed = |change: &Change| matches!(change, Change::Retire(job) if job.id == array && matches!(job.phase, JobPhase::Finished(Outcome::Failed { .. })));
    assert!(changes.iter().any(failed), "{changes:?}");
    assert!(small.why(after).is_empty(), "what waits for the array is decided in the same entry");
}

#[test]
fn a_held_array_starts_no_task_and_a_cancelled_one_ends_whole() {
    let mut small = Small::new();
    let held = StartConditions { held: true, ..StartConditions::default() };
    let array = small.submit_array(spec("0-9", Some(2)), held).expect("an array");
    assert!(small.indices(array).is_empty());
    small.run(&Command::Release { job: array, by: Holder::User }).expect("it is held");
    assert_eq!(small.indices(array), [0, 1]);
    small.run(&Command::Cancel { job: array }).expect("it is live");
    assert!(small.state.jobs.is_empty(), "{:?}", small.state.jobs.keys());
}

#[test]
fn tasks_wait_for_the_task_of_the_same_index() {
    let mut small = Small::new();
    let first = small.submit_array(spec("0-2", None), StartConditions::default()).expect("an array");
    let waits = small.submit_array(spec("0-3", None), Small::on(DependencyKind::AfterCorr, first)).expect("an array");
    let killed = StartConditions { kill_on_invalid_dependency: true, ..Small::on(DependencyKind::AfterCorr, first) };
    let killed = small.submit_array(spec("0-3", None), killed).expect("an array");
    assert!(small.indices(waits).is_empty());
    small.complete(small.tasks(first)[1].0);
    assert_eq!(small.indices(waits), [1], "task 1 of the other has completed");
    small.run(&Command::Cancel { job: first }).expect("it is live");
    assert_eq!(small.indices(waits), [1]);
    assert_eq!(small.why(waits)[0], "dependency_never_satisfied");
    small.run(&Command::DecideDue).expect("what can never start of the other is given up");
    assert_eq!((small.indices(killed), small.record(killed).left.len()), (vec![1], 0));
    small.complete(small.tasks(killed)[0].0);
    assert!(!small.state.jobs.contains_key(&killed), "the array ends with its last task");
}

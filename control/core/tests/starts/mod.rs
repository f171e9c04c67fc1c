//! When jobs may start: the laws of eligibility over random histories, reckoned here from the answers and the changes alone; and each
//! condition by itself.

mod arrays;

use crate::common::{START_MS, Step, acknowledged, catches, holds};
use muster_control_core::{Command, Done, Executed, LeasedBinding, Reject, State, TaskReport, plan};
use muster_model::ids::{Attempt, JobId, NodeId, Rank};
use muster_model::node::NodeSpec;
use muster_model::request::{DeviceRequest, TaskRequest};
use muster_model::tenant::TenantSpec;
use muster_model::{
    ArraySpec, Change, Dependency, DependencyKind, EndedJob, Holder, Job, JobPhase, JobSpec, NotEligible, Object,
    Outcome, StartConditions, TaskPlacement, TaskState, Trust,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Watched = Result<(), String>;

/// What has become of jobs, kept beside the state.
#[derive(Default)]
struct Seen {
    specs: BTreeMap<JobId, StartConditions>,
    ended: BTreeMap<JobId, EndedJob>,
    /// Tasks of arrays that completed.
    completed_tasks: BTreeSet<(JobId, u32)>,
    started_ms: BTreeMap<JobId, u64>,
    now_ms: u64,
}

impl Seen {
    fn take(&mut self, step: &Step<'_>) {
        self.now_ms = self.now_ms.max(step.entry.now_ms);
        for change in step.changes {
            match change {
                Change::Retire(job) => {
                    let ended = EndedJob::of(job);
                    let task = job.array_task.filter(|_| ended.completed);
                    self.completed_tasks.extend(task.map(|task| (task.array, task.index)));
                    self.ended.insert(job.id, ended);
                }
                Change::Put(object) => {
                    if let Object::Job(job) = &**object {
                        self.specs.entry(job.id).or_insert_with(|| job.spec.start.clone());
                        if let Some(started_ms) = job.started_ms {
                            self.started_ms.entry(job.id).or_insert(started_ms);
                        }
                    }
                }
                Change::Delete(_) | Change::Audit(_) => {}
            }
        }
    }

    /// For a task of an array: its index.
    fn is_met(&self, on: &Dependency, index: Option<u32>) -> bool {
        let ended = self.ended.get(&on.job);
        // A task waits for the task of the same index alone, where the other is an array too.
        let same_index = index.is_some_and(|index| self.completed_tasks.contains(&(on.job, index)));
        if on.kind == DependencyKind::AfterCorr && same_index {
            return true;
        }
        match on.kind {
            DependencyKind::AfterOk | DependencyKind::AfterCorr => ended.is_some_and(|ended| ended.completed),
            DependencyKind::AfterNotOk => ended.is_some_and(|ended| !ended.completed),
            DependencyKind::AfterAny => ended.is_some(),
            DependencyKind::After => {
                let since_ms = self.started_ms.get(&on.job).copied().or(ended.map(|ended| ended.ended_ms));
                since_ms.is_some_and(|since_ms| self.now_ms >= since_ms + 1_000 * on.delay_s)
            }
        }
    }
}

#[test]
fn a_job_starts_only_when_eligible() {
    holds("a_job_starts_only_when_eligible", || {
        let mut seen = Seen::default();
        move |step: &Step<'_>| {
            seen.take(step);
            step.after.check().map_err(|broken| broken.to_string())?;
            for (command, decided) in step.entry.commands.iter().zip(step.decided) {
                let (Command::Bind(binding), Ok(Done::Bound { .. })) = (command, decided) else { continue };
                let Some(start) = seen.specs.get(&binding.job) else { continue };
                let index = step.after.jobs.get(&binding.job).and_then(|job| job.array_task).map(|task| task.index);
                let unmet = |on: &&Dependency| !seen.is_met(on, index);
                let one_is_met = start.any_dependency && start.dependencies.iter().any(|on| !unmet(&on));
                if let Some(on) = start.dependencies.iter().find(unmet).filter(|_| !one_is_met) {
                    return Err(format!("job {} was bound before {on:?} was met", binding.job));
                }
                if start.begin_ms.is_some_and(|begin_ms| begin_ms > seen.now_ms) {
                    return Err(format!("job {} was bound before its begin time", binding.job));
                }
                if step.after.jobs.get(&binding.job).is_some_and(|job| job.unmet.held.is_some()) {
                    return Err(format!("job {} was bound while it was held", binding.job));
                }
            }
            Ok(())
        }
    });
}

#[test]
fn a_job_that_waits_for_nothing_but_devices_is_in_a_queue() {
    holds("a_job_that_waits_for_nothing_but_devices_is_in_a_queue", || {
        |step: &Step<'_>| {
            for job in step.after.jobs.values().filter(|job| job.phase == JobPhase::Queued) {
                let queued = step.after.index().queued_in(job.cell).any(|id| id == job.id);
                if queued == job.not_eligible().is_empty() {
                    continue;
                }
                return Err(format!("job {} in a queue: {queued}, {:?}", job.id, job.not_eligible()));
            }
            Ok(())
        }
    });
}

/// Dependents are decided in the entry that ends the job, each as the kind of its dependency says.
fn decided_at_once() -> impl FnMut(&Step<'_>) -> Watched {
    |step| {
        let ended = step.changes.iter().filter_map(|change| match change {
            Change::Retire(job) => Some(EndedJob::of(job)),
            _ => None,
        });
        for ended in ended {
            for job in step.after.jobs.values() {
                for on in job.unmet.dependencies.iter().filter(|on| on.job == ended.job) {
                    let may_be_never = match on.kind {
                        DependencyKind::AfterOk | DependencyKind::AfterCorr => !ended.completed,
                        DependencyKind::AfterNotOk => ended.completed,
                        DependencyKind::AfterAny | DependencyKind::After => false,
                    };
                    if !may_be_never || job.unmet.never.is_none() {
                        return Err(format!("job {} still waits for {on:?}, and {ended:?}", job.id));
                    }
                }
            }
        }
        Ok(())
    }
}

#[test]
fn dependents_are_decided_in_the_entry_that_ends_the_job() {
    holds("dependents_are_decided_in_the_entry_that_ends_the_job", decided_at_once);
    // A dependency that is met and forgotten.
    catches(
        "is over",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let waits = state.jobs.values().find(|job| job.phase == JobPhase::Queued && job.id.0 > 3);
                if let Some(mut job) = waits.map(|job| Job::clone(job)) {
                    let gone = (1..job.id.0).map(JobId).find(|id| !state.jobs.contains_key(id));
                    let Some(gone) = gone else { return };
                    job.unmet.dependencies = vec![Dependency { kind: DependencyKind::AfterAny, job: gone, delay_s: 0 }];
                    (job.cell, job.reserved) = (None, None);
                    state.jobs.insert(job.id, Arc::new(job));
                }
            }
        },
    );
    // A held job that stays in its queue.
    catches(
        "not eligible and yet in cell",
        || checked,
        || {
            |_, state: &mut State, _: &mut Executed| {
                let waits = state.jobs.values().find(|job| job.is_eligible() && job.cell.is_some());
                if let Some(mut job) = waits.map(|job| Job::clone(job)) {
                    job.unmet.held = Some(Holder::User);
                    state.jobs.insert(job.id, Arc::new(job));
                }
            }
        },
    );
}

fn checked(step: &Step<'_>) -> Watched {
    step.after.check().map_err(|broken| broken.to_string())
}

#[test]
fn jobs_depend_on_earlier_jobs_alone() {
    holds("jobs_depend_on_earlier_jobs_alone", || {
        |step: &Step<'_>| {
            for id in acknowledged(step) {
                let Some(job) = step.after.jobs.get(&id) else { continue };
                if let Some(on) = job.spec.start.dependencies.iter().find(|on| on.job >= id) {
                    return Err(format!("job {id} depends on {on:?}"));
                }
            }
            Ok(())
        }
    });
}

/// A cluster without nodes, where jobs wait.
struct Small {
    state: State,
    now_ms: u64,
    requests: u64,
}

impl Small {
    fn new() -> Self {
        let mut small = Small { state: State::new(7), now_ms: START_MS, requests: 0 };
        small.run(&Command::RaiseFeatureLevel { level: 4 }).expect("a new level");
        let tenant = TenantSpec {
            path: "red".to_owned(),
            guarantee: Default::default(),
            max: Default::default(),
            weight: 1,
            trust: Trust::Trusted,
            lend: true,
            weights: Default::default(),
            lends: Default::default(),
            run_as: None,
            anti_affinity: Vec::new(),
        };
        small.run(&Command::ApplyTenants { tenants: vec![tenant] }).expect("a tenant");
        small
    }

    fn run(&mut self, command: &Command) -> Result<Vec<Change>, Reject> {
        let (changes, _) = plan(&self.state, self.now_ms, command)?;
        changes.iter().for_each(|change| self.state.apply(change));
        self.state.check().expect("every law holds");
        Ok(changes)
    }

    fn submit(&mut self, start: StartConditions, ended: &[EndedJob]) -> Result<JobId, Reject> {
        self.submit_spec(start, None, ended)
    }

    fn submit_array(&mut self, array: Option<ArraySpec>, start: StartConditions) -> Result<JobId, Reject> {
        self.submit_spec(start, array, &[])
    }

    /// Without a node nothing runs, so the end of a job is put there as the last report of its tasks would.
    fn complete(&mut self, id: JobId) {
        let node = NodeSpec { cpu_milli: 64_000, memory_mib: 64_000, ..NodeSpec::usual("node-1", Vec::new()) };
        self.run(&Command::JoinNode { spec: node, usage_incarnation: None, agent: 1 }).expect("a node");
        let cell = self.state.jobs[&id].cell.expect("the node's cell holds it");
        self.run(&Command::AcquireCell { cell, shard: "shard".to_owned() }).expect("a free cell");
        let (epoch, node) = (self.state.cells[&cell].epoch, NodeId(1));
        let tasks = vec![TaskPlacement { node, devices: Vec::new() }];
        let attempt = Attempt(1);
        self.run(&Command::Bind(LeasedBinding { cell, epoch, job: id, attempt, model: None, tasks })).expect("it fits");
        let allocation = self.state.jobs[&id].phase.allocation().expect("it is bound");
        let reports = vec![TaskReport {
            allocation,
            rank: Rank(0),
            state: TaskState::Exited { code: 0 },
            ended_ms: None,
            checkpoint: None,
            clean_up: muster_model::task::CleanUp::default(),
        }];
        let epoch = self.state.nodes[&node].epoch;
        self.run(&Command::ReportTasks { node, epoch, reports }).expect("a report");
    }

    fn submit_spec(
        &mut self,
        start: StartConditions,
        array: Option<ArraySpec>,
        ended: &[EndedJob],
    ) -> Result<JobId, Reject> {
        let request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 1_000, memory_mib: 0 };
        let mut spec = JobSpec { start, array, ..JobSpec::usual("red", request, &["true"]) };
        spec.time_limit_s = Some(60);
        self.requests += 1;
        let id = self.state.meta.next_job;
        self.run(&Command::Submit {
            request_id: format!("r{}", self.requests),
            issued_ms: self.now_ms,
            payload_hash: 1,
            specs: vec![spec.validate().expect("a valid job")],
            ended: ended.to_vec(),
        })?;
        Ok(id)
    }

    fn why(&self, id: JobId) -> Vec<&'static str> {
        self.state.jobs[&id].not_eligible().iter().map(NotEligible::code).collect()
    }

    fn on(kind: DependencyKind, job: JobId) -> StartConditions {
        StartConditions { dependencies: vec![Dependency { kind, job, delay_s: 0 }], ..StartConditions::default() }
    }
}

#[test]
fn there_are_no_cycles() {
    let mut small = Small::new();
    let next = small.state.meta.next_job;
    for job in [next, next.next()] {
        let refused = small.submit(Small::on(DependencyKind::AfterOk, job), &[]).expect_err("it does not exist");
        assert!(refused.to_string().starts_with("start.dependencies[0].job_id: names job"), "{refused}");
    }
}

#[test]
fn what_an_administrator_holds_an_administrator_releases() {
    let mut small = Small::new();
    let job = small.submit(StartConditions { held: true, ..StartConditions::default() }, &[]).expect("a job");
    assert_eq!(small.why(job), ["held_by_user"]);
    small.run(&Command::Release { job, by: Holder::User }).expect("its user releases it");
    assert!(small.why(job).is_empty());
    small.run(&Command::Hold { job, by: Holder::Admin }).expect("it is pending");
    small.run(&Command::Hold { job, by: Holder::User }).expect("asking twice changes nothing");
    assert_eq!(small.why(job), ["held_by_admin"]);
    let refused = small.run(&Command::Release { job, by: Holder::User }).expect_err("an administrator holds it");
    assert!(refused.to_string().contains("ask an administrator"), "{refused}");
    small.run(&Command::Release { job, by: Holder::Admin }).expect("the administrator releases it");
    assert!(small.why(job).is_empty());
}

#[test]
fn time_decides_by_the_command_alone() {
    let mut small = Small::new();
    let begin_ms = Some(START_MS + 10_000);
    let job = small.submit(StartConditions { begin_ms, ..StartConditions::default() }, &[]).expect("a job");
    let deadline_ms = Some(START_MS + 100_000);
    let late = small.submit(StartConditions { deadline_ms, ..StartConditions::default() }, &[]).expect("a job");
    assert_eq!(small.state.index().starts.next_due_ms(), begin_ms);
    small.now_ms = START_MS + 9_999;
    assert_eq!(small.run(&Command::DecideDue).expect("nothing is due"), []);
    small.now_ms = START_MS + 10_000;
    assert_eq!(small.why(job), ["begin_time"]);
    small.run(&Command::DecideDue).expect("its time has come");
    assert!(small.why(job).is_empty());
    // Its limit is a minute: it may start until 40 s, and not later.
    small.now_ms = START_MS + 40_000;
    assert_eq!(small.run(&Command::DecideDue).expect("nothing is due"), []);
    small.now_ms += 1;
    let changes = small.run(&Command::DecideDue).expect("it cannot keep its deadline");
    let ended = |change: &Change| matches!(change, Change::Retire(job) if job.id == late && job.phase == JobPhase::Finished(Outcome::DeadlineMissed));
    assert!(changes.iter().any(ended), "{changes:?}");
    let refused = small.submit(StartConditions { deadline_ms, ..StartConditions::default() }, &[]);
    assert!(refused.expect_err("too late").to_string().starts_with("start.deadline_ms"));
}

#[test]
fn a_dependency_that_can_never_be_met_stays_pending_or_ends_the_job() {
    let mut small = Small::new();
    let first = small.submit(StartConditions::default(), &[]).expect("a job");
    let stays = small.submit(Small::on(DependencyKind::AfterOk, first), &[]).expect("a job");
    let killed = StartConditions { kill_on_invalid_dependency: true, ..Small::on(DependencyKind::AfterOk, first) };
    let killed = small.submit(killed, &[]).expect("a job");
    let after = small.submit(Small::on(DependencyKind::AfterNotOk, first), &[]).expect("a job");
    assert_eq!(small.why(stays), ["dependency"]);
    small.run(&Command::Cancel { job: first }).expect("it is pending");
    assert_eq!(small.why(stays), ["dependency_never_satisfied"]);
    assert!(small.why(after).is_empty(), "what was cancelled has not completed");
    assert_eq!(small.state.index().starts.next_due_ms(), Some(0));
    small.run(&Command::DecideDue).expect("one is to be cancelled");
    assert!(!small.state.jobs.contains_key(&killed) && small.state.jobs.contains_key(&stays));
}

#[test]
fn one_of_several_dependencies_is_enough() {
    let mut small = Small::new();
    let [first, second, third] = [(); 3].map(|()| small.submit(StartConditions::default(), &[]).expect("a job"));
    let on = |kinds: &[(DependencyKind, JobId)]| StartConditions {
        dependencies: kinds.iter().map(|(kind, job)| Dependency { kind: *kind, job: *job, delay_s: 0 }).collect(),
        any_dependency: true,
        ..StartConditions::default()
    };
    let one = on(&[(DependencyKind::AfterOk, first), (DependencyKind::AfterNotOk, second)]);
    let early = small.submit(one.clone(), &[]).expect("a job");
    let never =
        small.submit(on(&[(DependencyKind::AfterOk, first), (DependencyKind::AfterOk, first)]), &[]).expect("a job");
    let later =
        small.submit(on(&[(DependencyKind::AfterOk, first), (DependencyKind::AfterAny, third)]), &[]).expect("a job");
    assert_eq!(small.why(early), ["dependency", "dependency"]);
    // One can never be met: the others may be.
    small.run(&Command::Cancel { job: first }).expect("it is pending");
    assert_eq!(small.why(early), ["dependency"]);
    assert_eq!(small.why(later), ["dependency"]);
    assert_eq!(small.why(never), ["dependency_never_satisfied"]);
    small.run(&Command::Cancel { job: second }).expect("it is pending");
    assert!(small.why(early).is_empty(), "{:?}", small.why(early));
    assert_eq!(small.why(later), ["dependency"]);
    small.run(&Command::Cancel { job: third }).expect("it is pending");
    assert!(small.why(later).is_empty());
    // Met when it is submitted.
    let ended = [first, second].map(|job| EndedJob {
        job,
        completed: false,
        started_ms: None,
        ended_ms: 1,
        array_completed: None,
    });
    let at_once = small.submit(one, &ended).expect("a job");
    assert!(small.why(at_once).is_empty());
}

#[test]
fn the_end_of_a_finished_job_travels_in_the_command() {
    let mut small = Small::new();
    let first = small.submit(StartConditions::default(), &[]).expect("a job");
    small.run(&Command::Cancel { job: first }).expect("it is pending");
    let refused = small.submit(Small::on(DependencyKind::AfterOk, first), &[]).expect_err("its end is not known");
    assert_eq!(refused, Reject::EndUnknown { jobs: vec![first] });
    let ended = EndedJob { job: first, completed: true, started_ms: None, ended_ms: 1, array_completed: None };
    let met = small.submit(Small::on(DependencyKind::AfterOk, first), &[ended]).expect("it completed");
    assert!(small.why(met).is_empty());
}

#[test]
fn singletons_of_a_name_follow_each_other() {
    let mut small = Small::new();
    let alone = || StartConditions { singleton: true, ..StartConditions::default() };
    let jobs: Vec<JobId> = (0..3).map(|_| small.submit(alone(), &[]).expect("a job")).collect();
    let waits = |small: &Small| {
        jobs.iter().filter_map(|job| small.state.jobs.get(job)).map(|job| job.unmet.singleton).collect::<Vec<_>>()
    };
    assert_eq!(waits(&small), [false, true, true]);
    small.run(&Command::Cancel { job: jobs[1] }).expect("it is pending");
    assert_eq!(waits(&small), [false, true]);
    small.run(&Command::Cancel { job: jobs[0] }).expect("it is pending");
    assert_eq!(waits(&small), [false]);
}

#[test]
fn below_their_feature_level_conditions_are_refused() {
    let mut small = Small::new();
    small.state.meta.feature_level = 2;
    let refused = small.submit(StartConditions { held: true, ..StartConditions::default() }, &[]);
    assert!(refused.expect_err("level 2").to_string().contains("needs feature level 3"));
}

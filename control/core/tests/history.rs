//! Finished jobs are forgotten as the leader names them: none that lives, none twice, and what is counted is what is there.

#[path = "common/chance.rs"]
mod chance;

use chance::Chance;
use muster_control_core::bounds::FORGET_MAX;
use muster_control_core::{Command, Done, Entry, Reject, State, execute};
use muster_model::ids::JobId;
use muster_model::object::FinishedJob;
use muster_model::request::TaskRequest;
use muster_model::tenant::TenantSpec;
use muster_model::{Change, DeviceRequest, JobSpec, Key, ValidJobSpec};
use std::collections::BTreeSet;

fn spec() -> ValidJobSpec {
    let request = TaskRequest { devices: DeviceRequest::None, cpu_milli: 1_000, memory_mib: 1 };
    JobSpec::usual("t", request, &["true"]).validate().expect("a good job")
}

/// A state beside the history that its changes make, as a disk keeps it.
struct Replica {
    state: State,
    now_ms: u64,
    history: BTreeSet<FinishedJob>,
    forgotten: BTreeSet<JobId>,
}

impl Replica {
    fn new() -> Self {
        let mut replica =
            Replica { state: State::new(7), now_ms: 1_000_000, history: BTreeSet::new(), forgotten: BTreeSet::new() };
        replica.run(Command::ApplyTenants { tenants: vec![TenantSpec::usual("t")] }).expect("a good tenant");
        replica
    }

    fn run(&mut self, command: Command) -> Result<Done, Reject> {
        let entry = Entry { now_ms: self.now_ms, commands: vec![command] };
        let mut executed = execute(&mut self.state, &entry);
        for change in &executed.changes {
            match change {
                Change::Retire(job) => assert!(self.history.insert(FinishedJob::of(job)), "job {} ended twice", job.id),
                Change::Delete(Key::Finished(job)) => {
                    assert!(self.history.remove(job), "{job:?} was forgotten and was not there");
                    self.forgotten.insert(job.id);
                }
                _ => {}
            }
        }
        let meta = &self.state.meta;
        assert_eq!(meta.finished_kept, self.history.len() as u64);
        assert_eq!(meta.finished_forgotten, self.forgotten.len() as u64);
        // Law 5: every job that was ever accepted lives, is kept, or was forgotten.
        let (live, all) = (self.state.jobs.len() as u64, meta.next_job.0 - 1);
        assert_eq!(live + meta.finished_kept + meta.finished_forgotten, all);
        executed.decided.remove(0)
    }

    fn submit(&mut self, number: usize) {
        let submit = Command::Submit {
            request_id: format!("r{number}"),
            issued_ms: self.now_ms,
            payload_hash: 1,
            specs: vec![spec(); 5],
            ended: Vec::new(),
        };
        self.run(submit).expect("the queue has room");
    }

    fn first_to_end(&self, count: usize) -> Vec<FinishedJob> {
        self.history.iter().take(count).copied().collect()
    }
}

#[test]
fn law_5_no_live_job_is_forgotten_and_none_twice() {
    let mut forgotten = 0;
    for seed in 0..200 {
        forgotten += play(&mut Chance::new(seed));
    }
    assert!(forgotten > 5_000, "only {forgotten} jobs were forgotten");
}

/// A random history; how many jobs were forgotten in it.
fn play(chance: &mut Chance) -> usize {
    let mut replica = Replica::new();
    let mut last: Option<Command> = None;
    for number in 0..150 {
        // Several jobs end in one millisecond.
        replica.now_ms += chance.below(3);
        match chance.below(10) {
            0 | 1 => replica.submit(number),
            2..6 => {
                let live: Vec<JobId> = replica.state.jobs.keys().copied().collect();
                if let Some(job) = live.get(chance.below(live.len() as u64) as usize) {
                    replica.run(Command::Cancel { job: *job }).expect("it lives");
                }
            }
            6 | 7 => {
                let jobs = replica.first_to_end(chance.below(6) as usize + 1);
                let command = Command::ForgetFinished { forgotten: replica.state.meta.finished_forgotten, jobs };
                replica.run(command.clone()).expect("finished jobs");
                last = Some(command);
            }
            8 => again(&mut replica, last.clone()),
            _ => not_ended(&mut replica, chance),
        }
    }
    replica.forgotten.len()
}

/// What was forgotten last, once more, as from a leader whose first proposal was committed without its knowing.
fn again(replica: &mut Replica, last: Option<Command>) {
    let Some(command) = last else { return };
    let Command::ForgetFinished { jobs, .. } = &command else { return };
    if !jobs.is_empty() {
        let before = replica.state.meta.clone();
        replica.run(command).expect_err("they are forgotten already");
        assert_eq!(before, replica.state.meta);
    }
}

/// A job that lives, or that never was.
fn not_ended(replica: &mut Replica, chance: &mut Chance) {
    let id = JobId(chance.below(replica.state.meta.next_job.0 + 2));
    if replica.state.jobs.contains_key(&id) || id >= replica.state.meta.next_job {
        let jobs = vec![FinishedJob { finished_ms: replica.now_ms, id }];
        let forgotten = replica.state.meta.finished_forgotten;
        replica.run(Command::ForgetFinished { forgotten, jobs }).expect_err("it has not ended");
    }
}

#[test]
fn a_command_forgets_no_more_than_its_bound() {
    let mut replica = Replica::new();
    for number in 0..FORGET_MAX / 5 + 1 {
        replica.now_ms += 1;
        replica.submit(number);
    }
    let live: Vec<JobId> = replica.state.jobs.keys().copied().collect();
    for job in live {
        replica.run(Command::Cancel { job }).expect("it lives");
    }
    let forget = |jobs: Vec<FinishedJob>| Command::ForgetFinished { forgotten: 0, jobs };
    replica.run(forget(replica.first_to_end(FORGET_MAX + 1))).expect_err("too many");
    let mut twice = replica.first_to_end(2);
    twice.push(twice[1]);
    replica.run(forget(twice)).expect_err("one job twice");
    let mut turned = replica.first_to_end(2);
    turned.reverse();
    replica.run(forget(turned)).expect_err("not in order");
    replica.run(forget(replica.first_to_end(FORGET_MAX))).expect("as many as may be");
    assert_eq!(replica.history.len(), 5);
}

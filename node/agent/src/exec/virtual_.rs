//! Tasks that only pretend: they last as long as their command says, and obey stops, limits and fences to the nanosecond.
//!
//! Nothing runs between two looks: when a task ends is worked out from what is known of it, so a node with ten thousand tasks costs
//! nothing while time passes, and a task ends at its fence with or without an agent. The machine is the host's, not the
//! agent's: it goes on when the agent crashes, and a new agent attaches to it again.
//!
//! How long a task runs: the environment's `MUSTER_SIM_RUN_MS`, else `sleep <seconds>` or `sleep infinity`, else no time for `true`
//! and `false`, else one second. How it exits: `MUSTER_SIM_EXIT`, else 1 for `false`, else 0. `MUSTER_SIM_IGNORE_TERM=1`
//! makes it ignore SIGTERM, so that only its grace ends it.

use super::{ExecError, Executor, Fault, Launch, LogError, LogSlice, Owner, Stream};
use futures::future::{BoxFuture, FutureExt};
use muster_model::ids::{Attempt, Epoch, JobId};
use muster_model::{Stop, TaskState, World};
use muster_node_core::fence::{self, NS_PER_S};
use muster_node_core::{ObservedTask, Phase, Stopping, TaskKey, TaskSpec};
use muster_runtime::{Clock, Host};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// From when until when one rank ran, for checkers. Instants are of the simulation, not of the host, so that those of
/// several hosts can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// Its job.
    pub job: JobId,
    /// Which run of it.
    pub attempt: Attempt,
    /// Its allocation and rank.
    pub key: TaskKey,
    /// From when.
    pub started: Instant,
    /// Until when; absent while it runs.
    pub ended: Option<Instant>,
    /// How it ended; absent while it runs.
    pub state: Option<TaskState>,
}

/// The pretended processes of one host.
#[derive(Clone)]
pub struct VirtualMachine(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tasks: BTreeMap<TaskKey, Task>,
    /// Tasks that run without a record, because the agent's folder was lost.
    strays: Vec<(TaskKey, Task)>,
    /// Every run since the machine was made, or none when nobody checks: a bench of a day would only pile them up.
    history: Option<Vec<RunRecord>>,
    changed: Option<Arc<Notify>>,
    /// Wakes the task that wakes the agent.
    rescheduled: Option<Arc<Notify>>,
}

struct Task {
    spec: Arc<TaskSpec>,
    node_epoch: Epoch,
    stopping: Stopping,
    limit_s: Option<u64>,
    world_generation: Option<u64>,
    run: Run,
    /// Its place in the history, if it ran and there is one.
    recorded: Option<usize>,
    /// Set once the end has been reached, and never changed again.
    over: Option<(TaskState, u64)>,
}

/// What decides when a task ends. Times are CLOCK_BOOTTIME.
#[derive(Clone, Debug)]
struct Run {
    started_ns: u64,
    started: Instant,
    natural_ns: u64,
    exit_code: i32,
    ignores_term: bool,
    deadline_ns: u64,
    limit_ns: Option<u64>,
    grace_ns: u64,
    /// When it was told to stop, and the grace from then on.
    stopped: Option<(u64, u64)>,
    killed_ns: Option<u64>,
    fault: Option<Fault>,
}

impl Run {
    fn new(launch: &Launch, now_ns: u64) -> Self {
        let (run_ns, exit_code) = behaviour(&launch.spec.command, &launch.spec.env);
        let spec = &launch.spec;
        Run {
            started_ns: now_ns,
            started: Instant::now(),
            natural_ns: now_ns.saturating_add(run_ns),
            exit_code,
            ignores_term: spec.env.get("MUSTER_SIM_IGNORE_TERM").is_some_and(|value| value == "1"),
            deadline_ns: launch.deadline_ns,
            limit_ns: fence::time_limit_ns(now_ns, spec.time_limit_s),
            grace_ns: spec.grace_s.saturating_mul(NS_PER_S),
            stopped: None,
            killed_ns: None,
            fault: None,
        }
    }

    /// When it ends by what is known now, and how. Of what falls on the same moment, the first named here wins.
    fn end(&self) -> (u64, TaskState) {
        let after = |at_ns: u64, grace_ns: u64| if self.ignores_term { at_ns.saturating_add(grace_ns) } else { at_ns };
        let exited = (self.natural_ns, TaskState::Exited { code: self.exit_code });
        let fenced = (self.deadline_ns, TaskState::Fenced);
        let killed = self.killed_ns.map(|at_ns| (at_ns, TaskState::Stopped));
        let stopped = self.stopped.map(|(at_ns, grace_ns)| (after(at_ns, grace_ns), TaskState::Stopped));
        let limited = self.limit_ns.map(|at_ns| (after(at_ns, self.grace_ns), TaskState::TimedOut));
        let all = [Some(exited), Some(fenced), killed, stopped, limited].into_iter().flatten();
        let (at_ns, state) = all.min_by_key(|(at_ns, _)| *at_ns).unwrap_or((u64::MAX, TaskState::Fenced));
        (at_ns, self.fault.clone().map_or(state.clone(), |fault| fault.end(state)))
    }
}

/// How long a command pretends to run, and how it exits.
fn behaviour(command: &[String], env: &BTreeMap<String, String>) -> (u64, i32) {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let (run_ns, code) = match words.as_slice() {
        ["true"] => (0, 0),
        ["false"] => (0, 1),
        ["sleep", "infinity"] => (u64::MAX, 0),
        ["sleep", seconds] => match seconds.parse::<f64>() {
            Ok(seconds) if seconds >= 0.0 => ((seconds * NS_PER_S as f64) as u64, 0),
            _ => (0, 1),
        },
        _ => (NS_PER_S, 0),
    };
    let number = |name: &str| env.get(name).and_then(|value| value.parse::<u64>().ok());
    let run_ns = number("MUSTER_SIM_RUN_MS").map_or(run_ns, |ms| ms.saturating_mul(1_000_000));
    (run_ns, number("MUSTER_SIM_EXIT").map_or(code, |code| code as i32))
}

impl VirtualMachine {
    /// A machine on which nothing runs. `remember`: keep every run for [`VirtualMachine::history`].
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, remember: bool) -> Self {
        let history = remember.then(Vec::new);
        VirtualMachine(Arc::new(Inner { clock, state: Mutex::new(State { history, ..State::default() }) }))
    }

    /// Every rank that ever ran here, with what is known of it now; empty unless the machine remembers.
    #[must_use]
    pub fn history(&self) -> Vec<RunRecord> {
        let now_ns = self.0.clock.boottime_ns();
        let mut state = self.0.state.lock();
        state.settle(now_ns);
        state.history.iter().flatten().cloned().collect()
    }

    /// The host goes down and comes up again: whatever ran is gone, and so are the records.
    pub fn reboot(&self) {
        let now_ns = self.0.clock.boottime_ns();
        let mut state = self.0.state.lock();
        for task in state.all_mut().map(|(_, task)| task).filter(|task| task.over.is_none()) {
            task.run.deadline_ns = task.run.deadline_ns.min(now_ns);
        }
        state.settle(now_ns);
        state.tasks.clear();
        state.strays.clear();
        state.wake();
    }

    /// The agent's folder is deleted: what runs goes on to its end or its fence, and no record leads to it.
    pub fn lose_records(&self) {
        let now_ns = self.0.clock.boottime_ns();
        let mut state = self.0.state.lock();
        state.settle(now_ns);
        let lost = std::mem::take(&mut state.tasks);
        state.strays.extend(lost.into_iter().filter(|(_, task)| task.over.is_none()));
        state.wake();
    }

    fn change(&self, key: TaskKey, change: impl FnOnce(&mut Task, u64)) {
        let now_ns = self.0.clock.boottime_ns();
        let mut state = self.0.state.lock();
        state.settle(now_ns);
        if let Some(task) = state.tasks.get_mut(&key).filter(|task| task.over.is_none()) {
            change(task, now_ns);
            if let Some(rescheduled) = &state.rescheduled {
                rescheduled.notify_one();
            }
        }
    }

    /// Notifies the agent whenever a task's end has been reached.
    async fn wake_at_ends(self, rescheduled: Arc<Notify>) {
        loop {
            let now_ns = self.0.clock.boottime_ns();
            let next_ns = {
                let mut state = self.0.state.lock();
                state.settle(now_ns);
                let live = state.tasks.values().filter(|task| task.over.is_none());
                live.map(|task| task.run.end().0).min()
            };
            match next_ns {
                None => rescheduled.notified().await,
                Some(next_ns) => {
                    // A little late rather than a little early, which would be a turn for nothing.
                    let wait = Duration::from_nanos(next_ns.saturating_sub(now_ns)) + Duration::from_millis(1);
                    let _ = tokio::time::timeout(wait, rescheduled.notified()).await;
                }
            }
        }
    }
}

impl State {
    /// Writes down the ends that have been reached, and wakes the agent if there were any, whoever has looked: nobody finds them a second time.
    fn settle(&mut self, now_ns: u64) {
        let mut any = false;
        let history = &mut self.history;
        let all = self.tasks.values_mut().chain(self.strays.iter_mut().map(|(_, task)| task));
        for task in all.filter(|task| task.over.is_none()) {
            let (end_ns, state) = task.run.end();
            if end_ns > now_ns {
                continue;
            }
            any = true;
            task.over = Some((state.clone(), end_ns));
            if let (Some(history), Some(place)) = (history.as_mut(), task.recorded) {
                let lasted = Duration::from_nanos(end_ns.saturating_sub(task.run.started_ns));
                history[place].ended = Some(task.run.started + lasted);
                history[place].state = Some(state);
            }
        }
        if any {
            self.wake();
        }
    }

    fn all_mut(&mut self) -> impl Iterator<Item = (TaskKey, &mut Task)> {
        let known = self.tasks.iter_mut().map(|(key, task)| (*key, task));
        known.chain(self.strays.iter_mut().map(|(key, task)| (*key, task)))
    }

    fn wake(&self) {
        if let Some(changed) = &self.changed {
            changed.notify_one();
        }
    }
}

impl Executor for VirtualMachine {
    fn attach(&self, host: &Host, changed: Arc<Notify>) -> BoxFuture<'_, Result<(), ExecError>> {
        let rescheduled = Arc::new(Notify::new());
        {
            let mut state = self.0.state.lock();
            state.changed = Some(changed);
            state.rescheduled = Some(rescheduled.clone());
        }
        host.spawn(self.clone().wake_at_ends(rescheduled));
        std::future::ready(Ok(())).boxed()
    }

    fn claim(&self, _: Owner) -> BoxFuture<'_, Result<BTreeSet<TaskKey>, ExecError>> {
        let now_ns = self.0.clock.boottime_ns();
        let mut state = self.0.state.lock();
        state.settle(now_ns);
        for (_, task) in &mut state.strays {
            task.run.killed_ns.get_or_insert(now_ns);
        }
        state.settle(now_ns);
        let lost = std::mem::take(&mut state.strays).into_iter();
        std::future::ready(Ok(lost.map(|(key, _)| key).collect())).boxed()
    }

    fn start(&self, launch: Launch) {
        let now_ns = self.0.clock.boottime_ns();
        let mut state = self.0.state.lock();
        let key = launch.spec.key;
        if state.tasks.contains_key(&key) {
            return;
        }
        let run = Run::new(&launch, now_ns);
        let Launch { spec, node_epoch, .. } = launch;
        let recorded = state.history.as_mut().map(|history| {
            let (job, attempt, started) = (spec.job, spec.attempt, run.started);
            history.push(RunRecord { job, attempt, key, started, ended: None, state: None });
            history.len() - 1
        });
        let (limit_s, stopping) = (spec.time_limit_s, Stopping::No);
        let world_generation = spec.world.map(|world| world.generation);
        let task = Task { spec, node_epoch, stopping, limit_s, world_generation, run, recorded, over: None };
        state.tasks.insert(key, task);
        state.wake();
        if let Some(rescheduled) = &state.rescheduled {
            rescheduled.notify_one();
        }
    }

    fn record_over(&self, spec: Arc<TaskSpec>, node_epoch: Epoch, over: TaskState) {
        let now_ns = self.0.clock.boottime_ns();
        let mut state = self.0.state.lock();
        let launch =
            Launch { spec: spec.clone(), node_epoch, env: BTreeMap::new(), deadline_ns: now_ns, devices: Vec::new() };
        let run = Run::new(&launch, now_ns);
        let (limit_s, over) = (spec.time_limit_s, Some((over, now_ns)));
        let (stopping, world_generation) = (Stopping::No, None);
        let task = Task { spec, node_epoch, stopping, limit_s, world_generation, run, recorded: None, over };
        state.tasks.entry(launch.spec.key).or_insert(task);
        state.wake();
    }

    fn stop(&self, key: TaskKey, how: Stop) {
        self.change(key, |task, now_ns| {
            task.stopping = task.stopping.max(Stopping::Gracefully);
            task.run.stopped.get_or_insert((now_ns, how.grace_s.saturating_mul(NS_PER_S)));
        });
    }

    fn kill(&self, key: TaskKey) {
        self.change(key, |task, now_ns| {
            task.stopping = Stopping::AtOnce;
            task.run.killed_ns.get_or_insert(now_ns);
        });
    }

    fn fault(&self, key: TaskKey, fault: Fault) {
        self.change(key, |task, now_ns| {
            let grace_ns = task.run.grace_ns;
            task.stopping = task.stopping.max(Stopping::Gracefully);
            task.run.stopped.get_or_insert((now_ns, grace_ns));
            task.run.fault.get_or_insert(fault);
        });
    }

    fn task_of(&self, _: u32) -> Option<TaskKey> {
        // Nothing runs, so there is no process.
        None
    }

    fn set_time_limit(&self, key: TaskKey, limit_s: Option<u64>) {
        self.change(key, |task, now_ns| {
            task.limit_s = limit_s;
            // One that has passed already passes now: what is over stays as it was.
            task.run.limit_ns = fence::time_limit_ns(task.run.started_ns, limit_s).map(|at_ns| at_ns.max(now_ns));
        });
    }

    fn set_world(&self, key: TaskKey, world: World) {
        self.change(key, |task, _| task.world_generation = Some(world.generation));
    }

    fn push_deadline(&self, key: TaskKey, deadline_ns: u64) {
        // Later ends need no new wake-up: the agent is woken at the old one for nothing, once.
        let now_ns = self.0.clock.boottime_ns();
        let mut state = self.0.state.lock();
        state.settle(now_ns);
        if let Some(task) = state.tasks.get_mut(&key) {
            task.run.deadline_ns = task.run.deadline_ns.max(deadline_ns);
        }
    }

    fn observe(&self) -> BTreeMap<TaskKey, ObservedTask> {
        let now_ns = self.0.clock.boottime_ns();
        let mut state = self.0.state.lock();
        state.settle(now_ns);
        let observed = |task: &Task| {
            let started_ns = task.run.started_ns;
            let phase = match &task.over {
                None => Phase::Running { started_ns },
                Some((over, ended_ns)) => {
                    let ran = *ended_ns > started_ns;
                    Phase::Over { state: over.clone(), started_ns: ran.then_some(started_ns), ended_ns: *ended_ns }
                }
            };
            let (spec, node_epoch, stopping) = (task.spec.clone(), task.node_epoch, task.stopping);
            // Nothing runs, so nothing is saved.
            let (time_limit_s, world_generation) = (task.limit_s, task.world_generation);
            ObservedTask { spec, node_epoch, phase, stopping, checkpoint: None, time_limit_s, world_generation }
        };
        state.tasks.iter().map(|(key, task)| (*key, observed(task))).collect()
    }

    fn forget(&self, key: TaskKey) {
        self.0.state.lock().tasks.remove(&key);
    }

    fn read_log(
        &self,
        key: TaskKey,
        _: Stream,
        offset: u64,
        _: usize,
    ) -> BoxFuture<'static, Result<LogSlice, LogError>> {
        let complete = match self.0.state.lock().tasks.get(&key) {
            Some(task) => Ok(task.over.is_some()),
            None => Err(LogError::Unknown { key }),
        };
        // Nothing runs, so nothing is said.
        let slice = complete.map(|complete| LogSlice { data: Vec::new(), offset, complete });
        std::future::ready(slice).boxed()
    }
}

//! The reconciler: looks at the node, asks the core for steps, takes them. Woken by whatever changes; between two changes it
//! sleeps.
//!
//! What must stay true: it keeps nothing that it could not see again, except until when to wait; steps are taken in their order; it never waits for a
//! card: what cards need is handed over, and it is woken when one has changed.

use crate::exec::{DeviceNode, Fault, Launch};
use crate::gpu::GpuError;
use crate::shared::Shared;
use muster_model::TaskState;
use muster_model::task::HoldMode;
use muster_node_core::fence;
use muster_node_core::{Desired, Observed, ObservedTask, Phase, Plan, Step, Stopping, TaskKey, TaskSpec, env, plan};
use muster_runtime::timeline;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Allocations that end are cut together, so that a node of short jobs does not write its meter for each.
const ENDED_LINGER: Duration = Duration::from_secs(1);

pub(crate) struct Reconciler {
    shared: Arc<Shared>,
    /// Tasks that have ended and whose usage is on disk: until then their records are not forgotten.
    settled: BTreeSet<TaskKey>,
    /// When the next interval is cut; none while nothing is held.
    next_cut: Option<Instant>,
    /// When a card is to be worked on again.
    cards_again: Option<Instant>,
}

impl Reconciler {
    /// After the executor was attached and before anything is started.
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let observed = shared.config.executor.observe();
        let settled = {
            let meter = &mut shared.state.lock().meter;
            meter.keep(shared.host.clock.boottime_ns(), |key| observed.contains_key(&key));
            meter.forgettable()
        };
        Reconciler { shared, settled, next_cut: None, cards_again: None }
    }

    pub(crate) async fn run(mut self) {
        loop {
            self.pass().await;
            let wake_at = [self.next_cut, self.cards_again].into_iter().flatten().min();
            let shared = self.shared.clone();
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => return,
                () = shared.replan.notified() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    /// One look and what follows from it.
    async fn pass(&mut self) {
        let shared = self.shared.clone();
        let tasks = shared.config.executor.observe();
        let cleaning = shared.cleaner.observe(&tasks);
        shared.telemetry.set_cleaning(cleaning.iter().map(|key| key.allocation).collect());
        let is_due = self.note(&tasks);
        // What is to be reported does not wait for the meter's disk.
        shared.outgoing.notify_one();
        if is_due {
            match shared.store_meter().await {
                Ok(settled) => self.settled = settled,
                Err(error) => return shared.fail(error),
            }
            shared.outgoing.notify_one();
        }
        // What is desired stays so until all of it is taken.
        let _acting = shared.acting.lock();
        let (desired, observed) = {
            let state = shared.state.lock();
            let Some(desired) = state.desired.clone() else {
                self.cards_again = None;
                return;
            };
            let is_settled = |key: TaskKey| !state.meter.settled().contains(&key) || self.settled.contains(&key);
            let is_done = |key: &TaskKey| state.reports.is_acknowledged(*key) && is_settled(*key);
            let acknowledged = tasks.keys().copied().filter(is_done).collect();
            let observed = Observed {
                tasks,
                acknowledged,
                cleaning,
                cards: shared.observed_cards(),
                now_ns: shared.now_ns(),
                confirmed_ns: state.leases.confirmed_ns(),
                lost: state.lost.clone(),
                users: shared.config.executor.users(),
                resets: shared.config.health.resets,
            };
            (desired, observed)
        };
        let Plan { steps, cards } = plan(&desired, &observed);
        self.take(&desired, &observed, steps);
        // After the steps: an instance whose task is being started is held by then.
        self.cards_again = shared.cards.take(&cards);
    }

    /// Tells the reports and the meter what is seen. Says whether the meter was due to be cut, and is to be stored.
    fn note(&mut self, tasks: &BTreeMap<TaskKey, ObservedTask>) -> bool {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let mut ended = false;
        for (key, task) in tasks {
            let over_ns = match &task.phase {
                Phase::Over { ended_ns, .. } => Some(*ended_ns),
                Phase::Starting | Phase::Running { .. } => None,
            };
            let clean_up = over_ns.map(|_| self.shared.cleaner.of(*key)).unwrap_or_default();
            if let Some(seen) = task.state()
                && state.reports.observe(*key, seen.clone(), over_ns, clean_up.clone())
                && seen.is_over()
            {
                tracing::info!(task = %key, job = %task.spec.job, attempt = %task.spec.attempt, state = ?seen, "a task has ended");
                metrics::counter!("muster_agent_tasks_over_total", "state" => word(&seen)).increment(1);
            }
            let is_last = over_ns.is_some() || task.stopping != Stopping::No;
            if let Some(made) = &task.checkpoint
                && state.reports.checkpoint(*key, made, is_last, self.shared.now_ns())
            {
                tracing::debug!(task = %key, job = %task.spec.job, note = made.note, "a task has made a checkpoint");
            }
            let (started_ns, ended_ns) = match &task.phase {
                Phase::Starting => continue,
                Phase::Running { started_ns } => (Some(*started_ns), None),
                Phase::Over { started_ns, ended_ns, .. } => (*started_ns, Some(*ended_ns)),
            };
            if let Some(started_ns) = started_ns {
                state.meter.started(*key, task.spec.gpu_units, started_ns);
            }
            if let Some(ended_ns) = ended_ns {
                let now_ns = self.shared.now_ns();
                ended |= state.meter.ended(*key, ended_ns, now_ns);
                ended |= state.meter.cleaned_up(*key, &clean_up, now_ns);
            }
        }
        state.meter_held_on();
        let is_due = self.next_cut.is_some_and(|at| at <= now);
        if is_due {
            self.next_cut = None;
            state.meter.cut(self.shared.now_ns());
        }
        if ended || state.meter.is_holding() || state.meter.has_closed() {
            let period = self.shared.config.usage_period;
            let at = now + if ended { ENDED_LINGER.min(period) } else { period };
            self.next_cut = Some(self.next_cut.map_or(at, |already| already.min(at)));
        }
        is_due
    }

    /// Takes the steps.
    fn take(&mut self, desired: &Arc<Desired>, observed: &Observed, steps: Vec<Step>) {
        let shared = self.shared.clone();
        let executor = &shared.config.executor;
        let mut recorded: BTreeSet<TaskKey> = observed.tasks.keys().copied().collect();
        for step in steps {
            match step {
                Step::Stop(key, how) => executor.stop(key, how),
                Step::Kill(key) => executor.kill(key),
                Step::SetTimeLimit(key, limit_s) => executor.set_time_limit(key, limit_s),
                Step::SetWorld(key, world) => {
                    let (generation, workers) = (world.generation, world.workers);
                    tracing::info!(task = %key, generation, workers, "the size of an elastic gang has changed");
                    executor.set_world(key, world);
                }
                Step::Start(key) => {
                    self.start(desired, observed, key);
                    recorded.insert(key);
                }
                Step::RecordNeverStarted(key) => {
                    record_over(&shared, desired, key, TaskState::Stopped);
                    recorded.insert(key);
                }
                Step::RecordLost(key) => {
                    tracing::warn!(task = %key, "a task ran here without a record and was killed: it is not started again");
                    record_over(&shared, desired, key, TaskState::Stopped);
                    recorded.insert(key);
                }
                Step::RecordCannotStart { key, reason } => {
                    record_over(&shared, desired, key, TaskState::StartFailed { reason, by_node: true });
                    recorded.insert(key);
                }
                Step::Forget(key) => {
                    executor.forget(key);
                    shared.cleaner.forget(key);
                    let mut state = shared.state.lock();
                    state.reports.forget(key);
                    state.meter.forget(key);
                    self.settled.remove(&key);
                }
            }
        }
        shared.state.lock().waits_for_lease = desired.tasks.keys().any(|key| !recorded.contains(key));
    }

    /// Starts a task, or records why it cannot be started.
    fn start(&self, desired: &Arc<Desired>, observed: &Observed, key: TaskKey) {
        let (Some(task), Some(confirmed_ns)) = (desired.tasks.get(&key), observed.confirmed_ns) else { return };
        let spec: Arc<TaskSpec> = task.spec.clone();
        let cannot = |reason: String| {
            tracing::warn!(task = %key, job = %spec.job, reason, "cannot start a task");
            record_over(&self.shared, desired, key, TaskState::StartFailed { reason, by_node: true });
        };
        let env = match env::task_env(&spec, &self.shared.cards.names()) {
            Ok(env) => env,
            Err(missing) => return cannot(missing.to_string()),
        };
        let devices = match self.devices(&spec) {
            Ok(devices) => devices,
            Err(error) => return cannot(error.to_string()),
        };
        tracing::info!(task = %key, job = %spec.job, attempt = %spec.attempt, "starting a task");
        metrics::counter!("muster_agent_tasks_started_total").increment(1);
        tracing::trace!(target: timeline::TARGET, step = "started", allocation = key.allocation.0);
        self.shared.config.executor.start(Launch {
            deadline_ns: fence::deadline_ns(confirmed_ns, spec.disconnect_grace_s),
            node_epoch: desired.stamp.node_epoch,
            spec: spec.clone(),
            env,
            devices,
        });
        // A verdict that has come since the plan has ended the holders that it knew.
        let health = &self.shared.health;
        if let Some(reason) = health.withheld_from(&spec.devices).or_else(|| health.failed_mps(&spec.devices)) {
            self.shared.config.executor.fault(key, Fault::of_device(reason, false));
        }
    }

    /// The device nodes of what a task holds, each once.
    fn devices(&self, spec: &TaskSpec) -> Result<Vec<DeviceNode>, GpuError> {
        let mut devices = BTreeSet::new();
        for hold in &spec.devices {
            let instance = match hold.mode {
                HoldMode::Mig(place) => self.shared.cards.instance_at(hold.gpu, place),
                HoldMode::Whole | HoldMode::Mps { .. } | HoldMode::TimeSlice { .. } => None,
            };
            devices.extend(self.shared.config.gpus.device_nodes(hold.gpu, instance)?);
        }
        let holds_whole = !spec.devices.is_empty() && spec.devices.iter().all(|hold| hold.mode == HoldMode::Whole);
        if holds_whole && spec.spans_nodes() && !spec.private_network {
            devices.extend(self.shared.config.gpus.fabric_nodes(spec.imex_channel)?);
        }
        Ok(devices.into_iter().collect())
    }
}

fn record_over(shared: &Shared, desired: &Desired, key: TaskKey, state: TaskState) {
    if let Some(task) = desired.tasks.get(&key) {
        shared.config.executor.record_over(task.spec.clone(), desired.stamp.node_epoch, state);
    }
}

/// A task's end in a metric's label.
fn word(state: &TaskState) -> &'static str {
    match state {
        TaskState::Pending | TaskState::Running => "live",
        TaskState::Exited { code: 0 } => "completed",
        TaskState::Exited { .. } | TaskState::Signaled { .. } => "failed",
        TaskState::Stopped => "stopped",
        TaskState::TimedOut => "timed-out",
        TaskState::StartFailed { .. } => "start-failed",
        TaskState::Fenced => "fenced",
        TaskState::DeviceFault { .. } => "gpu-fault",
        TaskState::OverShare { .. } => "over-gpu-share",
        TaskState::OutOfMemory { .. } => "out-of-memory",
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

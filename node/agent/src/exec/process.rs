//! Real commands, each under a shim of its own.
//!
//! The folders are the truth and this is a cache of them: a new agent reads them all and goes on. What must stay true: the lock on
//! the map is never held across anything that blocks; the end of a shim is seen through its descriptor, without polling; a stop or
//! a fence that comes while a shim is being started reaches it as soon as it is there.

mod checkpoints;
mod config;
mod faults;
mod fences;
mod files;
mod launch;
mod lineage;
mod memory_notes;
mod shim;
mod take_over;
mod worlds;

use self::files::Files;
use self::shim::Shim;
use super::kept::Kept as KeptTasks;
use super::start::{self, Alive, Found};
use super::trash::Trash;
use super::{ExecError, Executor, Fault, Launch, LogError, LogSlice, Owner, orphans};
use crate::image::store::{Kept, Store};
use crate::task_folder::record::{End, ExitRecord, LaunchRecord, MemoryNote};
use crate::task_folder::{Stream, TaskFolder, output};
use futures::future::{BoxFuture, FutureExt};
use muster_model::ids::Epoch;
use muster_model::{Checkpoint, Stop, TaskState, World};
use muster_node_core::{ObservedTask, Phase, Stopping, TaskKey, TaskSpec};
use muster_runtime::Host;
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

pub use self::config::{IsolationConfig, ProcessConfig};
pub use crate::shim_command::ShimCommand;
pub use muster_node_core::TaskUsers;

/// Shims being started at the same time: starting is mostly exec, which a few cores do not do faster in parallel.
const STARTS_AT_ONCE: usize = 16;
/// Between two attempts to find out how a task ended, where the disk refuses: it grows from one to the other.
const END_AGAIN_MIN: Duration = Duration::from_millis(500);
const END_AGAIN_MAX: Duration = Duration::from_secs(30);

/// Runs commands under shims.
#[derive(Clone)]
pub struct ProcessExecutor(Arc<Inner>);

struct Inner {
    config: ProcessConfig,
    live: PathBuf,
    tasks: Mutex<BTreeMap<TaskKey, Entry>>,
    attached: Mutex<Option<(Host, Arc<Notify>)>>,
    kept: Mutex<Option<KeptTasks>>,
    starts: Semaphore,
    /// The lock of the data folder, once attached.
    folder_lock: Mutex<Option<File>>,
    /// Whose tasks these are, once claimed, with the lock of the host.
    owner: Mutex<Option<(Owner, UnixListener)>>,
    images: Arc<Store>,
    /// What tasks have left, until it is removed.
    trash: Arc<Trash>,
}

struct Entry {
    spec: Arc<TaskSpec>,
    node_epoch: Epoch,
    phase: Phase,
    stopping: Stopping,
    /// How it was first told to stop.
    stop: Option<Stop>,
    deadline_ns: u64,
    /// The time limit that holds now.
    time_limit_s: Option<u64>,
    /// Of an elastic gang: its size now, and the generation that the worker has been told.
    world: Option<World>,
    told_generation: Option<u64>,
    /// The newest checkpoint that it says it has made.
    checkpoint: Option<Checkpoint>,
    /// Once the shim is there and until it has ended.
    shim: Option<Arc<Shim>>,
    /// The fault of a device that ends it.
    fault: Option<Fault>,
    /// That it has nearly filled the memory of its MIG slice, as its folder has it.
    memory_note: Option<MemoryNote>,
    /// Cancelled when it is told to stop, for who prepares its start.
    told_to_stop: CancellationToken,
    /// Its image, while it may run in it.
    kept: Option<Arc<Kept>>,
    /// How it is isolated, once that is known.
    isolation: Option<Arc<LaunchRecord>>,
}

impl ProcessExecutor {
    /// An executor of one node; it does nothing before it is attached.
    #[must_use]
    pub fn new(config: ProcessConfig) -> Self {
        let live = config.data_dir.join("tasks");
        let images = Arc::new(Store::new(&config.data_dir, config.images.clone()));
        let trash = Arc::new(Trash::new(&config.data_dir));
        ProcessExecutor(Arc::new(Inner {
            config,
            images,
            trash,
            live,
            tasks: Mutex::new(BTreeMap::new()),
            attached: Mutex::new(None),
            kept: Mutex::new(None),
            starts: Semaphore::new(STARTS_AT_ONCE),
            folder_lock: Mutex::new(None),
            owner: Mutex::new(None),
        }))
    }
}

impl Inner {
    fn folder(&self, key: TaskKey) -> TaskFolder {
        TaskFolder::new(&self.live.join(key.to_string()))
    }

    fn changed(&self) {
        if let Some((_, changed)) = &*self.attached.lock() {
            changed.notify_one();
        }
    }

    fn host(&self) -> Option<Host> {
        self.attached.lock().as_ref().map(|(host, _)| host.clone())
    }

    fn now_ns(&self) -> u64 {
        self.host().map_or(0, |host| host.clock.boottime_ns())
    }

    /// Starts a shim and stays with it to its end.
    async fn run(self: Arc<Self>, record: Arc<LaunchRecord>, deadline_ns: u64) {
        let key = record.spec.key;
        self.isolated(&record);
        let found = {
            // The semaphore is never closed.
            let _permit = self.starts.acquire().await;
            let (inner, record) = (self.clone(), record.clone());
            tokio::task::spawn_blocking(move || {
                let config = &inner.config;
                let now_ns = || inner.now_ns();
                start::start(&config.shim, &inner.folder(key), &record, deadline_ns, now_ns, config.reaps_orphans)
            })
            .await
        };
        match found {
            Ok(Ok(Found::Alive(alive))) => self.watch(&record, alive).await,
            Ok(Ok(Found::Over(exit))) => self.over(key, &exit),
            Ok(Err(reason)) => self.start_failed(&record, reason),
            Err(stopped) => self.start_failed(&record, format!("the agent stopped while starting it: {stopped}")),
        }
    }

    /// Follows a shim that lives until it has ended.
    async fn watch(self: Arc<Self>, record: &Arc<LaunchRecord>, alive: Alive) {
        let key = record.spec.key;
        let Alive { shim, deadline, started_ns } = alive;
        let shim = Arc::new(Shim { process: shim, deadline });
        self.connect(key, &shim, started_ns);
        if started_ns.is_none() {
            self.wait_for_start(key, &shim).await;
        }
        if let Err(error) = shim.process.ended().await {
            tracing::error!(task = %key, %error, "cannot watch a shim");
            return;
        }
        let pid = nix::unistd::Pid::from_raw(shim.process.pid() as i32);
        // Only the agent that started it is its parent; for any other there is nothing to reap.
        let _ = nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::WNOHANG));
        orphans::shim_reaped(shim.process.pid());
        let mut pause = END_AGAIN_MIN;
        loop {
            let (inner, record, number) = (self.clone(), record.clone(), shim.process.pid());
            match tokio::task::spawn_blocking(move || inner.how_it_ended(&record, number)).await {
                Ok(Ok(exit)) => return self.over(key, &exit),
                // It holds its devices until this is known.
                Ok(Err(error)) => {
                    tracing::error!(task = %key, %error, "cannot find out how a task ended; trying again")
                }
                Err(error) => return tracing::debug!(task = %key, %error, "stopped while reading how a task ended"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(END_AGAIN_MAX);
        }
    }

    /// How a task ended whose shim, of this number, has ended; what is left of it is ended. Blocks.
    fn how_it_ended(&self, record: &LaunchRecord, shim: u32) -> io::Result<ExitRecord> {
        let (key, adopts) = (record.spec.key, self.config.reaps_orphans);
        let exit = start::ended(&self.folder(key), record, shim, self.now_ns(), adopts);
        // The init of its sandbox among them, where it was this shim's child.
        orphans::reap_adopted(adopts);
        // What it saved last is known before its end is.
        self.look_at_checkpoint(key);
        exit
    }

    fn over(&self, key: TaskKey, exit: &ExitRecord) {
        let state = exit.end.to_state();
        let state = match self.fault_of(key) {
            Some(fault) => fault.end(state),
            None => state,
        };
        if let Some(entry) = self.tasks.lock().get_mut(&key) {
            entry.shim = None;
            entry.lets_go();
            entry.phase = Phase::Over { state, started_ns: exit.started_ns, ended_ns: exit.ended_ns };
        }
        self.changed();
    }

    fn start_failed(&self, record: &LaunchRecord, reason: String) {
        tracing::warn!(task = %record.spec.key, job = %record.spec.job, reason, "cannot start a task");
        let ended_ns = self.now_ns();
        let end = End::StartFailed { reason, by_node: true };
        let exit = ExitRecord { end, started_ns: None, ended_ns, dropped_bytes: 0 };
        let folder = self.folder(record.spec.key);
        // Without the record a restarted agent would find nothing running and say so too, only less clearly.
        if let Err(error) = folder.write_json(&folder.exit(), &exit) {
            tracing::warn!(task = %record.spec.key, %error, "cannot record how a task ended");
        }
        self.over(record.spec.key, &exit);
    }

    fn failed(&self, source: io::Error) -> ExecError {
        ExecError::Io { doing: format!("reading the tasks in {}", self.live.display()), source }
    }

    fn enter(&self, spec: Arc<TaskSpec>, node_epoch: Epoch, phase: Phase, deadline_ns: u64) -> bool {
        let mut tasks = self.tasks.lock();
        let vacant = !tasks.contains_key(&spec.key);
        if vacant {
            let stopping = Stopping::No;
            let (key, time_limit_s, world) = (spec.key, spec.time_limit_s, spec.world);
            let entry = Entry {
                spec,
                node_epoch,
                phase,
                stopping,
                stop: None,
                deadline_ns,
                time_limit_s,
                world,
                told_generation: world.map(|world| world.generation),
                checkpoint: None,
                shim: None,
                fault: None,
                memory_note: None,
                told_to_stop: CancellationToken::new(),
                kept: None,
                isolation: None,
            };
            tasks.insert(key, entry);
        }
        vacant
    }

    fn end(&self, key: TaskKey, how: Stopping, send: impl FnOnce(&mut Entry)) {
        let mut tasks = self.tasks.lock();
        if let Some(entry) = tasks.get_mut(&key).filter(|entry| entry.stopping < how) {
            entry.stopping = how;
            entry.told_to_stop.cancel();
            send(entry);
        }
    }
}

impl Executor for ProcessExecutor {
    fn attach(&self, host: &Host, changed: Arc<Notify>) -> BoxFuture<'_, Result<(), ExecError>> {
        *self.0.attached.lock() = Some((host.clone(), changed));
        let (inner, host) = (self.0.clone(), host.clone());
        async move {
            let reader = inner.clone();
            let read = tokio::task::spawn_blocking(move || reader.take_over());
            let (kept, adopted) = read.await.map_err(|lost| inner.failed(io::Error::other(lost))).flatten()?;
            *inner.kept.lock() = Some(kept);
            for (record, found, made, told) in adopted {
                let record = Arc::new(record);
                let spec = Arc::new(record.spec.clone());
                inner.enter(spec, record.node_epoch, Phase::Starting, 0);
                inner.isolated(&record);
                if let Some(entry) = inner.tasks.lock().get_mut(&record.spec.key) {
                    entry.checkpoint = made;
                    entry.was_told(told);
                    let root = record.isolation.as_ref().and_then(|isolation| isolation.root.as_ref());
                    entry.kept = root.and_then(|root| inner.images.hold(&root.at.below));
                }
                match found {
                    Found::Over(exit) => inner.over(record.spec.key, &exit),
                    Found::Alive(alive) => {
                        tracing::info!(task = %record.spec.key, job = %record.spec.job, "taking over a running task");
                        if let Some(started_ns) = alive.started_ns
                            && let Some(entry) = inner.tasks.lock().get_mut(&record.spec.key)
                        {
                            entry.phase = Phase::Running { started_ns };
                            entry.time_limit_s = alive.deadline.limit_s().unwrap_or(entry.time_limit_s);
                        }
                        let inner = inner.clone();
                        host.spawn(async move { inner.watch(&record, alive).await });
                    }
                }
            }
            host.spawn(checkpoints::look(Arc::downgrade(&inner)));
            host.spawn(fences::look(Arc::downgrade(&inner)));
            host.spawn(Trash::empty(Arc::downgrade(&inner.trash)));
            Ok(())
        }
        .boxed()
    }

    fn claim(&self, owner: Owner) -> BoxFuture<'_, Result<BTreeSet<TaskKey>, ExecError>> {
        let inner = self.0.clone();
        let claimed = tokio::task::spawn_blocking(move || inner.claim(owner));
        async move { claimed.await.map_err(|lost| self.0.failed(io::Error::other(lost))).flatten() }.boxed()
    }

    fn start(&self, launch: Launch) {
        let (spec, deadline_ns) = (launch.spec.clone(), launch.deadline_ns);
        let Some(host) = self.0.host() else { return };
        if !self.0.enter(spec.clone(), launch.node_epoch, Phase::Starting, deadline_ns) {
            return;
        }
        if let Some(reason) = self.0.driver_lacks(&spec, None) {
            return self.0.refuse(spec.key, reason);
        }
        if spec.image.is_some() || !spec.mounts.is_empty() {
            host.spawn(self.0.clone().prepare_and_run(launch));
            return;
        }
        match self.0.record(launch, Files::default()) {
            Ok(record) => drop(host.spawn(self.0.clone().run(Arc::new(record), deadline_ns))),
            Err(reason) => self.0.cannot_start(spec.key, reason),
        }
    }

    fn record_over(&self, spec: Arc<TaskSpec>, node_epoch: Epoch, state: TaskState) {
        let phase = Phase::Over { state, started_ns: None, ended_ns: self.0.now_ns() };
        self.0.enter(spec, node_epoch, phase, 0);
        self.0.changed();
    }

    fn stop(&self, key: TaskKey, how: Stop) {
        self.0.end(key, Stopping::Gracefully, |entry| {
            entry.stop = Some(how);
            if let Some(shim) = &entry.shim {
                shim.process.send_stop(how);
            }
        });
    }

    fn kill(&self, key: TaskKey) {
        self.0.end(key, Stopping::AtOnce, |entry| {
            if let Some(shim) = &entry.shim {
                shim.process.send(Signal::SIGUSR1);
            }
        });
    }

    fn fault(&self, key: TaskKey, fault: Fault) {
        if let Some(grace_s) = self.0.note_fault(key, fault) {
            self.stop(key, Stop::term(grace_s));
        }
    }

    fn note_memory(&self, key: TaskKey, note: Option<String>) {
        self.0.note_memory(key, note);
    }

    fn task_of(&self, pid: u32) -> Option<TaskKey> {
        let tasks = self.0.tasks.lock();
        let shims: BTreeMap<u32, TaskKey> =
            tasks.iter().filter_map(|(key, entry)| Some((entry.shim.as_ref()?.process.pid(), *key))).collect();
        drop(tasks);
        lineage::task_of(pid, &shims)
    }

    fn set_time_limit(&self, key: TaskKey, limit_s: Option<u64>) {
        let mut tasks = self.0.tasks.lock();
        let Some(entry) = tasks.get_mut(&key) else { return };
        entry.time_limit_s = limit_s;
        if let Some(shim) = &entry.shim {
            shim.limit(key, limit_s);
        }
    }

    fn set_world(&self, key: TaskKey, world: World) {
        self.0.set_world(key, world);
    }

    fn push_deadline(&self, key: TaskKey, deadline_ns: u64) {
        let mut tasks = self.0.tasks.lock();
        let Some(entry) = tasks.get_mut(&key) else { return };
        if deadline_ns <= entry.deadline_ns {
            return;
        }
        entry.deadline_ns = deadline_ns;
        if let Some(shim) = &entry.shim
            && let Err(error) = shim.deadline.push(deadline_ns)
        {
            tracing::error!(task = %key, %error, "cannot extend the disconnect deadline of a task");
        }
    }

    fn users(&self) -> TaskUsers {
        self.0.config.isolation.as_ref().map_or(TaskUsers::Agent, |isolation| isolation.users)
    }

    fn observe(&self) -> BTreeMap<TaskKey, ObservedTask> {
        let observed = |entry: &Entry| ObservedTask {
            spec: entry.spec.clone(),
            node_epoch: entry.node_epoch,
            phase: entry.phase.clone(),
            stopping: entry.stopping,
            checkpoint: entry.checkpoint.clone(),
            time_limit_s: entry.time_limit_s,
            world_generation: entry.world.map(|world| world.generation),
        };
        self.0.tasks.lock().iter().map(|(key, entry)| (*key, observed(entry))).collect()
    }

    fn forget(&self, key: TaskKey) {
        self.0.tasks.lock().remove(&key);
        let Some(host) = self.0.host() else { return };
        let inner = self.0.clone();
        let moved = tokio::task::spawn_blocking(move || {
            let folder = inner.folder(key);
            match &mut *inner.kept.lock() {
                Some(kept) if folder.path().exists() => kept.take(key, &folder, &inner.trash),
                _ => Ok(()),
            }
        });
        host.spawn(async move {
            if let Ok(Err(error)) = moved.await {
                tracing::warn!(task = %key, %error, "cannot move the folder of a finished task");
            }
        });
    }

    fn read_log(
        &self,
        key: TaskKey,
        stream: Stream,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'static, Result<LogSlice, LogError>> {
        let inner = self.0.clone();
        let read = tokio::task::spawn_blocking(move || {
            let kept = inner.kept.lock().as_ref().map(|kept| kept.folder(key));
            let mut places = std::iter::once(inner.folder(key)).chain(kept);
            // Once more at the first place, because a folder is moved when its task is forgotten.
            let folder = places.find(|folder| folder.path().exists()).ok_or(LogError::Unknown { key })?;
            read_slice(&folder, stream, offset, bytes_max).map_err(|source| LogError::Io { key, source })
        });
        async move { read.await.unwrap_or_else(|lost| Err(LogError::Io { key, source: io::Error::other(lost) })) }
            .boxed()
    }
}

fn read_slice(folder: &TaskFolder, stream: Stream, offset: u64, bytes_max: usize) -> io::Result<LogSlice> {
    // Asked before reading: what is complete now has all its bytes on disk.
    let complete = folder.has_exit();
    let (offset, data) = match output::read(folder, stream, offset, bytes_max) {
        // Its folder was just moved to those that are kept: the next look finds it there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => (offset, Vec::new()),
        read => read?,
    };
    Ok(LogSlice { data, offset, complete })
}

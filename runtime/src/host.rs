//! A host: its name, its seams, and the tasks that die with it.

use crate::chance::Chance;
use crate::clock::Clock;
use crate::disk::{Disk, Files};
use crate::heavy::{self, BrokeOff, Full, Heavy};
use crate::net::{Net, NetError, Transport};
use crate::pki::{Admit, CertificateClock, PkiError, Role, Scheme};
use crate::reload::Kept;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::task::{AbortHandle, JoinHandle};

tokio::task_local! {
    static GROUP: TaskGroup;
}

/// The tasks of one host; a simulated crash aborts them all at once.
#[derive(Clone, Default)]
pub struct TaskGroup(Arc<Mutex<Tasks>>);

/// The first panic among tasks: whoever waits for it ends the host, or the run, in good order, from outside the task.
#[derive(Default)]
pub(crate) struct FirstPanic {
    what: Mutex<Option<String>>,
    there: tokio::sync::Notify,
}

/// The first panic of this process, whichever host it was in.
pub(crate) static OF_PROCESS: FirstPanic =
    FirstPanic { what: Mutex::new(None), there: tokio::sync::Notify::const_new() };

impl FirstPanic {
    fn note(&self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no words".to_owned());
        self.what.lock().get_or_insert(text);
        self.there.notify_waiters();
    }

    /// Ready when a task has panicked, with what it said.
    pub(crate) async fn noted(&self) -> String {
        loop {
            // Before the look, so that what is noted after it wakes.
            let noted = self.there.notified();
            if let Some(what) = self.what.lock().clone() {
                return what;
            }
            noted.await;
        }
    }
}

#[derive(Default)]
struct Tasks {
    handles: Vec<AbortHandle>,
    /// Who is told of a panic.
    panics: Arc<FirstPanic>,
    /// In a simulation a panic ends the run, whichever task it was in.
    simulated: bool,
    /// Set by [`TaskGroup::abort_all`]: what is spawned later never runs.
    closed: bool,
}

impl TaskGroup {
    /// A group whose panics are noted; a task that panicked never ends by itself.
    pub(crate) fn noting(panics: Arc<FirstPanic>) -> Self {
        TaskGroup(Arc::new(Mutex::new(Tasks { panics, simulated: true, ..Tasks::default() })))
    }

    /// Spawns into this group; whatever the task spawns through [`spawn_here`] joins the group too. The host cannot do without the
    /// task: when it panics, [`TaskGroup::panicked`] says so.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_as(future, true)
    }

    /// The same for a task that serves one caller: when it panics, that caller alone is left without an answer.
    pub fn spawn_for_one<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_as(future, false)
    }

    /// Ready when a task that the host cannot do without has panicked, with what it said.
    pub async fn panicked(&self) -> String {
        let panics = self.0.lock().panics.clone();
        panics.noted().await
    }

    fn spawn_as<F>(&self, future: F, needed: bool) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (panics, simulated) = {
            let tasks = self.0.lock();
            (tasks.panics.clone(), tasks.simulated)
        };
        let future = GROUP.scope(self.clone(), future);
        let handle = tokio::spawn(async move {
            let panic = match AssertUnwindSafe(future).catch_unwind().await {
                Ok(output) => return output,
                Err(panic) => panic,
            };
            if simulated {
                panics.note(&*panic);
                return std::future::pending().await;
            }
            metrics::counter!("muster_task_panics_total").increment(1);
            if needed {
                panics.note(&*panic);
                OF_PROCESS.note(&*panic);
            }
            // Whoever waits for the task learns it as from tokio.
            std::panic::resume_unwind(panic)
        });
        let mut tasks = self.0.lock();
        if tasks.closed {
            handle.abort();
        }
        // Ended tasks are let go now and then, so that a long life does not grow the list.
        if tasks.handles.len() >= 64 && tasks.handles.len().is_power_of_two() {
            tasks.handles.retain(|task| !task.is_finished());
        }
        tasks.handles.push(handle.abort_handle());
        handle
    }

    /// Ends every task of the group at its next await point, and every task that is spawned into it later before it starts.
    pub fn abort_all(&self) {
        let mut tasks = self.0.lock();
        tasks.closed = true;
        for task in &tasks.handles {
            task.abort();
        }
    }

    /// How many tasks of the group have not ended.
    #[must_use]
    pub fn alive(&self) -> usize {
        let mut tasks = self.0.lock();
        tasks.handles.retain(|task| !task.is_finished());
        tasks.handles.len()
    }
}

/// Spawns into the group of the task that calls, if it is in one: for libraries that spawn by themselves.
pub fn spawn_here<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match GROUP.try_with(Clone::clone) {
        Ok(group) => group.spawn(future),
        Err(_) => tokio::spawn(future),
    }
}

/// Everything a server or an agent needs from the machine it runs on.
#[derive(Clone)]
pub struct Host {
    /// For logs.
    pub name: String,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Network.
    pub net: Arc<dyn Net>,
    /// Stores.
    pub disk: Arc<dyn Disk>,
    /// Small files.
    pub files: Arc<dyn Files>,
    /// Files with what it proves itself by: its key and certificate, the roots it trusts, its certificate clock.
    pub identity: Arc<dyn Files>,
    /// Randomness.
    pub chance: Chance,
    /// Where long work is done.
    pub heavy: Arc<dyn Heavy>,
    /// How keys and certificates are made and read.
    pub pki: Arc<dyn Scheme>,
    /// What time it is for certificates.
    pub certificate_clock: Arc<CertificateClock>,
    /// Its tasks.
    pub tasks: TaskGroup,
}

impl Host {
    /// Makes ready for `transport`: where certificates are shown, reads this host's credentials and its certificate clock from its files,
    /// keeps the clock saved, and takes over credentials that are replaced there while it runs. Each role calls this once before it serves
    /// or dials, and says who it is. `pins`: whoever knows which keys are pinned.
    ///
    /// # Errors
    /// [`NetError::Credentials`], for example when the host has none yet, or those of another machine.
    pub fn prepare(&self, transport: Transport, role: &Role, pins: Option<Arc<dyn Admit>>) -> Result<(), NetError> {
        if transport == Transport::Plain {
            return Ok(());
        }
        let unusable = |error: PkiError| NetError::Credentials { why: error.to_string() };
        self.certificate_clock.load().map_err(unusable)?;
        let (files, scheme) = (Arc::clone(&self.identity), Arc::clone(&self.pki));
        let kept = Kept { files, scheme, role: role.clone(), pins };
        let loaded = kept.load().map_err(unusable)?;
        self.net.set_credentials(Some(loaded.credentials))?;
        drop(self.spawn(Arc::clone(&self.certificate_clock).keep_saved()));
        drop(self.spawn(kept.follow(Arc::clone(&self.net), loaded.content)));
        Ok(())
    }

    /// Spawns a task that dies with the host.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn(future)
    }

    /// Spawns a task that dies with the host and serves one caller: see [`TaskGroup::spawn_for_one`].
    pub fn spawn_for_one<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn_for_one(future)
    }

    /// Does `work` away from the tasks; the future gives what comes of it. When the future is dropped before the work has begun, it is
    /// not begun.
    ///
    /// # Errors
    /// [`Full`] when too much waits already.
    pub fn heavy<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<BoxFuture<'static, Result<R, BrokeOff>>, Full> {
        heavy::ask(&*self.heavy, work)
    }
}

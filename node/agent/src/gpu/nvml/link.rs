//! The agent's end of the helper process: starts it, asks it, hears its events, starts it again.
//!
//! What must stay true: an answer that nobody waits for any more is forgotten on both sides; the helper that dies takes only the requests that were under
//! way, and is started again by itself; one that answers nobody, not even about the host, is ended; helpers that cannot be ended do not pile up; while
//! somebody wants the helper away, none runs and whoever asks is told so at once.

use super::wire::{About, Answer, Ask, CardId, Event, Fault, FromHelper, ToHelper, Versions};
use crate::own_children::{self, Waited};
use muster_runtime::Host;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Notify, RwLock, RwLockWriteGuard, broadcast, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Loading NVML opens every card, which takes tens of seconds on large hosts without persistence mode.
const READY_MAX: Duration = Duration::from_secs(120);
/// Until a helper that has ended is started again; the wait doubles while helpers end soon after their start.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// A helper that has lived so long is no failed start.
const STEADY: Duration = Duration::from_secs(60);
/// A helper that has answered nobody for so long is asked about the host, and ended when it does not answer that either.
const SILENT_MAX: Duration = Duration::from_secs(20);
/// Between two tries to end a helper that is to be away.
const AWAY_AGAIN: Duration = Duration::from_millis(100);
/// For a helper to die of SIGKILL: one that does not is inside the kernel's driver.
const DEATH_MAX: Duration = Duration::from_secs(2);
/// Helpers that hang in the kernel and are still there; beyond this no other is started.
const STUCK_MAX: usize = 3;
/// Requests on their way to the helper; each card has one at a time, and forgets some.
const TO_HELPER_MAX: usize = 1_024;
/// Requests that wait for an answer.
const PENDING_MAX: usize = 1_024;
/// Until events that the driver did not register are asked for again.
const WATCH_AGAIN: Duration = Duration::from_secs(10);
/// Events that a listener has not taken yet: as many as the driver keeps.
const EVENTS_MAX: usize = 256;

/// Why a request has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("the GPU helper does not start: {0}")]
    NotStarted(String),
    #[error("the GPU helper has ended meanwhile; it is started again")]
    Ended,
    #[error("too many requests wait for the GPU helper")]
    Busy,
    #[error("a GPU of this host is being reset")]
    Away,
    #[error("{0}")]
    Fault(Fault),
    #[error("the GPU helper has answered something else; use one version of Muster on this host")]
    Unexpected,
}

/// The helper, as the backend has it.
pub(super) struct Link {
    shared: Arc<Shared>,
    _stop: DropGuard,
}

struct Shared {
    inner: Mutex<Inner>,
    /// The helper has come up, or does not start.
    changed: Notify,
    /// Somebody asks for the first time.
    wanted: Notify,
    /// Read by the helper that runs, written by whoever wants it away.
    here: RwLock<()>,
    events: broadcast::Sender<(String, Event)>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    running: Option<Running>,
    /// Why the last start has failed.
    broken: Option<String>,
    /// Cards whose events are wanted, of whichever helper.
    watched: Vec<CardId>,
    silent_max: Option<Duration>,
    /// Somebody wants the helper away.
    is_away: bool,
}

/// The helper is away until this is dropped.
pub(super) struct Away<'a> {
    _here: RwLockWriteGuard<'a, ()>,
    _wanted: WantedAway<'a>,
}

/// Somebody wants the helper away, and may give up before it is.
struct WantedAway<'a>(&'a Shared);

impl Drop for WantedAway<'_> {
    /// Whoever asks is told that it is away until the next one is there: loading NVML takes longer than they would wait.
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        if inner.running.is_some() {
            inner.is_away = false;
        }
    }
}

struct Running {
    pid: Option<u32>,
    versions: Versions,
    lines: mpsc::Sender<Vec<u8>>,
    pending: BTreeMap<u64, oneshot::Sender<Result<Answer, Fault>>>,
    /// Cards whose events were asked for, by the number of the request, until that is answered.
    watching: BTreeMap<u64, CardId>,
    /// Cards whose events were refused.
    unwatched: Vec<CardId>,
    /// When something was asked first since the last answer.
    unanswered: Option<Instant>,
    /// When it was asked about the host because of that.
    probed: Option<Instant>,
    end: CancellationToken,
}

/// Removes a request that nobody waits for any more.
struct Waiting<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(running) = &mut self.shared.inner.lock().running
            && running.pending.remove(&self.number).is_some()
        {
            // Where the queue is full the helper does it in vain, which harms nobody.
            let _ = running.say(&ToHelper::Forget(self.number));
        }
    }
}

impl Running {
    fn say(&self, what: &ToHelper) -> Result<(), AskError> {
        let mut line = serde_json::to_vec(what).map_err(|_| AskError::Unexpected)?;
        line.push(b'\n');
        self.lines.try_send(line).map_err(|_| AskError::Busy)
    }

    /// If this answers a request for events: one that was refused is made again.
    fn is_watching(&mut self, number: u64, fault: Option<&Fault>) {
        let Some(card) = self.watching.remove(&number) else { return };
        if let Some(fault) = fault {
            tracing::error!(gpu = card.uuid, %fault, "the driver does not tell events of a GPU; they are asked for again");
            self.unwatched.push(card);
        }
    }

    /// Ends a helper that answers nobody.
    fn look(&mut self, number: u64, silent_max: Duration) {
        let now = Instant::now();
        let since = *self.unanswered.get_or_insert(now);
        if now - since < silent_max {
            return;
        }
        match self.probed {
            None => {
                let probe = ToHelper::Ask { number, about: About::Host, ask: Ask::Count };
                self.probed = self.say(&probe).is_ok().then_some(now);
            }
            Some(at) if now - at >= silent_max / 4 => self.end.cancel(),
            Some(_) => {}
        }
    }
}

impl Link {
    /// Of the helper that `command` starts; it starts when something is asked for the first time, and ends with this.
    pub(super) fn new(host: &Host, command: Vec<OsString>) -> Self {
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner::default()),
            changed: Notify::new(),
            wanted: Notify::new(),
            here: RwLock::new(()),
            events: broadcast::channel(EVENTS_MAX).0,
        });
        drop(host.spawn(supervise(shared.clone(), command, stop.clone())));
        Link { shared, _stop: stop.drop_guard() }
    }

    pub(super) fn set_silent_max(&self, most: Duration) {
        self.shared.inner.lock().silent_max = Some(most);
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.shared.inner.lock().running.as_ref()?.pid
    }

    pub(super) fn events(&self) -> broadcast::Receiver<(String, Event)> {
        self.shared.events.subscribe()
    }

    /// Wants the events of these cards, from this helper and those after it.
    pub(super) fn watch(&self, cards: Vec<CardId>) {
        let mut inner = self.shared.inner.lock();
        inner.watched = cards;
        inner.ask_for_events();
    }

    /// Ends the helper, and keeps it away: it has every card open.
    pub(super) async fn away(&self) -> Away<'_> {
        let wanted = WantedAway(&self.shared);
        let here = self.shared.here.write();
        tokio::pin!(here);
        loop {
            {
                let mut inner = self.shared.inner.lock();
                inner.is_away = true;
                // One that is just being started is ended when it is there.
                if let Some(running) = &inner.running {
                    running.end.cancel();
                }
            }
            tokio::select! {
                biased;
                here = &mut here => return Away { _here: here, _wanted: wanted },
                () = sleep(AWAY_AGAIN) => {}
            }
        }
    }

    /// Waits until the helper that was away is there again, or is known not to start.
    pub(super) async fn until_back(&self) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.shared.inner.lock().is_away {
                return;
            }
            changed.await;
        }
    }

    /// Versions of the driver and of CUDA.
    pub(super) async fn versions(&self) -> Result<Versions, AskError> {
        self.running(|_, running| Ok(running.versions.clone())).await
    }

    /// Asks, and waits for the answer as long as it takes.
    pub(super) async fn ask(&self, about: About, ask: Ask) -> Result<Answer, AskError> {
        let (number, answer) = self
            .running(|(number, silent_max), running| {
                if running.pending.len() >= PENDING_MAX {
                    return Err(AskError::Busy);
                }
                running.look(number + 1, silent_max);
                running.say(&ToHelper::Ask { number, about: about.clone(), ask })?;
                let (tell, answer) = oneshot::channel();
                running.pending.insert(number, tell);
                Ok((number, answer))
            })
            .await?;
        let _waiting = Waiting { shared: &self.shared, number };
        answer.await.map_err(|_| AskError::Ended)?.map_err(AskError::Fault)
    }

    /// Does something with the helper that runs, once one does.
    async fn running<T>(
        &self,
        does: impl Fn((u64, Duration), &mut Running) -> Result<T, AskError>,
    ) -> Result<T, AskError> {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let inner = &mut *self.shared.inner.lock();
                if inner.is_away {
                    return Err(AskError::Away);
                }
                if let Some(running) = &mut inner.running {
                    // Two numbers: one for what is asked, one for a question about the host.
                    inner.next += 2;
                    return does((inner.next, inner.silent_max.unwrap_or(SILENT_MAX)), running);
                }
                if let Some(why) = &inner.broken {
                    return Err(AskError::NotStarted(why.clone()));
                }
            }
            self.shared.wanted.notify_one();
            changed.await;
        }
    }
}

impl Inner {
    fn ask_for_events(&mut self) {
        if let Some(running) = &mut self.running {
            running.unwatched.clone_from(&self.watched);
        }
        self.ask_for_missing_events();
    }

    /// Asks for the events of those cards again whose last request has failed.
    fn ask_for_missing_events(&mut self) {
        let Some(running) = &mut self.running else { return };
        for card in std::mem::take(&mut running.unwatched) {
            self.next += 2;
            let ask = ToHelper::Ask { number: self.next, about: About::Card(card.clone()), ask: Ask::Watch };
            match running.say(&ask) {
                Ok(()) => drop(running.watching.insert(self.next, card)),
                Err(error) => {
                    tracing::error!(gpu = card.uuid, %error, "events of a GPU cannot be asked for; they are again");
                    running.unwatched.push(card);
                }
            }
        }
    }
}

impl Shared {
    fn up(&self, running: Running) {
        let mut inner = self.inner.lock();
        inner.running = Some(running);
        (inner.broken, inner.is_away) = (None, false);
        inner.ask_for_events();
        drop(inner);
        self.changed.notify_waiters();
    }

    /// The requests that were under way learn of it, as their answers' other ends go.
    fn down(&self, broken: Option<String>) {
        let mut inner = self.inner.lock();
        inner.running = None;
        // One that does not start is away no more: why not is told.
        inner.is_away &= broken.is_none();
        inner.broken = broken;
        drop(inner);
        self.changed.notify_waiters();
    }

    fn hear(&self, line: &str) {
        match serde_json::from_str(line) {
            Ok(FromHelper::Answer { number, result }) => {
                let waiting = self.inner.lock().running.as_mut().and_then(|running| {
                    (running.unanswered, running.probed) = (None, None);
                    running.is_watching(number, result.as_ref().err());
                    running.pending.remove(&number)
                });
                match (waiting, result) {
                    // Whoever asked may go at this moment.
                    (Some(waiting), result) => drop(waiting.send(result)),
                    (None, Err(fault)) => tracing::debug!(?fault, "an answer of the GPU helper that nobody waits for"),
                    (None, Ok(_)) => {}
                }
            }
            // Without a listener nobody wants it.
            Ok(FromHelper::Event { pci, event }) => drop(self.events.send((pci, event))),
            Ok(other) => tracing::error!(?other, "the GPU helper says this only once"),
            Err(error) => tracing::error!(%error, "a line of the GPU helper cannot be read"),
        }
    }
}

/// Keeps a helper running, from the first time that one is wanted.
async fn supervise(shared: Arc<Shared>, command: Vec<OsString>, stop: CancellationToken) {
    let mut again = AGAIN_MIN;
    let mut stuck: Vec<(Child, Waited)> = Vec::new();
    tokio::select! { () = stop.cancelled() => return, () = shared.wanted.notified() => {} }
    loop {
        let began = Instant::now();
        stuck.retain_mut(|(child, _)| matches!(child.try_wait(), Ok(None)));
        if stuck.len() >= STUCK_MAX {
            let pids: Vec<u32> = stuck.iter().filter_map(|(child, _)| child.id()).collect();
            shared.down(Some(format!("earlier helpers {pids:?} hang inside the driver; reboot the node")));
        } else {
            let here = shared.here.read().await;
            let left = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                left = serve(&shared, &command) => left,
            };
            stuck.extend(left);
            drop(here);
        }
        if began.elapsed() >= STEADY {
            again = AGAIN_MIN;
        }
        tokio::select! { () = stop.cancelled() => return, () = sleep(again) => {} }
        again = (again * 2).min(AGAIN_MAX);
    }
}

/// One helper from its start to its end; gives it back if it cannot be ended.
async fn serve(shared: &Shared, command: &[OsString]) -> Option<(Child, Waited)> {
    let ((mut child, waited), stdin, mut lines, versions) = match begin(command).await {
        Ok(begun) => begun,
        Err(why) => {
            tracing::error!(why, "the GPU helper does not start; it is tried again");
            shared.down(Some(why));
            return None;
        }
    };
    let (sender, receiver) = mpsc::channel(TO_HELPER_MAX);
    let end = CancellationToken::new();
    let pid = child.id();
    shared.up(Running {
        pid,
        versions,
        lines: sender,
        pending: BTreeMap::new(),
        watching: BTreeMap::new(),
        unwatched: Vec::new(),
        unanswered: None,
        probed: None,
        end: end.clone(),
    });
    let watching = async {
        loop {
            sleep(WATCH_AGAIN).await;
            shared.inner.lock().ask_for_missing_events();
        }
    };
    let reading = async {
        while let Ok(Some(line)) = lines.next_line().await {
            shared.hear(&line);
        }
    };
    let why = tokio::select! {
        () = reading => "it has ended",
        () = write(stdin, receiver) => "it reads no more",
        () = end.cancelled() => "it answers nobody",
        () = watching => "it is not watched",
    };
    shared.down(None);
    if shared.inner.lock().is_away {
        tracing::info!(pid, "the GPU helper has ended for the reset of a GPU");
    } else {
        tracing::error!(pid, why, "the GPU helper is started again");
    }
    // It may have ended by itself.
    let _ = child.start_kill();
    if timeout(DEATH_MAX, child.wait()).await.is_ok() { None } else { Some((child, waited)) }
}

type Begun = ((Child, Waited), ChildStdin, tokio::io::Lines<BufReader<ChildStdout>>, Versions);

async fn begin(command: &[OsString]) -> Result<Begun, String> {
    let Some((program, arguments)) = command.split_first() else { return Err("no command is set for it".to_owned()) };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let (mut child, waited) =
        own_children::spawn(&mut command).map_err(|error| format!("{}: {error}", program.display()))?;
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("it has no standard streams".to_owned());
    };
    let mut lines = BufReader::new(stdout).lines();
    let Ok(first) = timeout(READY_MAX, lines.next_line()).await else {
        return Err(format!("NVML is not ready after {} s", READY_MAX.as_secs()));
    };
    match first.ok().flatten().as_deref().map(serde_json::from_str) {
        Some(Ok(FromHelper::Ready(versions))) => Ok(((child, waited), stdin, lines, versions)),
        Some(Ok(FromHelper::Failed(why))) => Err(why),
        Some(_) => Err(AskError::Unexpected.to_string()),
        None => Err("it has ended at once; see its error output".to_owned()),
    }
}

async fn write(mut stdin: ChildStdin, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}

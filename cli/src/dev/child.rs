//! One child of the supervisor: started, watched, started again with a growing pause, stopped when told.

use crate::dev::file::Registry;
use crate::dev::folder::Folder;
use crate::dev::plan::RolePlan;
use crate::failure::Failure;
use crate::output::note;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The pause before a child that died is started again, unless a longer one is asked for: from the first to the second, doubling.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));
/// A child that lived this long is well: the pause begins anew.
const WELL: Duration = Duration::from_secs(5);
/// From SIGTERM to SIGKILL.
const STOP_MAX: Duration = Duration::from_secs(5);
/// A log that is larger when its role starts is put aside, over the one that was put aside before.
const LOG_BYTES_MAX: u64 = 32 << 20;
/// Lines of its log that are shown when a child dies by itself.
const LAST_WORDS: usize = 5;

/// What the children are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Run.
    Run,
    /// Everything but the control nodes stops.
    StopWorkers,
    /// All stop.
    StopAll,
}

/// A child and what it needs.
pub struct Supervised {
    plan: RolePlan,
    folder: Folder,
    registry: Registry,
    phase: watch::Receiver<Phase>,
    rest: Duration,
}

impl Supervised {
    /// Not started yet. Once dead it stays so for `rest` at least.
    #[must_use]
    pub fn new(
        plan: RolePlan,
        folder: &Folder,
        registry: Registry,
        phase: watch::Receiver<Phase>,
        rest: Duration,
    ) -> Self {
        Supervised { plan, folder: folder.clone(), registry, phase, rest }
    }

    /// Keeps the child alive until it is to stop.
    ///
    /// # Errors
    /// When it cannot be started at all.
    pub async fn run(mut self) -> Result<(), Failure> {
        let stops_at = if self.plan.role == "control" { Phase::StopAll } else { Phase::StopWorkers };
        let mut pause = PAUSE.0;
        while *self.phase.borrow_and_update() < stops_at {
            let began = Instant::now();
            let mut child = self.start()?;
            let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
            if let Some(pid) = pid {
                self.registry.started(&self.plan, pid)?;
            }
            let status = tokio::select! {
                status = child.wait() => Some(status),
                _ = self.phase.wait_for(|phase| *phase >= stops_at) => None,
            };
            let Some(status) = status else {
                stop(&mut child, pid).await;
                return self.registry.ended(&self.plan);
            };
            self.registry.ended(&self.plan)?;
            self.mourn(status.ok());
            pause = if began.elapsed() >= WELL { PAUSE.0 } else { (pause * 2).min(PAUSE.1) };
            let stopped =
                tokio::time::timeout(pause.max(self.rest), self.phase.wait_for(|phase| *phase >= stops_at)).await;
            if stopped.is_ok() {
                break;
            }
        }
        Ok(())
    }

    fn start(&self) -> Result<Child, Failure> {
        let path = self.folder.log(&self.plan.name);
        let failed = |error| Failure::io(format!("starting {}", self.plan.name), error);
        if std::fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
            std::fs::rename(&path, path.with_extension("log.old")).map_err(failed)?;
        }
        let log = File::options().create(true).append(true).open(&path).map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        Command::new(program)
            .args(&self.plan.arguments)
            .args(["--parent", &std::process::id().to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            // Ctrl-C in the terminal is for the supervisor, which stops its children in order.
            .process_group(0)
            .spawn()
            .map_err(failed)
    }

    fn mourn(&self, status: Option<ExitStatus>) {
        let status = status.map_or_else(|| "ended".to_owned(), |status| status.to_string());
        note(&format!("muster dev: {} died ({status}); it is started again", self.plan.name));
        let by_itself = !status.contains("signal: 9");
        if by_itself && let Ok(log) = std::fs::read_to_string(self.folder.log(&self.plan.name)) {
            let last: Vec<&str> = log.lines().rev().take(LAST_WORDS).collect();
            last.iter().rev().for_each(|line| note(&format!("    {line}")));
        }
    }
}

async fn stop(child: &mut Child, pid: Option<i32>) {
    if let Some(pid) = pid {
        // It may have ended just now.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if tokio::time::timeout(STOP_MAX, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Waits for the children that stop in `phase`: all of them at the end, a bounded while before.
pub async fn all_stopped(running: &mut Vec<JoinHandle<Result<(), Failure>>>, phase: Phase) {
    let until = tokio::time::Instant::now() + STOP_MAX + Duration::from_secs(1);
    while tokio::time::Instant::now() < until && !running.is_empty() {
        running.retain(|task| !task.is_finished());
        if phase == Phase::StopWorkers && Instant::now() >= until.into_std() - STOP_MAX {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

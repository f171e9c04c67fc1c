//! The MPS control daemon of one card.
//!
//! What must stay true: each card has a daemon of its own, with its own folders, which sees this card only; a daemon counts as running when the process that its
//! folder names was started for that folder, so a number that means another process by now is not taken for it, and a restarted agent finds it again;
//! limits are the server's, where a client cannot lift them.

use super::NvmlConfig;
use super::commands::{CommandError, run, run_detached};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout_at};

/// `GPU-` and 13 digits of a UUID.
const UUID_CHARS: usize = 18;
/// For a daemon to have a server that takes clients, and for one to end.
const READY_MAX: Duration = Duration::from_secs(15);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Of its log, in an error.
const LOG_LINES: usize = 3;

/// Limits that the MPS server of a card holds its clients to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MpsLimits {
    /// Share of the card's threads, 1 to 100.
    pub thread_percentage: Option<u8>,
    /// Memory of the card that one client may have.
    pub memory_mib: Option<u64>,
}

/// Why MPS is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum MpsError {
    #[error("{0}")]
    Command(#[from] CommandError),
    #[error("{}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("its server is not ready after {} s; its log says: {log}", READY_MAX.as_secs())]
    NotReady { log: String },
    #[error("its daemon (process {pid}) does not end")]
    NotEnded { pid: u32 },
    #[error("processes {clients} use its server; end them first")]
    InUse { clients: String },
    #[error("the daemon does not take {command:?}: {reply}")]
    NotTaken { command: String, reply: String },
}

/// The daemon of one card, running or not.
pub(super) struct Mps<'a> {
    config: &'a NvmlConfig,
    uuid: &'a str,
}

impl<'a> Mps<'a> {
    pub(super) const fn of(config: &'a NvmlConfig, uuid: &'a str) -> Self {
        Mps { config, uuid }
    }

    fn folder(&self) -> PathBuf {
        self.config.folder.join("mps").join(self.uuid)
    }

    /// Where its clients find it.
    pub(super) fn pipe(&self) -> PathBuf {
        // A card is told from the others of its host by less than its whole UUID.
        let short: String = self.uuid.chars().take(UUID_CHARS).collect();
        self.config.pipes.join(short)
    }

    fn log(&self) -> PathBuf {
        self.folder().join("log")
    }

    /// Whether this card was set up for MPS, and not yet taken down.
    pub(super) fn was_begun(&self) -> bool {
        self.pipe().exists()
    }

    /// The daemon's process, if it runs.
    pub(super) fn daemon(&self) -> Option<u32> {
        let pid = std::fs::read_to_string(self.pipe().join("nvidia-cuda-mps-control.pid")).ok()?;
        let pid: u32 = pid.trim().parse().ok()?;
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let own = format!("CUDA_MPS_PIPE_DIRECTORY={}", self.pipe().display());
        environment.split(|byte| *byte == 0).any(|one| one == own.as_bytes()).then_some(pid)
    }

    /// Notes that this card is about to be set up for MPS.
    pub(super) fn begin(&self) -> Result<(), MpsError> {
        for path in [self.pipe(), self.log()] {
            std::fs::create_dir_all(&path).map_err(|source| MpsError::Folder { path, source })?;
        }
        // Its clients are other users. They find it by its name, and see no other.
        for (path, mode) in [(self.config.pipes.clone(), 0o711), (self.pipe(), 0o755)] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode))
                .map_err(|source| MpsError::Folder { path, source })?;
        }
        Ok(())
    }

    /// Starts the daemon unless it runs, and waits for a server.
    pub(super) async fn start(&self) -> Result<(), MpsError> {
        self.begin()?;
        if self.daemon().is_none() {
            let mut command = self.command();
            command.arg("-d");
            // One that runs already says so by its status; whether it does is seen below.
            run_detached(command).await?;
        }
        let until = Instant::now() + READY_MAX;
        while self.servers().await.unwrap_or_default().is_empty() {
            if Instant::now() >= until {
                return Err(MpsError::NotReady { log: self.last_words() });
            }
            // Refused while the daemon is still coming up.
            let _ = self.control(&format!("start_server -uid {}", nix::unistd::geteuid())).await;
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Ends the daemon and its servers.
    pub(super) async fn quit(&self) -> Result<(), MpsError> {
        let Some(pid) = self.daemon() else { return Ok(()) };
        let clients = self.clients().await?;
        if !clients.is_empty() {
            return Err(MpsError::InUse { clients: clients.join(", ") });
        }
        let until = Instant::now() + READY_MAX;
        // Whether it has obeyed is seen below.
        let _ = timeout_at(until, self.control("quit")).await;
        while self.daemon().is_some() {
            if Instant::now() >= until {
                return Err(MpsError::NotEnded { pid });
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Removes its folder, by which it counts as begun.
    pub(super) fn remove(&self) -> Result<(), MpsError> {
        match std::fs::remove_dir_all(self.pipe()) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(MpsError::Folder { path: self.pipe(), source })
            }
            _ => Ok(()),
        }
    }

    /// Sets what clients may have at the most, for servers that start later and for those that run.
    pub(super) async fn limit(&self, limits: MpsLimits) -> Result<(), MpsError> {
        let threads = limits.thread_percentage.map(|percentage| ("active_thread_percentage", percentage.to_string()));
        let memory = limits.memory_mib.map(|mib| ("device_pinned_mem_limit", format!("0 {mib}M")));
        for (what, value) in threads.into_iter().chain(memory) {
            self.obeyed(&format!("set_default_{what} {value}")).await?;
            for server in self.servers().await? {
                self.obeyed(&format!("set_{what} {server} {value}")).await?;
            }
        }
        Ok(())
    }

    /// The control program tells of no failure by its status.
    async fn obeyed(&self, command: &str) -> Result<(), MpsError> {
        let reply = self.control(command).await?;
        let is_taken = reply.trim().is_empty() || reply.trim().starts_with(|first: char| first.is_ascii_digit());
        let not_taken = || MpsError::NotTaken { command: command.to_owned(), reply: reply.trim().to_owned() };
        is_taken.then_some(()).ok_or_else(not_taken)
    }

    async fn servers(&self) -> Result<Vec<String>, MpsError> {
        Ok(numbers(&self.control("get_server_list").await?))
    }

    async fn clients(&self) -> Result<Vec<String>, MpsError> {
        let mut clients = Vec::new();
        for server in self.servers().await? {
            clients.extend(numbers(&self.control(&format!("get_client_list {server}")).await?));
        }
        Ok(clients)
    }

    async fn control(&self, command: &str) -> Result<String, MpsError> {
        Ok(run(self.command(), &format!("{command}\n")).await?)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.config.mps_control);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", self.log())
            .env("CUDA_VISIBLE_DEVICES", self.uuid);
        command
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.log().join("control.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(LOG_LINES).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}

/// The process ids of a reply, one a line.
fn numbers(reply: &str) -> Vec<String> {
    let lines = reply.lines().map(str::trim);
    lines.filter(|line| line.parse::<u32>().is_ok()).map(str::to_owned).collect()
}

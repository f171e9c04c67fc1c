//! The MPS control daemon of one card.
//!
//! What must stay true: each card has a daemon of its own, with its own folders, which sees this card only; a daemon counts as running when the process that its
//! folder names was started for that folder, so a number that means another process by now is not taken for it, and a restarted agent finds it again;
//! limits are the server's, where a client cannot lift them, and are set before it takes any.
//!
//! A server takes the clients of one user: those of another wait until all of its own have gone. A daemon of root that is started with
//! `-multiuser-server` has one server, of root, for the clients of all users (NVIDIA's MPS manual, *Server*). Cards are shared inside one trust domain
//! only (law 8), so that is used where tasks may have different users; where they have one, the server is that user's.

use super::NvmlConfig;
use super::commands::{CommandError, run, run_detached};
use muster_node_core::{MpsLimits, MpsStart};
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

/// In the folder of the pipe: the only user whose clients the server takes, or [`ALL`].
const USER_FILE: &str = "muster-user";
const ALL: &str = "all";
/// Not known to drivers of CUDA before 12.
const MULTI_USER: &str = "-multiuser-server";

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
    #[error("its daemon does not run, as it seemed to")]
    Gone,
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

    /// The only user whose clients its server takes; none: it takes those of all.
    pub(super) fn only_user(&self) -> Option<u32> {
        let own = || nix::unistd::geteuid().as_raw();
        match std::fs::read_to_string(self.pipe().join(USER_FILE)) {
            Ok(words) if words.trim() == ALL => None,
            Ok(words) => Some(words.trim().parse().unwrap_or_else(|_| own())),
            // Of an agent that did not write it.
            Err(_) => Some(own()),
        }
    }

    /// Starts the daemon unless it runs, and waits for a server; gives the daemon's process.
    pub(super) async fn start(&self, start: MpsStart) -> Result<u32, MpsError> {
        self.begin()?;
        if self.daemon().is_none() {
            self.start_daemon(start).await?;
        }
        // The server of all is root's own.
        let user = self.only_user().unwrap_or_else(|| nix::unistd::geteuid().as_raw());
        let until = Instant::now() + READY_MAX;
        loop {
            // Refused while the daemon is still coming up.
            match self.servers().await {
                Ok(servers) if servers.is_empty() => {
                    // What it is told now holds for the servers that come.
                    self.limit(start.limits).await?;
                    let _ = self.control(&format!("start_server -uid {user}")).await;
                }
                Ok(_) => break,
                Err(_) => {}
            }
            if Instant::now() >= until {
                return Err(MpsError::NotReady { log: self.last_words() });
            }
            sleep(LOOK).await;
        }
        self.limit(start.limits).await?;
        self.daemon().ok_or(MpsError::Gone)
    }

    /// One that runs already says so by its status; whether it does is seen afterwards.
    async fn start_daemon(&self, start: MpsStart) -> Result<(), MpsError> {
        if start.for_all {
            self.note_user(ALL)?;
            let mut command = self.command();
            command.args(["-d", MULTI_USER]);
            let status = run_detached(command).await?;
            // It names its process a moment after it can be reached.
            let until = Instant::now() + READY_MAX;
            while status.success() && Instant::now() < until {
                if self.daemon().is_some() {
                    return Ok(());
                }
                sleep(LOOK).await;
            }
            tracing::warn!(
                gpu = self.uuid,
                "nvidia-cuda-mps-control does not start with {MULTI_USER}: the card's MPS server takes the tasks of one user"
            );
        }
        let user = start.user.unwrap_or_else(|| nix::unistd::geteuid().as_raw());
        self.note_user(&user.to_string())?;
        let mut command = self.command();
        command.arg("-d");
        run_detached(command).await?;
        Ok(())
    }

    fn note_user(&self, user: &str) -> Result<(), MpsError> {
        let path = self.pipe().join(USER_FILE);
        std::fs::write(&path, user).map_err(|source| MpsError::Folder { path, source })
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

    /// Sets what clients may have at the most, for servers that start later and for those that run. Clients that are there keep what they have.
    pub(super) async fn limit(&self, limits: MpsLimits) -> Result<(), MpsError> {
        let servers = self.servers().await?;
        let values = [
            ("active_thread_percentage", limits.percent.to_string()),
            ("device_pinned_mem_limit", format!("0 {}M", limits.memory_mib)),
        ];
        for (what, value) in values {
            self.obeyed(&format!("set_default_{what} {value}")).await?;
            for server in &servers {
                self.obeyed(&format!("set_{what} {server} {value}")).await?;
            }
        }
        Ok(())
    }

    /// Has the server let go of these clients and of what they have under way.
    pub(super) async fn end_clients(&self, pids: &[u32]) -> Result<(), MpsError> {
        for server in self.servers().await? {
            let there = numbers(&self.control(&format!("get_client_list {server}")).await?);
            for pid in pids.iter().map(ToString::to_string).filter(|pid| there.contains(pid)) {
                // One that has gone by itself is not found, which is as well.
                self.control(&format!("terminate_client {server} {pid}")).await?;
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

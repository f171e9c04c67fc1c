//! The cluster of the demonstration: `muster dev` as anybody would start it, and the means to kill parts of it.

use crate::client::Client;
use crate::commands::fleet::all_cells;
use crate::commands::raft;
use crate::config::Config;
use crate::dev::file::{DevFile, RunningRole};
use crate::dev::folder::Folder;
use crate::failure::Failure;
use anyhow::{Context, bail};
use muster_proto::v1::Consistency;
use nix::sys::signal::{Signal, kill as send};
use nix::unistd::Pid;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The size of the fleet.
const SIZE: &[&str] = &["--voters", "3", "--shards", "2", "--nodes", "64", "--gpus-per-node", "8", "--model", "h100"];
/// What is killed stays dead for this long: the others have to take over, not a quick restart.
const REST: &[&str] = &["--restart-after", "4s"];
/// It is ready in some seconds; a slow disk or a busy machine may take longer.
const READY_MAX: Duration = Duration::from_secs(90);
/// For its end.
const STOP_MAX: Duration = Duration::from_secs(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// The cluster.
pub struct Stage {
    supervisor: Child,
    folder: PathBuf,
    endpoints: Vec<String>,
}

/// Makes the folder in which all tasks may write. Tasks of each tenant have a user of their own, so everybody may.
fn shared(folder: &Path) -> std::io::Result<PathBuf> {
    let shared = folder.join("shared");
    std::fs::create_dir_all(&shared)?;
    std::fs::set_permissions(&shared, Permissions::from_mode(0o777))?;
    let record = File::options().create(true).append(true).open(record_in(folder))?;
    record.set_permissions(Permissions::from_mode(0o666))?;
    Ok(shared)
}

/// The file to which all tasks append.
#[must_use]
pub fn record_in(folder: &Path) -> PathBuf {
    folder.join("shared/record")
}

impl Stage {
    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn start(folder: &Path) -> Result<Self, Failure> {
        Self::start_as(folder, SIZE).await
    }

    /// The same with another size.
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn start_as(folder: &Path, size: &[&str]) -> Result<Self, Failure> {
        std::fs::create_dir_all(folder).map_err(|error| Failure::io("making the data folder", error))?;
        Self::start_in(folder, size).await.map_err(Failure::Role)
    }

    async fn start_in(folder: &Path, size: &[&str]) -> anyhow::Result<Self> {
        let log = File::create(folder.join("dev.log"))?;
        let (data, shared) = (folder.join("dev"), shared(folder)?);
        let mut supervisor = Command::new(std::env::current_exe()?)
            .arg("dev")
            .arg("--data")
            .arg(&data)
            .arg("--task-writes")
            .arg(shared)
            .args(size)
            .args(REST)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting muster dev")?;
        let until = Instant::now() + READY_MAX;
        loop {
            let said = std::fs::read_to_string(folder.join("dev.log")).unwrap_or_default();
            if said.contains("muster dev: ready") {
                let endpoints = DevFile::read(&data.join("dev.json"))?.endpoints;
                return Ok(Stage { supervisor, folder: folder.to_owned(), endpoints });
            }
            if let Some(status) = supervisor.try_wait()? {
                bail!("muster dev ended ({status}):\n{said}");
            }
            if Instant::now() > until {
                let _ = supervisor.kill();
                bail!("muster dev was not ready in {} s:\n{said}", READY_MAX.as_secs());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A client of it, with what its configuration says of who proves what.
    ///
    /// # Errors
    /// When the configuration cannot be read.
    pub fn client(&self, deadline: Duration) -> Result<Client, Failure> {
        let config = Config::load(Some(&Folder::open(&self.folder.join("dev"))?.config()))?;
        Client::open(&self.endpoints, deadline, &config.access()?)
    }

    /// Its control nodes.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The last lines of the supervisor.
    #[must_use]
    pub fn last_words(&self) -> String {
        let said = std::fs::read_to_string(self.folder.join("dev.log")).unwrap_or_default();
        let last: Vec<&str> = said.lines().rev().take(20).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Who leads and who holds what.
    ///
    /// # Errors
    /// When the cluster stays away.
    pub async fn words(&self, client: &Client) -> Result<String, Failure> {
        let cells = all_cells(client, Consistency::Linearizable).await?;
        let gpus: u32 = cells.iter().map(|cell| cell.gpus).sum();
        let holders: Vec<String> = cells
            .iter()
            .map(|cell| format!("{} has {}", cell.name, cell.holder.as_deref().unwrap_or("no shard")))
            .collect();
        Ok(format!("{} leads, {}, {gpus} GPUs", self.leader(client).await?.name, holders.join(", ")))
    }

    /// The live processes of a role.
    ///
    /// # Errors
    /// When the supervisor's file cannot be read.
    pub fn roles(&self, role: &str) -> Result<Vec<RunningRole>, Failure> {
        let file = DevFile::read(&self.folder.join("dev/dev.json")).map_err(Failure::Role)?;
        Ok(file.roles.into_iter().filter(|found| found.role == role).collect())
    }

    /// The control node that leads.
    ///
    /// # Errors
    /// When none does for a while.
    pub async fn leader(&self, client: &Client) -> Result<RunningRole, Failure> {
        let until = Instant::now() + READY_MAX;
        loop {
            let peers = raft::status(client).await?;
            let leader = peers.iter().find(|peer| peer.state == "leader");
            let roles = self.roles("control")?;
            let found = leader.and_then(|peer| {
                roles.into_iter().find(|role| role.endpoint.as_deref() == Some(peer.address.as_str()))
            });
            match found {
                Some(role) => return Ok(role),
                None if Instant::now() > until => return Err(Failure::Job("the cluster has no leader".to_owned())),
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// The data folder of a node.
    ///
    /// # Errors
    /// When no agent has that node.
    pub fn node_folder(&self, node: &str) -> Result<PathBuf, Failure> {
        let nodes = Folder::open(&self.folder.join("dev"))?.nodes();
        let folder = nodes.join(node);
        if folder.is_dir() { Ok(folder) } else { Err(Failure::Job(format!("there is no folder {}", folder.display()))) }
    }

    /// The process of the shard that calls itself `holder`.
    ///
    /// # Errors
    /// When there is none.
    pub fn shard(&self, holder: &str) -> Result<RunningRole, Failure> {
        let shards = self.roles("shard")?;
        let found = shards.into_iter().find(|role| holder.starts_with(&format!("{}-", role.name)));
        found.ok_or_else(|| Failure::Job(format!("no process is shard {holder}")))
    }

    /// Stops all of it.
    pub async fn stop(mut self) {
        if let Ok(pid) = i32::try_from(self.supervisor.id()) {
            // It may have ended with us, by Ctrl-C.
            let _ = send(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let until = Instant::now() + STOP_MAX;
        while Instant::now() < until {
            if matches!(self.supervisor.try_wait(), Ok(Some(_))) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

/// Sends a signal to a role's process.
///
/// # Errors
/// When the process is not there.
pub fn kill(role: &RunningRole, signal: Signal) -> Result<(), Failure> {
    send(Pid::from_raw(role.pid), signal)
        .map_err(|errno| Failure::io(format!("killing {}", role.name), std::io::Error::from(errno)))
}

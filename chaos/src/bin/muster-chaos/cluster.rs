//! Three voters, each a real process on a host of its own, and what is done to them.
//!
//! What must stay true: a voter that is started again has the same arguments, disk and clock as before; dropping the cluster ends its
//! processes before its disks and its network.

use crate::disk::Disk;
use crate::enclosure::FOLDER;
use crate::lab::Lab;
use crate::network::Network;
use crate::tools::faketime_library;
use anyhow::{Context, Result, bail, ensure};
use muster_proto::v1;
use muster_proto::v1::admin_client::AdminClient;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint};

/// Where every voter serves, on its own host.
const PORT: u16 = 7400;
/// The voters, which have the numbers of their hosts.
pub(crate) const VOTERS: [u8; 3] = [1, 2, 3];
/// How long a cluster may be without a leader, on a machine that also builds: then it stands still.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(60);
/// How long a voter may take to say how it is.
const STATUS_MAX: Duration = Duration::from_millis(700);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// How a cluster differs from the usual one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    /// Each voter has a disk of so many MiB.
    pub(crate) disk_mib: Option<u64>,
    /// Each voter has a wall clock of its own, which is so many seconds ahead at first.
    pub(crate) clock_ahead_s: Option<i64>,
    /// The voters are not `muster`, but this command with a bug.
    pub(crate) planted: Option<&'static str>,
    /// Hosts beside the voters', for agents.
    pub(crate) more_hosts: u8,
}

/// See the module. The order of the fields is the order of their end.
pub(crate) struct Cluster {
    voters: Vec<Voter>,
    helpers: Vec<Child>,
    /// The hosts.
    pub(crate) network: Network,
    folder: PathBuf,
    logs: PathBuf,
    muster: PathBuf,
}

struct Voter {
    child: Option<Child>,
    program: Vec<String>,
    clock: Option<PathBuf>,
    log: PathBuf,
    disk: Option<Disk>,
}

impl Cluster {
    /// Starts all voters and waits for a leader.
    ///
    /// # Errors
    /// When something cannot be set up, or nobody leads.
    pub(crate) async fn start(lab: &Lab, name: &str, setup: &Setup) -> Result<Cluster> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(FOLDER).join(format!("cluster{number}"));
        std::fs::create_dir_all(&folder)?;
        let network = Network::new(VOTERS.len() as u8 + setup.more_hosts)?;
        let logs = lab.logs_of(&format!("{name}-{number}"))?;
        let mut cluster =
            Cluster { voters: Vec::new(), helpers: Vec::new(), network, folder, logs, muster: lab.muster.clone() };
        for id in VOTERS {
            let voter = cluster.voter(lab, setup, id)?;
            cluster.voters.push(voter);
        }
        for id in VOTERS {
            cluster.start_voter(id)?;
        }
        cluster.leader_within(STANDSTILL).await.context("a new cluster")?;
        Ok(cluster)
    }

    fn voter(&self, lab: &Lab, setup: &Setup, id: u8) -> Result<Voter> {
        let disk = setup.disk_mib.map(Disk::new).transpose()?;
        let data =
            disk.as_ref().map_or_else(|| self.folder.join(format!("voter{id}")), |disk| disk.folder().join("data"));
        let mut program = match setup.planted {
            None => vec![lab.muster.display().to_string(), "control".to_owned()],
            Some(bug) => vec![lab.chaos.display().to_string(), "voter".to_owned(), "--bug".to_owned(), bug.to_owned()],
        };
        let endpoint = self.endpoint(id);
        program.extend(
            ["--id", &id.to_string(), "--data", &data.to_string_lossy(), "--listen", &endpoint].map(str::to_owned),
        );
        for voter in VOTERS {
            program.extend(["--bootstrap".to_owned(), format!("{voter}={}", self.endpoint(voter))]);
        }
        let clock = setup.clock_ahead_s.map(|_| self.folder.join(format!("clock{id}")));
        let voter = Voter { child: None, program, clock, log: self.logs.join(format!("voter{id}.log")), disk };
        if let Some(ahead_s) = setup.clock_ahead_s {
            voter.set_clock(ahead_s)?;
        }
        Ok(voter)
    }

    /// `host:port` of a voter.
    pub(crate) fn endpoint(&self, id: u8) -> String {
        format!("{}:{PORT}", self.network.address(id))
    }

    /// Those of all voters.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        VOTERS.iter().map(|id| self.endpoint(*id)).collect()
    }

    fn at(&mut self, id: u8) -> &mut Voter {
        &mut self.voters[usize::from(id) - 1]
    }

    /// Starts a voter that does not run.
    ///
    /// # Errors
    /// When it cannot be started at all.
    pub(crate) fn start_voter(&mut self, id: u8) -> Result<()> {
        let mut command = Command::from(self.network.on(id));
        let voter = self.at(id);
        let log = std::fs::File::options().create(true).append(true).open(&voter.log)?;
        command.args(&voter.program).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        if let Some(clock) = &voter.clock {
            let library = faketime_library().context("libfaketime is not installed")?;
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", clock);
            command.env("FAKETIME_CACHE_DURATION", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        voter.child = Some(command.spawn().with_context(|| format!("cannot start voter {id}"))?);
        Ok(())
    }

    /// The process of a voter that runs.
    pub(crate) fn pid(&self, id: u8) -> Result<Pid> {
        let child = self.voters[usize::from(id) - 1].child.as_ref();
        let pid = child.and_then(Child::id).with_context(|| format!("voter {id} is not running"))?;
        Ok(Pid::from_raw(pid as i32))
    }

    /// Sends a voter a signal.
    ///
    /// # Errors
    /// When it does not run.
    pub(crate) fn signal(&self, id: u8, signal: Signal) -> Result<()> {
        Ok(kill(self.pid(id)?, signal)?)
    }

    /// Kills a voter, if it runs, and waits for its end.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub(crate) async fn kill(&mut self, id: u8) -> Result<()> {
        if let Some(mut child) = self.at(id).child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// Waits for a voter's process to end by itself.
    pub(crate) async fn ends_within(&mut self, id: u8, limit: Duration) -> bool {
        let voter = self.at(id);
        let Some(child) = &mut voter.child else { return true };
        let ended = timeout(limit, child.wait()).await.is_ok();
        if ended {
            voter.child = None;
        }
        ended
    }

    /// A voter's disk.
    ///
    /// # Errors
    /// When the voters of this cluster have none.
    pub(crate) fn disk(&self, id: u8) -> Result<&Disk> {
        self.voters[usize::from(id) - 1].disk.as_ref().context("the voters have no separate disks")
    }

    /// Sets a voter's clock, also while it runs.
    ///
    /// # Errors
    /// When the file that says it cannot be written.
    pub(crate) fn set_clock(&mut self, id: u8, ahead_s: i64) -> Result<()> {
        self.at(id).set_clock(ahead_s)
    }

    /// What a voter wrote to its log so far.
    pub(crate) fn log(&self, id: u8) -> String {
        std::fs::read_to_string(&self.voters[usize::from(id) - 1].log).unwrap_or_default()
    }

    /// What a voter says of itself, if it answers.
    pub(crate) async fn status(&self, id: u8) -> Option<v1::RaftStatusReply> {
        let mut admin = AdminClient::new(channel(&self.endpoint(id)).ok()?);
        let asked = timeout(STATUS_MAX, admin.raft_status(v1::RaftStatusRequest {})).await;
        Some(asked.ok()?.ok()?.into_inner())
    }

    /// Who leads, as it says itself: of several, the one of the newest term.
    pub(crate) async fn leader(&self) -> Option<u8> {
        let statuses = futures::future::join_all(VOTERS.iter().map(|id| self.status(*id))).await;
        let leading = statuses.into_iter().flatten().filter(|status| status.leader == Some(status.id));
        leading.max_by_key(|status| status.term).map(|status| status.id as u8)
    }

    /// The highest term that a voter knows.
    pub(crate) async fn term(&self) -> u64 {
        let statuses = futures::future::join_all(VOTERS.iter().map(|id| self.status(*id))).await;
        statuses.into_iter().flatten().map(|status| status.term).max().unwrap_or(0)
    }

    /// Waits for a leader.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) async fn leader_within(&self, limit: Duration) -> Result<u8> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if let Some(leader) = self.leader().await {
                return Ok(leader);
            }
            sleep(Duration::from_millis(30)).await;
        }
        bail!("no leader within {} s", limit.as_secs())
    }

    /// Runs a `muster` command against the cluster and gives what it wrote.
    ///
    /// # Errors
    /// When it fails: then with what it said.
    pub(crate) async fn muster(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.muster);
        command.args(words).args(["--endpoints", &self.endpoints().join(",")]);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "muster {}: {}", words.join(" "), said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a `muster` role beside the voters, on a host if one is named; it ends with the cluster. Gives its process.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start_role(&mut self, host: Option<u8>, name: &str, words: &[&str]) -> Result<Pid> {
        let mut command = match host {
            Some(host) => {
                let mut command = self.network.on(host);
                command.arg(&self.muster);
                Command::from(command)
            }
            None => Command::new(&self.muster),
        };
        let log = std::fs::File::options().create(true).append(true).open(self.logs.join(format!("{name}.log")))?;
        command.args(words).args(["--endpoints", &self.endpoints().join(",")]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let pid = child.id().context("it ended at once")?;
        self.helpers.push(child);
        Ok(Pid::from_raw(pid as i32))
    }

    /// A folder of the cluster's own, gone with it.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Voter {
    fn set_clock(&self, ahead_s: i64) -> Result<()> {
        let clock = self.clock.as_ref().context("the voters have no separate clocks")?;
        // Replaced as a whole: the voter reads it at any time.
        let new = clock.with_extension("new");
        std::fs::write(&new, format!("{ahead_s:+}\n"))?;
        Ok(std::fs::rename(new, clock)?)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for voter in &mut self.voters {
            if let Some(disk) = &voter.disk {
                // A process that waits for a frozen disk does not end.
                let _ = disk.thaw();
            }
            if let Some(child) = &mut voter.child {
                let _ = child.start_kill();
            }
        }
        for child in &mut self.helpers {
            let _ = child.start_kill();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A channel to `host:port` that is made when it is first used.
pub(crate) fn channel(endpoint: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?;
    Ok(endpoint.connect_timeout(Duration::from_millis(500)).tcp_nodelay(true).connect_lazy())
}

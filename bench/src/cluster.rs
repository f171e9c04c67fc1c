//! A Muster cluster of real processes in a temporary folder, started by `muster dev`; it dies with its value.

use crate::secured;
use anyhow::{Context, Result};
use muster_proto::v1;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};

/// Time limit of one status call.
const STATUS_WITHIN: Duration = Duration::from_millis(500);

/// A port that was free a moment ago.
pub fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// How large a cluster to start.
#[derive(Clone, Debug)]
pub struct Size {
    /// Control nodes: 1 or 3.
    pub voters: u32,
    /// Scheduler shards.
    pub shards: u32,
    /// Simulated nodes.
    pub nodes: u32,
    /// Cards of each.
    pub gpus_per_node: u32,
    /// Processes that the simulated nodes share.
    pub agents: u32,
    /// Tasks pass in virtual executors instead of real processes.
    pub virtual_tasks: bool,
}

/// What a cluster is started with beside its size.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Every process writes its stamps of the timeline into this folder.
    pub stamps: Option<PathBuf>,
    /// Further options of `muster dev`.
    pub options: Vec<String>,
    /// The cluster is ready within this time, or the start fails.
    pub ready_within: Duration,
}

impl Default for Setting {
    fn default() -> Self {
        Setting { stamps: None, options: Vec::new(), ready_within: Duration::from_secs(60) }
    }
}

/// One child of `muster dev`, as its `dev.json` tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Role {
    /// `control-1`, `shard-2`, `agent-1`.
    pub name: String,
    /// `control`, `shard` or `agent`.
    pub role: String,
    /// The process.
    pub pid: i32,
    /// Where it serves, for control nodes.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Where it shows its metrics.
    #[serde(default)]
    pub http: Option<String>,
    /// Names of the simulated nodes that it hosts, for agents.
    #[serde(default)]
    pub nodes: Vec<String>,
}

/// What `dev.json` says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dev {
    /// Control endpoints.
    pub endpoints: Vec<String>,
    /// Live children.
    pub roles: Vec<Role>,
}

/// A running cluster.
pub struct Cluster {
    muster: PathBuf,
    size: Size,
    setting: Setting,
    supervisor: Child,
    folder: PathBuf,
    _data: tempfile::TempDir,
}

impl Cluster {
    /// Starts the cluster with the binary `muster` and waits until a submission could be accepted.
    pub async fn start(muster: &Path, under: &Path, size: &Size) -> Result<Self> {
        Self::start_with(muster, under, size, &Setting::default()).await
    }

    /// The same with more said about it.
    pub async fn start_with(muster: &Path, under: &Path, size: &Size, setting: &Setting) -> Result<Self> {
        let data = tempfile::tempdir_in(under)?;
        let folder = data.path().join("dev");
        let supervisor = spawn_supervisor(muster, &folder, size, setting)?;
        let (muster, size, setting) = (muster.to_owned(), size.clone(), setting.clone());
        let cluster = Cluster { muster, size, setting, supervisor, folder, _data: data };
        if secured::chosen() {
            cluster.wait_told().await?;
            secured::open(&cluster.muster, &cluster.folder)?;
        }
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    /// kill -9 of the supervisor and of every role at once: the power goes out (tasks' shims are left).
    pub fn kill_everything(&mut self) {
        let roles = self.dev().map(|dev| dev.roles).unwrap_or_default();
        let _ = self.supervisor.kill();
        for role in roles {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(role.pid), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = self.supervisor.wait();
    }

    /// Starts the supervisor again on the same folder.
    pub fn start_again(&mut self) -> Result<()> {
        // What was measured is over: the new processes write no stamps.
        let setting = Setting { stamps: None, ..self.setting.clone() };
        self.supervisor = spawn_supervisor(&self.muster, &self.folder, &self.size, &setting)?;
        Ok(())
    }

    /// Waits until the supervisor says that the cluster is ready.
    async fn wait_told(&self) -> Result<()> {
        let until = Instant::now() + self.setting.ready_within;
        while !self.log_tail().contains("muster dev: ready") {
            anyhow::ensure!(Instant::now() < until, "the cluster was not ready; last lines:\n{}", self.log_tail());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Waits until every cell has a shard and every node is ready.
    pub async fn wait_ready(&self) -> Result<()> {
        let within = self.setting.ready_within;
        let until = Instant::now() + within;
        while Instant::now() < until {
            if let Ok(dev) = self.dev()
                && dev.endpoints.len() == self.size.voters as usize
                && let Ok(channel) = self.channel_to_any()
                && self.nodes_ready(channel).await.unwrap_or(0) >= self.size.nodes
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("the cluster was not ready in {} s; last lines:\n{}", within.as_secs(), self.log_tail())
    }

    /// The last lines that the supervisor and its children printed.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.with_file_name("dev.log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(30).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    async fn nodes_ready(&self, channel: Channel) -> Result<u32> {
        let mut fleet = v1::fleet_client::FleetClient::new(channel);
        let cells = fleet.list_cells(v1::ListCellsRequest::default()).await?.into_inner().cells;
        let held = cells.iter().all(|cell| cell.cell.as_ref().is_some_and(|c| c.holder.is_some()));
        Ok(if held { cells.iter().map(|cell| cell.nodes_ready).sum() } else { 0 })
    }

    /// What the supervisor says now.
    pub fn dev(&self) -> Result<Dev> {
        Ok(serde_json::from_slice(&std::fs::read(self.folder.join("dev.json"))?)?)
    }

    /// Where its data lies.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A channel that balances over all control nodes.
    pub fn channel_to_any(&self) -> Result<Channel> {
        let dev = self.dev()?;
        let first = dev.endpoints.first().context("no control endpoints yet")?;
        channel(first)
    }

    /// The control node that leads, by asking each: its place in `endpoints` and its process.
    pub async fn leader(&self) -> Result<Option<(usize, i32)>> {
        let dev = self.dev()?;
        for (at, endpoint) in dev.endpoints.iter().enumerate() {
            let Some(status) = raft_status(endpoint).await else { continue };
            if status.leader == Some(status.id)
                && let Some(role) = dev.roles.iter().find(|role| role.endpoint.as_deref() == Some(endpoint))
            {
                return Ok(Some((at, role.pid)));
            }
        }
        Ok(None)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SIGTERM lets the supervisor take its children and their tasks down; it is killed when it does not.
        let pid = nix::unistd::Pid::from_raw(self.supervisor.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if matches!(self.supervisor.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

fn spawn_supervisor(muster: &Path, folder: &Path, size: &Size, setting: &Setting) -> Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(folder.with_file_name("dev.log"))?;
    let mut command = Command::new(muster);
    command.args(["dev", "--data"]).arg(folder);
    if !secured::chosen() {
        command.arg("--plaintext");
    }
    for (flag, value) in [
        ("--voters", size.voters),
        ("--shards", size.shards),
        ("--nodes", size.nodes),
        ("--gpus-per-node", size.gpus_per_node),
        ("--agents", size.agents),
    ] {
        command.args([flag, &value.to_string()]);
    }
    if size.virtual_tasks {
        command.arg("--virtual-tasks");
    }
    command.args(&setting.options);
    if let Some(stamps) = &setting.stamps {
        command.env(muster_runtime::timeline::FOLDER, stamps);
    }
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", muster.display()))
}

/// A lazy channel to `host:port`.
pub fn channel(endpoint: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?;
    Ok(secured::channel(&endpoint.connect_timeout(Duration::from_millis(500)).tcp_nodelay(true)))
}

/// The time of issue of a call that is made now.
#[must_use]
pub fn issued_now() -> Option<u64> {
    std::time::UNIX_EPOCH.elapsed().ok().map(|since| since.as_millis() as u64)
}

/// A small job that a simulated node ends at once: one card, `true`.
#[must_use]
pub fn small_job(tenant: &str, name: String, command: &[&str]) -> v1::JobSpec {
    v1::JobSpec {
        tenant: tenant.to_owned(),
        name,
        tasks: 1,
        request: Some(v1::TaskRequest {
            devices: Some(v1::DeviceRequest {
                kind: Some(v1::device_request::Kind::Whole(v1::WholeGpus { count: 1 })),
                models: Vec::new(),
            }),
            cpu_milli: 1_000,
            memory_mib: 1_024,
        }),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        ..Default::default()
    }
}

/// The same job with so many cards for each task.
#[must_use]
pub fn with_cards(mut job: v1::JobSpec, count: u32) -> v1::JobSpec {
    if let Some(devices) = job.request.as_mut().and_then(|request| request.devices.as_mut()) {
        devices.kind = Some(v1::device_request::Kind::Whole(v1::WholeGpus { count }));
    }
    job
}

/// The same job as a simulated agent pretends to run it: for so many milliseconds.
#[must_use]
pub fn for_ms(mut job: v1::JobSpec, run_ms: u64) -> v1::JobSpec {
    job.env.insert("MUSTER_SIM_RUN_MS".to_owned(), run_ms.to_string());
    job
}

/// A submission of these jobs, issued now.
#[must_use]
pub fn submission(request_id: String, jobs: Vec<v1::JobSpec>) -> v1::SubmitRequest {
    v1::SubmitRequest { request_id, issued_ms: issued_now(), jobs }
}

/// What the control node at `endpoint` says of consensus; nothing when it does not answer in [`STATUS_WITHIN`].
pub async fn raft_status(endpoint: &str) -> Option<v1::RaftStatusReply> {
    let mut admin = v1::admin_client::AdminClient::new(channel(endpoint).ok()?);
    let asked = tokio::time::timeout(STATUS_WITHIN, admin.raft_status(v1::RaftStatusRequest {})).await;
    Some(asked.ok()?.ok()?.into_inner())
}

/// Makes the tenants that the benchmarks submit under.
pub async fn apply_tenants(channel: Channel, paths: &[impl AsRef<str>]) -> Result<()> {
    let tenant = |path: &str| v1::TenantSpec { path: path.to_owned(), ..Default::default() };
    let tenants = paths.iter().map(|path| tenant(path.as_ref())).collect();
    v1::tenants_client::TenantsClient::new(channel)
        .apply(v1::ApplyTenantsRequest { tenants, ..Default::default() })
        .await?;
    Ok(())
}

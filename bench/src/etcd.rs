//! Three etcd members on loopback, the peer that durable writes and failover are measured beside.
//!
//! The members run with their defaults but for the two timing flags, on the same file system as Muster's data.

pub mod api;

use anyhow::{Context, Result};
pub use api::put;
use api::status;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// A running cluster; it dies with this value.
pub struct Etcd {
    members: Vec<Option<Child>>,
    client_ports: Vec<u16>,
    _data: tempfile::TempDir,
}

/// Whether etcd is installed here.
#[must_use]
pub fn is_installed() -> bool {
    Command::new("etcd")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Its version line, for the table.
#[must_use]
pub fn version() -> String {
    let out = Command::new("etcd").arg("--version").output().map(|out| out.stdout).unwrap_or_default();
    String::from_utf8_lossy(&out).lines().next().unwrap_or("etcd").to_owned()
}

impl Etcd {
    /// Starts three members and waits until they answer. `tuned`: heartbeat 50 ms, election 500 ms instead of 100/1,000.
    pub async fn start(under: &Path, tuned: bool) -> Result<Self> {
        let data = tempfile::tempdir_in(under)?;
        let ports: Vec<(u16, u16)> =
            (0..3).map(|_| Ok((crate::cluster::free_port()?, crate::cluster::free_port()?))).collect::<Result<_>>()?;
        let peers: Vec<String> =
            ports.iter().enumerate().map(|(i, (_, peer))| format!("m{i}=http://127.0.0.1:{peer}")).collect();
        let mut members = Vec::new();
        for (i, (client, peer)) in ports.iter().enumerate() {
            let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
            let mut command = Command::new("etcd");
            command
                .args([
                    "--name",
                    &format!("m{i}"),
                    "--initial-cluster",
                    &peers.join(","),
                    "--initial-cluster-state",
                    "new",
                ])
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .arg("--data-dir")
                .arg(data.path().join(format!("m{i}")))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if tuned {
                command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
            }
            members.push(Some(command.spawn().context("cannot start etcd")?));
        }
        let cluster =
            Etcd { members, client_ports: ports.into_iter().map(|(client, _)| client).collect(), _data: data };
        for _ in 0..100 {
            if cluster.put(0, b"ready", b"yes", Duration::from_millis(500)).await {
                return Ok(cluster);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("etcd did not become ready in 10 s")
    }

    /// A channel to a member.
    pub fn channel(&self, member: usize) -> Result<Channel> {
        Ok(Endpoint::from_shared(format!("http://127.0.0.1:{}", self.client_ports[member]))?.connect_lazy())
    }

    /// One durable put over a fresh channel.
    pub async fn put(&self, member: usize, key: &[u8], value: &[u8], limit: Duration) -> bool {
        let Ok(channel) = self.channel(member) else { return false };
        matches!(tokio::time::timeout(limit, put(channel, key.to_vec(), value.to_vec())).await, Ok(Ok(())))
    }

    /// Which member leads, by asking each.
    pub async fn leader(&self) -> Option<usize> {
        for member in 0..3 {
            if self.members[member].is_none() {
                continue;
            }
            let channel = self.channel(member).ok()?;
            if let Ok(Ok(status)) = tokio::time::timeout(Duration::from_millis(500), status(channel)).await
                && status.leads()
            {
                return Some(member);
            }
        }
        None
    }

    /// kill -9 of one member.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in 0..self.members.len() {
            self.kill(member);
        }
    }
}

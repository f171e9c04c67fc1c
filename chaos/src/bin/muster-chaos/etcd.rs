//! Three etcd members on hosts of their own, the peer that loss of packets is measured beside.

use crate::cluster::{STANDSTILL, channel};
use crate::enclosure::FOLDER;
use crate::lab::Lab;
use crate::network::Network;
use anyhow::{Context, Result, bail};
pub(crate) use muster_bench::etcd::api::put;
use muster_bench::etcd::api::{self, StatusReply};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// How its members are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settings {
    /// Heartbeat 100 ms, election 1,000 ms, and everything else as it comes.
    Usual,
    /// Heartbeat 50 ms, election 500 ms, with pre-vote.
    Tuned,
}

/// A running cluster. The order of the fields is the order of their end.
pub(crate) struct Etcd {
    members: Vec<Child>,
    /// The hosts.
    pub(crate) network: Network,
}

/// Its version, or that it is not installed.
pub(crate) fn version() -> Result<String, String> {
    let said = crate::tools::output("etcd", &["--version"]);
    let said = said.map_err(|_| "etcd is not installed (package etcd-server)".to_owned())?;
    Ok(said.lines().next().unwrap_or("etcd").replace("Version: ", ""))
}

impl Etcd {
    /// Starts three members and waits for their leader.
    ///
    /// # Errors
    /// When they do not start.
    pub(crate) async fn start(lab: &Lab, settings: Settings) -> Result<Etcd> {
        let network = Network::new(3)?;
        let peer = |host| format!("http://{}:2380", network.address(host));
        let client = |host| format!("http://{}:2379", network.address(host));
        let all: Vec<String> = network.all().map(|host| format!("m{host}={}", peer(host))).collect();
        let logs = lab.logs_of("etcd")?;
        let mut members = Vec::new();
        for host in network.all() {
            let log = std::fs::File::options().create(true).append(true).open(logs.join(format!("m{host}.log")))?;
            let data = format!("{FOLDER}/etcd-{}", network.address(host));
            let mut command = Command::from(network.on(host));
            command.args(["etcd", "--name", &format!("m{host}"), "--initial-cluster", &all.join(",")]);
            command.args(["--initial-cluster-state", "new", "--data-dir", &data]);
            command.args(["--listen-client-urls", &client(host), "--advertise-client-urls", &client(host)]);
            command.args(["--listen-peer-urls", &peer(host), "--initial-advertise-peer-urls", &peer(host)]);
            if settings == Settings::Tuned {
                command.args(["--heartbeat-interval", "50", "--election-timeout", "500", "--pre-vote"]);
            }
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
            members.push(command.spawn().context("cannot start etcd")?);
        }
        let etcd = Etcd { members, network };
        let until = Instant::now() + STANDSTILL;
        while etcd.leader().await.is_none() {
            if Instant::now() >= until {
                bail!("etcd has no leader within {} s", STANDSTILL.as_secs());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(etcd)
    }

    /// `host:port` of every member.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.network.all().map(|host| format!("{}:2379", self.network.address(host))).collect()
    }

    /// The number of the host that leads.
    pub(crate) async fn leader(&self) -> Option<u8> {
        for (host, endpoint) in self.network.all().zip(self.endpoints()) {
            if status(&endpoint).await.is_some_and(|status| status.leads()) {
                return Some(host);
            }
        }
        None
    }

    /// The highest term that a member knows.
    pub(crate) async fn term(&self) -> u64 {
        let endpoints = self.endpoints();
        let statuses = futures::future::join_all(endpoints.iter().map(|endpoint| status(endpoint))).await;
        statuses.iter().flatten().map(|status| status.term).max().unwrap_or(0)
    }
}

/// What the member at an endpoint says of itself, if it answers soon.
async fn status(endpoint: &str) -> Option<StatusReply> {
    timeout(Duration::from_millis(700), api::status(channel(endpoint).ok()?)).await.ok()?.ok()
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.start_kill();
        }
        for host in self.network.all() {
            let _ = std::fs::remove_dir_all(format!("{FOLDER}/etcd-{}", self.network.address(host)));
        }
    }
}

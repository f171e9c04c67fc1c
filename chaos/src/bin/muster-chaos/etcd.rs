//! Three etcd members on hosts of their own, the peer that loss of packets is measured beside.
//!
//! Two calls of etcd's API are spoken here, so their messages are written out by hand.

use crate::cluster::{STANDSTILL, channel};
use crate::enclosure::FOLDER;
use crate::lab::Lab;
use crate::network::Network;
use anyhow::{Context, Result, bail};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;

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
    let said = said.map_err(|_| "no etcd to compare with (package etcd-server)".to_owned())?;
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

    async fn statuses(&self) -> Vec<StatusReply> {
        let ask = |endpoint: String| async move {
            let asked =
                call::<_, StatusReply>(channel(&endpoint).ok()?, "/etcdserverpb.Maintenance/Status", StatusRequest {});
            timeout(Duration::from_millis(700), asked).await.ok()?.ok()
        };
        futures::future::join_all(self.endpoints().into_iter().map(ask)).await.into_iter().flatten().collect()
    }

    /// The number of the host that leads.
    pub(crate) async fn leader(&self) -> Option<u8> {
        for host in self.network.all() {
            let endpoint = format!("{}:2379", self.network.address(host));
            let asked =
                call::<_, StatusReply>(channel(&endpoint).ok()?, "/etcdserverpb.Maintenance/Status", StatusRequest {});
            if let Ok(Ok(status)) = timeout(Duration::from_millis(700), asked).await
                && status.leader != 0
                && status.header.is_some_and(|header| header.member_id == status.leader)
            {
                return Some(host);
            }
        }
        None
    }

    /// The highest term that a member knows.
    pub(crate) async fn term(&self) -> u64 {
        self.statuses().await.iter().map(|status| status.term).max().unwrap_or(0)
    }
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

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutReply {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusReply {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(uint64, tag = "4")]
    leader: u64,
    #[prost(uint64, tag = "6")]
    term: u64,
}

async fn call<Q, A>(channel: Channel, path: &'static str, request: Q) -> Result<A, tonic::Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<Q, A>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    grpc.unary(tonic::Request::new(request), path, codec).await.map(tonic::Response::into_inner)
}

/// One durable write.
///
/// # Errors
/// What etcd answers.
pub(crate) async fn put(channel: Channel, key: Vec<u8>, value: Vec<u8>) -> Result<(), tonic::Status> {
    call::<_, PutReply>(channel, "/etcdserverpb.KV/Put", PutRequest { key, value }).await.map(|_| ())
}

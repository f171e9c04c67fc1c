//! Tests of the parts that only this module sees: the stores as openraft uses them, and damage to what is stored.

mod damage;
mod panics;
mod proposals;
mod races;
mod status;
mod stores;

use super::log;
use super::replica::Replica;
use super::stop::Stop;
use super::types::{Batch, LogEntry, LogId};
use super::{Consensus, ConsensusConfig, LogPieces, PeerServices};
use futures::FutureExt;
use futures::future::BoxFuture;
use muster_control_core::{Command, Entry};
use muster_model::tenant::TenantSpec;
use muster_runtime::{Admission, DiskError, Host};
use openraft::{CommittedLeaderId, EntryPayload};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn tenant(path: &str) -> Command {
    Command::ApplyTenants { tenants: vec![TenantSpec::usual(path)] }
}

/// An entry that adds a tenant named after its index.
fn entry(term: u64, index: u64, only_in_term: Option<u64>) -> LogEntry {
    let commands = vec![tenant(&format!("tenant-{index}"))];
    let batch = Batch { only_in_term, entry: Arc::new(Entry { now_ms: 1_000 + index, commands }) };
    LogEntry { log_id: log_id(term, index), payload: EntryPayload::Normal(batch) }
}

/// Opens the stores of a host as a follower has them, since its entries are those of leader 1: waiting until those who had them open before have let go.
async fn open_stores(host: &Host, stop: &Stop) -> Result<(log::Log, Arc<Replica>), DiskError> {
    let (log, generation) = open_log(host, 2, stop).await?;
    let replica = Replica::open(host, log.clone(), generation, stop.clone()).await?;
    Ok((log, replica))
}

/// Opens the log of a host as node `me` has it, and says which state store is in use, as soon as those who had it open before have let go.
async fn open_log(host: &Host, me: u64, stop: &Stop) -> Result<(log::Log, u64), DiskError> {
    for _ in 0..500 {
        match log::open(host, me, stop.clone(), None).await.map(|opened| (opened.log, opened.generation)) {
            Err(DiskError::Io { why, .. }) if why.contains("lock") => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => return other,
        }
    }
    panic!("the stores stay locked");
}

/// What else control nodes say to each other; nothing here.
pub(crate) struct NoServices;

impl PeerServices for NoServices {
    fn renew_leases(&self, _payload: Vec<u8>) -> BoxFuture<'static, Result<Vec<u8>, tonic::Status>> {
        std::future::ready(Err(tonic::Status::unimplemented("not in this test"))).boxed()
    }

    fn logs(&self, _payload: Vec<u8>) -> BoxFuture<'static, Result<LogPieces, tonic::Status>> {
        std::future::ready(Err(tonic::Status::unimplemented("not in this test"))).boxed()
    }
}

/// Three voters that serve each other, with the first of them that leads.
pub(crate) async fn three(folder: &Path) -> (Vec<Consensus>, usize) {
    let mut nodes = Vec::new();
    let mut members = BTreeMap::new();
    for id in 1..=3 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        drop(listener);
        let host = muster_runtime::real::host(format!("node-{id}"), folder.join(format!("node-{id}")));
        let consensus = Consensus::open(host.clone(), ConsensusConfig::new(id, &address)).await.expect("opens");
        let routes = tonic::service::Routes::new(consensus.peer_service(Arc::new(NoServices)));
        host.net.serve(&address, routes, Admission::plain(), CancellationToken::new()).await.expect("serves");
        members.insert(id, address);
        nodes.push(consensus);
    }
    nodes[0].bootstrap(members).await.expect("bootstraps");
    loop {
        if let Some(leader) = nodes.iter().position(Consensus::is_leader)
            && nodes.iter().all(|node| node.leader().is_some())
        {
            return (nodes, leader);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

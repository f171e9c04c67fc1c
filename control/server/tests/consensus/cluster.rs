//! A cluster in one process: each node has its own folder, host and port, and dies with its host's tasks.

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use muster_control_core::{Command, Done};
use muster_control_server::consensus::{
    Consensus, ConsensusConfig, FEATURE_LEVEL_NEWEST, OpenError, PeerServices, ProposeError, Proposed,
};
use muster_model::tenant::TenantSpec;
use muster_runtime::{Admission, Host};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// What takes longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    pub(crate) address: String,
    host: Host,
    pub(crate) consensus: Consensus,
}

pub(crate) struct Cluster {
    folder: TempDir,
    pub(crate) nodes: BTreeMap<u64, Node>,
    addresses: BTreeMap<u64, String>,
    pub(crate) snapshot_every_entries: u64,
    pub(crate) keep_entries: u64,
    /// Nodes that know an older feature level, as a node of an older version would.
    pub(crate) knows_level: BTreeMap<u64, u32>,
}

struct NoServices;

impl PeerServices for NoServices {
    fn renew_leases(&self, _payload: Vec<u8>) -> BoxFuture<'static, Result<Vec<u8>, tonic::Status>> {
        std::future::ready(Err(tonic::Status::unimplemented("not in this test"))).boxed()
    }
    fn logs(
        &self,
        _payload: Vec<u8>,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Result<Vec<u8>, tonic::Status>>, tonic::Status>> {
        std::future::ready(Err(tonic::Status::unimplemented("not in this test"))).boxed()
    }
}

pub(crate) fn tenant(path: &str) -> Command {
    Command::ApplyTenants { tenants: vec![TenantSpec::usual(path)] }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let (nodes, addresses) = (BTreeMap::new(), BTreeMap::new());
        let knows_level = BTreeMap::new();
        Cluster { folder, nodes, addresses, snapshot_every_entries: 10_000, keep_entries: 1_000, knows_level }
    }

    /// Three voters.
    pub(crate) async fn of_three() -> Self {
        let mut cluster = Cluster::new();
        cluster.begin(&[1, 2, 3]).await;
        cluster
    }

    /// Starts these nodes and makes them a cluster.
    pub(crate) async fn begin(&mut self, ids: &[u64]) {
        for id in ids {
            self.start(*id).await;
        }
        let members = ids.iter().map(|id| (*id, self.addresses[id].clone())).collect();
        self.nodes[&ids[0]].consensus.bootstrap(members).await.expect("bootstraps");
    }

    pub(crate) fn folder_of(&self, id: u64) -> PathBuf {
        self.folder.path().join(format!("node-{id}"))
    }

    /// Starts a node on its folder and its port.
    pub(crate) async fn start(&mut self, id: u64) {
        self.try_start(id).await.expect("starts");
    }

    pub(crate) async fn try_start(&mut self, id: u64) -> Result<(), OpenError> {
        let address = self.addresses.entry(id).or_insert_with(free_address).clone();
        let config = ConsensusConfig {
            // Generous, because the machine may be busy with other tests.
            heartbeat_ms: 150,
            election_ms: (900, 1_500),
            snapshot_every_entries: self.snapshot_every_entries,
            keep_entries: self.keep_entries,
            knows_level: self.knows_level.get(&id).copied().unwrap_or(FEATURE_LEVEL_NEWEST),
            ..ConsensusConfig::new(id, &address)
        };
        let mut tries = 0;
        let (host, consensus) = loop {
            let host = muster_runtime::real::host(format!("node-{id}"), self.folder_of(id));
            match Consensus::open(host.clone(), config.clone()).await {
                Ok(consensus) => break (host, consensus),
                // Until whoever had the folder before has let go of it.
                Err(OpenError::Disk(_)) if tries < 1_000 => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => return Err(error),
            }
        };
        let routes = tonic::service::Routes::new(consensus.peer_service(Arc::new(NoServices)));
        host.net.serve(&address, routes, Admission::plain(), CancellationToken::new()).await.expect("serves");
        self.nodes.insert(id, Node { address, host, consensus });
        Ok(())
    }

    /// Kills a node: all its tasks and connections end where they are.
    pub(crate) fn kill(&mut self, id: u64) {
        let node = self.nodes.remove(&id).expect("runs");
        node.host.tasks.abort_all();
    }

    /// Takes the disk away from a dead node.
    pub(crate) async fn wipe(&self, id: u64) {
        // What was being written when it was killed may still come; a wiped disk is empty for good.
        tokio::time::sleep(Duration::from_millis(200)).await;
        std::fs::remove_dir_all(self.folder_of(id)).expect("wipes");
    }

    pub(crate) fn node(&self, id: u64) -> &Consensus {
        &self.nodes[&id].consensus
    }

    pub(crate) fn address(&self, id: u64) -> String {
        self.nodes[&id].address.clone()
    }

    /// The node that leads, as soon as a quorum confirms it.
    pub(crate) async fn leader(&self) -> u64 {
        let confirmed = async {
            loop {
                for (id, node) in &self.nodes {
                    if node.consensus.is_leader() && node.consensus.confirm_leadership().await.is_ok() {
                        return *id;
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, confirmed).await.expect("somebody leads in time")
    }

    /// Waits until a node has ended because it was removed.
    pub(crate) async fn ends_as_removed(&self, id: u64) {
        let ended = tokio::time::timeout(PATIENCE, self.node(id).stopped()).await;
        let why = ended.unwrap_or_else(|_late| panic!("node {id} does not end: {:?}", self.node(id).status()));
        assert!(why.contains("was removed from the cluster"), "{why}");
    }

    /// Adds a tenant through some node, retrying as a client would.
    pub(crate) async fn add(&self, through: u64, path: &str) -> Proposed {
        let proposed = tokio::time::timeout(PATIENCE, self.try_add(through, path)).await;
        proposed.expect("in time")
    }

    async fn try_add(&self, through: u64, path: &str) -> Proposed {
        loop {
            match self.node(through).propose(vec![tenant(path)]).await {
                Ok(proposed) => {
                    assert!(matches!(proposed.decided[..], [Ok(Done::Tenants { .. })]), "{:?}", proposed.decided);
                    return proposed;
                }
                Err(ProposeError::NoLeader | ProposeError::Unknown { .. }) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The tenants that a node sees after a linearizable read.
    pub(crate) async fn tenants(&self, through: u64) -> BTreeSet<String> {
        let read = async {
            while self.node(through).read_index().await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("reads in time");
        self.node(through).read(|state, _| state.tenants.values().map(|tenant| tenant.path.clone()).collect())
    }

    /// Waits until a condition holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let waited = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, waited).await.is_ok(), "waited in vain for {what}");
    }

    /// At equal revisions the replicas hold the same, byte for byte.
    pub(crate) async fn assert_replicas_agree(&self) {
        let leader = self.leader().await;
        let revision = self.node(leader).read_index().await.expect("reads");
        let mut first: Option<Vec<muster_model::Object>> = None;
        for (id, node) in &self.nodes {
            node.consensus.wait_applied(revision).await.expect("applies");
            let objects: Vec<_> = node.consensus.read(|state, _| state.objects().collect());
            match &first {
                None => first = Some(objects),
                Some(first) => assert_eq!(*first, objects, "node {id}"),
            }
        }
    }
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

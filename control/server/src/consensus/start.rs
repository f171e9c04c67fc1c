//! Opening a node: storage first, then consensus on it.

use super::contact::Contact;
use super::core::{Core, snapshot_by_bytes, watch_raft};
use super::election;
use super::error::OpenError;
use super::feature_level;
use super::heartbeat;
use super::log::{self, Identity, Opened};
use super::peer::{Links, Peers};
use super::proposer::Proposer;
use super::quorum::Heartbeats;
use super::reader::Reader;
use super::replica::{Machine, Replica};
use super::stop::Stop;
use super::turn::Turns;
use super::types::Raft;
use super::{Consensus, ConsensusConfig, Inner, Leadership};
use muster_runtime::{DiskError, Host};
use openraft::error::Fatal;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// Opens the stores of `host` and starts consensus on them.
pub(super) async fn open(host: Host, config: ConsensusConfig) -> Result<Consensus, OpenError> {
    let stop = Stop::new();
    let opened = open_until(host, config, stop.clone()).await;
    if let Err(error) = &opened {
        // What was started on the way ends, and lets go of the stores.
        stop.because(error.to_string());
    }
    opened
}

async fn open_until(host: Host, config: ConsensusConfig, stop: Stop) -> Result<Consensus, OpenError> {
    let raft_config = Arc::new(config.raft()?);
    let (id, address) = (config.id, config.advertise.clone());
    let disk = |error: DiskError| OpenError::disk(id, error);
    let has_log = log::is_in_use(&host).map_err(disk)?;
    let Opened { log, identity, generation } =
        log::open(&host, id, stop.clone(), config.planted).await.map_err(disk)?;
    let is_new = identity.is_none();
    let me = match identity {
        Some(stored) if stored.id != id => return Err(OpenError::OtherNode { stored: stored.id, configured: id }),
        Some(stored) => stored,
        // Zero stands for "not known".
        None => Identity { id, disk: host.chance.u64().max(1), cluster: None },
    };
    let replica = Replica::open(&host, log.clone(), generation, stop.clone()).await.map_err(disk)?;
    if is_new {
        // Before anything is written to the log: the next start has to find it as it is.
        if !has_log && replica.read(|_, revision| revision.0 > 0) {
            return Err(OpenError::HalfRestored);
        }
        log.save_identity(&me).await.map_err(disk)?;
    }
    let peers = Arc::new(Peers::new(host.clone(), me, log.clone(), replica.clone(), stop.clone(), &config));

    // On a task of the host, so that everything openraft spawns belongs to the host.
    let starting = {
        let (links, log, machine) = (Links(peers.clone()), log.clone(), Machine(replica.clone()));
        host.spawn(async move { Raft::new(id, raft_config, links, log, machine).await })
    };
    let raft = match starting.await {
        Ok(Ok(raft)) => raft,
        Ok(Err(fatal)) => return Err(failed(id, &stop, &fatal)),
        Err(lost) => return Err(OpenError::Raft { why: lost.to_string() }),
    };
    // A node whose identity was not saved when it joined still finds its cluster in its log.
    let cluster = raft.metrics().borrow().membership_config.nodes().next().map(|(_, member)| member.cluster);
    if let Some(cluster) = cluster.filter(|cluster| *cluster != 0 && peers.me().cluster != Some(*cluster)) {
        peers.join(cluster);
        peers.save().await.map_err(disk)?;
    }

    let (leads, leadership) = watch::channel(Leadership::default());
    host.spawn(watch_raft(raft.metrics(), leads, peers.clone(), stop.clone()));
    let core = Arc::new(Core {
        host: host.clone(),
        id,
        raft,
        log,
        replica,
        peers,
        leadership,
        config,
        contact: Contact::new(Instant::now()),
        turns: Turns::default(),
        heartbeats: Heartbeats::default(),
        stop,
    });
    host.spawn(snapshot_by_bytes(core.clone()));
    host.spawn(heartbeat::run(core.clone()));
    host.spawn(election::run(core.clone()));
    let proposer = Proposer::start(core.clone());
    host.spawn(feature_level::raise(core.clone(), proposer.clone()));
    let reader = Reader::start(core.clone());
    tracing::info!(node = id, address, "consensus started");
    Ok(Consensus { inner: Arc::new(Inner { core, proposer, reader, changing: tokio::sync::Mutex::default() }) })
}

/// A disk's error on the way says whether the node may come back under its id.
fn failed(id: u64, stop: &Stop, fatal: &Fatal<u64>) -> OpenError {
    match stop.disk_error() {
        Some(error) => OpenError::disk(id, error),
        None => OpenError::Raft { why: fatal.to_string() },
    }
}

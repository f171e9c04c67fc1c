//! Making snapshots and taking over those of others.

use super::load::{load, marks};
use super::upgrade::order_history;
use super::{Generation, Replica, store_name};
use crate::consensus::frozen::{Frozen, Incoming, RemoveUnused};
use crate::consensus::snapshot::copy;
use crate::consensus::stored::corrupt;
use crate::consensus::types::{Member, StorageError, Types};
use muster_runtime::DiskError;
use openraft::{RaftSnapshotBuilder, Snapshot, SnapshotMeta};
use std::sync::Arc;

/// Makes snapshots for openraft.
pub(crate) struct Builder(pub(crate) Arc<Replica>);

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        self.0.build_snapshot().await.map_err(|error| self.0.fatal(error))
    }
}

impl Replica {
    /// Freezes the store as a snapshot. Everything in it is durable when this returns, so the log up to it may be purged.
    pub(crate) async fn build_snapshot(&self) -> Result<Snapshot<Types>, DiskError> {
        let generation = self.store.read().clone();
        let view = generation.kv.checkpoint()?;
        let (applied, membership, _) = marks(view.as_ref())?;
        generation.kv.sync().await?;
        let place =
            applied.map_or_else(|| "0".to_owned(), |applied| format!("{}-{}", applied.leader_id, applied.index));
        let meta = SnapshotMeta {
            last_log_id: applied,
            last_membership: membership,
            snapshot_id: format!("{place}-{}", generation.number),
        };
        let snapshot = Snapshot { meta, snapshot: Box::new(Frozen::View(view)) };
        self.keep(&snapshot);
        metrics::counter!("muster_raft_snapshots_built_total").increment(1);
        tracing::info!(revision = applied.map_or(0, |applied| applied.index), "snapshot made");
        if let Err(error) = self.remove_old_stores() {
            tracing::warn!(%error, "cannot look for old state stores");
        }
        Ok(snapshot)
    }

    fn keep(&self, snapshot: &Snapshot<Types>) {
        let mut current = self.current.lock();
        if current.as_ref().is_none_or(|current| current.meta.last_log_id <= snapshot.meta.last_log_id) {
            *current = Some(snapshot.clone());
        }
    }

    /// An empty store to receive a snapshot into.
    pub(crate) fn begin_receiving(self: &Arc<Self>) -> Result<Frozen, DiskError> {
        let Generation { number, kv } = self.fresh_generation()?;
        let replica = Arc::downgrade(self);
        let unused = RemoveUnused::new(move || {
            if let Some(replica) = replica.upgrade() {
                replica.remove_unused(number);
            }
        });
        Ok(Frozen::Received(Arc::new(Incoming { number, kv, _unused: unused })))
    }

    /// Removes a store that a snapshot was received into, unless it has become the state.
    fn remove_unused(&self, number: u64) {
        if self.store.read().number == number {
            return;
        }
        if let Err(error) = self.host.disk.remove(&store_name(number)) {
            tracing::info!(store = store_name(number), %error, "cannot remove an incompletely received store yet");
        }
    }

    /// Takes a snapshot for the state: loaded aside, then the durable pointer, then memory.
    pub(super) async fn install(&self, meta: &SnapshotMeta<u64, Member>, snapshot: Frozen) -> Result<(), DiskError> {
        let generation = match snapshot {
            Frozen::Received(incoming) => Generation { number: incoming.number, kv: incoming.kv.clone() },
            Frozen::View(view) => {
                let generation = self.fresh_generation()?;
                copy(view, generation.kv.as_ref())?;
                generation
            }
        };
        let mut memory = load(generation.kv.as_ref()).await?;
        order_history(generation.kv.as_ref(), &mut memory).await?;
        if memory.applied != meta.last_log_id {
            let why =
                format!("holds what was applied up to {:?}, was announced as {:?}", memory.applied, meta.last_log_id);
            return Err(corrupt("a received snapshot", &why));
        }
        generation.kv.sync().await?;
        self.log.save_generation(generation.number).await?;
        let applied = memory.applied.map_or(0, |applied| applied.index);
        let view = generation.kv.checkpoint()?;
        {
            let mut now = self.memory.write();
            self.log.form().follow(memory.state.meta.feature_level);
            *now = memory;
            *self.store.write() = generation;
        }
        self.hub.reset(applied);
        self.keep(&Snapshot { meta: meta.clone(), snapshot: Box::new(Frozen::View(view)) });
        metrics::counter!("muster_raft_snapshots_installed_total").increment(1);
        tracing::info!(revision = applied, "snapshot installed");
        self.remove_old_stores()
    }
}

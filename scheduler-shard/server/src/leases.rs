//! The leases a shard holds, and their renewal.
//!
//! What must stay true: a lease counts only until the send time of its last acknowledged renewal plus its length, by the shard's
//! own monotonic clock. The control plane counts from when it received, so the shard always lets go first.

use crate::control::Control;
use muster_model::{CellId, Epoch};
use muster_proto::v1;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One lease.
#[derive(Clone, Copy, Debug)]
struct Lease {
    epoch: Epoch,
    until: Instant,
    /// The revision at which it was taken: the view must have come so far before it is planned with.
    since_revision: u64,
}

/// The leases held, shared by the tasks of a shard.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<BTreeMap<CellId, Lease>>,
    changed: Notify,
}

impl Leases {
    /// A lease was taken.
    pub(crate) fn take(&self, cell: CellId, epoch: Epoch, until: Instant, since_revision: u64) {
        self.held.lock().insert(cell, Lease { epoch, until, since_revision });
        self.report();
        self.changed.notify_one();
    }

    /// A lease of this epoch is no longer ours.
    pub(crate) fn lose(&self, cell: CellId, epoch: Epoch, why: &str) {
        let mut held = self.held.lock();
        if held.get(&cell).is_some_and(|lease| lease.epoch == epoch) {
            held.remove(&cell);
            drop(held);
            metrics::counter!("muster_shard_leases_lost_total").increment(1);
            tracing::warn!(%cell, %epoch, why, "lease lost");
            self.report();
        }
    }

    /// The cells that may be planned in now, by a view that has come to `revision`.
    pub(crate) fn plannable(&self, revision: u64) -> Vec<(CellId, Epoch)> {
        let now = Instant::now();
        let held = self.held.lock();
        let good = held.iter().filter(|(_, lease)| lease.until > now && lease.since_revision <= revision);
        good.map(|(cell, lease)| (*cell, lease.epoch)).collect()
    }

    /// All of them, those about to run out included.
    pub(crate) fn all(&self) -> BTreeMap<CellId, Epoch> {
        self.held.lock().iter().map(|(cell, lease)| (*cell, lease.epoch)).collect()
    }

    /// Takes all of them away, to be given back.
    pub(crate) fn drain(&self) -> BTreeMap<CellId, Epoch> {
        let all = self.all();
        self.held.lock().clear();
        self.report();
        all
    }

    /// Ready when a lease has been taken.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn renewed(&self, asked: &BTreeMap<CellId, Epoch>, until: Instant) {
        let mut held = self.held.lock();
        for (cell, epoch) in asked {
            if let Some(lease) = held.get_mut(cell).filter(|lease| lease.epoch == *epoch) {
                lease.until = lease.until.max(until);
            }
        }
    }

    /// Drops what has run out: the planner has stopped using it already.
    fn let_go(&self) {
        let now = Instant::now();
        let over: Vec<(CellId, Epoch)> = {
            let held = self.held.lock();
            held.iter().filter(|(_, lease)| lease.until <= now).map(|(cell, lease)| (*cell, lease.epoch)).collect()
        };
        for (cell, epoch) in over {
            self.lose(cell, epoch, "not renewed in time");
        }
    }

    fn report(&self) {
        metrics::gauge!("muster_shard_cells_held").set(self.held.lock().len() as f64);
    }
}

/// The task that renews.
pub(crate) struct Renewal {
    pub(crate) leases: Arc<Leases>,
    pub(crate) control: Arc<Control>,
    pub(crate) name: String,
}

impl Renewal {
    pub(crate) async fn run(self, every_ms: u64, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(Duration::from_millis(every_ms));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.renew(Duration::from_millis(every_ms)).await,
            }
        }
    }

    /// Asks at most one interval long, so that a quiet node costs one renewal and not the lease.
    async fn renew(&self, wait_max: Duration) {
        self.leases.let_go();
        let asked = self.leases.all();
        if asked.is_empty() {
            return;
        }
        let (sent, through) = (Instant::now(), self.control.current());
        let wire = asked.iter().map(|(cell, epoch)| v1::HeldLease { cell: cell.0, epoch: epoch.0 }).collect();
        match tokio::time::timeout(wait_max, self.control.renew(&self.name, wire)).await {
            Ok(Ok(reply)) => {
                for cell in reply.lost_cells.into_iter().map(CellId) {
                    if let Some(epoch) = asked.get(&cell) {
                        self.leases.lose(cell, *epoch, "the control plane reports it as lost");
                    }
                }
                self.leases.renewed(&asked, sent + Duration::from_millis(reply.lease_ms));
            }
            Ok(Err(status)) => tracing::debug!(error = %status, "leases not renewed"),
            Err(_) => {
                self.control.turn_from(through);
                tracing::debug!("no answer in time to a lease renewal");
            }
        }
        self.leases.let_go();
    }
}

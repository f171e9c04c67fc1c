//! A scheduler shard: leases cells, keeps a view of the state by watching it, and proposes bindings.
//!
//! Four tasks, each with one duty, so that none can hold up another: [`leases`] renews on time whatever the planner does; `seek`
//! takes cells that nobody holds; `follow` brings the state; `planner` owns the view, plans and hears what became of its
//! proposals. What must stay true:
//! - what a shard alone knows may be lost: its proposals under way, what it learned of demand, backoffs, and at most ten seconds of the count
//!   that the starvation guard keeps; all else is in the replicated store, so that another takes its cells over at any moment;
//! - nothing is proposed in a cell whose lease was not renewed in time (and the control plane refuses what slips through by its
//!   epoch);
//! - every decision is made by `muster-scheduler-core`; every call has a deadline and goes to another control node after a failure.

mod config;
mod control;
mod follow;
mod leases;
mod moves;
mod planner;
mod seek;

pub use config::{MovesConfig, ShardConfig, StartError};

use control::Control;
use leases::Leases;
use muster_model::{CellId, Epoch};
use muster_runtime::Host;
use muster_runtime::pki::Role;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// What a shard is doing, for health pages and tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardStatus {
    /// Its name, unique per start.
    pub name: String,
    /// The cells it holds, with their epochs.
    pub cells: BTreeMap<CellId, Epoch>,
    /// The revision its view has reached; 0 before the first snapshot.
    pub revision: u64,
    /// Jobs that wait in its cells and may be planned.
    pub waiting: usize,
    /// Proposals under way.
    pub pending: usize,
    /// Bindings that were committed since it started.
    pub bound: u64,
}

/// A running shard. Dropping it does not stop it: its tasks live with the host.
pub struct Shard {
    name: String,
    stop: CancellationToken,
    leases: Arc<Leases>,
    control: Arc<Control>,
    status: Arc<Mutex<ShardStatus>>,
}

impl Shard {
    /// Starts the shard's tasks on `host`.
    ///
    /// # Errors
    /// When no endpoint is given or one cannot be one, or the shard is to show credentials and has none.
    pub fn start(host: &Host, config: ShardConfig) -> Result<Shard, StartError> {
        config.check()?;
        host.prepare(config.transport, &Role::Shard(config.name_prefix.clone()), None)?;
        let name = format!("{}-{}", config.name_prefix, &host.chance.token()[..8]);
        let stop = CancellationToken::new();
        let leases = Arc::new(Leases::default());
        let status = Arc::new(Mutex::new(ShardStatus { name: name.clone(), ..ShardStatus::default() }));
        // Each task has connections of its own, so that a stuck call of one delays no other.
        let connect = || Control::new(&*host.net, &config).map(Arc::new);
        let (seen_tx, seen_rx) = mpsc::channel(follow::SEEN_MAX);
        let (cells_tx, cells_rx) = watch::channel(Arc::default());
        let (behind_tx, behind_rx) = watch::channel(0);

        let renewal = leases::Renewal { leases: leases.clone(), control: connect()?, name: name.clone() };
        host.spawn(renewal.run(config.renew_every_ms, stop.clone()));
        let seeker = seek::Seeker::new(&name, &config, host.chance.clone(), connect()?, leases.clone(), cells_rx);
        host.spawn(seeker.run(stop.clone()));
        let (control, clock) = (connect()?, host.certificate_clock.clone());
        let follower = follow::Follower { control, seen: seen_tx, expected: behind_rx, clock };
        host.spawn(follower.run(stop.clone()));
        let control = connect()?;
        let planner = planner::Planner::new(
            host.clone(),
            control.clone(),
            leases.clone(),
            planner::Wires { seen: seen_rx, cells: cells_tx, expected: behind_tx },
            status.clone(),
            config.moves,
        );
        host.spawn(planner.run(stop.clone()));
        let renewing = muster_enrolment::keep_renewed(host.clone(), config.endpoints.clone(), config.transport);
        let stopped = stop.clone();
        host.spawn(async move { stopped.run_until_cancelled(renewing).await });
        tracing::info!(shard = %name, endpoints = ?config.endpoints, "shard started");
        Ok(Shard { name, stop, leases, control, status })
    }

    /// Its name, as the holder of its cells.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is doing.
    #[must_use]
    pub fn status(&self) -> ShardStatus {
        let held = self.leases.all();
        ShardStatus { cells: held, ..self.status.lock().clone() }
    }

    /// Stops planning and gives the leases back, so that others need not wait for them to run out.
    pub async fn stop(self) {
        self.stop.cancel();
        for (cell, epoch) in self.leases.drain() {
            if let Err(status) = self.control.release(&self.name, cell, epoch).await {
                tracing::warn!(shard = %self.name, %cell, error = %status, "cannot release a lease; it will expire");
            }
        }
        tracing::info!(shard = %self.name, "shard stopped");
    }
}

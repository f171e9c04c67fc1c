//! What overload does: submissions beyond what the cluster takes, watchers that do not read, a follower that stands still, a tenant that floods.
//!
//! What must stay true: every call is counted once, as accepted or under the status that it was refused with; nothing passes or fails by time.
//! A full disk is an experiment of `make chaos` (`disk-full`), which needs a disk of its own.

mod faults;
mod load;
mod sweep;

use crate::cluster::{self, Cluster, Size};
use crate::table::Table;
use anyhow::{Context, Result};
use std::path::Path;
use tonic::transport::Channel;

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Clients of the first step of the sweep; they double until the rate does not grow any more.
    pub clients: u64,
    /// Seconds of each step.
    pub seconds: f64,
    /// Seconds of each fault.
    pub fault_seconds: f64,
}

/// Clients that share a connection: so few that the bound of streams of a connection never hides the load from the server.
const CLIENTS_A_CONNECTION: u64 = 32;
/// Connections of one load, however many clients it has.
const CONNECTIONS_MAX: u64 = 256;
/// Tenants of one load: the bound of a tenant's waiting jobs is far away.
const TENANTS: usize = 64;

/// Runs the sweep, then the faults, and gives the tables.
///
/// # Errors
/// When the cluster does not start, or answers unexpectedly.
pub async fn run(muster: &Path, under: &Path, options: &Options) -> Result<Vec<Table>> {
    let (fleet, target) = start(muster, under).await?;
    let swept = sweep::run(&target, options).await?;
    // A cluster of its own: what the sweep has left to wait is not what the faults are about.
    drop(fleet);
    let (fleet, target) = start(muster, under).await?;
    let faults = faults::run(&fleet, &target, options).await?;
    Ok(vec![swept, faults])
}

/// A new cluster whose cards are all held, and its leader.
async fn start(muster: &Path, under: &Path) -> Result<(Cluster, Target)> {
    let size = Size { voters: 3, shards: 1, nodes: 2, gpus_per_node: 8, agents: 1, virtual_tasks: true };
    let fleet = Cluster::start(muster, under, &size).await?;
    cluster::apply_tenants(fleet.channel_to_any()?, &["bench"]).await?;
    let target = Target::of(&fleet).await?;
    crate::submissions::hold_all_cards(&target.channels(1)?[0]).await?;
    Ok((fleet, target))
}

/// The leader, to which all calls go.
#[derive(Clone, Debug)]
struct Target {
    endpoint: String,
    pid: i32,
}

impl Target {
    async fn of(fleet: &Cluster) -> Result<Self> {
        let (at, pid) = fleet.leader().await?.context("no leader")?;
        let endpoint = fleet.dev()?.endpoints.get(at).cloned().context("the leader has no endpoint")?;
        Ok(Target { endpoint, pid })
    }

    /// New tenants, for one load alone.
    async fn tenants(&self, load: &str) -> Result<Vec<String>> {
        let paths: Vec<String> = (0..TENANTS).map(|tenant| format!("bench/{load}-{tenant}")).collect();
        cluster::apply_tenants(cluster::channel(&self.endpoint)?, &paths).await?;
        Ok(paths)
    }

    /// Connections for so many clients.
    fn channels(&self, clients: u64) -> Result<Vec<Channel>> {
        let connections = clients.div_ceil(CLIENTS_A_CONNECTION).clamp(1, CONNECTIONS_MAX);
        (0..connections).map(|_| cluster::channel(&self.endpoint)).collect()
    }
}

//! Tests of the parts that only this module sees: the stores as openraft uses them, and damage to what is stored.

mod damage;
mod panics;
mod proposals;
mod races;
mod stores;

use super::log;
use super::replica::Replica;
use super::stop::Stop;
use super::types::{Batch, LogEntry, LogId};
use muster_control_core::{Command, Entry};
use muster_model::tenant::TenantSpec;
use muster_runtime::{DiskError, Host};
use openraft::{CommittedLeaderId, EntryPayload};
use std::sync::Arc;
use std::time::Duration;

fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn tenant(path: &str) -> Command {
    let tenants = vec![TenantSpec {
        path: path.to_owned(),
        guarantee: Default::default(),
        max: Default::default(),
        weight: 1,
        trust: Default::default(),
        apart_from: Vec::new(),
    }];
    Command::ApplyTenants { tenants }
}

/// An entry that adds a tenant named after its index.
fn entry(term: u64, index: u64, only_in_term: Option<u64>) -> LogEntry {
    let commands = vec![tenant(&format!("tenant-{index}"))];
    let batch = Batch { only_in_term, entry: Arc::new(Entry { now_ms: 1_000 + index, commands }) };
    LogEntry { log_id: log_id(term, index), payload: EntryPayload::Normal(batch) }
}

/// Opens the stores of a host, waiting until those who had them open before have let go.
async fn open_stores(host: &Host, stop: &Stop) -> Result<(log::Log, Arc<Replica>), DiskError> {
    let (log, generation) = open_log(host, stop).await?;
    let replica = Replica::open(host, log.clone(), generation, stop.clone()).await?;
    Ok((log, replica))
}

/// Opens the log of a host, and says which state store is in use, as soon as those who had it open before have let go.
async fn open_log(host: &Host, stop: &Stop) -> Result<(log::Log, u64), DiskError> {
    for _ in 0..500 {
        match log::open(host, stop.clone(), None).await.map(|opened| (opened.log, opened.generation)) {
            Err(DiskError::Io { why, .. }) if why.contains("lock") => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => return other,
        }
    }
    panic!("the stores stay locked");
}

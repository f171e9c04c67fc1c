//! What an agent keeps on disk: who it is, which cluster it belongs to, the highest stamp it has taken; and its usage meter.

use crate::config::AgentError;
use muster_node_core::health::Ledger;
use muster_node_core::{Gate, Meter};
use muster_runtime::Host;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const AGENT_FILE: &str = "agent.json";
/// Where agents kept their gate before they had an id.
const STAMP_FILE: &str = "stamp.json";
const USAGE_FILE: &str = "usage.json";
const HEALTH_FILE: &str = "gpu-health.json";
/// What idle cards have in use.
const IDLE_MEMORY_FILE: &str = "gpu-idle-memory.json";

/// Who the agent is. One file, so that no part of it can be lost without the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Its own id, drawn when its data folder was made; never 0.
    pub(crate) agent: u64,
    /// The cluster that it belongs to, once it has met one.
    pub(crate) cluster: Option<u64>,
    /// The highest stamp that it has taken.
    pub(crate) gate: Gate,
}

/// The meter, with the boot whose clock it counts on.
#[derive(Debug, Serialize, Deserialize)]
struct StoredMeter {
    boot_id: String,
    meter: Meter,
}

/// The identity as it was stored; none in a new folder.
pub(crate) fn read_identity(host: &Host) -> Result<Option<Identity>, AgentError> {
    if let Some(identity) = read(host, AGENT_FILE)? {
        return Ok(Some(identity));
    }
    let gate: Option<Gate> = read(host, STAMP_FILE)?;
    Ok(gate.map(|gate| {
        // What was called the incarnation then was the identity of the cluster.
        let cluster = gate.highest().map(|stamp| stamp.incarnation);
        Identity { agent: new_id(host), cluster, gate }
    }))
}

/// The identity of an agent with a new folder.
pub(crate) fn new_identity(host: &Host) -> Identity {
    Identity { agent: new_id(host), cluster: None, gate: Gate::default() }
}

fn new_id(host: &Host) -> u64 {
    host.chance.u64().max(1)
}

/// Durable when it returns.
pub(crate) async fn write_identity(host: &Host, identity: &Identity) -> Result<(), AgentError> {
    write(host, AGENT_FILE, identity).await
}

/// The meter as it was stored, or a new one. Of another boot only what was cut is kept.
pub(crate) fn read_meter(host: &Host, boot_id: &str) -> Result<Meter, AgentError> {
    let Some(mut stored) = read::<StoredMeter>(host, USAGE_FILE)? else { return Ok(Meter::default()) };
    if stored.boot_id != boot_id {
        stored.meter.boot();
    }
    Ok(stored.meter)
}

/// Durable when it returns.
pub(crate) async fn write_meter(host: &Host, boot_id: &str, meter: Meter) -> Result<(), AgentError> {
    write(host, USAGE_FILE, &StoredMeter { boot_id: boot_id.to_owned(), meter }).await
}

/// What is kept of the health of the cards.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeptHealth {
    pub(crate) ledger: Ledger,
    /// Until when operators' clears have been acted on, by card, in the control plane's time.
    pub(crate) cleared_ms: BTreeMap<String, u64>,
    /// Cards whose MPS server a fault has taken down.
    #[serde(default)]
    pub(crate) mps_failed: BTreeSet<String>,
    /// The NVLinks that were ever seen up, by card: a bit for each.
    #[serde(default)]
    pub(crate) links_seen: BTreeMap<String, u32>,
}

/// The same with the version of its layout. Not flattened: serde's flattening reads no numbers as keys of a map.
#[derive(Debug, Serialize, Deserialize)]
struct StoredHealth {
    version: u32,
    kept: KeptHealth,
}

const HEALTH_VERSION: u32 = 1;

/// The health of the node's cards as it was stored, or of a node that was never looked at.
pub(crate) fn read_health(host: &Host) -> Result<KeptHealth, AgentError> {
    Ok(read::<StoredHealth>(host, HEALTH_FILE)?.map(|stored| stored.kept).unwrap_or_default())
}

/// Durable when it returns.
pub(crate) async fn write_health(host: &Host, kept: KeptHealth) -> Result<(), AgentError> {
    write(host, HEALTH_FILE, &StoredHealth { version: HEALTH_VERSION, kept }).await
}

/// Memory in use of idle cards, in MiB by UUID, with the version of its layout.
#[derive(Debug, Serialize, Deserialize)]
struct StoredIdleMemory {
    version: u32,
    idle_mib: BTreeMap<String, u64>,
}

const IDLE_MEMORY_VERSION: u32 = 1;

/// What cards had in use when nobody used them, by UUID, as far as that was ever seen.
pub(crate) fn read_idle_memory(host: &Host) -> Result<BTreeMap<String, u64>, AgentError> {
    Ok(read::<StoredIdleMemory>(host, IDLE_MEMORY_FILE)?.map(|stored| stored.idle_mib).unwrap_or_default())
}

/// Durable when it returns.
pub(crate) async fn write_idle_memory(host: &Host, idle_mib: BTreeMap<String, u64>) -> Result<(), AgentError> {
    write(host, IDLE_MEMORY_FILE, &StoredIdleMemory { version: IDLE_MEMORY_VERSION, idle_mib }).await
}

fn read<T: DeserializeOwned>(host: &Host, file: &'static str) -> Result<Option<T>, AgentError> {
    let Some(bytes) = host.files.read(file)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| AgentError::Corrupt { file, source })
}

async fn write<T: Serialize>(host: &Host, file: &'static str, value: &T) -> Result<(), AgentError> {
    let bytes = serde_json::to_vec(value).map_err(|source| AgentError::Corrupt { file, source })?;
    Ok(host.files.write(file, bytes).await?)
}

//! What an agent keeps on disk: the highest stamp it has taken, and its usage meter.

use crate::config::AgentError;
use muster_node_core::{Gate, Meter};
use muster_runtime::Host;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const STAMP_FILE: &str = "stamp.json";
const USAGE_FILE: &str = "usage.json";

/// The meter, with the boot whose clock it counts on.
#[derive(Debug, Serialize, Deserialize)]
struct StoredMeter {
    boot_id: String,
    meter: Meter,
}

/// The gate as it was stored, or a new one.
pub(crate) fn read_gate(host: &Host) -> Result<Gate, AgentError> {
    Ok(read(host, STAMP_FILE)?.unwrap_or_default())
}

/// Durable when it returns.
pub(crate) async fn write_gate(host: &Host, gate: &Gate) -> Result<(), AgentError> {
    write(host, STAMP_FILE, gate).await
}

/// The meter as it was stored, or a new one. Of another boot only what was cut is kept.
pub(crate) fn read_meter(host: &Host, boot_id: &str) -> Result<Meter, AgentError> {
    let Some(mut stored) = read::<StoredMeter>(host, USAGE_FILE)? else { return Ok(Meter::default()) };
    if stored.boot_id != boot_id {
        stored.meter.keep(|_| false);
    }
    Ok(stored.meter)
}

/// Durable when it returns.
pub(crate) async fn write_meter(host: &Host, boot_id: &str, meter: Meter) -> Result<(), AgentError> {
    write(host, USAGE_FILE, &StoredMeter { boot_id: boot_id.to_owned(), meter }).await
}

fn read<T: DeserializeOwned>(host: &Host, file: &'static str) -> Result<Option<T>, AgentError> {
    let Some(bytes) = host.files.read(file)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| AgentError::Corrupt { file, source })
}

async fn write<T: Serialize>(host: &Host, file: &'static str, value: &T) -> Result<(), AgentError> {
    let bytes = serde_json::to_vec(value).map_err(|source| AgentError::Corrupt { file, source })?;
    Ok(host.files.write(file, bytes).await?)
}

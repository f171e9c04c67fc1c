//! Pools as an operator writes them: one document each.
//!
//! ```yaml
//! name: notebooks
//! modes: [mig, mps, time-slice]
//! classes: [interactive]
//! time-slice-replicas: 4
//! mps-clients: 8
//! compute-tolerance: 20
//! ```

use crate::failure::Failure;
use crate::spec::yaml;
use muster_model::Pool;
use muster_proto::v1;
use serde::Deserialize;

/// The keys of a pool.
pub const KEYS: &[&str] = &["name", "modes", "classes", "time-slice-replicas", "mps-clients", "compute-tolerance"];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PoolText {
    name: String,
    modes: Option<Vec<String>>,
    classes: Option<Vec<String>>,
    time_slice_replicas: Option<u32>,
    mps_clients: Option<u32>,
    compute_tolerance: Option<u32>,
}

/// Every pool of a file; what is not said is as in the standard pool.
///
/// # Errors
/// When it is not a file of pools, with the document and the key.
pub fn parse(text: &str, name: &str) -> Result<Vec<v1::Pool>, Failure> {
    let standard = Pool::standard();
    let texts: Vec<PoolText> = yaml::documents(text, name, "a pool", KEYS)?;
    if texts.is_empty() {
        return Err(Failure::field(name, "has no pool", "write at least `name:`"));
    }
    let pool = |text: PoolText| v1::Pool {
        name: text.name,
        modes: text.modes.unwrap_or_else(|| standard.modes.iter().map(|mode| mode.word().to_owned()).collect()),
        workload_classes: text.classes.unwrap_or_else(|| standard.classes.iter().map(ToString::to_string).collect()),
        time_slice_replicas: text.time_slice_replicas.unwrap_or_else(|| standard.time_slice_replicas.into()),
        mps_clients: text.mps_clients.unwrap_or_else(|| standard.mps_clients.into()),
        compute_tolerance_percent: text.compute_tolerance,
    };
    Ok(texts.into_iter().map(pool).collect())
}

//! Pools as an operator writes them: one document each.
//!
//! ```yaml
//! name: notebooks
//! modes: [mig, mps, time-slice]
//! classes: [interactive]
//! time-slice-replicas: 4
//! mps-clients: 8
//! time-slice: medium
//! compute-tolerance: 20
//! cool-down: 600
//! mig-layouts:
//!   - {model: h100, cards-per-node: 4, slices: {3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}}
//! images: [dir:/srv/images/, docker://registry.example/ml/]
//! mounts: [{path: /data, write: false}]
//! isolation: full
//! network: private
//! memory-limit: 16Gi
//! withheld-max-percent: 50
//! withheld-max-gpus: 64
//! ```

use crate::failure::Failure;
use crate::spec::scalar::Scalar;
use crate::spec::yaml;
use crate::units;
use muster_model::{FieldError, Pool};
use muster_proto::v1;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The keys of a pool.
pub const KEYS: &[&str] = &[
    "name",
    "modes",
    "classes",
    "time-slice-replicas",
    "mps-clients",
    "time-slice",
    "compute-tolerance",
    "cool-down",
    "preemptions-max",
    "checkpoint-bandwidth",
    "moves-per-hour",
    "moves-lost-gpu-hours-per-day",
    "mig-layouts",
    "images",
    "mounts",
    "isolation",
    "network",
    "memory-limit",
    "withheld-max-percent",
    "withheld-max-gpus",
];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PoolText {
    name: String,
    modes: Option<Vec<String>>,
    classes: Option<Vec<String>>,
    time_slice_replicas: Option<u32>,
    mps_clients: Option<u32>,
    /// short, medium, long.
    time_slice: Option<String>,
    compute_tolerance: Option<u32>,
    /// Seconds.
    cool_down: Option<u64>,
    preemptions_max: Option<u32>,
    /// MiB/s.
    checkpoint_bandwidth: Option<u64>,
    moves_per_hour: Option<u32>,
    moves_lost_gpu_hours_per_day: Option<u32>,
    mig_layouts: Option<Vec<LayoutText>>,
    images: Option<Vec<String>>,
    mounts: Option<Vec<MountRuleText>>,
    isolation: Option<String>,
    network: Option<String>,
    /// Of a task that asks for none.
    memory_limit: Option<Scalar>,
    withheld_max_percent: Option<u32>,
    withheld_max_gpus: Option<u32>,
}

/// What jobs may mount.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct MountRuleText {
    path: String,
    #[serde(default)]
    write: bool,
}

/// Slices that cards of a model keep.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct LayoutText {
    model: String,
    cards_per_node: Option<u32>,
    slices: BTreeMap<String, u32>,
}

impl From<LayoutText> for v1::PinnedLayout {
    fn from(text: LayoutText) -> Self {
        v1::PinnedLayout {
            model: text.model,
            slices: text.slices.into_iter().collect(),
            cards_per_node: text.cards_per_node,
        }
    }
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
    let rule = |MountRuleText { path, write }| v1::MountRule { path, write };
    let mut faults = Vec::new();
    let mut limit = |name: &str, written: Option<Scalar>| {
        let read = written.map(|text| units::mebibytes(&text.0)).transpose();
        read.unwrap_or_else(|error| {
            faults.push(FieldError::new(format!("{name}.memory-limit"), error.problem, error.fix));
            None
        })
    };
    let pool = |text: PoolText| v1::Pool {
        memory_limit_mib: limit(&text.name, text.memory_limit),
        name: text.name,
        modes: text.modes.unwrap_or_else(|| standard.modes.iter().map(|mode| mode.word().to_owned()).collect()),
        workload_classes: text.classes.unwrap_or_else(|| standard.classes.iter().map(ToString::to_string).collect()),
        time_slice_replicas: text.time_slice_replicas.unwrap_or_else(|| standard.time_slice_replicas.into()),
        mps_clients: text.mps_clients.unwrap_or_else(|| standard.mps_clients.into()),
        time_slice: text.time_slice.unwrap_or_else(|| standard.time_slice.to_string()),
        compute_tolerance_percent: text.compute_tolerance,
        mig_layouts: text.mig_layouts.unwrap_or_default().into_iter().map(Into::into).collect(),
        cool_down_s: text.cool_down.unwrap_or(standard.cool_down_s),
        preemptions_max: text.preemptions_max,
        checkpoint_mib_per_s: text.checkpoint_bandwidth,
        moves_per_hour: text.moves_per_hour.unwrap_or_default(),
        moves_lost_gpu_hours_per_day: text.moves_lost_gpu_hours_per_day.unwrap_or_default(),
        images: text.images.unwrap_or_default(),
        mounts: text.mounts.unwrap_or_default().into_iter().map(rule).collect(),
        isolation: text.isolation.unwrap_or_default(),
        network: text.network.unwrap_or_default(),
        withheld_max_percent: text.withheld_max_percent,
        withheld_max_gpus: text.withheld_max_gpus,
    };
    let pools = texts.into_iter().map(pool).collect();
    if faults.is_empty() { Ok(pools) } else { Err(Failure::from(faults)) }
}

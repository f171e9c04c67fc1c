//! One stamp as a process writes it: a line of JSON in a file of its own.

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A step that one process has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// When, on CLOCK_MONOTONIC: processes of one host can be compared.
    pub at_ns: u64,
    /// Which step.
    pub step: String,
    /// Of which submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Of which job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// Of which allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<u64>,
    /// Of which revision, or of everything up to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// CLOCK_MONOTONIC now.
#[must_use]
pub fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec().unsigned_abs() * 1_000_000_000 + time.tv_nsec().unsigned_abs())
}

/// The stamps of each process that wrote into `folder`, each list in the order of time.
///
/// # Errors
/// When a file cannot be read.
pub fn read_all(folder: &Path) -> Result<Vec<Vec<Stamp>>> {
    let mut all = Vec::new();
    for file in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let text = std::fs::read_to_string(file?.path())?;
        // The last line may still be under way.
        let mut stamps: Vec<Stamp> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        stamps.sort_by_key(|stamp| stamp.at_ns);
        all.push(stamps);
    }
    Ok(all)
}

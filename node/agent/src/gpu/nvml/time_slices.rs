//! Time-slicing: NVML has no setter and no getter, so `nvidia-smi` sets it and a file says what was set.
//!
//! What must stay true: a card counts as time-sliced only when the command has succeeded in this boot, since a reboot ends it; the file is written after the
//! command when it is set, and before it when it is cleared, so that a crash between leaves a card that takes one task.

use super::NvmlConfig;
use super::commands::run;
use muster_runtime::{DiskError, Files};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::process::Command;

const FILE: &str = "gpu-time-slices.json";
/// Medium: long enough to cost little, short enough for a task that is used by hand.
const MEDIUM: u8 = 2;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    boot_id: String,
    /// UUIDs.
    cards: BTreeSet<String>,
}

/// Which cards are time-sliced.
pub(super) struct TimeSlices {
    files: Arc<dyn Files>,
    kept: Mutex<Kept>,
    /// The file is written as a whole, so by one at a time.
    writing: tokio::sync::Mutex<()>,
}

/// Why the policy was not set.
#[derive(Debug, thiserror::Error)]
pub(super) enum TimeSliceError {
    #[error("{0}")]
    Command(String),
    #[error("{FILE}: {0}")]
    Disk(#[from] DiskError),
    #[error("{FILE}: {0}")]
    Format(#[from] serde_json::Error),
}

impl TimeSlices {
    pub(super) fn open(files: Arc<dyn Files>, boot_id: &str) -> Result<Self, TimeSliceError> {
        let kept: Kept = match files.read(FILE)? {
            Some(bytes) => serde_json::from_slice(&bytes)?,
            None => Kept::default(),
        };
        let is_of_this_boot = kept.boot_id == boot_id;
        let kept = if is_of_this_boot { kept } else { Kept { boot_id: boot_id.to_owned(), ..Kept::default() } };
        Ok(TimeSlices { files, kept: Mutex::new(kept), writing: tokio::sync::Mutex::new(()) })
    }

    pub(super) fn is_on(&self, uuid: &str) -> bool {
        self.kept.lock().cards.contains(uuid)
    }

    pub(super) async fn set(&self, config: &NvmlConfig, uuid: &str, on: bool) -> Result<(), TimeSliceError> {
        if !on {
            self.keep(uuid, false).await?;
        }
        let value = if on { MEDIUM } else { 0 }.to_string();
        let mut command = Command::new(&config.smi);
        command.args(["compute-policy", "--set-timeslice", &value, "-i", uuid]);
        if let Err(error) = run(command, "").await {
            if !on {
                self.keep(uuid, true).await?;
            }
            return Err(TimeSliceError::Command(error.to_string()));
        }
        if on { self.keep(uuid, true).await } else { Ok(()) }
    }

    async fn keep(&self, uuid: &str, on: bool) -> Result<(), TimeSliceError> {
        let one = self.writing.lock().await;
        let mut kept = self.kept.lock().clone();
        if on {
            kept.cards.insert(uuid.to_owned());
        } else {
            kept.cards.remove(uuid);
        }
        self.files.write(FILE, serde_json::to_vec(&kept)?).await?;
        *self.kept.lock() = kept;
        drop(one);
        Ok(())
    }
}

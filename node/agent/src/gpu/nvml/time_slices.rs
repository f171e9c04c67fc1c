//! Time-slicing: NVML has no setter and no getter, so `nvidia-smi` sets it and a mark says what was set.
//!
//! What must stay true: a card counts as time-sliced only when the command has succeeded in this boot, since a reboot ends it; the mark is written after the
//! command when it is set, and before it when it is cleared, so that a crash between leaves a card that takes one task.

use super::NvmlConfig;
use super::boot_marks::{BootMarks, MarksError};
use super::commands::run;
use muster_model::sharing::TimeSlice;
use tokio::process::Command;

/// Where the marks of time-sliced cards are, by UUID.
pub(super) const FILE: &str = "gpu-time-slices.json";

/// What a card has that nobody has set.
const DRIVERS_OWN: u8 = 0;

/// Why the policy was not set.
#[derive(Debug, thiserror::Error)]
pub(super) enum TimeSliceError {
    #[error("{0}")]
    Command(String),
    #[error(transparent)]
    Marks(#[from] MarksError),
}

/// Lets several tasks take turns of this length on a card, or ends that.
pub(super) async fn set(
    marks: &BootMarks,
    config: &NvmlConfig,
    uuid: &str,
    length: Option<TimeSlice>,
) -> Result<(), TimeSliceError> {
    let on = length.is_some();
    if !on {
        marks.set(uuid, false).await?;
    }
    let value = length.map_or(DRIVERS_OWN, TimeSlice::number).to_string();
    let mut command = Command::new(&config.smi);
    command.args(["compute-policy", "--set-timeslice", &value, "-i", uuid]);
    if let Err(error) = run(command, "").await {
        if !on {
            marks.set(uuid, true).await?;
        }
        return Err(TimeSliceError::Command(error.to_string()));
    }
    if on {
        marks.set(uuid, true).await?;
    }
    Ok(())
}

//! The recovery action that the driver itself asks for: NVML's field 230, and the text of Xid 154.
//!
//! What must stay true: a value that is not known is kept as it is and never read as "none"; in the kernel's text the words count
//! before the number, since driver branches disagree about the numbers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION` (nvml.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RecoveryAction {
    /// 0: the card is well.
    None,
    /// 1: reset the card; what runs on it is lost.
    GpuReset,
    /// 2: reboot the node.
    NodeReboot,
    /// 3: end what uses peer-to-peer access; new work must not begin.
    DrainP2p,
    /// 4: let what runs end, then reset the card.
    DrainAndReset,
    /// 5: recover the IMEX domain; the node cannot do that alone.
    RecoverImexDomain,
    /// Another value, which this version does not know.
    Unknown(u32),
}

impl RecoveryAction {
    /// From the field's value.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            0 => RecoveryAction::None,
            1 => RecoveryAction::GpuReset,
            2 => RecoveryAction::NodeReboot,
            3 => RecoveryAction::DrainP2p,
            4 => RecoveryAction::DrainAndReset,
            5 => RecoveryAction::RecoverImexDomain,
            other => RecoveryAction::Unknown(other),
        }
    }

    /// The field's value.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            RecoveryAction::None => 0,
            RecoveryAction::GpuReset => 1,
            RecoveryAction::NodeReboot => 2,
            RecoveryAction::DrainP2p => 3,
            RecoveryAction::DrainAndReset => 4,
            RecoveryAction::RecoverImexDomain => 5,
            RecoveryAction::Unknown(other) => other,
        }
    }

    /// From the text of Xid 154, for example `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`. Other words than
    /// the catalogue's (`PF FLR`, `OS Reboot`) are read by their number; `None` when neither can be read.
    #[must_use]
    pub fn from_kernel_text(text: &str) -> Option<Self> {
        let (_, change) = text.split_once("recovery action changed from")?;
        let (_, after) = change.split_once(" to ")?;
        let (number, words) = match after.split_once('(') {
            Some((number, words)) => (number.trim(), words.split(')').next().unwrap_or_default().trim()),
            None => ("", after.trim()),
        };
        let by_words = match words {
            "None" => Some(RecoveryAction::None),
            "GPU Reset" | "GPU Reset Required" => Some(RecoveryAction::GpuReset),
            "Node Reboot" | "Node Reboot Required" => Some(RecoveryAction::NodeReboot),
            "Drain P2P" => Some(RecoveryAction::DrainP2p),
            "Drain and Reset" => Some(RecoveryAction::DrainAndReset),
            _ => None,
        };
        let by_number = || u32::from_str_radix(number.strip_prefix("0x")?, 16).ok().map(RecoveryAction::from_code);
        by_words.or_else(by_number)
    }
}

impl fmt::Display for RecoveryAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryAction::None => f.write_str("none"),
            RecoveryAction::GpuReset => f.write_str("GPU reset"),
            RecoveryAction::NodeReboot => f.write_str("node reboot"),
            RecoveryAction::DrainP2p => f.write_str("drain P2P"),
            RecoveryAction::DrainAndReset => f.write_str("drain and reset"),
            RecoveryAction::RecoverImexDomain => f.write_str("recover the IMEX domain"),
            RecoveryAction::Unknown(code) => write!(f, "unknown action {code}"),
        }
    }
}

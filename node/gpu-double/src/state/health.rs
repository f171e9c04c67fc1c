//! Error counters of a card.
//!
//! What must stay true: volatile counters end with a reset, aggregate ones and remapped rows stay; a pending remap is done by a reset.

use serde::{Deserialize, Serialize};

/// Corrected and uncorrected memory errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    /// Single bit: corrected.
    pub corrected: u64,
    /// Double bit: not corrected.
    pub uncorrected: u64,
}

/// Remapped rows of the card's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// After corrected errors.
    pub corrected: u32,
    /// After uncorrected errors.
    pub uncorrected: u32,
    /// One will be remapped at the next reset.
    pub is_pending: bool,
    /// A remap failed: the card is to be replaced.
    pub has_failed: bool,
}

/// A retired page, on cards that retire pages and do not remap rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiredPage {
    /// Its address.
    pub address: u64,
    /// When.
    pub timestamp: u64,
    /// After a double bit error; otherwise after several single bit ones.
    pub is_double_bit: bool,
}

/// Error counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Since the last reset.
    pub ecc_volatile: EccCounts,
    /// Since the card was made.
    pub ecc_aggregate: EccCounts,
    /// Rows.
    pub rows: RemappedRows,
    /// Pages.
    pub retired_pages: Vec<RetiredPage>,
    /// Field 230: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset.
    pub recovery_action: u32,
    /// PCIe replays.
    pub pcie_replays: u32,
    /// NVLink errors, over all links.
    pub nvlink_errors: u64,
}

impl Health {
    /// What a reset leaves.
    pub fn after_reset(&mut self) {
        self.ecc_volatile = EccCounts::default();
        self.recovery_action = 0;
        self.nvlink_errors = 0;
        if self.rows.is_pending {
            self.rows.is_pending = false;
            self.rows.uncorrected += 1;
        }
    }
}

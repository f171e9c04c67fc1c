//! Load, temperatures, power and energy.
//!
//! What must stay true: energy grows with power and time and never falls; the load of a period is the mean of the loads at its two ends,
//! since the double keeps no history.

use super::refusal::{Answer, Refusal};
use serde::{Deserialize, Serialize};

/// How busy a card or a GPU instance is, in percent and MiB/s, as GPM tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Time with a kernel.
    pub graphics_percent: f64,
    /// Multiprocessors with a warp.
    pub sm_percent: f64,
    /// Warps of those that fit.
    pub occupancy_percent: f64,
    /// Tensor cores.
    pub tensor_percent: f64,
    /// Memory bandwidth.
    pub memory_percent: f64,
    /// Sent over PCIe.
    pub pcie_tx_mib_s: f64,
    /// Received over PCIe.
    pub pcie_rx_mib_s: f64,
    /// Received over NVLink.
    pub nvlink_rx_mib_s: f64,
    /// Sent over NVLink.
    pub nvlink_tx_mib_s: f64,
}

impl Load {
    /// Nothing but kernels: this share of the time, on all multiprocessors.
    #[must_use]
    pub fn of_kernels(percent: f64) -> Self {
        Load { graphics_percent: percent, sm_percent: percent, occupancy_percent: percent / 2.0, ..Load::default() }
    }

    /// The value of a GPM metric (`nvmlGpmMetricId_t`).
    ///
    /// # Errors
    /// The double does not have this metric.
    pub fn metric(&self, id: u32) -> Answer<f64> {
        Ok(match id {
            1 => self.graphics_percent,
            2 => self.sm_percent,
            3 => self.occupancy_percent,
            5 => self.tensor_percent,
            10 => self.memory_percent,
            20 => self.pcie_tx_mib_s,
            21 => self.pcie_rx_mib_s,
            60 => self.nvlink_rx_mib_s,
            61 => self.nvlink_tx_mib_s,
            _ => return Err(Refusal::NotSupported),
        })
    }

    /// The value of a GPM metric between two samples.
    ///
    /// # Errors
    /// The double does not have this metric.
    pub fn metric_between(&self, later: &Load, id: u32) -> Answer<f64> {
        Ok((self.metric(id)? + later.metric(id)?) / 2.0)
    }
}

/// What sensors tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gauges {
    /// Of the GPU.
    pub temperature_c: u32,
    /// Of its memory.
    pub memory_temperature_c: u32,
    /// Power.
    pub power_mw: u32,
    /// Its limit.
    pub power_limit_mw: u32,
    /// Energy used until `energy_at_ms`.
    pub energy_mj: u64,
    /// When `power_mw` came into force, in Unix time; 0 is replaced when the fleet file is made.
    pub energy_at_ms: u64,
    /// Why clocks are lowered: bits of `nvmlClocksEventReason*`.
    pub clocks_event_reasons: u64,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: u32,
    /// Clock of the memory.
    pub memory_clock_mhz: u32,
    /// How busy the whole card is.
    pub load: Load,
}

impl Default for Gauges {
    fn default() -> Self {
        Gauges {
            temperature_c: 32,
            memory_temperature_c: 38,
            power_mw: 70_000,
            power_limit_mw: 700_000,
            energy_mj: 0,
            energy_at_ms: 0,
            clocks_event_reasons: 1,
            sm_clock_mhz: 345,
            memory_clock_mhz: 2_619,
            load: Load::default(),
        }
    }
}

impl Gauges {
    /// Energy used until now, in millijoules: milliwatts times seconds.
    #[must_use]
    pub fn energy_until_mj(&self, now_ms: u64) -> u64 {
        self.energy_mj + u64::from(self.power_mw) * now_ms.saturating_sub(self.energy_at_ms) / 1_000
    }

    /// Sets the power from now on; what was used until now stays counted.
    pub fn set_power_mw(&mut self, power_mw: u32, now_ms: u64) {
        self.energy_mj = self.energy_until_mj(now_ms);
        (self.energy_at_ms, self.power_mw) = (now_ms, power_mw);
    }
}

//! The figures of a card or a MIG instance, under DCGM's names.
//!
//! What must stay true: one table says name, kind, range and meaning of each figure, and pages, tests and alert rules take them from it; a value outside its
//! range is dropped, since a sensor that fails says things like 4294967295; figures that were not told take no memory.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Whether a figure may fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureKind {
    /// It goes up and down.
    Gauge,
    /// It only grows, but for a reset of the card or the driver.
    Counter,
}

/// One row for each figure: variant, name on the page, kind, largest value that can be true, meaning.
macro_rules! figures {
    ($($variant:ident, $name:literal, $kind:ident, $most:expr, $help:literal;)*) => {
        /// Something that a card or a MIG instance tells.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Figure {
            $(#[doc = $help] $variant,)*
        }

        impl Figure {
            /// All of them, in the order of the page.
            pub const ALL: &'static [Figure] = &[$(Figure::$variant,)*];

            /// Its name on the page.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Figure::$variant => $name,)* }
            }

            /// Whether it may fall.
            #[must_use]
            pub const fn kind(self) -> FigureKind {
                match self { $(Figure::$variant => FigureKind::$kind,)* }
            }

            /// What it means, with its unit.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Figure::$variant => $help,)* }
            }

            const fn most(self) -> f64 {
                match self { $(Figure::$variant => $most,)* }
            }
        }
    };
}

/// No card takes, or links and buses carry, more than this.
const CLOCK_MHZ_MAX: f64 = 20_000.0;
const TEMPERATURE_C_MAX: f64 = 250.0;
const POWER_W_MAX: f64 = 20_000.0;
const MEMORY_MIB_MAX: f64 = 16_777_216.0;
const BYTES_PER_SECOND_MAX: f64 = 1e14;
/// A count of 32 bits whose bits are all set means that there is none.
const COUNT_32_MAX: f64 = 4_294_967_294.0;
/// Counts of 64 bits are exact up to here.
const COUNT_64_MAX: f64 = 9_007_199_254_740_992.0;

figures! {
    SmClock, "DCGM_FI_DEV_SM_CLOCK", Gauge, CLOCK_MHZ_MAX, "Clock of the multiprocessors, in MHz";
    MemoryClock, "DCGM_FI_DEV_MEM_CLOCK", Gauge, CLOCK_MHZ_MAX, "Clock of the memory, in MHz";
    MemoryTemperature, "DCGM_FI_DEV_MEMORY_TEMP", Gauge, TEMPERATURE_C_MAX, "Temperature of the memory, in degrees Celsius";
    Temperature, "DCGM_FI_DEV_GPU_TEMP", Gauge, TEMPERATURE_C_MAX, "Temperature of the GPU, in degrees Celsius";
    Power, "DCGM_FI_DEV_POWER_USAGE", Gauge, POWER_W_MAX, "Power, in watts";
    Energy, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Counter, COUNT_64_MAX, "Energy since the driver was loaded, in mJ";
    PcieReplays, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Counter, COUNT_32_MAX, "PCIe transfers that were repeated";
    GpuUtil, "DCGM_FI_DEV_GPU_UTIL", Gauge, 100.0, "Time with a kernel, in percent; not told by a GPU in MIG mode";
    MemoryUtil, "DCGM_FI_DEV_MEM_COPY_UTIL", Gauge, 100.0, "Time in which memory was read or written, in percent; not told by a GPU in MIG mode";
    EncoderUtil, "DCGM_FI_DEV_ENC_UTIL", Gauge, 100.0, "Use of the video encoders, in percent";
    DecoderUtil, "DCGM_FI_DEV_DEC_UTIL", Gauge, 100.0, "Use of the video decoders, in percent";
    XidLast, "DCGM_FI_DEV_XID_ERRORS", Gauge, 65_535.0, "The last Xid since the agent was started";
    MemoryFree, "DCGM_FI_DEV_FB_FREE", Gauge, MEMORY_MIB_MAX, "Free memory, in MiB";
    MemoryUsed, "DCGM_FI_DEV_FB_USED", Gauge, MEMORY_MIB_MAX, "Used memory, in MiB";
    MemoryReserved, "DCGM_FI_DEV_FB_RESERVED", Gauge, MEMORY_MIB_MAX, "Memory that the driver keeps for itself, in MiB";
    SingleBitVolatile, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", Counter, COUNT_64_MAX, "Corrected memory errors since the last reset";
    DoubleBitVolatile, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Counter, COUNT_64_MAX, "Uncorrected memory errors since the last reset";
    SingleBitAggregate, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", Counter, COUNT_64_MAX, "Corrected memory errors since the GPU was made";
    DoubleBitAggregate, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", Counter, COUNT_64_MAX, "Uncorrected memory errors since the GPU was made";
    RowsUncorrectable, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", Counter, COUNT_32_MAX, "Memory rows remapped for uncorrectable errors";
    RowsCorrectable, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", Counter, COUNT_32_MAX, "Memory rows remapped for correctable errors";
    RowRemapFailure, "DCGM_FI_DEV_ROW_REMAP_FAILURE", Gauge, 1.0, "1 when a memory row could not be remapped";
    RowRemapPending, "DCGM_FI_DEV_ROW_REMAP_PENDING", Gauge, 1.0, "1 while a memory row waits for a reset to be remapped";
    ClocksEventReasons, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", Gauge, COUNT_64_MAX, "Why clocks are lowered: the bits of nvmlClocksEventReason";
    PowerViolation, "DCGM_FI_DEV_POWER_VIOLATION", Counter, COUNT_64_MAX, "Time with clocks lowered for power, in ns";
    ThermalViolation, "DCGM_FI_DEV_THERMAL_VIOLATION", Counter, COUNT_64_MAX, "Time with clocks lowered for heat, in ns";
    LinksUp, "muster_gpu_nvlinks_up", Gauge, 64.0, "NVLinks that are up";
    GraphicsActive, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", Gauge, 1.0, "Share of the time with a kernel";
    SmActive, "DCGM_FI_PROF_SM_ACTIVE", Gauge, 1.0, "Share of the multiprocessors' time with a warp";
    SmOccupancy, "DCGM_FI_PROF_SM_OCCUPANCY", Gauge, 1.0, "Share of the warps that the multiprocessors have room for";
    TensorActive, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Gauge, 1.0, "Share of the time in which tensor cores worked";
    DramActive, "DCGM_FI_PROF_DRAM_ACTIVE", Gauge, 1.0, "Share of the memory's bandwidth";
    PcieSent, "DCGM_FI_PROF_PCIE_TX_BYTES", Gauge, BYTES_PER_SECOND_MAX, "Sent over PCIe, in bytes per second";
    PcieReceived, "DCGM_FI_PROF_PCIE_RX_BYTES", Gauge, BYTES_PER_SECOND_MAX, "Received over PCIe, in bytes per second";
    NvlinkSent, "DCGM_FI_PROF_NVLINK_TX_BYTES", Gauge, BYTES_PER_SECOND_MAX, "Sent over NVLink, in bytes per second";
    NvlinkReceived, "DCGM_FI_PROF_NVLINK_RX_BYTES", Gauge, BYTES_PER_SECOND_MAX, "Received over NVLink, in bytes per second";
}

const _: () = assert!(Figure::ALL.len() <= 64, "one bit for each figure");

impl Figure {
    const fn bit(self) -> u64 {
        1 << (self as u8)
    }
}

/// What was told: some of the figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// A bit for each figure that is there.
    present: u64,
    /// Their values, in the order of the table.
    values: Vec<f64>,
}

impl Figures {
    /// Takes a value; says whether it can be true. One that cannot be is dropped.
    pub fn put(&mut self, figure: Figure, value: f64) -> bool {
        let is_sane = value >= 0.0 && value <= figure.most();
        if is_sane {
            let at = self.place(figure);
            if self.present & figure.bit() == 0 {
                self.present |= figure.bit();
                self.values.insert(at, value);
            } else {
                self.values[at] = value;
            }
        }
        is_sane
    }

    /// What was told of a figure.
    #[must_use]
    pub fn get(&self, figure: Figure) -> Option<f64> {
        (self.present & figure.bit() != 0).then(|| self.values[self.place(figure)])
    }

    /// All that was told, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (Figure, f64)> {
        let present = Figure::ALL.iter().copied().filter(|figure| self.present & figure.bit() != 0);
        present.zip(self.values.iter().copied())
    }

    /// Whether nothing was told.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// Bytes that it takes beside itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.values.capacity() * size_of::<f64>()
    }

    /// The same without spare room, to be kept.
    #[must_use]
    pub fn packed(mut self) -> Self {
        self.values.shrink_to_fit();
        self
    }

    /// How many values lie before that of `figure`.
    const fn place(&self, figure: Figure) -> usize {
        (self.present & (figure.bit() - 1)).count_ones() as usize
    }
}

/// Between two processes of one version: the bits, and the values behind them.
impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        (self.present, &self.values).serialize(out)
    }
}

impl<'de> Deserialize<'de> for Figures {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let (present, values) = <(u64, Vec<f64>)>::deserialize(input)?;
        let unknown = Figure::ALL.len() < 64 && present >> Figure::ALL.len() != 0;
        if unknown || present.count_ones() as usize != values.len() {
            return Err(D::Error::custom("figures of another version"));
        }
        Ok(Figures { present, values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_was_not_told_is_absent_and_what_cannot_be_is_dropped() {
        let mut figures = Figures::default();
        assert!(figures.put(Figure::SmActive, 0.0) && figures.put(Figure::Power, 70.5));
        assert!(!figures.put(Figure::GpuUtil, 101.0) && !figures.put(Figure::PcieReplays, 4_294_967_295.0));
        assert!(!figures.put(Figure::DramActive, f64::NAN) && !figures.put(Figure::Power, -1.0));
        assert_eq!(figures.get(Figure::SmActive), Some(0.0), "zero was told");
        assert_eq!(figures.get(Figure::Power), Some(70.5), "a wrong value replaces no right one");
        assert_eq!(figures.get(Figure::GpuUtil), None);
        assert!(figures.put(Figure::Power, 71.0));
        assert_eq!(figures.iter().collect::<Vec<_>>(), [(Figure::Power, 71.0), (Figure::SmActive, 0.0)]);
    }

    #[test]
    fn figures_come_back_as_they_went() {
        let mut figures = Figures::default();
        for (at, figure) in Figure::ALL.iter().enumerate() {
            assert_eq!(*figure as usize, at);
            figures.put(*figure, if at % 2 == 0 { 1.0 } else { 0.5 });
        }
        let text = serde_json::to_string(&figures).expect("plain numbers");
        assert_eq!(serde_json::from_str::<Figures>(&text).expect("the same"), figures);
        assert!(serde_json::from_str::<Figures>("[3,[1.0]]").is_err(), "one value for two bits");
    }

    #[test]
    fn every_figure_has_a_name_of_its_own_and_words() {
        let names: BTreeSet<&str> = Figure::ALL.iter().map(|figure| figure.name()).collect();
        assert_eq!(names.len(), Figure::ALL.len());
        for figure in Figure::ALL {
            assert!(figure.help().len() > 6 && !figure.help().ends_with('.'), "{figure:?}");
        }
    }
}

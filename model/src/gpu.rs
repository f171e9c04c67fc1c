//! The GPU catalogue: what each model is, and whether it can be cut.
//!
//! A real node asks NVML; these figures serve simulation, validation and charges. Memory is the data sheet's, in MiB.

use crate::words::UnknownWord;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A GPU model that Muster knows. New ones go at the end; stored values use the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuModel {
    /// A30 24 GB (Ampere, MIG with four slices).
    A30,
    /// A100 40 GB.
    A100_40,
    /// A100 80 GB.
    A100_80,
    /// H100 80 GB.
    H100,
    /// H200 141 GB.
    H200,
    /// B200 180 GB.
    B200,
    /// L40S 48 GB (no MIG).
    L40S,
    /// T4 16 GB (no MIG).
    T4,
    /// V100 16 GB (no MIG); older fleets and public traces have it.
    V100_16,
    /// V100 32 GB (no MIG).
    V100_32,
    /// P100 16 GB (no MIG).
    P100,
    /// A10 24 GB (no MIG).
    A10,
    /// H100 94 GB (NVL, and the 94 GB SXM5).
    H100_94,
    /// The H100 of a GH200, 96 GB.
    GH200,
}

/// The fixed facts of a model.
#[derive(Clone, Copy, Debug)]
pub struct GpuFacts {
    /// The name tenants write, lower case.
    pub name: &'static str,
    /// How NVML's device name contains it, for a real node.
    pub nvml_name: &'static str,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Which MIG geometry it has, if any.
    pub mig: Option<MigFamily>,
}

/// MIG geometries: cards of one family differ only in the memory of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MigFamily {
    /// A30: four memory and four compute slices.
    Four,
    /// A100, H100, GH200, H200, B200: eight memory and seven compute slices.
    Eight,
}

impl GpuModel {
    /// How many models there are.
    pub const COUNT: usize = 14;

    /// All of them, in catalogue order.
    pub const ALL: [GpuModel; Self::COUNT] = [
        GpuModel::A30,
        GpuModel::A100_40,
        GpuModel::A100_80,
        GpuModel::H100,
        GpuModel::H200,
        GpuModel::B200,
        GpuModel::L40S,
        GpuModel::T4,
        GpuModel::V100_16,
        GpuModel::V100_32,
        GpuModel::P100,
        GpuModel::A10,
        GpuModel::H100_94,
        GpuModel::GH200,
    ];

    /// The catalogue's entry.
    #[must_use]
    pub const fn facts(self) -> GpuFacts {
        const fn card(
            name: &'static str,
            nvml_name: &'static str,
            memory_mib: u64,
            mig: Option<MigFamily>,
        ) -> GpuFacts {
            GpuFacts { name, nvml_name, memory_mib, mig }
        }
        match self {
            GpuModel::A30 => card("a30", "A30", 24_576, Some(MigFamily::Four)),
            GpuModel::A100_40 => card("a100-40", "A100-SXM4-40GB", 40_960, Some(MigFamily::Eight)),
            GpuModel::A100_80 => card("a100-80", "A100-SXM4-80GB", 81_920, Some(MigFamily::Eight)),
            GpuModel::H100 => card("h100", "H100", 81_920, Some(MigFamily::Eight)),
            GpuModel::H200 => card("h200", "H200", 144_384, Some(MigFamily::Eight)),
            GpuModel::B200 => card("b200", "B200", 184_320, Some(MigFamily::Eight)),
            GpuModel::L40S => card("l40s", "L40S", 49_152, None),
            GpuModel::T4 => card("t4", "T4", 16_384, None),
            GpuModel::V100_16 => card("v100-16", "V100-SXM2-16GB", 16_384, None),
            GpuModel::V100_32 => card("v100-32", "V100-SXM2-32GB", 32_768, None),
            GpuModel::P100 => card("p100", "P100", 16_384, None),
            GpuModel::A10 => card("a10", "A10", 24_576, None),
            GpuModel::H100_94 => card("h100-94", "H100 NVL", 96_256, Some(MigFamily::Eight)),
            GpuModel::GH200 => card("gh200", "GH200", 98_304, Some(MigFamily::Eight)),
        }
    }

    /// Memory of one card in MiB.
    #[must_use]
    pub const fn memory_mib(self) -> u64 {
        self.facts().memory_mib
    }
}

impl fmt::Display for GpuModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().name)
    }
}

/// The names, in catalogue order.
static NAMES: [&str; GpuModel::COUNT] = {
    let mut names = [""; GpuModel::COUNT];
    let mut at = 0;
    while at < names.len() {
        names[at] = GpuModel::ALL[at].facts().name;
        at += 1;
    }
    names
};

impl FromStr for GpuModel {
    type Err = UnknownWord;

    /// Case does not matter, `_` is `-`, and the usual long names (`a100-40gb`, `h100-80`, `h100-80gb`) are understood.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower = text.trim().to_ascii_lowercase().replace('_', "-");
        let short = lower.strip_suffix("gb").unwrap_or(&lower);
        let plain = match short {
            "h100-80" => "h100",
            "h100-nvl" => "h100-94",
            "gh200-96" => "gh200",
            "h200-141" => "h200",
            "b200-180" => "b200",
            "a30-24" => "a30",
            "a100" => "a100-80",
            other => other,
        };
        GpuModel::ALL.into_iter().find(|m| m.facts().name == plain).ok_or_else(|| UnknownWord {
            what: "GPU model",
            got: text.to_owned(),
            known: &NAMES,
        })
    }
}

impl Serialize for GpuModel {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.facts().name)
    }
}

impl<'de> Deserialize<'de> for GpuModel {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

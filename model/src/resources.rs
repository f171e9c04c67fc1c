//! Amounts of things that are charged: GPU units per model, CPU and memory.
//!
//! A *GPU unit* is 1/7,000 of a card, so that a seventh (1,000), an eighth (875) and a milli-GPU (7) are all whole
//! numbers and no charge is ever rounded. What must stay true: subtraction never wraps; an amount that would go below zero
//! is a bug and panics in every build.

use crate::gpu::GpuModel;
use crate::words::UnknownWord;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Shares of a card, in 1/7,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUnits(pub u64);

impl GpuUnits {
    /// One whole card.
    pub const CARD: GpuUnits = GpuUnits(7_000);

    /// `count` whole cards.
    #[must_use]
    pub const fn cards(count: u64) -> Self {
        GpuUnits(count * Self::CARD.0)
    }

    /// As a number of cards, for people.
    #[must_use]
    pub fn as_cards(self) -> f64 {
        self.0 as f64 / Self::CARD.0 as f64
    }
}

impl fmt::Display for GpuUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(Self::CARD.0) {
            write!(f, "{}", self.0 / Self::CARD.0)
        } else {
            write!(f, "{:.2}", self.as_cards())
        }
    }
}

/// One resource of the quota tree: each GPU model is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Resource {
    /// GPU units of one model.
    Gpu(GpuModel),
    /// Milli-CPUs.
    Cpu,
    /// MiB of host memory.
    Memory,
}

impl Resource {
    /// An amount of it in words: `0.5 h100`, `18 CPUs`, `64 GiB`.
    #[must_use]
    pub fn in_words(self, amount: u64) -> String {
        match self {
            Resource::Gpu(model) => format!("{} {model}", cards_in_words(GpuUnits(amount))),
            Resource::Cpu => cpus_in_words(amount),
            Resource::Memory => memory_in_words(amount),
        }
    }
}

/// Cards with as many decimals as it takes, at most two: `8`, `0.5`, `0.14`.
#[must_use]
pub fn cards_in_words(units: GpuUnits) -> String {
    trimmed(format!("{:.2}", units.as_cards()))
}

/// `1 CPU`, `2.5 CPUs`.
#[must_use]
pub fn cpus_in_words(milli: u64) -> String {
    let number = thousandths_in_words(milli);
    if milli == 1_000 { format!("{number} CPU") } else { format!("{number} CPUs") }
}

/// A number of thousandths as people write it: `2.5`.
#[must_use]
pub fn thousandths_in_words(milli: u64) -> String {
    trimmed(format!("{}.{:03}", milli / 1_000, milli % 1_000))
}

/// `512 MiB`, `64 GiB`, `1.5 GiB`.
#[must_use]
pub fn memory_in_words(mib: u64) -> String {
    if mib < 1_024 {
        return format!("{mib} MiB");
    }
    format!("{} GiB", trimmed(format!("{}.{:02}", mib / 1_024, mib % 1_024 * 100 / 1_024)))
}

fn trimmed(decimal: String) -> String {
    decimal.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Gpu(model) => write!(f, "gpu.{model}"),
            Resource::Cpu => f.write_str("cpu_milli"),
            Resource::Memory => f.write_str("memory_mib"),
        }
    }
}

impl std::str::FromStr for Resource {
    type Err = UnknownWord;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "cpu_milli" => Ok(Resource::Cpu),
            "memory_mib" => Ok(Resource::Memory),
            _ => match text.strip_prefix("gpu.") {
                Some(model) => model.parse().map(Resource::Gpu),
                None => Err(UnknownWord {
                    what: "resource",
                    got: text.to_owned(),
                    known: &["gpu.h100 and other models", "cpu_milli", "memory_mib"],
                }),
            },
        }
    }
}

/// How much of each resource: a demand, a charge, a use or a guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Wire", into = "Wire")]
pub struct ResourceVec {
    gpu: [u64; GpuModel::COUNT],
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// MiB of host memory.
    pub memory_mib: u64,
}

/// The stored form names each model, so that a new model in the catalogue changes no stored value.
#[derive(Serialize, Deserialize)]
struct Wire {
    gpu: BTreeMap<GpuModel, u64>,
    cpu_milli: u64,
    memory_mib: u64,
}

impl From<Wire> for ResourceVec {
    fn from(wire: Wire) -> Self {
        let mut out = ResourceVec { cpu_milli: wire.cpu_milli, memory_mib: wire.memory_mib, ..Default::default() };
        for (model, units) in wire.gpu {
            out.gpu[model as usize] = units;
        }
        out
    }
}

impl From<ResourceVec> for Wire {
    fn from(value: ResourceVec) -> Self {
        Wire {
            gpu: value.gpus().map(|(model, units)| (model, units.0)).collect(),
            cpu_milli: value.cpu_milli,
            memory_mib: value.memory_mib,
        }
    }
}

impl ResourceVec {
    /// `units` of one model, nothing else.
    #[must_use]
    pub fn of_gpu(model: GpuModel, units: GpuUnits) -> Self {
        let mut out = Self::default();
        out.gpu[model as usize] = units.0;
        out
    }

    /// CPU and memory, no GPU.
    #[must_use]
    pub fn of_host(cpu_milli: u64, memory_mib: u64) -> Self {
        ResourceVec { gpu: [0; GpuModel::COUNT], cpu_milli, memory_mib }
    }

    /// Units held of `model`.
    #[must_use]
    pub fn gpu(&self, model: GpuModel) -> GpuUnits {
        GpuUnits(self.gpu[model as usize])
    }

    /// Sets the units of `model`.
    pub fn set_gpu(&mut self, model: GpuModel, units: GpuUnits) {
        self.gpu[model as usize] = units.0;
    }

    /// The models of which there is more than nothing, in catalogue order.
    pub fn gpus(&self) -> impl Iterator<Item = (GpuModel, GpuUnits)> + '_ {
        GpuModel::ALL.iter().map(|&m| (m, self.gpu(m))).filter(|(_, units)| units.0 > 0)
    }

    /// Units of all models together.
    #[must_use]
    pub fn gpu_total(&self) -> GpuUnits {
        GpuUnits(self.gpu.iter().sum())
    }

    /// The amount of one resource.
    #[must_use]
    pub fn get(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Gpu(model) => self.gpu[model as usize],
            Resource::Cpu => self.cpu_milli,
            Resource::Memory => self.memory_mib,
        }
    }

    /// Sets the amount of one resource.
    pub fn set(&mut self, resource: Resource, amount: u64) {
        match resource {
            Resource::Gpu(model) => self.gpu[model as usize] = amount,
            Resource::Cpu => self.cpu_milli = amount,
            Resource::Memory => self.memory_mib = amount,
        }
    }

    /// Every resource of which there is more than nothing.
    pub fn nonzero(&self) -> impl Iterator<Item = (Resource, u64)> + '_ {
        self.gpus()
            .map(|(model, units)| (Resource::Gpu(model), units.0))
            .chain([(Resource::Cpu, self.cpu_milli), (Resource::Memory, self.memory_mib)])
            .filter(|(_, amount)| *amount > 0)
    }

    /// Adds `other`.
    pub fn add(&mut self, other: &ResourceVec) {
        for (mine, theirs) in self.gpu.iter_mut().zip(other.gpu) {
            *mine += theirs;
        }
        self.cpu_milli += other.cpu_milli;
        self.memory_mib += other.memory_mib;
    }

    /// Takes `other` away; it must be contained.
    ///
    /// # Panics
    /// When `other` holds more of anything: a charge was released that was never made.
    pub fn sub(&mut self, other: &ResourceVec) {
        for (mine, theirs) in self.gpu.iter_mut().zip(other.gpu) {
            *mine = mine.checked_sub(theirs).expect("released more GPU units than were charged");
        }
        self.cpu_milli = self.cpu_milli.checked_sub(other.cpu_milli).expect("released more CPU than was charged");
        self.memory_mib = self.memory_mib.checked_sub(other.memory_mib).expect("released more memory than was charged");
    }

    /// What is left without `other`; of what `other` has more, nothing.
    #[must_use]
    pub fn less(mut self, other: &ResourceVec) -> Self {
        for (mine, theirs) in self.gpu.iter_mut().zip(other.gpu) {
            *mine = mine.saturating_sub(theirs);
        }
        self.cpu_milli = self.cpu_milli.saturating_sub(other.cpu_milli);
        self.memory_mib = self.memory_mib.saturating_sub(other.memory_mib);
        self
    }

    /// What it counts in the floor-covered use that each reclaim raises (law 12): GPU units, or the rest where there is no GPU.
    #[must_use]
    pub fn potential(&self) -> u64 {
        match self.gpu_total().0 {
            0 => self.cpu_milli.saturating_add(self.memory_mib),
            units => units,
        }
    }

    /// Whether there is nothing of anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// `self` and `other` together.
    #[must_use]
    pub fn plus(mut self, other: &ResourceVec) -> Self {
        self.add(other);
        self
    }

    /// `count` times this.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        for units in &mut self.gpu {
            *units *= count;
        }
        self.cpu_milli *= count;
        self.memory_mib *= count;
        self
    }

    /// The first resource of which `self` has more than `other`, if any.
    #[must_use]
    pub fn first_excess_over(&self, other: &ResourceVec) -> Option<Resource> {
        self.nonzero().find(|(resource, amount)| *amount > other.get(*resource)).map(|(resource, _)| resource)
    }
}

/// Ceilings: a resource that is not named is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Units per GPU model.
    pub gpu: BTreeMap<GpuModel, GpuUnits>,
    /// Milli-CPUs.
    pub cpu_milli: Option<u64>,
    /// MiB of host memory.
    pub memory_mib: Option<u64>,
}

impl Limits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpu.is_empty() && self.cpu_milli.is_none() && self.memory_mib.is_none()
    }

    /// The ceiling on one resource, if there is one.
    #[must_use]
    pub fn get(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Gpu(model) => self.gpu.get(&model).map(|units| units.0),
            Resource::Cpu => self.cpu_milli,
            Resource::Memory => self.memory_mib,
        }
    }

    /// Limits one resource to `amount`.
    pub fn set(&mut self, resource: Resource, amount: u64) {
        match resource {
            Resource::Gpu(model) => drop(self.gpu.insert(model, GpuUnits(amount))),
            Resource::Cpu => self.cpu_milli = Some(amount),
            Resource::Memory => self.memory_mib = Some(amount),
        }
    }

    /// The first resource whose ceiling `amount` passes, with the ceiling.
    #[must_use]
    pub fn first_passed_by(&self, amount: &ResourceVec) -> Option<(Resource, u64)> {
        amount.nonzero().find_map(|(resource, used)| {
            let limit = self.get(resource)?;
            (used > limit).then_some((resource, limit))
        })
    }
}

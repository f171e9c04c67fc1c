//! GPU instances and compute instances, as the fleet file holds them.
//!
//! What must stay true: ids come back, serial numbers and UUIDs never do.

use super::gauges::Load;
use serde::{Deserialize, Serialize};

/// MIG on a card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MigState {
    /// The mode it is in.
    pub is_on: bool,
    /// The mode it will be in after a reset.
    pub is_on_pending: bool,
    /// What stands, in order of ids.
    pub instances: Vec<GpuInstance>,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// Its id, which a later instance may have again.
    pub id: u32,
    /// Id of its profile.
    pub profile_id: u32,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// A number that no other instance has, ever: a handle to a destroyed instance is known by it.
    pub serial: u32,
    /// Its compute instances, in order of ids.
    pub compute: Vec<ComputeInstance>,
    /// Memory in use that no listed process holds.
    #[serde(default)]
    pub memory_other_bytes: u64,
    /// How busy it is.
    #[serde(default)]
    pub load: Load,
}

/// A compute instance: what CUDA calls a MIG device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// Its id inside its GPU instance, which a later one may have again.
    pub id: u32,
    /// Id of its profile, which is also the profile's number.
    pub profile_id: u32,
    /// First compute slice.
    pub start: u32,
    /// Compute slices.
    pub size: u32,
    /// Its UUID.
    pub uuid: String,
    /// A number that no other instance has, ever.
    pub serial: u32,
}

//! Handles: numbers in the guise of pointers.
//!
//! What must stay true: a handle says what it means by itself, so any process and any thread can use it; a handle to an instance that has
//! been destroyed is known as such by its serial number, also when another instance has the same ids by then.

use crate::state::card::Card;
use crate::state::instance::{ComputeInstance, GpuInstance};
use crate::state::refusal::{Answer, Refusal};

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Kind {
    Device = 5,
    GpuInstance = 6,
    ComputeInstance = 7,
    EventSet = 9,
    GpmSample = 10,
}

/// A card, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The card's slot.
    pub(super) slot: usize,
    /// Ids of the part; none means the whole card, as does the inner one for the GPU instance.
    pub(super) part: Option<(u32, Option<u32>)>,
    /// Serial number of the part.
    pub(super) serial: u32,
}

impl Target {
    pub(super) const fn card(slot: usize) -> Self {
        Target { slot, part: None, serial: 0 }
    }

    pub(super) const fn gpu_instance(slot: usize, gpu: &GpuInstance) -> Self {
        Target { slot, part: Some((gpu.id, None)), serial: gpu.serial }
    }

    pub(super) const fn compute_instance(slot: usize, gpu: &GpuInstance, compute: &ComputeInstance) -> Self {
        Target { slot, part: Some((gpu.id, Some(compute.id))), serial: compute.serial }
    }

    /// The handle; `T` is one of NVML's opaque types.
    pub(super) fn handle<T>(self, kind: Kind) -> *mut T {
        let (gpu, compute) = match self.part {
            None => (0, 0),
            Some((gpu, compute)) => (gpu + 1, compute.map_or(0, |compute| compute + 1)),
        };
        let ids = (self.slot as u64) << 48 | u64::from(gpu) << 40 | u64::from(compute) << 32;
        ((kind as u64) << 60 | ids | u64::from(self.serial)) as usize as *mut T
    }

    /// What a handle of this kind means.
    pub(super) fn of<T>(kind: Kind, handle: *mut T) -> Answer<Self> {
        let number = handle as usize as u64;
        if number >> 60 != kind as u64 {
            return Err(Refusal::InvalidArgument);
        }
        let byte = |at: u32| (number >> at & 0xff) as u32;
        let part = byte(40).checked_sub(1).map(|gpu| (gpu, byte(32).checked_sub(1)));
        Ok(Target { slot: (number >> 48 & 0xfff) as usize, part, serial: number as u32 })
    }

    /// The instance on its card, if it still stands.
    pub(super) fn find(self, card: &Card) -> Answer<(&GpuInstance, Option<&ComputeInstance>)> {
        let (gpu, compute) = self.part.ok_or(Refusal::InvalidArgument)?;
        let gone = |_| Refusal::InvalidArgument;
        let gpu = card.instance(gpu).map_err(gone)?;
        let compute = compute.map(|id| gpu.compute_instance(id).map_err(gone)).transpose()?;
        let serial = compute.map_or(gpu.serial, |compute| compute.serial);
        if serial == self.serial { Ok((gpu, compute)) } else { Err(Refusal::InvalidArgument) }
    }
}

/// The handle of something that this process keeps under a number.
pub(super) fn of_number<T>(kind: Kind, number: u64) -> *mut T {
    ((kind as u64) << 60 | number) as usize as *mut T
}

/// The number of something that this process keeps.
pub(super) fn number<T>(kind: Kind, handle: *mut T) -> Answer<u64> {
    let number = handle as usize as u64;
    if number >> 60 == kind as u64 { Ok(number & ((1 << 60) - 1)) } else { Err(Refusal::InvalidArgument) }
}

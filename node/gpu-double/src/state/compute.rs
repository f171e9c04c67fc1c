//! Compute instances inside a GPU instance.
//!
//! What must stay true: a compute instance needs its GPU instance, holds compute slices that no other one holds, and is not destroyed while
//! a process uses it; each new one has a new UUID.

use super::card::{Card, Process};
use super::instance::{ComputeInstance, GpuInstance};
use super::profiles::Profile;
use super::refusal::{Answer, Refusal};

/// Compute slices of each compute instance profile, by number; `NVML_COMPUTE_INSTANCE_PROFILE_*`.
const SLICES: [u32; 8] = [1, 2, 3, 4, 7, 8, 6, 1];

/// A compute instance profile of a GPU instance of a certain profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeProfile {
    /// Its number and its id.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// How many of it the GPU instance holds.
    pub instances_max: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

impl ComputeProfile {
    /// The profile of this number inside a GPU instance of `gpu`.
    ///
    /// # Errors
    /// There is no such number, or this GPU instance lacks it.
    pub fn of(gpu: &Profile, number: u32) -> Answer<Self> {
        let slices = *SLICES.get(number as usize).ok_or(Refusal::InvalidArgument)?;
        let all = gpu.compute_slices;
        let exists = number < 5 && (slices == all || (slices < all && (slices != 3 || all == 7)));
        if !exists {
            return Err(Refusal::NotSupported);
        }
        let multiprocessors = gpu.multiprocessors * slices / all;
        Ok(ComputeProfile { id: number, slices, instances_max: all / slices, multiprocessors })
    }

    /// Where it may start inside the GPU instance.
    pub fn starts(self) -> impl Iterator<Item = u32> {
        let step = if self.slices == 3 { 4 } else { self.slices };
        (0..self.instances_max).map(move |index| index * step)
    }

    /// Its name as `nvidia-smi mig -lcip` prints it, such as `1c.3g.40gb`; one that fills its GPU instance has that one's name.
    #[must_use]
    pub fn name(self, gpu: &Profile) -> String {
        if self.slices == gpu.compute_slices { gpu.name.to_owned() } else { format!("{}c.{}", self.slices, gpu.name) }
    }
}

impl GpuInstance {
    fn can_hold(&self, profile: ComputeProfile, start: u32) -> bool {
        let is_disjoint =
            |other: &ComputeInstance| start + profile.slices <= other.start || other.start + other.size <= start;
        profile.starts().any(|legal| legal == start) && self.compute.iter().all(is_disjoint)
    }

    /// How many compute instances of `profile` can be made beside what stands.
    #[must_use]
    pub fn remaining(&self, profile: ComputeProfile) -> usize {
        profile.starts().filter(|start| self.can_hold(profile, *start)).count()
    }

    /// The compute instance of this id.
    ///
    /// # Errors
    /// There is none.
    pub fn compute_instance(&self, id: u32) -> Answer<&ComputeInstance> {
        self.compute.iter().find(|instance| instance.id == id).ok_or(Refusal::NotFound)
    }
}

impl Card {
    /// Makes a compute instance at the first free placement, or at exactly the given start and size.
    ///
    /// # Errors
    /// There is no such GPU instance, profile or placement; nothing is free there.
    pub fn make_compute(
        &mut self,
        gpu_instance: u32,
        profile_id: u32,
        at: Option<(u32, u32)>,
        serial: u32,
        uuid: String,
    ) -> Answer<&ComputeInstance> {
        let gpu_profile = self.profile_by_id(self.instance(gpu_instance)?.profile_id)?;
        let profile = ComputeProfile::of(gpu_profile, profile_id)?;
        let gpu = self.instance_mut(gpu_instance)?;
        let start = match at {
            Some((start, size)) if size == profile.slices && profile.starts().any(|legal| legal == start) => {
                gpu.can_hold(profile, start).then_some(start)
            }
            Some(_) => return Err(Refusal::InvalidArgument),
            None => profile.starts().find(|start| gpu.can_hold(profile, *start)),
        };
        let start = start.ok_or(Refusal::InsufficientResources)?;
        let is_free = |id: &u32| gpu.compute_instance(*id).is_err();
        let id = (0..8).find(is_free).ok_or(Refusal::InsufficientResources)?;
        let at = gpu.compute.partition_point(|instance| instance.id < id);
        gpu.compute.insert(at, ComputeInstance { id, profile_id, start, size: profile.slices, uuid, serial });
        Ok(&gpu.compute[at])
    }

    /// Destroys a compute instance.
    ///
    /// # Errors
    /// There is none; a process uses it.
    pub fn destroy_compute(&mut self, gpu_instance: u32, id: u32) -> Answer<()> {
        self.instance(gpu_instance)?.compute_instance(id)?;
        let is_used = self.listed_in(gpu_instance).any(|compute| compute.is_none_or(|compute| compute == id));
        if is_used {
            return Err(Refusal::InUse);
        }
        self.instance_mut(gpu_instance)?.compute.retain(|instance| instance.id != id);
        Ok(())
    }

    /// The compute instances of the processes in a GPU instance.
    fn listed_in(&self, gpu_instance: u32) -> impl Iterator<Item = Option<u32>> {
        let inside = move |process: &&Process| process.gpu_instance == Some(gpu_instance);
        self.processes.iter().filter(inside).map(|process| process.compute_instance)
    }
}

//! GPU instances: where they stand, their ids, and when one can be made or destroyed.
//!
//! What must stay true: an instance stands at a placement of its profile, no two share a memory slice, media engines are given once; an
//! instance with a compute instance or a process is not destroyed; ids come back, serials and UUIDs never do.

use super::card::Card;
use super::gauges::Load;
use super::instance::{ComputeInstance, GpuInstance};
use super::profiles::{self, Profile};
use super::refusal::{Answer, Refusal};

impl GpuInstance {
    fn mask(&self) -> u32 {
        mask(self.start, self.size)
    }
}

const fn mask(start: u32, size: u32) -> u32 {
    ((1 << size) - 1) << start
}

/// First id and how many ids there are for instances of this many memory slices on a card of the eight-slice family: one of 8 (0), two of 4
/// (1, 2), four of 2 (3 to 6), eight of 1 (7 to 14), as the driver numbers them.
const fn ids(memory_slices: u32) -> std::ops::Range<u32> {
    match memory_slices {
        8 => 0..1,
        4 => 1..3,
        2 => 3..7,
        _ => 7..15,
    }
}

impl Card {
    /// The instance of this id.
    ///
    /// # Errors
    /// There is none.
    pub fn instance(&self, id: u32) -> Answer<&GpuInstance> {
        self.mig.instances.iter().find(|instance| instance.id == id).ok_or(Refusal::NotFound)
    }

    /// The instance of this id, to be changed.
    ///
    /// # Errors
    /// There is none.
    pub fn instance_mut(&mut self, id: u32) -> Answer<&mut GpuInstance> {
        self.mig.instances.iter_mut().find(|instance| instance.id == id).ok_or(Refusal::NotFound)
    }

    /// # Errors
    /// The card is not in MIG mode.
    pub fn in_mig_mode(&self) -> Answer<()> {
        if self.mig.is_on { Ok(()) } else { Err(Refusal::NotSupported) }
    }

    /// The profile of this number, whether MIG is on or not.
    ///
    /// # Errors
    /// The model has no MIG, or there is no such number, or this model lacks it.
    pub fn profile_by_number(&self, number: u32) -> Answer<&'static Profile> {
        /// `NVML_GPU_INSTANCE_PROFILE_COUNT`.
        const COUNT: u32 = 17;
        if number >= COUNT {
            return Err(Refusal::InvalidArgument);
        }
        profiles::by_number(self.model, number).ok_or(Refusal::NotSupported)
    }

    /// The profile of this id, whether MIG is on or not.
    ///
    /// # Errors
    /// The model has no MIG, or no such profile.
    pub fn profile_by_id(&self, id: u32) -> Answer<&'static Profile> {
        if !self.has_mig() {
            return Err(Refusal::NotSupported);
        }
        profiles::by_id(self.model, id).ok_or(Refusal::InvalidArgument)
    }

    /// Whether an instance of `profile` can be made at `start` now.
    #[must_use]
    pub fn can_stand(&self, profile: &Profile, start: u32) -> bool {
        let wanted = mask(start, profile.memory_slices);
        let taken = self.mig.instances.iter().fold(0, |mask, instance| mask | instance.mask());
        let has_media =
            |instance: &GpuInstance| profiles::by_id(self.model, instance.profile_id).is_some_and(Profile::has_media);
        let count = self.mig.instances.iter().filter(|instance| instance.profile_id == profile.id).count();
        profile.starts.contains(&start)
            && taken & wanted == 0
            && count < profile.instances_max as usize
            && !(profile.has_media() && self.mig.instances.iter().any(has_media))
    }

    /// How many instances of `profile` can be made beside what stands.
    #[must_use]
    pub fn remaining(&self, profile: &Profile) -> u32 {
        let mut card = self.clone();
        let mut count = 0;
        while card.make_instance(profile.id, None, u32::MAX).is_ok() {
            count += 1;
        }
        count
    }

    /// Makes a GPU instance at the first free placement, or at exactly the given start and size.
    ///
    /// # Errors
    /// MIG is off; no such profile or placement; nothing is free there.
    pub fn make_instance(&mut self, profile_id: u32, at: Option<(u32, u32)>, serial: u32) -> Answer<&GpuInstance> {
        self.in_mig_mode()?;
        let profile = self.profile_by_id(profile_id)?;
        let start = match at {
            Some((start, size)) if size == profile.memory_slices && profile.starts.contains(&start) => {
                self.can_stand(profile, start).then_some(start)
            }
            Some(_) => return Err(Refusal::InvalidArgument),
            None => profile.starts.iter().copied().find(|start| self.can_stand(profile, *start)),
        };
        let start = start.ok_or(Refusal::InsufficientResources)?;
        let is_free = |id: &u32| self.instance(*id).is_err();
        let id = ids(profile.memory_slices).find(is_free).ok_or(Refusal::InsufficientResources)?;
        let at = self.mig.instances.partition_point(|instance| instance.id < id);
        let instance = GpuInstance {
            id,
            profile_id,
            start,
            size: profile.memory_slices,
            serial,
            compute: Vec::new(),
            memory_other_bytes: 0,
            load: Load::default(),
        };
        self.mig.instances.insert(at, instance);
        Ok(&self.mig.instances[at])
    }

    /// Destroys a GPU instance.
    ///
    /// # Errors
    /// There is none; a compute instance or a process is in it.
    pub fn destroy_instance(&mut self, id: u32) -> Answer<()> {
        let is_used = self.processes.iter().any(|process| process.gpu_instance == Some(id));
        if is_used || !self.instance(id)?.compute.is_empty() {
            return Err(Refusal::InUse);
        }
        self.mig.instances.retain(|instance| instance.id != id);
        Ok(())
    }

    /// The compute instances of the card as (GPU instance, compute instance), in the order in which NVML numbers its MIG devices.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&GpuInstance, &ComputeInstance)> {
        self.mig.instances.iter().flat_map(|gpu| gpu.compute.iter().map(move |compute| (gpu, compute)))
    }
}

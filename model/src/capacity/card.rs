//! One card: who holds it, and what else can still stand on it.

use crate::allocation::HoldMode;
use crate::driver::DriverVersion;
use crate::gpu::GpuModel;
use crate::ids::{AllocationId, TenantId};
use crate::mig::{self, MigPlacement};
use crate::node::{Gpu, Pool};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A share of a card under MPS or time-slicing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Who holds it.
    pub allocation: AllocationId,
    /// Active thread percentage; 0 under time-slicing.
    pub percent: u8,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// What is held of one card. It changes mode only when it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CardUse {
    /// Nobody has any of it.
    #[default]
    Free,
    /// One allocation has all of it.
    Whole(AllocationId),
    /// Cut into instances.
    Mig(Vec<(MigPlacement, AllocationId)>),
    /// Shared under MPS inside one trust domain.
    Mps {
        /// The organisation that all sharers belong to.
        domain: TenantId,
        /// The shares.
        shares: Vec<Share>,
    },
    /// Shared by turns inside one trust domain.
    TimeSlice {
        /// The organisation that all sharers belong to.
        domain: TenantId,
        /// The shares.
        shares: Vec<Share>,
    },
}

/// MPS takes at most this many clients per card, whatever a pool says (NVIDIA's limit from CUDA 13.1).
pub const MPS_CLIENTS_MAX: u8 = 60;
/// MPS takes at most this many on a driver before [`MPS_CLIENTS_MORE_DRIVER`]. A pool with more takes no node with an older one.
pub const MPS_CLIENTS_OLD_MAX: u8 = 48;
/// The first driver of CUDA 13.1.
pub const MPS_CLIENTS_MORE_DRIVER: DriverVersion = DriverVersion::major(590);
/// Time-slicing: contexts of 300–500 MB each make more than this many pointless.
pub const TIME_SLICE_REPLICAS_MAX: u8 = 32;

impl CardUse {
    /// What holds it, a card of `model`, in words, for refusals and tables.
    #[must_use]
    pub fn describe(&self, model: GpuModel) -> String {
        match self {
            CardUse::Free => "free".to_owned(),
            CardUse::Whole(AllocationId(0)) => "assigned to another rank of the same job".to_owned(),
            CardUse::Whole(id) => format!("held as a whole by allocation {id}"),
            CardUse::Mig(instances) => {
                let list: Vec<String> = instances.iter().map(|(place, _)| place.in_words(model)).collect();
                format!("partitioned into {}", list.join(", "))
            }
            CardUse::Mps { shares, .. } => format!(
                "shared under MPS by {} ({} %, {} MiB)",
                shares.len(),
                shares.iter().map(|s| u32::from(s.percent)).sum::<u32>(),
                shares.iter().map(|s| s.memory_mib).sum::<u64>()
            ),
            CardUse::TimeSlice { shares, .. } => {
                format!("time-sliced by {} ({} MiB)", shares.len(), shares.iter().map(|s| s.memory_mib).sum::<u64>())
            }
        }
    }

    /// Who holds any of it, each once.
    #[must_use]
    pub fn holders(&self) -> BTreeSet<AllocationId> {
        match self {
            CardUse::Free => BTreeSet::new(),
            CardUse::Whole(id) => [*id].into(),
            CardUse::Mig(instances) => instances.iter().map(|(_, id)| *id).collect(),
            CardUse::Mps { shares, .. } | CardUse::TimeSlice { shares, .. } => {
                shares.iter().map(|share| share.allocation).collect()
            }
        }
    }

    /// Whether `mode` can be taken beside what is held.
    ///
    /// # Errors
    /// What stands in the way, in words.
    pub fn can_take(&self, domain: TenantId, mode: HoldMode, gpu: &Gpu, pool: Option<&Pool>) -> Result<(), String> {
        let family = gpu.model.facts().mig;
        match (self, mode) {
            (CardUse::Free, HoldMode::Whole) => Ok(()),
            (CardUse::Free | CardUse::Mig(_), HoldMode::Mig(place)) => {
                let family = family.ok_or_else(|| format!("{} has no MIG", gpu.model))?;
                let standing = match self {
                    CardUse::Mig(instances) => &instances[..],
                    _ => &[],
                };
                let stands = mig::can_stand_beside(family, standing.iter().map(|(place, _)| *place), place);
                if stands { Ok(()) } else { Err(self.describe(gpu.model)) }
            }
            (CardUse::Free | CardUse::Mps { .. }, HoldMode::Mps { percent, memory_mib }) => {
                let clients = pool.map_or(MPS_CLIENTS_MAX, |p| p.mps_clients.min(MPS_CLIENTS_MAX));
                self.share_fits(domain, memory_mib, gpu, clients)?;
                let used: u32 = self.shares().iter().map(|s| u32::from(s.percent)).sum();
                if used + u32::from(percent) > 100 {
                    return Err(format!("{used} % of its compute is in use"));
                }
                Ok(())
            }
            (CardUse::Free | CardUse::TimeSlice { .. }, HoldMode::TimeSlice { memory_mib }) => {
                let replicas =
                    pool.map_or(TIME_SLICE_REPLICAS_MAX, |p| p.time_slice_replicas.min(TIME_SLICE_REPLICAS_MAX));
                self.share_fits(domain, memory_mib, gpu, replicas)
            }
            _ => Err(self.describe(gpu.model)),
        }
    }

    fn shares(&self) -> &[Share] {
        match self {
            CardUse::Mps { shares, .. } | CardUse::TimeSlice { shares, .. } => shares,
            _ => &[],
        }
    }

    fn share_fits(&self, domain: TenantId, memory_mib: u64, gpu: &Gpu, clients_max: u8) -> Result<(), String> {
        if let CardUse::Mps { domain: theirs, .. } | CardUse::TimeSlice { domain: theirs, .. } = self
            && *theirs != domain
        {
            return Err(format!("it is shared in the trust domain of tenant {theirs}"));
        }
        let shares = self.shares();
        if shares.len() >= usize::from(clients_max) {
            return Err(format!("it already has {clients_max} clients, its limit"));
        }
        let used: u64 = shares.iter().map(|s| s.memory_mib).sum();
        if used.saturating_add(memory_mib) > gpu.memory_mib {
            return Err(format!("{used} of its {} MiB are in use", gpu.memory_mib));
        }
        Ok(())
    }

    /// Takes `mode` for `allocation`, or says what was asked and what stands in the way.
    pub(super) fn take(
        &mut self,
        allocation: AllocationId,
        domain: TenantId,
        mode: HoldMode,
        gpu: &Gpu,
        pool: Option<&Pool>,
    ) -> Result<(), (String, String)> {
        self.can_take(domain, mode, gpu, pool).map_err(|held| (mode.in_words(gpu.model), held))?;
        match (&mut *self, mode) {
            (card, HoldMode::Whole) => *card = CardUse::Whole(allocation),
            (CardUse::Mig(instances), HoldMode::Mig(place)) => {
                instances.push((place, allocation));
                instances.sort_by_key(|(place, _)| place.start);
            }
            (card, HoldMode::Mig(place)) => *card = CardUse::Mig(vec![(place, allocation)]),
            (CardUse::Mps { shares, .. }, HoldMode::Mps { percent, memory_mib }) => {
                shares.push(Share { allocation, percent, memory_mib });
            }
            (card, HoldMode::Mps { percent, memory_mib }) => {
                *card = CardUse::Mps { domain, shares: vec![Share { allocation, percent, memory_mib }] };
            }
            (CardUse::TimeSlice { shares, .. }, HoldMode::TimeSlice { memory_mib }) => {
                shares.push(Share { allocation, percent: 0, memory_mib });
            }
            (card, HoldMode::TimeSlice { memory_mib }) => {
                *card = CardUse::TimeSlice { domain, shares: vec![Share { allocation, percent: 0, memory_mib }] };
            }
        }
        Ok(())
    }

    /// Whatever `old` holds of this card, `new` holds from now on.
    pub(super) fn rename(&mut self, old: AllocationId, new: AllocationId) {
        let swap = |holder: &mut AllocationId| {
            if *holder == old {
                *holder = new;
            }
        };
        match self {
            CardUse::Free => {}
            CardUse::Whole(holder) => swap(holder),
            CardUse::Mig(instances) => instances.iter_mut().for_each(|(_, holder)| swap(holder)),
            CardUse::Mps { shares, .. } | CardUse::TimeSlice { shares, .. } => {
                shares.iter_mut().for_each(|share| swap(&mut share.allocation));
            }
        }
    }

    /// Gives back whatever `allocation` holds of this card; an emptied card is free for any mode.
    pub(super) fn release(&mut self, allocation: AllocationId) {
        let empty = match self {
            CardUse::Free => true,
            CardUse::Whole(holder) => *holder == allocation,
            CardUse::Mig(instances) => {
                instances.retain(|(_, holder)| *holder != allocation);
                instances.is_empty()
            }
            CardUse::Mps { shares, .. } | CardUse::TimeSlice { shares, .. } => {
                shares.retain(|share| share.allocation != allocation);
                shares.is_empty()
            }
        };
        if empty {
            *self = CardUse::Free;
        }
    }
}

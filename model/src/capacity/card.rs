//! One card: who holds it, and what else can still stand on it.

use super::ShareRule;
use crate::driver::DriverVersion;
use crate::gpu::GpuModel;
use crate::ids::{AllocationId, TenantId};
use crate::mig::{self, MigPlacement};
use crate::node::{Gpu, Pool};
use crate::request::SharingMode;
use crate::task::HoldMode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

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
    /// Cut into instances. One without an allocation is withheld: it takes its place, and nobody gets it.
    Mig(Vec<(MigPlacement, Option<AllocationId>)>),
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

/// What keeps a card from being held in some way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardConflict {
    /// Its model cannot be partitioned.
    NoMig,
    /// It is held so.
    Held(CardUse),
    /// It is shared inside another trust domain.
    Domain {
        /// The organisation of that domain.
        tenant: TenantId,
    },
    /// As many share it as may.
    Clients {
        /// How many may.
        most: u8,
    },
    /// Too much of its threads is held.
    Threads {
        /// In percent.
        held: u32,
    },
    /// Too much of its memory is held.
    Memory {
        /// In MiB, with what each client's context takes.
        held: u64,
        /// MiB that it has for shares.
        of: u64,
    },
}

/// By which rules a card is given to whoever asks.
#[derive(Clone, Copy, Debug)]
pub struct CardRules<'a> {
    /// Those of its pool.
    pub pool: &'a Pool,
    /// How much of it its shares may have.
    pub shares: ShareRule,
}

impl CardConflict {
    /// For people, of a card of `model`.
    #[must_use]
    pub fn on(&self, model: GpuModel) -> impl fmt::Display {
        fmt::from_fn(move |f| match self {
            CardConflict::NoMig => write!(f, "{model} has no MIG"),
            CardConflict::Held(held) => f.write_str(&held.describe(model)),
            CardConflict::Domain { tenant } => write!(f, "it is shared in the trust domain of tenant {tenant}"),
            CardConflict::Clients { most } => write!(f, "it already has {most} clients, its limit"),
            CardConflict::Threads { held } => write!(f, "{held} % of its compute is in use"),
            CardConflict::Memory { held, of } => write!(f, "{held} of its {of} MiB for shares are in use"),
        })
    }
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
                let name = |(place, holder): &(MigPlacement, Option<AllocationId>)| {
                    place.in_words(model) + if holder.is_none() { " (withheld)" } else { "" }
                };
                let list: Vec<String> = instances.iter().map(name).collect();
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
            CardUse::Mig(instances) => instances.iter().filter_map(|(_, id)| *id).collect(),
            CardUse::Mps { shares, .. } | CardUse::TimeSlice { shares, .. } => {
                shares.iter().map(|share| share.allocation).collect()
            }
        }
    }

    /// Whether `mode` can be taken beside what is held. Without rules: whether the card itself can, which is asked of what is held already.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn can_take(
        &self,
        domain: TenantId,
        mode: HoldMode,
        gpu: &Gpu,
        rules: Option<CardRules<'_>>,
    ) -> Result<(), CardConflict> {
        let family = gpu.model.facts().mig;
        match (self, mode) {
            (CardUse::Free, HoldMode::Whole) => Ok(()),
            (CardUse::Free | CardUse::Mig(_), HoldMode::Mig(place)) => {
                let family = family.ok_or(CardConflict::NoMig)?;
                let standing = match self {
                    CardUse::Mig(instances) => &instances[..],
                    _ => &[],
                };
                let stands = mig::can_stand_beside(family, standing.iter().map(|(place, _)| *place), place);
                if stands { Ok(()) } else { Err(CardConflict::Held(self.clone())) }
            }
            (CardUse::Free | CardUse::Mps { .. }, HoldMode::Mps { percent, memory_mib }) => {
                let clients = rules.map_or(MPS_CLIENTS_MAX, |rules| rules.pool.mps_clients.min(MPS_CLIENTS_MAX));
                self.share_fits(domain, (SharingMode::Mps, memory_mib), gpu, (clients, rules))?;
                let held: u32 = self.shares().iter().map(|s| u32::from(s.percent)).sum();
                if held + u32::from(percent) > 100 {
                    return Err(CardConflict::Threads { held });
                }
                Ok(())
            }
            (CardUse::Free | CardUse::TimeSlice { .. }, HoldMode::TimeSlice { memory_mib }) => {
                let most = |rules: CardRules<'_>| rules.pool.time_slice_replicas.min(TIME_SLICE_REPLICAS_MAX);
                let replicas = rules.map_or(TIME_SLICE_REPLICAS_MAX, most);
                self.share_fits(domain, (SharingMode::TimeSlice, memory_mib), gpu, (replicas, rules))
            }
            _ => Err(CardConflict::Held(self.clone())),
        }
    }

    fn shares(&self) -> &[Share] {
        match self {
            CardUse::Mps { shares, .. } | CardUse::TimeSlice { shares, .. } => shares,
            _ => &[],
        }
    }

    fn share_fits(
        &self,
        domain: TenantId,
        (mode, memory_mib): (SharingMode, u64),
        gpu: &Gpu,
        (most, rules): (u8, Option<CardRules<'_>>),
    ) -> Result<(), CardConflict> {
        if let CardUse::Mps { domain: theirs, .. } | CardUse::TimeSlice { domain: theirs, .. } = self
            && *theirs != domain
        {
            return Err(CardConflict::Domain { tenant: *theirs });
        }
        let shares = self.shares();
        if shares.len() >= usize::from(most) {
            return Err(CardConflict::Clients { most });
        }
        // What runs was given by the rules of its time.
        let rule = rules.map_or(ShareRule::All, |rules| rules.shares);
        let memory = shares.iter().map(|share| share.memory_mib).sum();
        let held = rule.all_take_mib(gpu.model, mode, shares.len() as u64, memory);
        let room = rule.room_mib(gpu.model, mode, gpu.memory_mib);
        if held.saturating_add(rule.takes_mib(gpu.model, mode, memory_mib)) > room {
            return Err(CardConflict::Memory { held, of: room });
        }
        Ok(())
    }

    /// Takes `mode` for `allocation`, or says what stands in the way.
    pub(super) fn take(
        &mut self,
        allocation: AllocationId,
        domain: TenantId,
        mode: HoldMode,
        gpu: &Gpu,
        rules: Option<CardRules<'_>>,
    ) -> Result<(), CardConflict> {
        self.can_take(domain, mode, gpu, rules)?;
        match (&mut *self, mode) {
            (card, HoldMode::Whole) => *card = CardUse::Whole(allocation),
            (CardUse::Mig(instances), HoldMode::Mig(place)) => {
                instances.push((place, Some(allocation)));
                instances.sort_by_key(|(place, _)| place.start);
            }
            (card, HoldMode::Mig(place)) => *card = CardUse::Mig(vec![(place, Some(allocation))]),
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
            CardUse::Mig(instances) => instances.iter_mut().filter_map(|(_, holder)| holder.as_mut()).for_each(swap),
            CardUse::Mps { shares, .. } | CardUse::TimeSlice { shares, .. } => {
                shares.iter_mut().for_each(|share| swap(&mut share.allocation));
            }
        }
    }

    /// Leaves what is held, and nothing that is withheld.
    pub(super) fn lift_withheld(&mut self) {
        if let CardUse::Mig(instances) = self {
            instances.retain(|(_, holder)| holder.is_some());
            if instances.is_empty() {
                *self = CardUse::Free;
            }
        }
    }

    /// Puts what is withheld of the card in its place, as far as nobody holds anything there; what was withheld and is not any more is free.
    pub(super) fn withhold(&mut self, gpu: &Gpu) {
        self.lift_withheld();
        let mut instances = match self {
            CardUse::Free => Vec::new(),
            CardUse::Mig(instances) => std::mem::take(instances),
            CardUse::Whole(_) | CardUse::Mps { .. } | CardUse::TimeSlice { .. } => return,
        };
        for slice in &gpu.withheld_slices {
            let Some(family) = gpu.model.facts().mig else { break };
            if mig::can_stand_beside(family, instances.iter().map(|(place, _)| *place), slice.place) {
                instances.push((slice.place, None));
            }
        }
        instances.sort_by_key(|(place, _)| place.start);
        *self = if instances.is_empty() { CardUse::Free } else { CardUse::Mig(instances) };
    }

    /// Gives back whatever `allocation` holds of this card; an emptied card is free for any mode.
    pub(super) fn release(&mut self, allocation: AllocationId) {
        let empty = match self {
            CardUse::Free => true,
            CardUse::Whole(holder) => *holder == allocation,
            CardUse::Mig(instances) => {
                instances.retain(|(_, holder)| *holder != Some(allocation));
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

//! What a card has for its shares: its memory without what the driver keeps of it and what the context of each client takes.
//!
//! What must stay true: a program of a share may use the share's memory and one context beside it, and nothing else is counted on; so when
//! every client of a card uses all that it may, the card's memory suffices. The ledger, the placement of a shard, the limits at the MPS server
//! and the watch of the agent take their figures from here, and from nowhere else.
//!
//! The figures are upper bounds from public measurements of idle contexts (300 to 500 MiB, by the number of the model's multiprocessors) and from
//! what NVML lists as reserved (256 to 640 MiB). A context grows with the kernels that a program loads: what it takes beyond the figure comes
//! out of its own share.

use crate::gpu::GpuModel;
use crate::request::SharingMode;

/// What the MPS server of a card takes by itself, in MiB: it holds a context that runs nothing.
const MPS_SERVER_MIB: u64 = 64;
/// By so much may the figures of a driver's lists pass what a client has allocated, in MiB: they count whole pages of 2 MiB.
const LISTED_MIB: u64 = 32;

/// How much of a card its shares may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareRule {
    /// All of its memory, as before feature level 3.
    All,
    /// What driver and contexts leave of it.
    #[default]
    WithoutOverhead,
}

/// What the driver keeps of a card, in MiB.
#[must_use]
pub const fn driver_mib(model: GpuModel) -> u64 {
    match model {
        GpuModel::V100_16 | GpuModel::V100_32 | GpuModel::P100 => 320,
        GpuModel::T4 | GpuModel::A10 | GpuModel::A30 => 480,
        GpuModel::A100_40
        | GpuModel::A100_80
        | GpuModel::L40S
        | GpuModel::H100
        | GpuModel::H100_94
        | GpuModel::GH200
        | GpuModel::H200
        | GpuModel::B200 => 640,
    }
}

/// What the context of one client takes of a card, in MiB: nothing where cards are not shared in this mode. Clients of an MPS server have the
/// server's scheduling resources in common.
#[must_use]
pub const fn context_mib(model: GpuModel, mode: SharingMode) -> u64 {
    let of_its_own = match model {
        GpuModel::V100_16 | GpuModel::V100_32 | GpuModel::P100 | GpuModel::T4 | GpuModel::A10 | GpuModel::A30 => 320,
        GpuModel::A100_40 | GpuModel::A100_80 | GpuModel::L40S => 420,
        GpuModel::H100 | GpuModel::H100_94 | GpuModel::GH200 | GpuModel::H200 | GpuModel::B200 => 500,
    };
    match mode {
        SharingMode::TimeSlice => of_its_own,
        SharingMode::Mps => of_its_own - 20,
        SharingMode::Whole | SharingMode::Mig => 0,
    }
}

/// What a program of a share of `memory_mib` may use of the card, as the driver lists it, in MiB: the share and one context.
#[must_use]
pub const fn usable_mib(model: GpuModel, mode: SharingMode, memory_mib: u64) -> u64 {
    memory_mib.saturating_add(context_mib(model, mode))
}

/// What an MPS server grants a client of a share of `memory_mib`, in MiB. Its limit counts what CUDA allocates for itself.
#[must_use]
pub const fn mps_limit_mib(model: GpuModel, memory_mib: u64) -> u64 {
    usable_mib(model, SharingMode::Mps, memory_mib).saturating_sub(LISTED_MIB)
}

impl ShareRule {
    /// What the clients of a card with `total_mib` of memory may have together, contexts included, in MiB.
    #[must_use]
    pub const fn room_mib(self, model: GpuModel, mode: SharingMode, total_mib: u64) -> u64 {
        let server = if matches!(mode, SharingMode::Mps) { MPS_SERVER_MIB } else { 0 };
        match self {
            ShareRule::All => total_mib,
            ShareRule::WithoutOverhead => total_mib.saturating_sub(driver_mib(model) + server),
        }
    }

    /// What a share of `memory_mib` takes of that, in MiB.
    #[must_use]
    pub const fn takes_mib(self, model: GpuModel, mode: SharingMode, memory_mib: u64) -> u64 {
        match self {
            ShareRule::All => memory_mib,
            ShareRule::WithoutOverhead => usable_mib(model, mode, memory_mib),
        }
    }

    /// The same of several shares that have `memory_mib` together.
    #[must_use]
    pub const fn all_take_mib(self, model: GpuModel, mode: SharingMode, shares: u64, memory_mib: u64) -> u64 {
        let context = self.takes_mib(model, mode, 0);
        memory_mib.saturating_add(shares.saturating_mul(context))
    }

    /// The most memory that one share of an empty card may have, in MiB.
    #[must_use]
    pub const fn largest_mib(self, model: GpuModel, mode: SharingMode, total_mib: u64) -> u64 {
        self.room_mib(model, mode, total_mib).saturating_sub(self.takes_mib(model, mode, 0))
    }

    /// How many shares of `memory_mib` an empty card takes by its memory.
    #[must_use]
    pub fn count(self, model: GpuModel, mode: SharingMode, total_mib: u64, memory_mib: u64) -> u64 {
        self.room_mib(model, mode, total_mib) / self.takes_mib(model, mode, memory_mib).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_may_use_what_the_ledger_has_taken_for_it_and_its_server_grants_no_more() {
        for model in GpuModel::ALL {
            for mode in [SharingMode::Mps, SharingMode::TimeSlice] {
                let rule = ShareRule::WithoutOverhead;
                let (context, largest) = (context_mib(model, mode), rule.largest_mib(model, mode, model.memory_mib()));
                assert!((300..=500).contains(&context), "{model} {mode}: {context} MiB for a context");
                assert_eq!(rule.count(model, mode, model.memory_mib(), largest), 1, "{model} {mode}");
                assert_eq!(rule.count(model, mode, model.memory_mib(), largest + 1), 0, "{model} {mode}");
                assert_eq!(rule.takes_mib(model, mode, 1_024), usable_mib(model, mode, 1_024));
                assert_eq!(
                    rule.all_take_mib(model, mode, 2, 3_072),
                    usable_mib(model, mode, 1_024) + usable_mib(model, mode, 2_048)
                );
            }
            let (granted, usable) = (mps_limit_mib(model, 1_024), usable_mib(model, SharingMode::Mps, 1_024));
            assert!((1_024..usable).contains(&granted), "{model}: {granted} MiB granted, {usable} usable");
            assert_eq!(ShareRule::All.count(model, SharingMode::Mps, 40_960, 10_240), 4);
        }
    }
}

//! How tasks share the cards of a node beside what the ledger gives each: how long each has its turn, and how many processes each may have there.
//!
//! What must stay true: the clients of a card that its pool lets in have together no more processes than the card takes, so no task can keep
//! another's processes off it.

use crate::capacity::{MPS_CLIENTS_MAX, MPS_CLIENTS_MORE_DRIVER, MPS_CLIENTS_OLD_MAX, TIME_SLICE_REPLICAS_MAX};
use crate::driver::DriverVersion;
use crate::node::Pool;
use crate::request::SharingMode;

pub use crate::time_slice::TimeSlice;

/// How the cards of a node are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardSharing {
    /// How long a turn is.
    pub time_slice: TimeSlice,
    /// Processes that each client of an MPS server may have on its card.
    pub mps_processes_max: u8,
    /// Processes that each task may have on a time-sliced card.
    pub time_slice_processes_max: u8,
}

impl CardSharing {
    /// By the rules of the node's pool, with this driver.
    #[must_use]
    pub fn of(pool: &Pool, driver: Option<DriverVersion>) -> Self {
        let is_new = driver.is_some_and(|driver| driver >= MPS_CLIENTS_MORE_DRIVER);
        let clients = if is_new { MPS_CLIENTS_MAX } else { MPS_CLIENTS_OLD_MAX };
        CardSharing {
            time_slice: pool.time_slice,
            mps_processes_max: (clients / pool.mps_clients.max(1)).max(1),
            time_slice_processes_max: (TIME_SLICE_REPLICAS_MAX / pool.time_slice_replicas.max(1)).max(1),
        }
    }

    /// Processes that a task may have on a card that is shared in this mode; none where it has the card or its slice for itself.
    #[must_use]
    pub const fn processes_max(&self, mode: SharingMode) -> Option<u8> {
        match mode {
            SharingMode::Mps => Some(self.mps_processes_max),
            SharingMode::TimeSlice => Some(self.time_slice_processes_max),
            SharingMode::Whole | SharingMode::Mig => None,
        }
    }
}

impl Default for CardSharing {
    /// As the standard pool has it, on an old driver.
    fn default() -> Self {
        CardSharing::of(Pool::standard_rules(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clients_together_have_no_more_processes_than_the_card_takes() {
        for clients in 1..=MPS_CLIENTS_OLD_MAX {
            for replicas in 1..=TIME_SLICE_REPLICAS_MAX {
                let pool = Pool { mps_clients: clients, time_slice_replicas: replicas, ..Pool::standard() };
                let old = CardSharing::of(&pool, DriverVersion::reported("580.95"));
                let new = CardSharing::of(&pool, DriverVersion::reported("590.10"));
                assert!(old.mps_processes_max * clients <= 48 && new.mps_processes_max * clients <= 60);
                assert!(old.mps_processes_max >= 1 && new.mps_processes_max >= old.mps_processes_max);
                assert!((1..=32).contains(&(old.time_slice_processes_max * replicas)));
            }
        }
        let usual = CardSharing::default();
        assert_eq!(
            (usual.time_slice, usual.mps_processes_max, usual.time_slice_processes_max),
            (TimeSlice::Medium, 6, 8)
        );
    }
}

//! The stable word of each reason, and what it is about.
//!
//! What must stay true: words never change, since programs read them; every reason has one.

use super::anti_affinity::{AntiAffinityConflict, TooSpread};
use super::lift::Lift;
use super::reason::Why;
use super::supply::ClosedNode;
use super::words::HIDDEN;
use crate::job_class::JobClass;
use crate::view::ReservationFault;
use muster_model::{GpuModel, JobId, TopologyLevel};

impl Why {
    /// The stable word.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Why::JustQueued { .. } => "just_queued",
            Why::Requeued { .. } => "requeued",
            Why::NoCell { .. } => "larger_than_any_cell",
            Why::CellWithoutShard { .. } => "cell_without_shard",
            Why::NoCards { .. } => "no_gpus_in_cell",
            Why::OtherCell { .. } => "other_cell",
            Why::OverMax { .. } => "over_max",
            Why::NotLent(_) => "not_lent",
            Why::Preempting { .. } => "preempting",
            Why::Moving(_) => "moving",
            Why::Moved { .. } => "moved",
            Why::GrowthEnds(_) => "growth_given_back",
            Why::Untrusted => "untrusted",
            Why::StarvationGuard { .. } => "starvation_guard",
            Why::NoPool { .. } => "no_pool",
            Why::PoolFull { .. } => "pool_full",
            Why::DriverTooOld { .. } => "driver_too_old",
            Why::NotSelected { .. } => "not_selected",
            Why::NumaSplit { .. } => "numa",
            Why::Spread(_) => "spread",
            Why::AntiAffinityConflict(_) => "anti_affinity",
            Why::ReservedForGang(_) => "reserved_for_gang",
            Why::InWindow(_) => "in_window",
            Why::Reservation { .. } => "reservation",
            Why::Reserved(_) => "reserved",
            Why::NodesClosed { .. } => "nodes_closed",
            Why::LargerThanCell { .. } => "larger_than_cell",
            Why::NoFreeGpus { .. } => "no_free_gpus",
            Why::Topology { .. } => "topology",
            Why::HostTooFull { .. } => "host_too_full",
            Why::NodesTooFull { .. } => "nodes_too_full",
            Why::SplitOverPools { .. } => "pools",
            Why::PinnedLayout { .. } => "pinned_layout",
            Why::NoShare { .. } => "no_free_share",
        }
    }

    /// What it names, if anything.
    pub(super) fn subject(&self) -> Option<String> {
        match self {
            Why::OverMax { tenant, .. } | Why::AntiAffinityConflict(AntiAffinityConflict { other: tenant, .. }) => {
                Some(tenant.clone())
            }
            Why::CellWithoutShard { cell }
            | Why::NoCards { cell, .. }
            | Why::LargerThanCell { cell, .. }
            | Why::Spread(TooSpread { cell, .. })
            | Why::DriverTooOld { cell, .. }
            | Why::NotSelected { cell, .. }
            | Why::PinnedLayout { cell, .. } => Some(cell.clone()),
            Why::OtherCell { other, .. } => Some(other.clone()),
            Why::PoolFull { pool, .. } => Some(pool.clone()),
            Why::ReservedForGang(kept) => shown(kept.job),
            Why::InWindow(window) => Some(window.name.clone()),
            Why::Reservation { name, .. } => Some(name.clone()),
            Why::StarvationGuard { gang, .. } | Why::Moved { gang, .. } => shown(*gang),
            Why::Moving(leaving) | Why::GrowthEnds(leaving) => leaving.jobs.first().and_then(|job| shown(*job)),
            Why::NodesClosed { closed, .. } => closed.first().map(|node| node.name.clone()),
            _ => None,
        }
    }

    /// What keeps a job of this class from the reservation that it names.
    pub(super) fn reservation(class: &JobClass, fault: ReservationFault) -> Self {
        Why::Reservation { name: class.reservation.clone().unwrap_or_default(), fault }
    }

    /// What was lifted to find it.
    pub(super) fn lift(&self) -> Option<Lift> {
        Some(match self {
            Why::PoolFull { .. } => Lift::Pool,
            Why::DriverTooOld { .. } => Lift::Driver,
            Why::NotSelected { .. } => Lift::Selector,
            Why::ReservedForGang(_) => Lift::Reservations,
            Why::InWindow(_) | Why::Reservation { .. } => Lift::Windows,
            Why::AntiAffinityConflict(_) => Lift::Neighbours,
            Why::NumaSplit { .. } => Lift::Numa,
            Why::Spread(_) => Lift::Spread,
            Why::HostTooFull { .. } => Lift::Host,
            Why::Topology { .. } => Lift::Topology,
            Why::NodesClosed { .. } => Lift::Closed,
            _ => return None,
        })
    }

    /// The gang whose reservation is in the way.
    pub(super) fn reserving(&self) -> Option<JobId> {
        match self {
            Why::ReservedForGang(kept) => Some(kept.job),
            _ => None,
        }
    }

    /// The nodes that take no work, where they are what it waits for.
    pub(super) fn closed_nodes(&self) -> &[ClosedNode] {
        match self {
            Why::NodesClosed { closed, .. } => closed,
            _ => &[],
        }
    }

    /// The time limit with which it could start before a reservation.
    pub(super) fn time_limit_s(&self) -> Option<u64> {
        match self {
            Why::ReservedForGang(kept) => kept.time_limit_s,
            Why::InWindow(window) => window.time_limit_s,
            Why::Reservation { fault: ReservationFault::TooLong { time_limit_s, .. }, .. } => *time_limit_s,
            _ => None,
        }
    }

    /// The level over which it is spread, and how many tasks in one domain would do.
    pub(super) fn enough_in_one(&self) -> Option<(TopologyLevel, u32)> {
        match self {
            Why::Spread(spread) => Some((spread.level, spread.enough?)),
            _ => None,
        }
    }

    /// Whether jobs that hold something are what it waits for.
    pub(super) const fn is_about_holders(&self) -> bool {
        matches!(
            self,
            Why::NoFreeGpus { .. }
                | Why::NodesTooFull { .. }
                | Why::SplitOverPools { .. }
                | Why::Topology { .. }
                | Why::HostTooFull { .. }
                | Why::NoShare { .. }
                | Why::PinnedLayout { .. }
                | Why::PoolFull { .. }
                | Why::NumaSplit { .. }
                | Why::Spread(_)
                | Why::AntiAffinityConflict(_)
        )
    }

    /// The model it is about, where closeness is what it is about.
    pub(super) fn close_model(&self) -> Option<GpuModel> {
        match self {
            Why::Topology { model, .. } | Why::NodesTooFull { model, .. } => *model,
            _ => None,
        }
    }
}

/// A job that the reader may know of.
fn shown(job: JobId) -> Option<String> {
    (job != HIDDEN).then(|| job.to_string())
}

//! Windows: times for which nodes are kept from the usual work. Maintenance, advance reservations and drains by a deadline are windows.
//!
//! A window has nodes, a start, an end, and says who may use the nodes meanwhile. What must stay true:
//! - whoever may not use a window is placed on its nodes only if its time limit ends before the start; without a limit it is not placed there;
//! - a job that names a reservation stands on nodes of that reservation alone, and ends before its end unless the reservation is flexible;
//! - time decides nothing here: a window is open when the state says so.

use crate::gpu::GpuModel;
use crate::ids::{NodeId, TenantId};
use crate::preemption::{PREEMPT_GRACE_S_MAX, PreemptReason, STOP_MS_MAX};
use crate::words::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A task runs at most this long after it was bound. One that takes longer (a large image, a slow node) ends later than planned by as much.
pub const START_MS: u64 = 60_000;
/// The longest time before a window at which anything may have to be told to stop for it.
pub const STOP_AHEAD_MS_MAX: u64 = 1_000 * PREEMPT_GRACE_S_MAX + STOP_MS_MAX;
/// A window starts at most this far ahead, and is at most this long: a year and a day, as the longest time limit.
pub const WINDOW_MS_MAX: u64 = 366 * 86_400_000;
/// Windows of drains are named after their node, with this before it; nothing else is.
pub const DRAIN_PREFIX: &str = "drain-";

/// What a window is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WindowKind {
    /// Nobody may use the nodes.
    Maintenance,
    /// Jobs of some tenants that name it may.
    Reservation,
    /// Nobody may, and at its start the nodes are drained: it has no end.
    Drain,
}

impl WindowKind {
    /// All of them.
    pub const ALL: [WindowKind; 3] = [WindowKind::Maintenance, WindowKind::Reservation, WindowKind::Drain];
}

words!(WindowKind, "kind of window",
    WindowKind::Maintenance => "maintenance", WindowKind::Reservation => "reservation", WindowKind::Drain => "drain");

/// What an operator asks for. Checked by [`crate::validate`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSpec {
    /// Unique among windows.
    pub name: String,
    /// What for.
    pub kind: WindowKind,
    /// Names of its nodes; empty for a reservation that is to choose them.
    pub nodes: Vec<String>,
    /// GPUs that a reservation is to have at least, on nodes that are chosen for it; 0: the nodes are named.
    pub gpus: u64,
    /// Their model.
    pub model: Option<GpuModel>,
    /// When it begins, in milliseconds since the Unix epoch; what is past means now.
    pub start_ms: u64,
    /// When it ends; none for a drain.
    pub end_ms: Option<u64>,
    /// Why, for people.
    pub reason: String,
    /// Paths of the tenants that may use a reservation, those below them included.
    pub tenants: Vec<String>,
    /// Jobs that name the reservation may start before it and run past its end.
    pub flex: bool,
    /// What still runs on the nodes is preempted in time, so that it is gone at the start. Otherwise it runs on.
    pub preempt: bool,
}

/// A window of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Unique among windows.
    pub name: String,
    /// What for.
    pub kind: WindowKind,
    /// The nodes.
    pub nodes: BTreeSet<NodeId>,
    /// When it begins, in milliseconds since the Unix epoch.
    pub start_ms: u64,
    /// When it ends; none for a drain.
    pub end_ms: Option<u64>,
    /// Why, for people.
    pub reason: String,
    /// Who may use a reservation, with those below them.
    pub tenants: BTreeSet<TenantId>,
    /// Jobs that name the reservation may start before it and run past its end.
    pub flex: bool,
    /// What may not use it is preempted before the start.
    pub preempt: bool,
    /// It has begun.
    pub open: bool,
    /// When it was made.
    pub made_ms: u64,
}

/// What a node's place on the timeline needs to know of a window: when it keeps whom off.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowTimes {
    /// When it begins: the first of what windows are ordered by.
    pub start_ms: u64,
    /// When it ends.
    pub end_ms: Option<u64>,
    /// Its name.
    pub name: Arc<str>,
    /// What for.
    pub kind: WindowKind,
    /// Jobs that name it may start before it and run past its end.
    pub flex: bool,
    /// It has begun.
    pub open: bool,
}

impl WindowTimes {
    /// Whether a job may be placed on its nodes that would be over by `over_ms` at the latest (the end of time when nothing bounds it) and names
    /// this reservation.
    #[must_use]
    pub fn allows(&self, reservation: Option<&str>, over_ms: u64) -> bool {
        if self.is_reservation(reservation) {
            let ends = self.end_ms.is_none_or(|end_ms| over_ms <= end_ms);
            return self.flex || self.open && ends;
        }
        !self.open && over_ms <= self.start_ms
    }

    /// Whether it is the reservation that a job names.
    #[must_use]
    pub fn is_reservation(&self, named: Option<&str>) -> bool {
        self.kind == WindowKind::Reservation && named == Some(&*self.name)
    }
}

impl Window {
    /// When it keeps whom off.
    #[must_use]
    pub fn times(&self) -> WindowTimes {
        let Window { name, kind, start_ms, end_ms, flex, open, .. } = self;
        let (start_ms, end_ms, kind, flex, open) = (*start_ms, *end_ms, *kind, *flex, *open);
        WindowTimes { start_ms, end_ms, name: Arc::from(name.as_str()), kind, flex, open }
    }

    /// Whether a job that names this reservation may use it while others may not.
    #[must_use]
    pub fn is_named_by(&self, reservation: Option<&str>) -> bool {
        self.kind == WindowKind::Reservation && reservation == Some(&*self.name)
    }

    /// Whether the times of the two have a moment in common.
    #[must_use]
    pub fn overlaps(&self, start_ms: u64, end_ms: Option<u64>) -> bool {
        self.end_ms.is_none_or(|end| start_ms < end) && end_ms.is_none_or(|end| self.start_ms < end)
    }
}

impl From<WindowKind> for PreemptReason {
    fn from(kind: WindowKind) -> Self {
        match kind {
            WindowKind::Maintenance => PreemptReason::Maintenance,
            WindowKind::Reservation => PreemptReason::Reservation,
            WindowKind::Drain => PreemptReason::Drain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(kind: WindowKind, open: bool, flex: bool) -> WindowTimes {
        WindowTimes { start_ms: 1_000, end_ms: Some(2_000), name: Arc::from("a"), kind, flex, open }
    }

    #[test]
    fn others_must_be_over_by_the_start_and_stay_off_while_it_is_open() {
        for kind in WindowKind::ALL {
            assert!(times(kind, false, false).allows(None, 1_000), "{kind}");
            assert!(!times(kind, false, false).allows(None, 1_001), "{kind}");
            assert!(!times(kind, false, false).allows(Some("b"), u64::MAX), "{kind}");
            assert!(!times(kind, true, true).allows(None, 0), "{kind}");
        }
    }

    #[test]
    fn who_names_a_reservation_uses_it_while_it_is_open_and_with_flex_around_it() {
        let of = |open, flex| times(WindowKind::Reservation, open, flex);
        assert!(of(true, false).allows(Some("a"), 2_000));
        assert!(!of(true, false).allows(Some("a"), 2_001));
        assert!(!of(false, false).allows(Some("a"), 1_500));
        assert!(of(false, true).allows(Some("a"), u64::MAX) && of(true, true).allows(Some("a"), u64::MAX));
        assert!(!times(WindowKind::Maintenance, true, true).allows(Some("a"), 0));
    }
}

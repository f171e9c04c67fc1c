//! Windows of the fleet as the view knows them: which nodes they keep from whom is written on the nodes, in the index.
//!
//! What must stay true: a node's windows in the index are those of the windows that the control plane has committed; when one comes, opens or goes,
//! whoever waits for room or for a reservation is tried again, and reservations of gangs on its nodes are looked at again.

use super::View;
use crate::job_class::JobClass;
use crate::queue::Obstacle;
use muster_model::{NodeId, TaskPlacement, TenantId, Window, WindowKind, WindowTimes};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why a job cannot use the reservation that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationFault {
    /// There is none of that name: it is over, or was given up.
    Gone,
    /// It is for other tenants.
    NotForTenant,
    /// It has not begun.
    NotOpen {
        /// When it does, ms since the Unix epoch.
        start_ms: u64,
    },
    /// The job may run past its end.
    TooLong {
        /// When it ends, ms since the Unix epoch.
        end_ms: u64,
        /// The longest time limit with which it could start now, in seconds, if any is short enough.
        time_limit_s: Option<u64>,
    },
    /// Its nodes have no place for the job.
    Full,
}

impl View {
    pub(super) fn put_window(&mut self, window: Window) {
        let times = window.times();
        let old = self.windows.insert(window.name.clone(), Arc::new(window.clone()));
        let mut nodes = window.nodes;
        nodes.extend(old.iter().flat_map(|old| &old.nodes).copied());
        self.windows_changed(&window.name, &nodes, Some(&times));
    }

    pub(super) fn delete_window(&mut self, name: &str) {
        if let Some(old) = self.windows.remove(name) {
            self.windows_changed(name, &old.nodes, None);
        }
    }

    fn windows_changed(&mut self, name: &str, nodes: &BTreeSet<NodeId>, times: Option<&WindowTimes>) {
        for node in nodes {
            let here = times.filter(|_| self.windows.get(name).is_some_and(|window| window.nodes.contains(node)));
            let others = self.fleet.index.windows_of(*node).iter().filter(|other| &*other.name != name).cloned();
            let mut windows: Vec<WindowTimes> = others.chain(here.cloned()).collect();
            windows.sort_unstable();
            self.fleet.set_windows(*node, Arc::from(windows));
            self.invalidate(*node);
        }
        self.everything_freed();
        self.reclaims_tried.clear();
        self.queues.values_mut().for_each(|queue| queue.wake(Obstacle::Reservation));
    }

    /// Why a job of `tenant` cannot use the reservation that it names, as far as no search is needed for that.
    pub(crate) fn reservation_fault(
        &self,
        tenant: TenantId,
        class: &JobClass,
        now_ms: u64,
    ) -> Option<ReservationFault> {
        let name = class.reservation.as_ref().filter(|_| class.heeds_windows)?;
        let Some(window) = self.windows.get(name).filter(|window| window.kind == WindowKind::Reservation) else {
            return Some(ReservationFault::Gone);
        };
        if !self.fleet.capacity.line_of(tenant).any(|(id, _)| window.tenants.contains(&id)) {
            return Some(ReservationFault::NotForTenant);
        }
        if window.flex {
            return None;
        }
        if !window.open {
            return Some(ReservationFault::NotOpen { start_ms: window.start_ms });
        }
        let end_ms = window.end_ms.unwrap_or(u64::MAX);
        let over_ms = now_ms.saturating_add(class.stays_at_most_ms());
        let time_limit_s = class.limit_until_s(now_ms, end_ms);
        (over_ms > end_ms).then_some(ReservationFault::TooLong { end_ms, time_limit_s })
    }

    /// Whether the windows of these nodes let a job of this class begin there at `begin_ms`.
    pub(crate) fn windows_allow(&self, class: &JobClass, tasks: &[TaskPlacement], begin_ms: u64) -> bool {
        let over_ms = begin_ms.saturating_add(class.stays_at_most_ms());
        let allows = |times: &WindowTimes| times.allows(class.reservation.as_deref(), over_ms);
        self.windows.is_empty() || tasks.iter().all(|task| self.fleet.index.windows_of(task.node).iter().all(allows))
    }

    /// For how long at most a job may stand on nodes whose windows have not opened, from the last pass on; 0 when there are none.
    pub(super) fn before_windows_ms(&self) -> u64 {
        let planned = self.windows.values().filter(|window| !window.open);
        planned.map(|window| window.start_ms).max().unwrap_or(0).saturating_sub(self.last_pass_ms)
    }
}

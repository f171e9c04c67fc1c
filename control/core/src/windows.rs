//! What the windows of the fleet say about a place: whether a job may stand there now, and when time decides something about a window next.
//!
//! What must stay true: without windows this costs nothing; the shard asks the same of [`muster_model::WindowTimes`], so that it proposes nothing
//! that is refused here for another reason than that time has passed.

use crate::reject::Reject;
use crate::shape_fault::WindowFault;
use crate::state::State;
use muster_model::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use muster_model::window::STOP_AHEAD_MS_MAX;
use muster_model::{Allocation, AllocationState, Job, JobSpec, Window, WindowKind};
use std::collections::BTreeSet;

impl State {
    /// The windows that a node is in.
    pub fn windows_on(&self, node: NodeId) -> impl Iterator<Item = &Window> + '_ {
        self.index().windows_on(node).filter_map(|name| self.windows.get(name))
    }

    /// The cell of a window's nodes: those of a reservation are in one.
    pub(crate) fn cell_of_window(&self, name: &str) -> Option<CellId> {
        self.windows.get(name)?.nodes.iter().find_map(|node| self.nodes.get(node)).map(|node| node.cell)
    }

    /// Whether `tenant` may use a reservation.
    #[must_use]
    pub fn may_use(&self, window: &Window, tenant: TenantId) -> bool {
        self.capacity().line_of(tenant).any(|(id, _)| window.tenants.contains(&id))
    }

    /// When time decides something next, about jobs or about windows, as far as that is known at `now_ms`.
    #[must_use]
    pub fn next_due_ms(&self, now_ms: u64) -> Option<u64> {
        let windows = self.windows.values().filter_map(|window| self.window_due_ms(window, now_ms));
        windows.chain(self.index().starts.next_due_ms()).min()
    }

    /// The same of one window. Long before its start nobody looks at what runs there.
    pub(crate) fn window_due_ms(&self, window: &Window, now_ms: u64) -> Option<u64> {
        if window.open {
            return window.end_ms;
        }
        let look_ms = window.start_ms.saturating_sub(STOP_AHEAD_MS_MAX);
        if !window.preempt {
            return Some(window.start_ms);
        }
        if now_ms < look_ms {
            return Some(look_ms);
        }
        let stops = self.in_the_way(window).filter_map(|held| self.stop_ms(window, held));
        Some(stops.chain([window.start_ms]).min().unwrap_or(window.start_ms))
    }

    /// What runs on the nodes of a window that may not use it.
    pub fn in_the_way<'a>(&'a self, window: &'a Window) -> impl Iterator<Item = &'a Allocation> + 'a {
        let on = |node: &NodeId| self.index().allocations_on(*node);
        let held: BTreeSet<AllocationId> = window.nodes.iter().flat_map(on).collect();
        held.into_iter().filter_map(|id| self.allocations.get(&id).map(AsRef::as_ref)).filter(|held| {
            let own = self.jobs.get(&held.job).is_some_and(|job| window.is_named_by(job.spec.reservation.as_deref()));
            held.state == AllocationState::Active && !own
        })
    }

    /// Jobs that run on the nodes of a window and may run into it by their time limits.
    pub fn jobs_into<'a>(&'a self, window: &'a Window) -> impl Iterator<Item = JobId> + 'a {
        self.in_the_way(window).filter_map(move |held| {
            let spec = &self.jobs.get(&held.job)?.spec;
            (window.open || latest_end_ms(held, spec) > window.start_ms).then_some(held.job)
        })
    }

    /// When an attempt is told to stop for a window; none when its time limit ends it before.
    pub(crate) fn stop_ms(&self, window: &Window, held: &Allocation) -> Option<u64> {
        let spec = &self.jobs.get(&held.job)?.spec;
        let stays = latest_end_ms(held, spec) > window.start_ms;
        Some(if stays { spec.stop_for_ms(window.start_ms) } else { window.start_ms })
    }
}

/// When an attempt is over at the latest; the end of time when nothing bounds it.
pub(crate) fn latest_end_ms(held: &Allocation, spec: &JobSpec) -> u64 {
    held.bound_ms.saturating_add(spec.stays_at_most_ms())
}

/// Whether the windows let a job that begins at `begin_ms` stand on these nodes.
///
/// # Errors
/// The first window that does not.
pub(crate) fn check(
    state: &State,
    job: &Job,
    nodes: impl Iterator<Item = NodeId>,
    begin_ms: u64,
) -> Result<(), Reject> {
    let named = job.spec.reservation.as_deref();
    if state.windows.is_empty() && named.is_none() {
        return Ok(());
    }
    let fault = |why: WindowFault| Reject::shape(job.id, why);
    if let Some(name) = named {
        let window = state.windows.get(name).filter(|window| window.kind == WindowKind::Reservation);
        let window = window.ok_or_else(|| fault(WindowFault::NoReservation { name: name.to_owned() }))?;
        if !state.may_use(window, job.tenant) {
            return Err(fault(WindowFault::NotForTenant { name: name.to_owned(), tenant: job.spec.tenant.clone() }));
        }
    }
    let over_ms = begin_ms.saturating_add(job.spec.stays_at_most_ms());
    let nodes: BTreeSet<NodeId> = nodes.collect();
    for node in nodes {
        let name_of = || state.nodes.get(&node).map_or_else(|| format!("#{node}"), |node| node.spec.name.clone());
        if let Some(name) = named
            && !state.windows_on(node).any(|window| window.name == name)
        {
            return Err(fault(WindowFault::OutsideReservation { node: name_of(), name: name.to_owned() }));
        }
        if let Some(window) = state.windows_on(node).find(|window| !window.times().allows(named, over_ms)) {
            let (name, kind, start_ms) = (window.name.clone(), window.kind, window.start_ms);
            return Err(fault(WindowFault::Closed { node: name_of(), kind, name, start_ms }));
        }
    }
    Ok(())
}

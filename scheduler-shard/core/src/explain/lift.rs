//! What a job insists on, or others do, that may keep it from a place; [`super::diagnose`] looks for a place without it.
//!
//! What must stay true: each is lifted alone; what is lifted from the fleet and not from the request leaves the request as it is.

use crate::job_class::ClassKey;
use muster_model::NumaPolicy;

/// Something that may stand in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lift {
    /// The only pool that it wants.
    Pool,
    Driver,
    Selector,
    /// Nodes that are reserved for others.
    Reservations,
    /// Maintenance, reservations and drains that lie ahead or have begun.
    Windows,
    /// Tenants that are kept apart from its own.
    Neighbours,
    Numa,
    Spread,
    /// Its tasks' CPU and memory.
    Host,
    /// The level that it requires, and its segments.
    Topology,
    /// Nodes that take no work.
    Closed,
}

impl Lift {
    pub(super) const ALL: [Lift; 11] = [
        Lift::Pool,
        Lift::Driver,
        Lift::Selector,
        Lift::Reservations,
        Lift::Windows,
        Lift::Neighbours,
        Lift::Numa,
        Lift::Spread,
        Lift::Host,
        Lift::Topology,
        Lift::Closed,
    ];

    /// The request without it.
    pub(super) fn lift(self, key: &mut ClassKey) {
        match self {
            Lift::Pool => key.pool = None,
            Lift::Driver => key.driver_min = None,
            Lift::Selector => key.selector = None,
            Lift::Neighbours => key.heeds_neighbours = false,
            Lift::Windows => key.heeds_windows = false,
            Lift::Numa => key.numa = NumaPolicy::None,
            Lift::Spread => key.topology.spread = None,
            Lift::Host => (key.request.cpu_milli, key.request.memory_mib) = (0, 0),
            Lift::Topology => {
                (key.topology.required, key.topology.segment_tasks) = (None, None);
                key.on_one_node &= key.tasks <= 1;
            }
            Lift::Reservations | Lift::Closed => {}
        }
    }
}

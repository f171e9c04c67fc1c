//! The state that is replicated, and the one way to change it.
//!
//! What must stay true: [`State::apply`] refuses nothing and is the only mutator. It panics on an allocation that does not fit the capacity ledger,
//! which `plan` has proved: that is a bug, every replica meets it at the same entry, and stops there before anything is stored. The
//! capacity ledger ([`Capacity`]) and the [`Index`] are derived from the objects alone, so that a state loaded by [`State::from_objects`] equals
//! one that applied every change.

mod kept;
mod kinds;

use crate::bounds::SHARE_OVERHEAD_LEVEL;
use crate::index::Index;
use kept::{Derived, Kept, Table};
use muster_model::capacity::{Capacity, ShareRule};
use muster_model::identity::Enrolment;
use muster_model::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use muster_model::object::{FIRST_INCARNATION, Key, Meta};
use muster_model::{AccessMode, Change, Object, Pool};
use std::collections::BTreeMap;

/// Makes the state out of the table of kinds.
macro_rules! state {
    ($($number:literal $kind:ident by $id:ty $(: $value:ty, |$it:ident| $name:expr, in $table:ident)?, $doc:literal;)*) => {
        /// Everything that lives in memory. Fields are public to read; only [`State::apply`] writes them.
        #[derive(Clone, Debug)]
        pub struct State {
            /// Counters and clock.
            pub meta: Meta,
            $($(
                #[doc = $doc]
                pub $table: <$value as Kept>::Table,
            )?)*
            /// What follows from the above.
            derived: Derived,
        }

        impl State {
            /// No objects but this one.
            fn of(meta: Meta) -> Self {
                let mut derived = Derived::default();
                derived.capacity.set_share_rule(share_rule(&meta));
                State { meta, $($($table: Default::default(),)?)* derived }
            }

            fn put(&mut self, object: Object) {
                match object {
                    Object::Meta(meta) => {
                        self.derived.capacity.watch_use(meta.half_life_s > 0);
                        self.derived.capacity.set_share_rule(share_rule(&meta));
                        self.meta = meta;
                    }
                    $($(Object::$kind(object) => Table::<$value>::put(&mut self.$table, object, &mut self.derived),)?)*
                }
                if self.derived.capacity.wants_tenants_counted() {
                    self.derived.capacity.count_tenants(self.allocations.values().map(AsRef::as_ref));
                }
            }

            fn delete(&mut self, key: &Key) {
                match key {
                    Key::Meta => {}
                    $(Key::$kind(id) => {
                        let _ = id;
                        $(Table::<$value>::delete(&mut self.$table, id, &mut self.derived);)?
                    })*
                }
            }

            /// Every object, in the order of its key: for snapshots, watches from the beginning, and comparing replicas. `Retire`d jobs
            /// are not among them.
            pub fn objects(&self) -> impl Iterator<Item = Object> + '_ {
                std::iter::once(Object::Meta(self.meta.clone()))
                    $($(.chain(Table::<$value>::all(&self.$table).map(Object::$kind)))?)*
            }
        }
    };
}

muster_model::replicated_kinds!(state);

/// Voters of an earlier version give all of a card's memory to its shares.
const fn share_rule(meta: &Meta) -> ShareRule {
    if meta.feature_level < SHARE_OVERHEAD_LEVEL { ShareRule::All } else { ShareRule::WithoutOverhead }
}

impl State {
    /// Pools as they are described, and last the standard one with its rules where nobody has described it.
    pub fn all_pools(&self) -> impl Iterator<Item = &Pool> {
        let standard = Some(Pool::standard_rules()).filter(|pool| !self.pools.contains_key(&pool.name));
        self.pools.values().chain(standard)
    }

    /// An empty cluster. Its identity is drawn by whoever bootstraps it; 0 as long as that has not happened. Ids count from 1.
    #[must_use]
    pub fn new(cluster: u64) -> Self {
        State::of(Meta {
            incarnation: FIRST_INCARNATION,
            feature_level: 1,
            next_job: JobId(1),
            next_allocation: AllocationId(1),
            next_node: NodeId(1),
            next_tenant: TenantId(1),
            next_cell: CellId(1),
            now_ms: 0,
            requests_floor_ms: 0,
            cluster,
            finished_kept: 0,
            finished_forgotten: 0,
            half_life_s: 0,
            access: AccessMode::Open,
            next_credential: 0,
            audited: 0,
            audit_head: [0; 32],
            audit_trimmed: 0,
            enrolment: Enrolment::Optional,
        })
    }

    /// A state from its objects, in any order: what a snapshot or a restart loads. Without a [`Meta`] among them it is as
    /// after [`State::new`]`(0)`.
    pub fn from_objects(objects: impl IntoIterator<Item = Object>) -> Self {
        let mut state = State::new(0);
        // Allocations are charged to nodes and tenants, so they wait until those are there; then in the order of their binding,
        // which is the order in which shares of a card are listed. So do jobs: what they have claimed is charged too.
        let (mut jobs, mut allocations) = (Vec::new(), BTreeMap::new());
        for object in objects {
            match object {
                Object::Allocation(allocation) => {
                    allocations.insert(allocation.id, allocation);
                }
                Object::Job(job) => jobs.push(job),
                other => state.put(other),
            }
        }
        jobs.into_iter().for_each(|job| state.put(Object::Job(job)));
        for allocation in allocations.into_values() {
            state.put(Object::Allocation(allocation));
        }
        // Histories of use are among the objects: what was charged just now is in them.
        state.take_use_changed();
        state
    }

    /// The capacity ledger.
    #[must_use]
    pub fn capacity(&self) -> &Capacity {
        &self.derived.capacity
    }

    /// Ways to find objects without scanning.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.derived.index
    }

    /// Floor accounts that have got something back, or whose size has changed, since this was asked last.
    pub(crate) fn take_freed(&mut self) -> std::collections::BTreeSet<TenantId> {
        self.derived.capacity.take_freed()
    }

    /// Tenants whose use has changed since this was asked last, with those above them; none where no half-life is set.
    pub(crate) fn take_use_changed(&mut self) -> std::collections::BTreeSet<TenantId> {
        self.derived.capacity.take_use_changed()
    }

    /// Makes one change.
    ///
    /// # Panics
    /// When an allocation does not fit the capacity ledger: `plan` has proved that it does.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(object) => self.put(Object::clone(object)),
            Change::Delete(key) => self.delete(key),
            Change::Retire(job) => self.delete(&Key::Job(job.id)),
            Change::Audit(_) => {}
        }
    }
}

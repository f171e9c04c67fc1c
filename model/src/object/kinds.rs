//! The kinds of objects that the replicated state holds: one table, from which [`Object`], [`Key`] and the tables of the state are made.
//!
//! What must stay true: rows are added at the end, and none is changed or removed. [`Object`] and [`Key`] are stored by the places of their
//! variants, and stored objects are found by the number of their kind.

use super::{FinishedJob, Meta, Number};
use crate::ids::{AllocationId, CellId, JobId, NodeId, TenantId};
use serde::{Deserialize, Serialize};

/// Hands the table to the macro `$with`. A row is:
///
/// `number` `Kind` by `what names it`: `what it is`, |it| `its name`, in `the state's table`, `"what it is, for people"`;
///
/// The number is the first byte of its key on disk. [`Meta`] is no row: there is one, and nothing names it. What has a key and is in no replica's
/// memory is a row without a value.
#[macro_export]
macro_rules! replicated_kinds {
    ($with:ident) => {
        $with! {
            1 Tenant by $crate::ids::TenantId: $crate::tenant::Tenant, |it| it.id, in tenants, "Tenants.";
            2 Pool by String: $crate::node::Pool, |it| it.name.clone(), in pools, "Pools.";
            3 Cell by $crate::ids::CellId: $crate::node::Cell, |it| it.id, in cells, "Cells and their leases.";
            4 Node by $crate::ids::NodeId: $crate::node::Node, |it| it.id, in nodes, "Nodes.";
            5 Job by $crate::ids::JobId: $crate::job::Job, |it| it.id, in jobs, "Live jobs.";
            6 Allocation by $crate::ids::AllocationId: $crate::allocation::Allocation, |it| it.id, in allocations,
                "Live allocations.";
            7 Request by String: $crate::object::RequestRecord, |it| it.id.to_string(), in requests,
                "Remembered submissions, by request id.";
            8 UsageStream by $crate::ids::NodeId: $crate::usage::UsageStream, |it| it.node, in usage_streams,
                "Marks of usage streams, by node.";
            9 UsageTotal by $crate::ids::TenantId: $crate::usage::UsageTotal, |it| it.tenant, in usage_totals,
                "Sums of usage, by tenant.";
            10 AllocationUsage by $crate::ids::AllocationId: $crate::usage::AllocationUsage, |it| it.allocation,
                in allocation_usage, "Sums of usage, by allocation.";
            11 DeviceClass by String: $crate::asked::DeviceClass, |it| it.name.clone(), in device_classes,
                "Device classes, by name.";
            12 RequestFloor by String: $crate::object::RequestFloor, |it| it.tenant.clone(), in request_floors,
                "Up to when request ids have been forgotten early, by the tenant's path.";
            13 RemovedNode by String: $crate::node::RemovedNode, |it| it.name.clone(), in removed_nodes,
                "Nodes that were taken out of the fleet, by name.";
            255 Finished by $crate::object::FinishedJob,
                "Finished jobs, which are in the history on disk and in no replica's memory.";
            14 RunTimes by $crate::ids::TenantId: $crate::run_times::RunTimes, |it| it.tenant, in run_times,
                "How long jobs ran, by tenant.";
            15 PriorityClass by String: $crate::priority_class::PriorityClass, |it| it.name.clone(), in priority_classes,
                "Priority classes, by name.";
            16 Window by String: $crate::window::Window, |it| it.name.clone(), in windows,
                "Maintenance windows, advance reservations and drains by a deadline, by name.";
            17 Move by $crate::ids::AllocationId: $crate::moves::MoveRecord, |it| it.id, in moves,
                "Moves that were executed, by the allocation of the gang that they were for.";
            18 UseHistory by $crate::ids::TenantId: $crate::use_history::UseHistory, |it| it.tenant, in use_histories,
                "What was used above guarantees, by tenant, where a half-life is set.";
            30 Grant by $crate::object::Number: $crate::identity::Grant, |it| $crate::object::Number(it.id), in grants,
                "Rights.";
            31 Credential by $crate::object::Number: $crate::identity::Credential, |it| $crate::object::Number(it.id), in credentials,
                "Sessions and service tokens.";
            32 Machine by String: $crate::identity::Machine, |it| it.principal.to_string(), in machines,
                "Identities of machines, by principal.";
            33 JoinToken by $crate::object::Number: $crate::identity::JoinToken, |it| $crate::object::Number(it.id), in join_tokens,
                "Join tokens.";
            34 AuditHead by $crate::object::Number: $crate::identity::AuditHead, |it| $crate::object::Number(it.member), in audit_heads,
                "How far each control node's chain of refusals goes.";
            254 Audited by $crate::object::Number,
                "Records of the audit, which are on disk and in no replica's memory.";
            19 TenantHistory by $crate::ids::TenantId: $crate::tenant_history::TenantHistory, |it| it.tenant,
                in tenant_histories, "What each tenant was over time, removed ones included.";
            35 Secret by String: $crate::identity::Secret, |it| $crate::identity::Secret::id_of(it.tenant, &it.name), in secrets,
                "Secrets of tenants, sealed.";
        }
    };
}

/// An object that has a name among others of its kind.
pub trait Replicated: Clone {
    /// What names it.
    type Id: Ord;

    /// Its name.
    fn object_id(&self) -> Self::Id;
}

macro_rules! objects {
    ($($number:literal $kind:ident by $id:ty $(: $value:ty, |$it:ident| $name:expr, in $table:ident)?, $doc:literal;)*) => {
        /// Anything that the replicated state holds.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Object {
            /// Counters and clock.
            Meta(Meta),
            $($(
                #[doc = $doc]
                $kind($value),
            )?)*
        }

        /// What names an object.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Key {
            /// There is one.
            Meta,
            $(
                #[doc = $doc]
                $kind($id),
            )*
        }

        $($(
            impl Replicated for $value {
                type Id = $id;
                fn object_id(&self) -> $id {
                    let $it = self;
                    $name
                }
            }
        )?)*

        impl Object {
            /// What names it.
            #[must_use]
            pub fn key(&self) -> Key {
                match self {
                    Object::Meta(_) => Key::Meta,
                    $($(Object::$kind($it) => Key::$kind($name),)?)*
                }
            }
        }

        impl Key {
            /// The key as bytes that order as keys do on disk: the number of the kind, then the id in the order of numbers, or the name.
            #[must_use]
            pub fn to_bytes(&self) -> Vec<u8> {
                fn of(kind: u8, id: &[u8]) -> Vec<u8> {
                    let mut bytes = Vec::with_capacity(1 + id.len());
                    bytes.push(kind);
                    bytes.extend_from_slice(id);
                    bytes
                }
                match self {
                    Key::Meta => of(0, &[]),
                    $(Key::$kind(id) => of($number, id.key_bytes().as_ref()),)*
                }
            }
        }
    };
}

replicated_kinds!(objects);

/// An id or a name as bytes that order as it does.
pub trait KeyBytes {
    /// Those bytes.
    fn key_bytes(&self) -> impl AsRef<[u8]> + '_;
}

macro_rules! numbers {
    ($($id:ty),*) => {
        $(impl KeyBytes for $id {
            fn key_bytes(&self) -> impl AsRef<[u8]> + '_ {
                self.0.to_be_bytes()
            }
        })*
    };
}
numbers!(TenantId, CellId, NodeId, JobId, AllocationId, Number);

impl KeyBytes for String {
    fn key_bytes(&self) -> impl AsRef<[u8]> + '_ {
        self.as_bytes()
    }
}

impl KeyBytes for FinishedJob {
    fn key_bytes(&self) -> impl AsRef<[u8]> + '_ {
        self.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! numbers_of {
        ($($number:literal $kind:ident by $id:ty $(: $value:ty, |$it:ident| $name:expr, in $table:ident)?, $doc:literal;)*) => {
            [$(($number as u8, stringify!($kind))),*]
        };
    }

    #[test]
    fn every_kind_has_a_number_of_its_own() {
        let mut numbers = replicated_kinds!(numbers_of).map(|(number, _)| number).to_vec();
        assert!(!numbers.contains(&0), "0 is that of `Meta`");
        numbers.sort_unstable();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    }

    #[test]
    fn keys_on_disk_are_what_they_were() {
        let check = |key: Key, bytes: &[u8]| assert_eq!(key.to_bytes(), bytes, "{key:?}");
        check(Key::Meta, &[0]);
        check(Key::Tenant(TenantId(258)), &[1, 0, 0, 1, 2]);
        check(Key::Pool("ab".to_owned()), b"\x02ab");
        check(Key::Cell(CellId(1)), &[3, 0, 0, 0, 1]);
        check(Key::Node(NodeId(1)), &[4, 0, 0, 0, 1]);
        check(Key::Job(JobId(258)), &[5, 0, 0, 0, 0, 0, 0, 1, 2]);
        check(Key::Allocation(AllocationId(1)), &[6, 0, 0, 0, 0, 0, 0, 0, 1]);
        check(Key::Request("ab".to_owned()), b"\x07ab");
        check(Key::UsageStream(NodeId(1)), &[8, 0, 0, 0, 1]);
        check(Key::UsageTotal(TenantId(1)), &[9, 0, 0, 0, 1]);
        check(Key::AllocationUsage(AllocationId(1)), &[10, 0, 0, 0, 0, 0, 0, 0, 1]);
        check(Key::DeviceClass("ab".to_owned()), b"\x0bab");
        check(Key::RequestFloor("a/b".to_owned()), b"\x0ca/b");
        check(Key::RemovedNode("ab".to_owned()), b"\x0dab");
        check(Key::PriorityClass("ab".to_owned()), b"\x0fab");
        check(Key::Window("ab".to_owned()), b"\x10ab");
        check(Key::RunTimes(TenantId(1)), &[14, 0, 0, 0, 1]);
        check(Key::UseHistory(TenantId(1)), &[18, 0, 0, 0, 1]);
        check(Key::TenantHistory(TenantId(1)), &[19, 0, 0, 0, 1]);
        let finished = Key::Finished(FinishedJob { finished_ms: 3, id: JobId(4) });
        check(finished, &[255, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4]);
    }
}

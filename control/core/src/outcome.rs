//! What an accepted command answers.

use muster_model::ids::{AllocationId, CellId, Epoch, JobId, NodeId};
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::TenantChange;
use serde::{Deserialize, Serialize};

/// The answer to an accepted command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// Jobs were accepted, now or by an earlier call with the same request id.
    Submitted {
        /// The first.
        first: JobId,
        /// How many, numbered consecutively.
        count: u32,
    },
    /// Accepted; nothing to say.
    Ok,
    /// The node is in the fleet.
    Joined {
        /// Its id.
        node: NodeId,
        /// Its epoch.
        epoch: Epoch,
        /// Its usage stream.
        usage_incarnation: u64,
        /// The last interval of it that has been counted.
        usage_mark: u64,
    },
    /// The lease is taken.
    Acquired {
        /// Of this cell.
        cell: CellId,
        /// Under this epoch.
        epoch: Epoch,
    },
    /// The gang is bound.
    Bound {
        /// Its allocation.
        allocation: AllocationId,
    },
    /// The job has another cell now.
    HandedOver {
        /// This one.
        to: CellId,
    },
    /// Usage is counted up to here.
    Counted {
        /// The mark.
        mark: u64,
    },
    /// The tree is as it was asked for.
    Tenants {
        /// What differs now, in the order of paths.
        changes: Vec<TenantChange>,
        /// What is gone now, as it was, in the order of paths.
        #[serde(default)]
        removed: Vec<TenantSpec>,
        /// The half-life of past use in seconds as it was, if it differs now.
        #[serde(default)]
        half_life_before_s: Option<u64>,
    },
    /// The state's time is the right one again.
    ClockReset {
        /// How far it had been ahead, in milliseconds.
        ahead_ms: u64,
        /// Objects whose times were corrected.
        corrected: u32,
        /// There are more of them: say it again.
        more: bool,
    },
    /// The agent may not be that node now; it is to ask again.
    TurnedAway {
        /// Why, for people, with what to do.
        why: String,
    },
    /// A grant or a credential is there.
    Numbered {
        /// Its id.
        id: u64,
    },
}

//! Identities as newtypes, so that a node cannot be passed where a job is meant.
//!
//! What must stay true: an id is given out by the replicated state only (its counters are part of the state), it is never
//! used twice, and it orders by age.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The one after this.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

id!(/// A job, numbered from 1 in order of submission.
    JobId(u64));
id!(/// One run of a job, numbered from 1 within it; at most one is live at a time.
    Attempt(u32));
id!(/// The hold of one attempt on devices.
    AllocationId(u64));
id!(/// A GPU host that has joined the fleet.
    NodeId(u32));
id!(/// A node of the quota tree.
    TenantId(u32));
id!(/// A disjoint set of nodes that one shard schedules at a time.
    CellId(u32));
id!(/// A fencing token: grows each time a lease changes hands; a message with an older one is refused.
    Epoch(u64));
id!(/// The index of the replicated log entry that made a change.
    Revision(u64));
id!(/// A task's place in its gang, from 0.
    Rank(u32));

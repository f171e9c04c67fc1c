//! Who acts in a cluster, with what right, and what is remembered of it.
//!
//! Authority is replicated state: certificates and tokens only prove who asks. What must stay true: a credential is kept as a hash and never as itself;
//! a right is a [`Grant`] on the quota tree or on the fleet, and nothing else; ids of grants and credentials come from one counter of the state.

mod audit;
mod credential;
mod grant;
mod machine;
mod principal;
mod secret;

pub use audit::{AuditHead, AuditRecord, Author};
pub use credential::{Credential, CredentialKind};
pub use grant::{Grant, Role, Subject};
pub use machine::{Enrolled, Enrolment, JoinToken, Machine, MachineRole, MachineStanding, SessionCount, Shown};
pub use principal::{BadPrincipal, Principal};
pub use secret::{Sealed, Secret};

use crate::words::words;
use serde::{Deserialize, Serialize};

/// Whether a cluster asks who calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AccessMode {
    /// Whoever reaches a port may do everything, as `anonymous`. Clusters of before identities existed begin so.
    #[default]
    Open,
    /// Every call but those that need no identity is judged by grants.
    Closed,
}

words!(AccessMode, "access mode", AccessMode::Open => "open", AccessMode::Closed => "closed");

//! Secrets of tenants: values that their jobs get in variables, and that nobody reads back.
//!
//! What must stay true: the state has a value sealed only, never as itself; a sealed value opens for its tenant and name alone.

use super::Principal;
use crate::ids::TenantId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A value under a key that control nodes have in a file, and that is in no log and no snapshot.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// Which key: the first bytes of its SHA-256.
    pub key: [u8; 8],
    /// Drawn for this value.
    pub nonce: [u8; 12],
    /// The value and its tag.
    pub text: Vec<u8>,
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("bytes", &self.text.len()).finish_non_exhaustive()
    }
}

/// A secret of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Whose.
    pub tenant: TenantId,
    /// What its jobs call it.
    pub name: String,
    /// What it is.
    pub sealed: Sealed,
    /// Who gave it its value.
    pub by: Principal,
    /// When.
    pub since_ms: u64,
}

impl Secret {
    /// What names a secret among those of all tenants.
    #[must_use]
    pub fn id_of(tenant: TenantId, name: &str) -> String {
        format!("{}/{name}", tenant.0)
    }
}

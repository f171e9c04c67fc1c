//! What people and services prove themselves with: sessions and service tokens.
//!
//! What must stay true: the secret itself is nowhere in the state, only its SHA-256; a credential ends by itself at its time, and at once when it is revoked.

use super::grant::Role;
use super::principal::Principal;
use crate::ids::TenantId;
use serde::{Deserialize, Serialize};

/// What kind of credential it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CredentialKind {
    /// Of a person, for some hours after a login.
    Session,
    /// Of a service account, until it expires.
    Token,
}

/// A session or a service token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// Which: the number in its text.
    pub id: u64,
    /// Session or token.
    pub kind: CredentialKind,
    /// Whom it proves.
    pub principal: Principal,
    /// The groups that the identity provider named at the login, in order.
    pub groups: Vec<String>,
    /// SHA-256 of its secret.
    pub secret_sha256: [u8; 32],
    /// When it ends, in ms since the Unix epoch.
    pub expires_ms: u64,
    /// When it was made.
    pub since_ms: u64,
    /// Who made it.
    pub by: Principal,
    /// The most that a token may do, and where: its principal's grants count no further. `None` for sessions.
    pub scope: Option<(Role, TenantId)>,
    /// Address ranges from which it is taken, as `10.0.0.0/8`; empty: from everywhere.
    pub from: Vec<String>,
    /// For people: the machine of a login, the purpose of a token.
    pub note: String,
}

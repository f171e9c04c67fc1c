//! What is remembered of every change: who made it, with which credential, from where.
//!
//! What must stay true: each record's hash covers the one before it, so that none can be left out or altered unnoticed; a record holds ids and hashes, and
//! nothing that was sent.

use super::principal::Principal;
use serde::{Deserialize, Serialize};

/// Who asks for a change, as the node that received the call has found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// Who.
    pub principal: Principal,
    /// By which session or token.
    pub credential: Option<u64>,
    /// From which address.
    pub from: String,
    /// SHA-256 of the request, of changes that are listed one by one.
    pub request_sha256: Option<[u8; 32]>,
}

impl Author {
    /// The cluster itself.
    #[must_use]
    pub fn system() -> Self {
        Author { principal: Principal::System, ..Author::default() }
    }
}

/// How far a control node's own chain goes: what was refused there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditHead {
    /// Which control node.
    pub member: u64,
    /// Its last record.
    pub number: u64,
    /// That record's hash.
    pub hash: [u8; 32],
    /// As of when, in ms since the Unix epoch.
    pub at_ms: u64,
}

/// One link of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// From 1, without gaps.
    pub number: u64,
    /// The cluster's time, in ms since the Unix epoch.
    pub at_ms: u64,
    /// Who, with what, from where.
    pub author: Author,
    /// The call, as `Jobs.Submit`.
    pub rpc: String,
    /// What it was about: `tenant research/nlp`, `job 17`; jobs that a submission made.
    pub target: String,
    /// SHA-256 over the hash before it and the fields above.
    pub hash: [u8; 32],
}

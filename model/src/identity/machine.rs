//! Machines of a cluster: which key each proves itself with, and what it was enrolled for.
//!
//! What must stay true: a machine is who its pinned key says; a key that is not pinned here is nobody's, whatever certificate goes with it. What a node
//! was enrolled for bounds what it may claim.

use super::principal::Principal;
use crate::words::words;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Whether machines have to be enrolled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Enrolment {
    /// No: whoever has a certificate under the root is the machine that it names, until a key is pinned to that name. Clusters begin so.
    #[default]
    Optional,
    /// Yes: a machine whose key is not pinned is nobody.
    Required,
}

words!(Enrolment, "enrolment", Enrolment::Optional => "optional", Enrolment::Required => "required");

/// Where an identity stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineStanding {
    /// It is taken at its word.
    Active,
    /// It is not, until it is enrolled anew. A suspended node counts as silent.
    Suspended {
        /// Since when.
        since_ms: u64,
        /// Why.
        reason: String,
    },
    /// It comes from a backup: it may report, and gets no new work and no secrets until an operator confirms it.
    Restored,
}

/// What a machine was enrolled for. What is empty is not bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// The cell of a node; the only one that a shard may have.
    pub cell: String,
    /// The pool of a node.
    pub pool: String,
    /// Cards of a node.
    pub gpus_max: Option<u32>,
    /// Labels that a node may have, with their values; `None`: any.
    #[serde(default)]
    pub labels: Option<BTreeMap<String, String>>,
}

/// How a node's agent counts its sessions. It is written to the agent's disk before it is sent, so that a lost answer is told from a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCount {
    /// The number that it was last given; 0: none.
    pub generation: u64,
    /// Drawn for this session; the same when the answer was lost and it is asked for again.
    pub nonce: u64,
}

/// A machine's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Which: a node, a shard or a control node.
    pub principal: Principal,
    /// SHA-256 of its public key.
    pub key_sha256: [u8; 32],
    /// Of the key that it will have next, while a rotation is under way: both are taken.
    pub next_key_sha256: Option<[u8; 32]>,
    /// Sessions that it has begun; it says the number it was last given. A lower one is a copy's.
    pub generation: u64,
    /// What the agent drew for its last session.
    #[serde(default)]
    pub nonce: u64,
    /// Whether it is taken at its word.
    pub standing: MachineStanding,
    /// What it was enrolled for.
    pub enrolled: Enrolled,
    /// When its key was pinned.
    pub since_ms: u64,
    /// The join token that enrolled it; 0: its key was pinned in another way.
    pub join_token: u64,
}

impl Machine {
    /// Whether a machine with this key is the one that is meant.
    #[must_use]
    pub fn has_key(&self, key_sha256: &[u8; 32]) -> bool {
        self.key_sha256 == *key_sha256 || self.next_key_sha256.as_ref() == Some(key_sha256)
    }

    /// Whether it may act.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !matches!(self.standing, MachineStanding::Suspended { .. })
    }
}

/// What a machine has proved itself with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// SHA-256 of its public key.
    pub key_sha256: [u8; 32],
    /// When its certificate was made, in ms since the Unix epoch.
    pub issued_ms: u64,
}

/// What kind of machine may be enrolled with a join token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MachineRole {
    /// The agent of a node.
    Node,
    /// A scheduler shard.
    Shard,
    /// A control node; its names are numbers.
    Control,
}

words!(MachineRole, "machine role",
    MachineRole::Node => "node", MachineRole::Shard => "shard", MachineRole::Control => "control");

impl MachineRole {
    /// The machine of this role that has the name.
    #[must_use]
    pub fn named(self, name: &str) -> Option<Principal> {
        match self {
            MachineRole::Node => Some(Principal::Node(name.to_owned())),
            MachineRole::Shard => Some(Principal::Shard(name.to_owned())),
            MachineRole::Control => Principal::member(name),
        }
    }
}

/// Lets machines enrol, each name once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// Which: the number in its text.
    pub id: u64,
    /// SHA-256 of its secret.
    pub secret_sha256: [u8; 32],
    /// What may be enrolled.
    pub role: MachineRole,
    /// The names that may, all written out.
    pub names: BTreeSet<String>,
    /// Those of them that have been.
    pub claimed: BTreeSet<String>,
    /// What for.
    pub enrolled: Enrolled,
    /// Until when, in ms since the Unix epoch.
    pub expires_ms: u64,
    /// The incarnation of the cluster that made it: after a restore it is void.
    pub incarnation: u64,
    /// Who made it.
    pub by: Principal,
    /// When it was made.
    pub since_ms: u64,
    /// Whether a name that has a key already may be given another one.
    #[serde(default)]
    pub rejoin: bool,
}

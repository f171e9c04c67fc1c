//! Identities of machines at a control node: which keys are pinned, certificates that its issuer signs, and its own renewal.
//!
//! What must stay true: who may connect is what the replicated state says at that moment; a certificate is signed only for a name and a key on which the log
//! has decided, by the issuer of this node, whose key never leaves it.

mod issuer;
mod pins;
mod renewal;

pub(crate) use issuer::{Issued, Issuer, NotIssued};
pub(crate) use pins::Pins;
pub(crate) use renewal::{LEVEL, renew};

use muster_control_core::authz::Shown;
use muster_model::Principal;
use muster_runtime::pki::{PeerIdentity, Role};

/// What the machine at the other end of a connection has proved itself with.
pub(crate) fn shown_by(machine: &PeerIdentity) -> Shown {
    Shown { key_sha256: machine.spki_sha256.0, issued_ms: machine.issued_ms }
}

/// The principal that a machine of this role and name is.
pub(crate) fn principal_of(role: &Role) -> Principal {
    match role {
        Role::Control(id) => Principal::Member(*id),
        Role::Shard(name) => Principal::Shard(name.clone()),
        Role::Node(name) => Principal::Node(name.clone()),
    }
}

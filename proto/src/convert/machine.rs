//! Identities of machines and join tokens, as operators see them. What proves a token is no part of it.

use crate::v1;
use muster_model::identity::{Enrolled, JoinToken, Machine, MachineStanding};

impl From<&Enrolled> for v1::Enrolled {
    fn from(of: &Enrolled) -> Self {
        let Enrolled { cell, pool, gpus_max, labels } = of.clone();
        v1::Enrolled { cell, pool, gpus_max, labels: labels.map(|labels| v1::Labels { labels }) }
    }
}

impl From<v1::Enrolled> for Enrolled {
    fn from(wire: v1::Enrolled) -> Self {
        let v1::Enrolled { cell, pool, gpus_max, labels } = wire;
        Enrolled { cell, pool, gpus_max, labels: labels.map(|labels| labels.labels) }
    }
}

impl From<&Machine> for v1::MachineView {
    fn from(machine: &Machine) -> Self {
        let (standing, reason, since_ms) = match &machine.standing {
            MachineStanding::Active => ("active", String::new(), machine.since_ms),
            MachineStanding::Suspended { since_ms, reason } => ("suspended", reason.clone(), *since_ms),
            MachineStanding::Restored => ("restored", String::new(), machine.since_ms),
        };
        let unknown = machine.key_sha256 == [0; 32];
        v1::MachineView {
            name: machine.principal.to_string(),
            key: if unknown { String::new() } else { digits(&machine.key_sha256) },
            next_key: machine.next_key_sha256.as_ref().map(digits).unwrap_or_default(),
            standing: standing.to_owned(),
            reason,
            since_ms,
            join_token: machine.join_token,
            sessions: machine.generation,
            enrolled: Some((&machine.enrolled).into()),
        }
    }
}

impl From<&JoinToken> for v1::JoinTokenView {
    fn from(token: &JoinToken) -> Self {
        v1::JoinTokenView {
            id: token.id,
            role: token.role.to_string(),
            names: token.names.iter().cloned().collect(),
            claimed: token.claimed.iter().cloned().collect(),
            enrolled: Some((&token.enrolled).into()),
            expires_ms: token.expires_ms,
            since_ms: token.since_ms,
            by: token.by.to_string(),
            rejoin: token.rejoin,
        }
    }
}

fn digits(hash: &[u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

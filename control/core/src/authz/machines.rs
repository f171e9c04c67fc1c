//! Machines: whether one is who its certificate says, and may act.
//!
//! What must stay true: a key that is not the pinned one proves nothing, whatever certificate goes with it; a machine that was suspended is nobody, and one
//! without a pin is nobody where enrolment is required. The calls of consensus are the exception for control nodes: a voter that is behind does not know
//! the newest one or its newest key yet, and must answer it all the same, or it never catches up. So a certificate that is newer than the pin is taken there.
//! It knows those that were suspended before it fell behind. A node of a backup may have renewed its key since: a newer certificate lets it wait for its
//! confirmation. A control node that is suspended may ask for a pre-vote, which changes nothing: the answer is how it
//! learns that it was removed, and ends.

use super::Denied;
use crate::state::State;
use muster_model::identity::{Enrolment, Machine, MachineStanding, Shown};
use muster_model::{Principal, Rpc};

/// Whether a machine that has shown this may connect.
///
/// # Errors
/// [`Denied::Unauthenticated`].
pub fn admits(state: &State, machine: &Principal, shown: &Shown) -> Result<(), Denied> {
    // Of control nodes nobody has asked yet for more than what consensus needs.
    is_pinned(state, machine, shown, Rpc::PeerIdentify)?;
    may_act(state, machine, Rpc::PeerPreVote)
}

/// Whether the key that it has shown is the one that is pinned to its name, if one is: for this call.
///
/// # Errors
/// [`Denied::Unauthenticated`].
pub fn is_pinned(state: &State, machine: &Principal, shown: &Shown, rpc: Rpc) -> Result<(), Denied> {
    let may_be_newer = matches!(machine, Principal::Member(_)) && is_of_consensus(rpc);
    match find(state, machine) {
        Some(known) if may_be_newer && shown.issued_ms > known.since_ms => Ok(()),
        // It has renewed its key since the backup; with which one it is confirmed, it says when it comes back.
        Some(Machine { standing: MachineStanding::Restored, principal: Principal::Node(_), since_ms, .. })
            if shown.issued_ms > *since_ms =>
        {
            Ok(())
        }
        // Of one that was suspended before it was enrolled no key is known; it is refused for that.
        Some(known) if known.is_active() && !known.has_key(&shown.key_sha256) => {
            Err(unauthenticated("the key of this machine is not the one that is pinned to its name: enrol it anew"))
        }
        _ => Ok(()),
    }
}

/// Whether it may make the call.
///
/// # Errors
/// [`Denied::Unauthenticated`].
pub(super) fn may_act(state: &State, machine: &Principal, rpc: Rpc) -> Result<(), Denied> {
    let member = matches!(machine, Principal::Member(_));
    match find(state, machine) {
        Some(Machine { standing: MachineStanding::Restored, .. }) if rpc.service() == Rpc::ShardsAcquire.service() => {
            Err(unauthenticated("this shard comes from a backup; an operator confirms it (`muster machine confirm`)"))
        }
        _ if member && rpc == Rpc::PeerPreVote => Ok(()),
        None if member && is_of_consensus(rpc) => Ok(()),
        known => is_active(state, known),
    }
}

fn find<'a>(state: &'a State, machine: &Principal) -> Option<&'a Machine> {
    state.machines.get(&machine.to_string())
}

fn is_active(state: &State, known: Option<&Machine>) -> Result<(), Denied> {
    match known.map(|machine| &machine.standing) {
        Some(MachineStanding::Suspended { reason, .. }) => Err(Denied::Unauthenticated {
            why: format!(
                "this machine's identity is suspended ({reason}); an operator resumes it (`muster machine resume`) or enrols it anew"
            ),
        }),
        Some(_) => Ok(()),
        None if state.meta.enrolment == Enrolment::Optional => Ok(()),
        None => Err(unauthenticated(
            "this machine is not enrolled, or was removed; it needs a join token (`muster machine token create`)",
        )),
    }
}

/// What control nodes ask each other before either may know that the other is a member.
const fn is_of_consensus(rpc: Rpc) -> bool {
    matches!(
        rpc,
        Rpc::PeerAppendEntries
            | Rpc::PeerAppends
            | Rpc::PeerHeartbeat
            | Rpc::PeerPreVote
            | Rpc::PeerVote
            | Rpc::PeerInstallSnapshot
            | Rpc::PeerIdentify
    )
}

fn unauthenticated(why: &str) -> Denied {
    Denied::Unauthenticated { why: why.to_owned() }
}

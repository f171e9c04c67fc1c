//! Commands as their authors make them.
//!
//! What must stay true: below the feature level that knows authors nothing is signed; what is signed says who asked and holds a hash of what they asked.

use crate::consensus::Consensus;
use muster_control_core::Command;
use muster_control_core::authz::Asks;
use muster_model::identity::Author;
use muster_model::{Principal, Rpc};
use sha2::{Digest, Sha256};

/// From this feature level on the log says who has made a command.
const AUTHORS_LEVEL: u32 = 4;

/// The command as its author makes it. Machines of an open cluster are nobody, and what they report is not signed.
pub(crate) fn signed(consensus: &Consensus, author: &Author, command: Command) -> Command {
    let level = consensus.read(|state, _| state.meta.feature_level);
    let of_machine =
        matches!(&Asks::of(&command), Asks::All(asks) if asks.first().is_some_and(|ask| of_machines(ask.rpc)));
    if level < AUTHORS_LEVEL || (of_machine && author.principal == Principal::Anonymous) {
        return command;
    }
    let request_sha256 = (!of_machine).then(|| digest(&command)).flatten();
    command.by(Author { request_sha256, ..author.clone() })
}

fn of_machines(rpc: Rpc) -> bool {
    matches!(rpc.service(), "Shards" | "Agents")
}

/// SHA-256 of what was asked.
fn digest(command: &Command) -> Option<[u8; 32]> {
    let bytes = postcard::to_stdvec(command).ok()?;
    Some(Sha256::digest(bytes).into())
}

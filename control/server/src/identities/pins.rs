//! Pinned keys, for the network: asked about whoever connects, and about whom this node dials.
//!
//! What must stay true: it answers from memory, by the same rule as every later call; before this node has read its state there is nobody whom it serves.

use super::{principal_of, shown_by};
use crate::consensus::Consensus;
use muster_control_core::authz::admits;
use muster_runtime::pki::{Admit, NotAdmitted, PeerIdentity};
use std::sync::OnceLock;

/// See the module.
#[derive(Default)]
pub(crate) struct Pins(OnceLock<Consensus>);

impl Pins {
    /// From now on `consensus` has the state that knows them.
    pub(crate) fn read_from(&self, consensus: Consensus) {
        // Given once, when the node starts.
        let _ = self.0.set(consensus);
    }
}

impl Admit for Pins {
    fn admit(&self, who: &PeerIdentity, _from: &str) -> Result<(), NotAdmitted> {
        let Some(consensus) = self.0.get() else { return Ok(()) };
        let machine = principal_of(who.name.role());
        let judged = consensus.read(|state, _| admits(state, &machine, &shown_by(who)));
        judged.map_err(|denied| NotAdmitted { why: denied.to_string() })
    }
}

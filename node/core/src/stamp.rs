//! The order of desired states.
//!
//! Any control node may serve an agent, so a lagging one may send what was true a while ago. What must stay true: a desired state
//! with a lower stamp than the highest seen is refused, so that a lagging follower can neither kill nor revive anything; an equal
//! one is taken again, which changes nothing. Also after a crash: a session begins with the revision at which the node has joined, which is
//! later than all that was sent before, so that within a session the disk need not know every stamp ([`Gate::must_store`]).

use muster_model::ids::{Epoch, Revision};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a desired state stands in the history of the cluster. Orders by its fields from the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The history of the cluster; higher after each restore. Those of two clusters are never compared: an agent belongs to one.
    pub incarnation: u64,
    /// The revision it was read at.
    pub revision: Revision,
    /// The node's epoch at that revision.
    pub node_epoch: Epoch,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.incarnation, self.revision, self.node_epoch)
    }
}

/// A desired state that is older than one already taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("desired state {got} is older than {highest}, which was already accepted")]
pub struct StaleStamp {
    /// The highest taken.
    pub highest: Stamp,
    /// What came.
    pub got: Stamp,
}

/// Remembers the highest stamp and refuses lower ones. Its content is kept on disk by the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    highest: Option<Stamp>,
}

impl Gate {
    /// The highest stamp taken so far.
    #[must_use]
    pub const fn highest(&self) -> Option<Stamp> {
        self.highest
    }

    /// Whether `stamp` may be taken.
    ///
    /// # Errors
    /// When a higher one was taken before.
    pub fn check(&self, stamp: Stamp) -> Result<(), StaleStamp> {
        match self.highest {
            Some(highest) if stamp < highest => Err(StaleStamp { highest, got: stamp }),
            _ => Ok(()),
        }
    }

    /// Takes `stamp`; says whether it is higher than before.
    ///
    /// # Errors
    /// When a higher one was taken before; nothing changes then.
    pub fn take(&mut self, stamp: Stamp) -> Result<bool, StaleStamp> {
        self.check(stamp)?;
        let higher = self.highest != Some(stamp);
        self.highest = Some(stamp);
        Ok(higher)
    }

    /// Whether this gate must reach the disk before its highest stamp is acted on, given the one on disk. Within one history of the cluster and
    /// one epoch of the node only the revision grows, and the next session begins with a later one than any of this session: what is
    /// lost of it in a crash lets nothing older in.
    #[must_use]
    pub fn must_store(&self, on_disk: &Gate) -> bool {
        let history = |gate: &Gate| gate.highest.map(|stamp| (stamp.incarnation, stamp.node_epoch));
        history(self) != history(on_disk)
    }
}

//! One renewal of a lease, what became of it, and how both travel between control nodes.
//!
//! What must stay true: what travels is read by control nodes of other versions, so variants are added at the end and never change.

use muster_model::{CellId, Epoch, NodeId};
use serde::{Deserialize, Serialize};

/// One lease to renew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Renewal {
    /// A node was heard of.
    Node(NodeId, Epoch),
    /// A shard goes on with a cell.
    Cell(CellId, Epoch, String),
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// Written down by a confirmed leader.
    Renewed,
    /// The lease is not the sender's any more.
    Lost,
    /// No confirmed leader answered: nothing is known.
    Unknown,
}

/// Renewals as they travel. The variants' order is the stored form: new versions are added at the end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RenewMessage {
    /// The first form.
    V1(Vec<Renewal>),
}

/// Their verdicts as they travel, in order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RenewAnswer {
    /// The first form.
    V1(Vec<Verdict>),
}

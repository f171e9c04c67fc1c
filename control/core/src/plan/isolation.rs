//! What nodes have proved of isolation, and what their pools need of it.
//!
//! What must stay true (law SL11): whenever the proofs of a node or the rules of its pool change, what the node lacks is told in the same command, and a node
//! that lacks something takes no new work; what runs there runs on.

use super::{level, nodes};
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use crate::routing::rules;
use crate::state::State;
use muster_model::ids::{Epoch, NodeId};
use muster_model::node::NodeNotes;
use muster_model::{Node, Object, Pool, Proof};

/// An agent says what came of trying to get past the isolation of tasks.
pub(super) fn report_proofs(draft: &mut Draft<'_>, id: NodeId, epoch: Epoch, proofs: &[Proof]) -> Result<Done, Reject> {
    level::need(draft.state, level::QUOTAS, "proofs")?;
    let known = nodes::at_epoch(draft.state, id, epoch)?;
    if known.spec.proofs == proofs {
        return Ok(Done::Ok);
    }
    let mut node = known.clone();
    node.spec.proofs = proofs.to_vec();
    node.spec.validate().map_err(Reject::Invalid)?;
    node.notes.lacks = lacks(draft.state, &node);
    draft.put(Object::Node(node));
    Ok(Done::Ok)
}

/// What the node lacks under the present rules of its pool.
pub(super) fn lacks(state: &State, node: &Node) -> String {
    rules(state, &node.spec.pool).lacks(&node.spec.proofs).unwrap_or_default()
}

/// The pool has these rules from now on: its nodes are judged again.
pub(super) fn judge_nodes_of(draft: &mut Draft<'_>, pool: &Pool) {
    let state = draft.state;
    for node in state.nodes.values().filter(|node| node.spec.pool == pool.name) {
        let lacks = pool.lacks(&node.spec.proofs).unwrap_or_default();
        if node.notes.lacks != lacks {
            let notes = NodeNotes { lacks, ..node.notes.clone() };
            draft.put(Object::Node(Node { notes, ..Node::clone(node) }));
        }
    }
}

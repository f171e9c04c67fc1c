//! The moves that were made, and what pools may still move, at a stated revision.
//!
//! What must stay true: an answer is bounded; names are those of nodes and tenants that are still there, and the numbers of others stay.

use super::App;
use crate::api::refusal;
use muster_control_core::State;
use muster_control_core::authz::{About, Allowed, Ask};
use muster_model::identity::Author;
use muster_model::moves::{MOVES_KEPT_MAX, spent};
use muster_model::{GpuUnits, MoveRecord, NodeId, Pool, Revision, Rpc, TenantId};
use muster_proto::v1;
use std::collections::BTreeSet;
use tonic::Status;

/// Moves that one answer has when nobody says how many.
const SHOWN: usize = 100;

pub(super) async fn list(
    app: &App,
    author: &Author,
    request: &v1::ListMovesRequest,
) -> Result<v1::ListMovesReply, Status> {
    let limit = match request.limit {
        0 => SHOWN,
        limit => (limit as usize).min(MOVES_KEPT_MAX),
    };
    let now_ms = app.consensus.now_ms();
    let look = |state: &State, revision, _: &Allowed| reply(state, revision, &request.pool, limit, now_ms);
    let ask = Ask { rpc: Rpc::FleetListMoves, about: About::Nothing };
    app.look(author, ask, request.consistency, look).await?.ok_or_else(|| refusal::not_found("pool", &request.pool))
}

/// None where the pool that is asked for is not there.
fn reply(state: &State, revision: Revision, pool: &str, limit: usize, now_ms: u64) -> Option<v1::ListMovesReply> {
    if !pool.is_empty() && !state.all_pools().any(|there| there.name == pool) {
        return None;
    }
    let asked = |name: &str| pool.is_empty() || name == pool;
    // Allocations are numbered in the order in which they are made.
    let records: Vec<&MoveRecord> =
        state.moves.values().rev().filter(|record| asked(&record.pool)).take(limit).collect();
    let nodes: BTreeSet<NodeId> = records.iter().flat_map(|record| nodes_of(record)).collect();
    let tenants: BTreeSet<TenantId> = records.iter().map(|record| record.tenant).collect();
    let node_name = |id: NodeId| Some((id.0, state.nodes.get(&id)?.spec.name.clone()));
    let tenant_path = |id: TenantId| Some((id.0, state.tenants.get(&id)?.path.clone()));
    let now_ms = now_ms.max(state.meta.now_ms);
    let budget = |there: &Pool| {
        let left = there.moves_left(spent(state.moves.values(), &there.name, now_ms));
        v1::MoveBudget {
            pool: there.name.clone(),
            moves_per_hour: there.moves_per_hour,
            moves_left: left.moves,
            lost_gpu_hours_per_day: there.moves_lost_gpu_hours_per_day,
            lost_gpu_seconds_left: left.unit_s / GpuUnits::CARD.0,
        }
    };
    let shown = state.all_pools().filter(|there| asked(&there.name) && (there.moves_jobs() || there.name == pool));
    Some(v1::ListMovesReply {
        budgets: shown.map(budget).collect(),
        moves: records.into_iter().map(Into::into).collect(),
        node_names: nodes.into_iter().filter_map(node_name).collect(),
        tenant_paths: tenants.into_iter().filter_map(tenant_path).collect(),
        revision: revision.0,
    })
}

fn nodes_of(record: &MoveRecord) -> impl Iterator<Item = NodeId> + '_ {
    let moved = record.moved.iter().flat_map(|moved| moved.from_nodes.iter().chain(&moved.to_nodes));
    record.nodes.iter().chain(moved).copied()
}

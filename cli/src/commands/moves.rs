//! `muster moves`: the moves that were made, what each was to bring and to cost, and what came of it.

use crate::args::admin::Moves;
use crate::commands::Context;
use crate::failure::Failure;
use crate::view::moves::MovesView;
use muster_proto::v1;
use muster_proto::v1::fleet_client::FleetClient;

/// Lists the newest moves.
///
/// # Errors
/// When there is no such pool, or the cluster stays away.
pub async fn run(context: &Context, args: &Moves) -> Result<(), Failure> {
    let request = v1::ListMovesRequest {
        pool: args.pool.clone().unwrap_or_default(),
        limit: args.limit,
        consistency: context.consistency.into(),
    };
    let ask = |channel| {
        let request = request.clone();
        let limit = crate::client::reply_bytes_max();
        async move { FleetClient::new(channel).max_decoding_message_size(limit).list_moves(request).await }
    };
    let view = MovesView::new(&context.client.call("list moves", ask).await?);
    context.out.show(&view, |_| view.table())
}

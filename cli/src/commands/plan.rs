//! `muster plan`: which moves and conversions would start what waits, and what they cost.

use crate::args::admin::Plan;
use crate::commands::Context;
use crate::failure::Failure;
use crate::view::plan::PlanView;
use muster_proto::v1;
use muster_proto::v1::fleet_client::FleetClient;

/// Asks for the plans of a cell, or of all.
///
/// # Errors
/// When there is no such cell, or the cluster stays away.
pub async fn run(context: &Context, args: &Plan) -> Result<(), Failure> {
    let request = v1::PlanMovesRequest {
        cell: args.cell.clone().unwrap_or_default(),
        share_percent: args.share.map(u32::from),
        consistency: context.consistency.into(),
    };
    let ask = |channel| {
        let request = request.clone();
        let limit = crate::client::reply_bytes_max();
        async move { FleetClient::new(channel).max_decoding_message_size(limit).plan_moves(request).await }
    };
    let view = PlanView::new(&context.client.call("plan moves", ask).await?);
    context.out.show(&view, |_| view.table())
}

//! `muster nodes`, `gpus`, `cells`, `pools`, `drain`, `undrain`, `remove-node`.

use crate::args::admin::{ClearGpu, Drain, Gpus, Nodes, Pools, Undrain};
use crate::client::{Client, reply_bytes_max};
use crate::commands::{Context, input};
use crate::failure::Failure;
use crate::output::by_number;
use crate::spec;
use crate::units::show_moment;
use crate::view::fleet::{CellView, NodeView, PoolView, cells_table, nodes_table, pools_table};
use crate::view::gpus::{GpuView, gpus_table};
use crate::view::links::{LinksView, links_tables};
use muster_control_core::drained_by;
use muster_proto::v1;
use muster_proto::v1::fleet_client::FleetClient;

/// The largest page the API gives.
const PAGE: u32 = 1_000;

/// Lists nodes.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn nodes(context: &Context, args: &Nodes) -> Result<(), Failure> {
    let cell = args.cell.clone().unwrap_or_default();
    let pool = args.pool.clone().unwrap_or_default();
    let found = all_nodes(&context.client, &cell, &pool, context.consistency).await?;
    let mut views: Vec<NodeView> = found.iter().map(NodeView::new).collect();
    views.sort_by(|a, b| by_number(&a.name, &b.name));
    context.out.show(&views, |wide| nodes_table(&views, wide))
}

/// Every node of a cell and a pool; of all when they are empty.
///
/// # Errors
/// As [`nodes`].
pub async fn all_nodes(
    client: &Client,
    cell: &str,
    pool: &str,
    consistency: v1::Consistency,
) -> Result<Vec<v1::NodeView>, Failure> {
    let list = |channel, page_token| {
        let (cell, pool, consistency) = (cell.to_owned(), pool.to_owned(), consistency.into());
        let request = v1::ListNodesRequest { cell, pool, page_size: PAGE, page_token, consistency };
        async move { FleetClient::new(channel).max_decoding_message_size(reply_bytes_max()).list_nodes(request).await }
    };
    client.all_pages("list nodes", list, |reply: v1::ListNodesReply| (reply.nodes, reply.next_page_token)).await
}

/// Lists cards.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn gpus(context: &Context, args: &Gpus) -> Result<(), Failure> {
    if args.topology {
        return topology(context, args).await;
    }
    let found = list_gpus(&context.client, args.node.as_deref().unwrap_or_default(), context.consistency).await?;
    let mut views: Vec<GpuView> = found.iter().map(GpuView::new).collect();
    views.sort_by(|a, b| by_number(&a.node, &b.node).then(a.index.cmp(&b.index)));
    context.out.show(&views, |wide| gpus_table(&views, wide))
}

async fn topology(context: &Context, args: &Gpus) -> Result<(), Failure> {
    let found = all_nodes(&context.client, "", "", context.consistency).await?;
    let views = found.into_iter().filter_map(|node| node.node);
    let mut views: Vec<LinksView> = views.filter_map(|node| LinksView::of_node(&node)).collect();
    if let Some(node) = &args.node {
        views.retain(|view| view.node == *node);
    }
    views.sort_by(|a, b| by_number(&a.node, &b.node));
    context.out.show(&views, |_| links_tables(&views))
}

/// Every card of a node, or of the fleet when no node is named.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn list_gpus(client: &Client, node: &str, consistency: v1::Consistency) -> Result<Vec<v1::GpuView>, Failure> {
    let list = |channel, page_token| {
        let (node, consistency) = (node.to_owned(), consistency.into());
        let request = v1::ListGpusRequest { node, page_size: PAGE, page_token, consistency };
        async move { FleetClient::new(channel).max_decoding_message_size(reply_bytes_max()).list_gpus(request).await }
    };
    let parts = |reply: v1::ListGpusReply| (reply.gpus, reply.next_page_token);
    client.all_pages("list gpus", list, parts).await
}

/// Lists cells.
///
/// # Errors
/// That the cluster stays away.
pub async fn cells(context: &Context) -> Result<(), Failure> {
    let views = all_cells(&context.client, context.consistency).await?;
    context.out.show(&views, |_| cells_table(&views))
}

/// Every cell.
///
/// # Errors
/// As [`cells`].
pub async fn all_cells(client: &Client, consistency: v1::Consistency) -> Result<Vec<CellView>, Failure> {
    let request = v1::ListCellsRequest { consistency: consistency.into() };
    let list = |channel| async move { FleetClient::new(channel).list_cells(request).await };
    let reply: v1::ListCellsReply = client.call("list cells", list).await?;
    let mut views: Vec<CellView> = reply.cells.iter().map(CellView::new).collect();
    views.sort_by(|a, b| by_number(&a.name, &b.name));
    Ok(views)
}

/// Every pool.
///
/// # Errors
/// That the cluster stays away.
pub async fn all_pools(client: &Client, consistency: v1::Consistency) -> Result<Vec<PoolView>, Failure> {
    let request = v1::ListPoolsRequest { consistency: consistency.into() };
    let list = |channel| async move { FleetClient::new(channel).list_pools(request).await };
    let reply: v1::ListPoolsReply = client.call("list pools", list).await?;
    let mut views: Vec<PoolView> = {
        let wait = |name: &str| reply.floor_waits.iter().find(|wait| wait.pool == name);
        reply.pools.iter().map(|pool| PoolView::new(pool, wait(&pool.name))).collect()
    };
    views.sort_by(|a, b| by_number(&a.name, &b.name));
    Ok(views)
}

/// Creates or changes a pool.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn put_pool(client: &Client, pool: &v1::Pool) -> Result<(), Failure> {
    let put = |channel| {
        let pool = Some(pool.clone());
        async move { FleetClient::new(channel).put_pool(v1::PutPoolRequest { pool }).await }
    };
    client.call("put pool", put).await.map(|_: v1::PutPoolReply| ())
}

/// Runs one of `muster pools`.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn pools(context: &Context, command: &Pools) -> Result<(), Failure> {
    match command {
        Pools::List => {
            let views = all_pools(&context.client, context.consistency).await?;
            context.out.show(&views, |_| pools_table(&views))
        }
        Pools::Apply { file } => {
            let (text, file_name) = input::read(file)?;
            for pool in spec::pools::parse(&text, &file_name)? {
                let name = pool.name.clone();
                put_pool(&context.client, &pool).await?;
                context.out.line(&format!("pool {name} applied"))?;
            }
            Ok(())
        }
        Pools::Delete { name } => {
            let delete = |channel| {
                let name = name.clone();
                async move { FleetClient::new(channel).delete_pool(v1::DeletePoolRequest { name }).await }
            };
            context.client.call("delete pool", delete).await?;
            context.out.line(&format!("pool {name} deleted"))
        }
    }
}

/// Stops new work on nodes: now, or by a time.
///
/// # Errors
/// The first refusal.
pub async fn drain(context: &Context, args: &Drain) -> Result<(), Failure> {
    let by_ms = args.by.as_deref().map(|by| spec::moment_of("by", by)).transpose()?;
    for name in &args.nodes {
        let request = v1::SetDrainedRequest {
            node: name.clone(),
            drained: true,
            reason: args.reason.clone(),
            by_ms,
            force: false,
        };
        set_drained(context, request).await?;
        let what = match by_ms {
            None => "is drained: it takes no new work".to_owned(),
            Some(by_ms) => format!(
                "is drained by {}: until then it takes jobs that end before, and what would still run is preempted",
                show_moment(by_ms)
            ),
        };
        context.out.line(&format!("node {name} {what}"))?;
    }
    Ok(())
}

/// Allows new work on nodes.
///
/// # Errors
/// The first refusal.
pub async fn undrain(context: &Context, args: &Undrain) -> Result<(), Failure> {
    for name in &args.nodes {
        let request =
            v1::SetDrainedRequest { node: name.clone(), force: args.force, ..v1::SetDrainedRequest::default() };
        let others = set_drained(context, request).await?.still_drained_by;
        let others = drained_by(&others);
        context.out.line(&match others.is_empty() {
            true => format!("node {name} takes new work again"),
            false => format!("node {name} takes no new work yet: it is still drained by {others}"),
        })?;
    }
    Ok(())
}

async fn set_drained(context: &Context, request: v1::SetDrainedRequest) -> Result<v1::SetDrainedReply, Failure> {
    let set = |channel| {
        let request = request.clone();
        async move { FleetClient::new(channel).set_drained(request).await }
    };
    context.client.call("drain", set).await
}

/// Takes a GPU for well.
///
/// # Errors
/// The refusal.
pub async fn clear_gpu(context: &Context, args: &ClearGpu) -> Result<(), Failure> {
    let ClearGpu { node, gpu, reason } = args;
    let clear = |channel| {
        let request = v1::ClearGpuRequest { node: node.clone(), gpu: u32::from(*gpu), reason: reason.clone() };
        async move { FleetClient::new(channel).clear_gpu(request).await }
    };
    context.client.call("clear GPU", clear).await?;
    context.out.line(&format!(
        "GPU {gpu} of node {node} cleared; its agent uses it again, unless the driver does not answer"
    ))?;
    Ok(())
}

/// Takes nodes out.
///
/// # Errors
/// The first refusal.
pub async fn remove(context: &Context, nodes: &[String]) -> Result<(), Failure> {
    for name in nodes {
        let remove = |channel| {
            let node = name.clone();
            async move { FleetClient::new(channel).remove_node(v1::RemoveNodeRequest { node }).await }
        };
        context.client.call("remove node", remove).await?;
        context.out.line(&format!("node {name} removed; if its agent still runs, the node joins again as drained"))?;
    }
    Ok(())
}

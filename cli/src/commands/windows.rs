//! `muster maintenance`, `muster reservations`.

use crate::args::windows::{CreateReservation, Maintenance, Place, Reservations, When};
use crate::client::Client;
use crate::commands::{Context, fleet};
use crate::failure::Failure;
use crate::output::by_number;
use crate::spec::moment_of;
use crate::spec::windows::lies_in;
use crate::view::fleet::NodeView;
use crate::view::windows::{WindowView, table};
use muster_proto::v1;
use muster_proto::v1::fleet_client::FleetClient;

/// Windows of a kind; all when it is empty.
///
/// # Errors
/// That the cluster stays away.
pub async fn all_windows(
    client: &Client,
    kind: &str,
    consistency: v1::Consistency,
) -> Result<Vec<WindowView>, Failure> {
    let request = v1::ListWindowsRequest { kind: kind.to_owned(), consistency: consistency.into() };
    let list = |channel| {
        let request = request.clone();
        async move { FleetClient::new(channel).list_windows(request).await }
    };
    let reply: v1::ListWindowsReply = client.call("list windows", list).await?;
    let mut views: Vec<WindowView> = reply.windows.into_iter().map(WindowView::new).collect();
    views.sort_by(|a, b| a.start_ms.cmp(&b.start_ms).then_with(|| by_number(&a.name, &b.name)));
    Ok(views)
}

/// Runs one of `muster maintenance`.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn maintenance(context: &Context, command: &Maintenance) -> Result<(), Failure> {
    match command {
        Maintenance::List => {
            let mut views = all_windows(&context.client, "maintenance", context.consistency).await?;
            views.extend(all_windows(&context.client, "drain", context.consistency).await?);
            views.sort_by_key(|view| view.start_ms);
            context.out.show(&views, |_| table(&views))
        }
        Maintenance::Create { name, when, place, reason, preempt } => {
            let nodes = nodes_of(context, place).await?;
            let spec = window(name, "maintenance", when, nodes, reason)?;
            put(context, v1::WindowSpec { preempt: *preempt, ..spec }).await
        }
        Maintenance::Delete { name } => delete(context, name).await,
    }
}

/// Runs one of `muster reservations`.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn reservations(context: &Context, command: &Reservations) -> Result<(), Failure> {
    match command {
        Reservations::List => {
            let views = all_windows(&context.client, "reservation", context.consistency).await?;
            context.out.show(&views, |_| table(&views))
        }
        Reservations::Create(create) => {
            let CreateReservation { name, when, tenant, gpus, model, place, reason, flex } = &**create;
            let nodes = if gpus.is_some() { Vec::new() } else { nodes_of(context, place).await? };
            let spec = window(name, "reservation", when, nodes, reason)?;
            let (gpus, model) = (gpus.unwrap_or_default(), model.clone().unwrap_or_default());
            put(context, v1::WindowSpec { gpus, model, tenants: tenant.clone(), flex: *flex, ..spec }).await
        }
        Reservations::Delete { name } => delete(context, name).await,
    }
}

fn window(name: &str, kind: &str, when: &When, nodes: Vec<String>, reason: &str) -> Result<v1::WindowSpec, Failure> {
    let start_ms = moment_of("start", &when.start)?;
    Ok(v1::WindowSpec {
        name: name.to_owned(),
        kind: kind.to_owned(),
        nodes,
        start_ms,
        end_ms: Some(moment_of("end", &when.end)?),
        reason: reason.to_owned(),
        ..v1::WindowSpec::default()
    })
}

/// Those that are named, and those of a cell, a pool or a part of the network: all that is said must hold of these.
async fn nodes_of(context: &Context, place: &Place) -> Result<Vec<String>, Failure> {
    let Place { nodes, cell, pool, place } = place;
    let mut names = nodes.clone();
    let said = |text: &Option<String>| text.clone().unwrap_or_default();
    if cell.is_some() || pool.is_some() || place.is_some() {
        let found = fleet::all_nodes(&context.client, &said(cell), &said(pool), context.consistency).await?;
        let under = said(place);
        let there = found.iter().map(NodeView::new).filter(|view| lies_in(&view.place, &under));
        names.extend(there.map(|view| view.name));
    }
    sorted(names, "name nodes with --nodes, or a --cell, --pool or --place that has some")
}

/// Each name once, and at least one.
pub(super) fn sorted(mut names: Vec<String>, fix: &str) -> Result<Vec<String>, Failure> {
    names.sort();
    names.dedup();
    if names.is_empty() { Err(Failure::field("nodes", "is empty", fix)) } else { Ok(names) }
}

/// Makes it, and shows what came of it.
async fn put(context: &Context, spec: v1::WindowSpec) -> Result<(), Failure> {
    let put = |channel| {
        let window = Some(spec.clone());
        async move { FleetClient::new(channel).put_window(v1::PutWindowRequest { window }).await }
    };
    context.client.call("put window", put).await?;
    let views = all_windows(&context.client, &spec.kind, v1::Consistency::Linearizable).await?;
    match views.iter().find(|view| view.name == spec.name) {
        Some(view) => context.out.line(&view.words()),
        None => context.out.line(&format!("{} {} made", spec.kind, spec.name)),
    }
}

async fn delete(context: &Context, name: &str) -> Result<(), Failure> {
    let delete = |channel| {
        let name = name.to_owned();
        async move { FleetClient::new(channel).delete_window(v1::DeleteWindowRequest { name }).await }
    };
    context.client.call("delete window", delete).await?;
    context.out.line(&format!("{name} deleted"))
}

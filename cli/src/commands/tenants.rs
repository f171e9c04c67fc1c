//! `muster tenants` and `muster usage`.

use crate::args::admin::Tenants;
use crate::client::Client;
use crate::commands::{Context, input};
use crate::failure::Failure;
use crate::spec;
use crate::view::tenants::{TenantView, UsageView, table, usage_table};
use muster_proto::v1;
use muster_proto::v1::tenants_client::TenantsClient;
use muster_proto::v1::usage_client::UsageClient;

/// Runs one of them.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn run(context: &Context, command: &Tenants) -> Result<(), Failure> {
    match command {
        Tenants::Apply { file } => {
            let (text, name) = input::read(file)?;
            let tenants = spec::tenants::parse(&text, &name)?;
            let count = tenants.len();
            apply(&context.client, tenants).await?;
            context.out.line(&format!("{count} tenants applied"))
        }
        Tenants::List(under) => show(context, &under.under, false).await,
        Tenants::Tree(under) => show(context, &under.under, true).await,
        Tenants::Delete { path } => {
            let request = v1::DeleteTenantRequest { path: path.clone() };
            let delete = |channel| {
                let request = request.clone();
                async move { TenantsClient::new(channel).delete(request).await }
            };
            context.client.call("delete tenant", delete).await?;
            context.out.line(&format!("tenant {path} deleted"))
        }
    }
}

/// Applies, all or none.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn apply(client: &Client, tenants: Vec<v1::TenantSpec>) -> Result<u64, Failure> {
    let request = v1::ApplyTenantsRequest { tenants };
    let apply = |channel| {
        let request = request.clone();
        async move { TenantsClient::new(channel).apply(request).await }
    };
    Ok(client.call("apply tenants", apply).await?.revision)
}

async fn show(context: &Context, under: &str, tree: bool) -> Result<(), Failure> {
    let request = v1::ListTenantsRequest { under: under.to_owned(), consistency: context.consistency.into() };
    let list = |channel| {
        let request = request.clone();
        async move { TenantsClient::new(channel).list(request).await }
    };
    let reply: v1::ListTenantsReply = context.client.call("list tenants", list).await?;
    let views: Vec<TenantView> = reply.tenants.iter().map(TenantView::new).collect();
    context.out.show(&views, |_| table(&views, tree))
}

/// Shows usage.
///
/// # Errors
/// When the tenant is unknown, or the cluster stays away.
pub async fn usage(context: &Context, under: &str) -> Result<(), Failure> {
    let views = usage_of(&context.client, under, context.consistency).await?;
    context.out.show(&views, |_| usage_table(&views))
}

/// Usage by tenant.
///
/// # Errors
/// As [`usage`].
pub async fn usage_of(client: &Client, under: &str, consistency: v1::Consistency) -> Result<Vec<UsageView>, Failure> {
    let request = v1::GetUsageRequest { under: under.to_owned(), consistency: consistency.into() };
    let get = |channel| {
        let request = request.clone();
        async move { UsageClient::new(channel).get(request).await }
    };
    let reply: v1::GetUsageReply = client.call("usage", get).await?;
    Ok(reply.tenants.iter().map(UsageView::new).collect())
}

//! `muster tenants` and `muster usage`.

use crate::args::admin::{Tenants, Tree, Usage};
use crate::client::{Client, reply_bytes_max};
use crate::commands::{Context, input};
use crate::failure::Failure;
use crate::output::{Block, note};
use crate::spec;
use crate::spec::tenants::TreeFile;
use crate::view::allocation::AllocationView;
use crate::view::quota::{self, QuotaView};
use crate::view::standing::TenantExplanation;
use crate::view::tenant_history::{self, HistoryView};
use crate::view::tenants::{AppliedView, MovedView, TenantView, UsageView, table, usage_table};
use muster_proto::v1;
use muster_proto::v1::tenants_client::TenantsClient;
use muster_proto::v1::usage_client::UsageClient;

/// The largest page the API gives.
const PAGE: u32 = 1_000;

/// Runs one of them.
///
/// # Errors
/// What is refused, or that the cluster stays away.
pub async fn run(context: &Context, command: &Tenants) -> Result<(), Failure> {
    match command {
        Tenants::Apply { file, dry_run, prune } => {
            let (text, name) = input::read(file)?;
            let tree = spec::tenants::parse(&text, &name)?;
            let applied = apply(&context.client, tree, *dry_run, *prune).await?;
            let view = AppliedView::new(&applied.reply, *dry_run);
            if applied.tries > 1 && !dry_run && view.is_empty() {
                note(
                    "warning: an earlier attempt of this call had no answer; it may have made changes that are not listed",
                );
            }
            context.out.show(&view, |_| vec![Block::Text(view.text())])
        }
        Tenants::List(under) => show(context, &under.under, false).await,
        Tenants::Tree(under) => show(context, &under.under, true).await,
        Tenants::Move { path, to, dry_run } => {
            let request = v1::MoveTenantRequest { path: path.clone(), to: to.clone(), dry_run: *dry_run };
            let change = |channel| {
                let request = request.clone();
                async move { TenantsClient::new(channel).max_decoding_message_size(reply_bytes_max()).r#move(request).await }
            };
            let reply = context.client.call("move tenant", change).await?;
            let view = MovedView::new(&reply, *dry_run);
            context.out.show(&view, |_| vec![Block::Text(view.text())])
        }
        Tenants::Explain { path } => {
            let request = v1::ExplainTenantRequest { path: path.clone(), consistency: context.consistency.into() };
            let explain = |channel| {
                let request = request.clone();
                async move { TenantsClient::new(channel).explain(request).await }
            };
            let view = TenantExplanation::new(&context.client.call("explain tenant", explain).await?);
            context.out.show(&view, |_| view.blocks())
        }
        Tenants::History { path } => {
            let request = v1::TenantHistoryRequest { path: path.clone(), consistency: context.consistency.into() };
            let history = |channel| {
                let request = request.clone();
                async move { TenantsClient::new(channel).history(request).await }
            };
            let reply = context.client.call("history of tenant", history).await?;
            let views: Vec<HistoryView> = reply.histories.iter().map(HistoryView::new).collect();
            context.out.show(&views, |_| tenant_history::text(&views))
        }
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

/// What applying answered.
pub struct Applied {
    /// The reply.
    pub reply: v1::ApplyTenantsReply,
    /// Attempts that it took.
    pub tries: u32,
}

/// Applies, all or none; or says what would change.
///
/// # Errors
/// What is refused, by the path of the tenant, or that the cluster stays away.
pub async fn apply(client: &Client, tree: TreeFile, dry_run: bool, prune: bool) -> Result<Applied, Failure> {
    let TreeFile { edits, half_life_s } = tree;
    let paths: Vec<String> = edits.iter().map(|edit| edit.path.clone()).collect();
    let request = v1::ApplyTenantsRequest { tenants: Vec::new(), edits, dry_run, prune, half_life_s };
    let mut tries = 0;
    let apply = |channel| {
        let request = request.clone();
        tries += 1;
        async move { TenantsClient::new(channel).max_decoding_message_size(reply_bytes_max()).apply(request).await }
    };
    let reply = client.call("apply tenants", apply).await;
    let reply = reply.map_err(|failure| in_words_of_tree(failure, &paths))?;
    Ok(Applied { reply, tries })
}

/// `edits[3].max.gpus.h100` is `research/nlp.max.h100`.
#[must_use]
pub fn in_words_of_tree(failure: Failure, paths: &[String]) -> Failure {
    let Failure::Invalid(mut faults, left_out) = failure else { return failure };
    for fault in &mut faults {
        if fault.field == "half_life_s" {
            "half-life".clone_into(&mut fault.field);
        }
        let place = fault.field.strip_prefix("edits[").and_then(|rest| rest.split_once("]."));
        let path = place.and_then(|(index, _)| paths.get(index.parse::<usize>().ok()?));
        if let (Some((_, field)), Some(path)) = (place, path) {
            let field = field.replace(".gpus.", ".").replace("anti_affinity", "anti-affinity");
            let field = field.replace("weights.", "weight.").replace("lends.", "lend.").replace(".gpu.", ".");
            fault.field = format!("{path}.{field}");
        }
    }
    Failure::Invalid(faults, left_out)
}

async fn show(context: &Context, under: &str, tree: bool) -> Result<(), Failure> {
    let found = all_tenants(&context.client, under, context.consistency, false).await?;
    let views: Vec<TenantView> = found.iter().map(TenantView::new).collect();
    context.out.show(&views, |_| table(&views, tree))
}

/// Shows who is guaranteed, borrows, lends and waits for what; or how the floor accounts stand.
///
/// # Errors
/// When the tenant is unknown, or the cluster stays away.
pub async fn tree(context: &Context, args: &Tree) -> Result<(), Failure> {
    let found = all_tenants(&context.client, &args.under.under, context.consistency, true).await?;
    let views: Vec<QuotaView> = found.iter().map(QuotaView::new).collect();
    context.out.show(&views, |_| if args.accounts { quota::accounts(&views) } else { quota::tree(&views) })
}

/// Every tenant at `under` and below it; with `quota`, how each stands.
///
/// # Errors
/// When the tenant is unknown, or the cluster stays away.
pub async fn all_tenants(
    client: &Client,
    under: &str,
    consistency: v1::Consistency,
    quota: bool,
) -> Result<Vec<v1::Tenant>, Failure> {
    let list = |channel, page_token| {
        let (under, consistency) = (under.to_owned(), consistency.into());
        let request = v1::ListTenantsRequest { under, consistency, page_size: PAGE, page_token, quota };
        async move { TenantsClient::new(channel).max_decoding_message_size(reply_bytes_max()).list(request).await }
    };
    let parts = |reply: v1::ListTenantsReply| (reply.tenants, reply.next_page_token);
    client.all_pages("list tenants", list, parts).await
}

/// Shows usage.
///
/// # Errors
/// When the tenant is unknown, or the cluster stays away.
pub async fn usage(context: &Context, args: &Usage) -> Result<(), Failure> {
    if let Some(allocation) = args.allocation {
        let request = v1::GetAllocationUsageRequest { allocation, consistency: context.consistency.into() };
        let get = |channel| async move { UsageClient::new(channel).get_allocation(request).await };
        let view = AllocationView::new(allocation, &context.client.call("usage of allocation", get).await?);
        return context.out.show(&view, |_| view.blocks());
    }
    let views = usage_of(&context.client, &args.under.under, context.consistency).await?;
    context.out.show(&views, |_| usage_table(&views))
}

/// Usage by tenant.
///
/// # Errors
/// As [`usage`].
pub async fn usage_of(client: &Client, under: &str, consistency: v1::Consistency) -> Result<Vec<UsageView>, Failure> {
    let get = |channel, page_token| {
        let (under, consistency) = (under.to_owned(), consistency.into());
        let request = v1::GetUsageRequest { under, consistency, page_size: PAGE, page_token };
        async move { UsageClient::new(channel).get(request).await }
    };
    let parts = |reply: v1::GetUsageReply| (reply.tenants, reply.next_page_token);
    let found = client.all_pages("usage", get, parts).await?;
    Ok(found.iter().map(UsageView::new).collect())
}

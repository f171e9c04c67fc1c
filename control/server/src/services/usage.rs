//! `muster.v1.Usage`: what tenants have used so far, exact to the millisecond, as of when each last interval was counted.

use super::App;
use super::paging::{self, Page};
use crate::api::{auth, refusal};
use muster_control_core::State;
use muster_control_core::authz::{About, Allowed, Ask, Visibility};
use muster_model::usage::UsageTotal;
use muster_model::{GpuUnits, Rpc, TenantId};
use muster_proto::v1;
use tonic::{Request, Response, Status};

/// Stands where a tenant's path stands, for intervals whose allocation nobody remembers; no path has parentheses.
const UNATTRIBUTED: &str = "(unattributed)";

/// The service.
pub(crate) struct UsageService(pub(crate) App);

#[tonic::async_trait]
impl v1::usage_server::Usage for UsageService {
    async fn get(&self, request: Request<v1::GetUsageRequest>) -> Result<Response<v1::GetUsageReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::GetUsageRequest { under, consistency, page_size, page_token } = request;
        let size = paging::size(page_size)?;
        let question = format!("usage|{under}");
        let after = paging::after(&question, &page_token)?;
        let look = |state: &State, revision, allowed: &Allowed| {
            (page(state, allowed.sees(), &under, after.as_deref(), size), revision)
        };
        let ask = Ask { rpc: Rpc::UsageGet, about: About::Nothing };
        let ((tenants, last), revision) = self.0.look(&author, ask, consistency, look).await?;
        if tenants.is_empty() && after.is_none() && !under.is_empty() {
            return Err(refusal::not_found("tenant", under));
        }
        let next_page_token = last.map(|last| paging::token(&question, &last)).unwrap_or_default();
        Ok(Response::new(v1::GetUsageReply { tenants, revision: revision.0, next_page_token }))
    }
}

fn gpu_seconds(unit_ms: u128) -> f64 {
    unit_ms as f64 / (GpuUnits::CARD.0 as f64 * 1_000.0)
}

fn row(path: String, own: Option<&UsageTotal>) -> v1::TenantUsage {
    v1::TenantUsage {
        path,
        gpu_seconds: own.map_or(0.0, |total| gpu_seconds(total.gpu_unit_ms)),
        intervals: own.map_or(0, |total| total.intervals),
        as_of_ms: own.map_or(0, |total| total.as_of_ms),
        gpu_unit_ms: own.map_or(0, |total| total.gpu_unit_ms).to_string(),
        gpu_seconds_with_children: 0.0,
    }
}

/// Tenants at `under` and below it, after the path `after`, each with its own sum and with that of its descendants; what belongs to none
/// at the end of all. And where to go on.
fn page(
    state: &State,
    sees: &Visibility,
    under: &str,
    after: Option<&str>,
    size: usize,
) -> (Vec<v1::TenantUsage>, Option<String>) {
    let mut page = Page::new(size);
    let mut last = None;
    for tenant in state.index().tenants_below(under, after).filter_map(|id| state.tenants.get(&id)) {
        if page.is_full() {
            return (page.items(), last);
        }
        if !sees.shows(state, tenant.id) {
            continue;
        }
        let mut row = row(tenant.path.clone(), state.usage_totals.get(&tenant.id));
        row.gpu_seconds_with_children = gpu_seconds(with_children(state, tenant.id));
        page.push(row);
        last = Some(tenant.path.clone());
    }
    if under.is_empty()
        && sees.shows_fleet()
        && let Some(total) = state.usage_totals.get(&UsageTotal::UNATTRIBUTED)
    {
        let mut row = row(UNATTRIBUTED.to_owned(), Some(total));
        row.gpu_seconds_with_children = row.gpu_seconds;
        page.push(row);
    }
    (page.items(), None)
}

/// What a tenant and all below it have used. The tree is at most eight levels deep.
fn with_children(state: &State, tenant: TenantId) -> u128 {
    let own = state.usage_totals.get(&tenant).map_or(0, |total| total.gpu_unit_ms);
    let children = state.index().tenant_children.get(&tenant).into_iter().flatten();
    own + children.map(|child| with_children(state, *child)).sum::<u128>()
}

//! `muster.v1.Usage`: what tenants have used so far, exact to the millisecond, as of when each last interval was counted.

use super::jobs::below;
use super::{App, refusal};
use muster_control_core::State;
use muster_model::GpuUnits;
use muster_model::usage::UsageTotal;
use muster_proto::v1;
use std::collections::BTreeMap;
use tonic::{Request, Response, Status};

/// Stands where a tenant's path stands, for intervals whose allocation nobody remembers; no path has parentheses.
const UNATTRIBUTED: &str = "(unattributed)";

/// The service.
pub(crate) struct UsageService(pub(crate) App);

#[tonic::async_trait]
impl v1::usage_server::Usage for UsageService {
    async fn get(&self, request: Request<v1::GetUsageRequest>) -> Result<Response<v1::GetUsageReply>, Status> {
        let v1::GetUsageRequest { under, consistency } = request.into_inner();
        let (tenants, revision) = self.0.look(consistency, |state, revision| (sums(state, &under), revision)).await?;
        if tenants.is_empty() && !under.is_empty() {
            return Err(refusal::not_found("tenant", under));
        }
        Ok(Response::new(v1::GetUsageReply { tenants, revision: revision.0 }))
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

/// Every tenant under `under` by path, what belongs to none at the end, each with its own sum and with that of its descendants.
fn sums(state: &State, under: &str) -> Vec<v1::TenantUsage> {
    let mut with_children: BTreeMap<_, u128> = BTreeMap::new();
    for total in state.usage_totals.values() {
        for (ancestor, _) in state.capacity().line_of(total.tenant) {
            *with_children.entry(ancestor).or_default() += total.gpu_unit_ms;
        }
    }
    let mut tenants: Vec<v1::TenantUsage> = state
        .tenants
        .values()
        .filter(|tenant| below(under, &tenant.path))
        .map(|tenant| {
            let mut row = row(tenant.path.clone(), state.usage_totals.get(&tenant.id));
            row.gpu_seconds_with_children = gpu_seconds(with_children.get(&tenant.id).copied().unwrap_or(0));
            row
        })
        .collect();
    tenants.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
    if under.is_empty()
        && let Some(total) = state.usage_totals.get(&UsageTotal::UNATTRIBUTED)
    {
        let mut row = row(UNATTRIBUTED.to_owned(), Some(total));
        row.gpu_seconds_with_children = row.gpu_seconds;
        tenants.push(row);
    }
    tenants
}

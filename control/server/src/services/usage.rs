//! `muster.v1.Usage`: what tenants have used so far, exact to the millisecond, as of when each last interval was counted.

use super::App;
use super::jobs::account_path;
use super::paging::{self, Page};
use crate::api::{auth, refusal};
use muster_control_core::State;
use muster_control_core::authz::{About, Allowed, Ask, Visibility};
use muster_model::usage::{HeldRecord, UsageTotal, gpu_seconds};
use muster_model::{AllocationId, QuotaClass, Rpc, TenantId};
use muster_proto::convert::quota_class::record_to_wire;
use muster_proto::v1;
use std::collections::BTreeSet;
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

    async fn get_allocation(
        &self,
        request: Request<v1::GetAllocationUsageRequest>,
    ) -> Result<Response<v1::GetAllocationUsageReply>, Status> {
        let (author, request) = auth::split(request);
        let v1::GetAllocationUsageRequest { allocation, consistency } = request;
        let look = |state: &State, revision, allowed: &Allowed| {
            (of_allocation(state, allowed.sees(), AllocationId(allocation)), revision)
        };
        let ask = Ask { rpc: Rpc::UsageGetAllocation, about: About::Nothing };
        let (found, revision) = self.0.look(&author, ask, consistency, look).await?;
        let Some(reply) = found else { return Err(refusal::not_found("allocation", allocation)) };
        Ok(Response::new(v1::GetAllocationUsageReply { revision: revision.0, ..reply }))
    }
}

/// What an allocation is, or was when it was released; none where that is not known, or not any more, or not for the caller.
fn of_allocation(state: &State, sees: &Visibility, id: AllocationId) -> Option<v1::GetAllocationUsageReply> {
    let usage = state.allocation_usage.get(&id);
    let live = state.allocations.get(&id).map(|held| (held.tenant, HeldRecord::of(held)));
    let (tenant, held) =
        live.or_else(|| usage.and_then(|usage| Some((usage.tenant, (**usage.held.as_ref()?).clone()))))?;
    if !sees.shows(state, tenant) {
        return None;
    }
    let (classes, earlier) = record_to_wire(&held.classes);
    let segments = held.classes.segments.iter().map(|segment| segment.class);
    let all = segments.chain(held.classes.sums.iter().map(|sum| sum.class));
    let accounts: BTreeSet<TenantId> = all.filter_map(QuotaClass::account).collect();
    Some(v1::GetAllocationUsageReply {
        revision: 0,
        job: held.job.0,
        attempt: held.attempt.0,
        tenant: account_path(state, tenant),
        model: held.model.filter(|_| held.gpu_units > 0).map(|model| model.to_string()).unwrap_or_default(),
        mode: held.mode.map(|mode| mode.to_string()).unwrap_or_default(),
        gpu_units: held.gpu_units,
        cpu_milli: held.cpu_milli,
        memory_mib: held.memory_mib,
        bound_ms: held.bound_ms,
        released_ms: usage.and_then(|usage| usage.released_ms),
        is_growth: held.is_growth,
        classes,
        earlier,
        topology: Some(held.topology.into()),
        gpu_unit_ms: usage.map_or(0, |usage| usage.gpu_unit_ms).to_string(),
        idle_gpu_unit_ms: usage.map_or(0, |usage| usage.idle_gpu_unit_ms).to_string(),
        clean_gpu_unit_ms: usage.map_or(0, |usage| usage.clean_gpu_unit_ms).to_string(),
        account_paths: accounts.into_iter().map(|id| (id.0, account_path(state, id))).collect(),
    })
}

fn row(path: String, own: Option<&UsageTotal>) -> v1::TenantUsage {
    v1::TenantUsage {
        path,
        gpu_seconds: own.map_or(0.0, |total| gpu_seconds(total.gpu_unit_ms)),
        intervals: own.map_or(0, |total| total.intervals),
        as_of_ms: own.map_or(0, |total| total.as_of_ms),
        gpu_unit_ms: own.map_or(0, |total| total.gpu_unit_ms).to_string(),
        idle_gpu_unit_ms: own.map_or(0, |total| total.idle_gpu_unit_ms).to_string(),
        clean_gpu_unit_ms: own.map_or(0, |total| total.clean_gpu_unit_ms).to_string(),
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

//! Usage: intervals that agents report, each counted once (law 9).

use crate::bounds::INTERVALS_PER_COMMAND_MAX;
use crate::draft::Draft;
use crate::outcome::Done;
use crate::reject::Reject;
use muster_model::Object;
use muster_model::ids::{AllocationId, NodeId, TenantId};
use muster_model::usage::{AllocationUsage, UnitMs, UsageInterval, UsageStream, UsageTotal};
use std::collections::BTreeMap;

/// What a command counts of one allocation or tenant, and in how many intervals.
type Counted = (UnitMs, u64);

/// Takes what follows the stream's mark without a gap, ignores what is at or below it.
pub(super) fn record(
    draft: &mut Draft<'_>,
    node: NodeId,
    incarnation: u64,
    intervals: &[UsageInterval],
) -> Result<Done, Reject> {
    let Some(stream) = draft.state.usage_streams.get(&node) else { return Err(Reject::not_found("node", node)) };
    if intervals.len() > INTERVALS_PER_COMMAND_MAX {
        return Err(Reject::field("intervals", format!("has {}", intervals.len()), "send at most 4,096 at once"));
    }
    let gap = |got| Reject::UsageGap { incarnation: stream.incarnation, mark: stream.mark, got };
    if stream.incarnation != incarnation {
        return Err(gap(intervals.first().map_or(0, |interval| interval.seq)));
    }
    let mut mark = stream.mark;
    let mut counted: BTreeMap<AllocationId, Counted> = BTreeMap::new();
    for interval in intervals.iter().filter(|interval| interval.seq > stream.mark) {
        if interval.seq <= mark {
            continue;
        }
        if interval.seq != mark + 1 {
            return Err(gap(interval.seq));
        }
        mark = interval.seq;
        let sum = counted.entry(interval.allocation).or_default();
        sum.0.add(interval.kind, interval.gpu_unit_ms);
        sum.1 += 1;
    }
    if mark > stream.mark {
        draft.put(Object::UsageStream(UsageStream { mark, ..stream.clone() }));
        enter(draft, &counted);
    }
    Ok(Done::Counted { mark })
}

fn enter(draft: &mut Draft<'_>, counted: &BTreeMap<AllocationId, Counted>) {
    let state = draft.state;
    let mut tenants: BTreeMap<TenantId, Counted> = BTreeMap::new();
    for (&allocation, &(reported, intervals)) in counted {
        let known = state.allocation_usage.get(&allocation);
        let live = state.allocations.get(&allocation);
        let tenant = known.map(|usage| usage.tenant).or(live.map(|held| held.tenant));
        let sum = tenants.entry(tenant.unwrap_or(UsageTotal::UNATTRIBUTED)).or_default();
        sum.0 += reported;
        sum.1 += intervals;
        if let Some(tenant) = tenant {
            let new = || AllocationUsage { allocation, tenant, ..AllocationUsage::default() };
            let mut usage = known.cloned().unwrap_or_else(new);
            usage.count(reported);
            draft.put(Object::AllocationUsage(usage));
        }
    }
    let as_of_ms = draft.now_ms;
    for (tenant, (reported, intervals)) in tenants {
        let mut total = state.usage_totals.get(&tenant).cloned().unwrap_or_default();
        total.count(reported, intervals);
        draft.put(Object::UsageTotal(UsageTotal { tenant, as_of_ms, ..total }));
    }
}

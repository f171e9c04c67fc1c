//! Law 9: "Every interval an agent reports enters the usage ledger once."
//!
//! Judged at rest, allocation by allocation and kind by kind: what agents had on disk under a number of their stream, each number once, equals what was
//! counted. And a number keeps its content. Of a host whose folder was deleted, or that shared its name with another, what was not sent
//! is lost: there no more was counted than metered.

use super::{Findings, Violation};
use crate::history::{Held, History};
use muster_model::ids::AllocationId;
use muster_model::usage::UseKind;
use muster_model::{Change, Object};
use std::collections::{BTreeMap, BTreeSet};

/// Reports usage that was lost or counted twice.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("law 9");
    for interval in &history.remetered {
        findings.add(|| format!("{interval:?} has changed its content"));
    }
    let mut metered: BTreeMap<Held, u128> = BTreeMap::new();
    for (held, gpu_unit_ms) in history.metered.values() {
        *metered.entry(*held).or_default() += u128::from(*gpu_unit_ms);
    }
    let mut counted: BTreeMap<Held, u128> = BTreeMap::new();
    for (_, change) in history.changes() {
        let Change::Put(object) = change else { continue };
        if let Object::AllocationUsage(usage) = *object {
            // Sums only grow, and the record goes a while after the allocation: the last value is the sum.
            counted.insert((usage.allocation, UseKind::Run), usage.gpu_unit_ms);
            counted.insert((usage.allocation, UseKind::Idle), usage.idle_gpu_unit_ms);
            counted.insert((usage.allocation, UseKind::Clean), usage.clean_gpu_unit_ms);
        }
    }
    let lost: BTreeSet<AllocationId> = history
        .metered
        .iter()
        .filter(|(interval, _)| history.lost_usage.contains(&interval.node))
        .map(|(_, ((allocation, _), _))| *allocation)
        .collect();
    for (held @ (allocation, kind), metered) in &metered {
        let counted = counted.get(held).copied().unwrap_or(0);
        let is_wrong = if lost.contains(allocation) { counted > *metered } else { counted != *metered };
        findings.add_if(is_wrong, || {
            format!("allocation {allocation}, {kind:?}: agents metered {metered} unit-ms, {counted} were counted")
        });
    }
    for (held @ (allocation, kind), counted) in &counted {
        findings.add_if(*counted > 0 && !metered.contains_key(held), || {
            format!("allocation {allocation}, {kind:?}: {counted} unit-ms were counted and nobody metered them")
        });
    }
    findings.found
}

//! One allocation for those who make or check bills: what it is or was, who pays for it, and what agents have reported of it.

use super::attempt::RequiredView;
use super::quota_class::{QuotaSegment, QuotaTime};
use super::tenants::exact;
use crate::output::Block;
use crate::units::{exact_cards, show_cpus, show_mebibytes, show_moment};
use muster_proto::v1;
use serde::Serialize;

/// See the module.
#[derive(Clone, Debug, Serialize)]
pub struct AllocationView {
    /// Its id.
    pub allocation: u64,
    /// Whose.
    pub job: u64,
    /// Which run of it.
    pub attempt: u32,
    /// The tenant that is charged.
    pub tenant: String,
    /// The model of its GPUs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// whole, mig, mps, time-slice.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// GPU units (1/7,000 of a card) that are charged.
    pub gpu_units: u64,
    /// Milli-CPUs.
    pub cpu_milli: u64,
    /// MiB of memory.
    pub memory_mib: u64,
    /// It is a part of its job's growth.
    pub growth: bool,
    /// RFC 3339.
    pub bound: String,
    /// When it was released, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<String>,
    /// Who paid since when, the oldest first.
    pub quota_history: Vec<QuotaSegment>,
    /// How long each class held; of one that is not released, until now is not in it.
    pub quota_times: Vec<QuotaTime>,
    /// Time for which nobody is known to have paid, in milliseconds.
    pub unattributed_ms: u64,
    /// How close together its tasks were required to stand.
    #[serde(flatten)]
    pub required: RequiredView,
    /// GPU units x milliseconds in which its tasks ran, as agents have reported them, exact.
    pub reported_gpu_unit_ms: String,
    /// The same of GPUs that it held on after their task was over.
    pub reported_idle_gpu_unit_ms: String,
    /// The same of GPUs that were being cleaned up.
    pub reported_clean_gpu_unit_ms: String,
}

impl AllocationView {
    /// From the reply.
    #[must_use]
    pub fn new(allocation: u64, reply: &v1::GetAllocationUsageReply) -> Self {
        let paths = &reply.account_paths;
        let last_ms = reply.classes.last().map_or(reply.bound_ms, |last| last.from_ms);
        let ended_ms = reply.released_ms.unwrap_or(last_ms);
        AllocationView {
            allocation,
            job: reply.job,
            attempt: reply.attempt,
            tenant: reply.tenant.clone(),
            model: reply.model.clone(),
            mode: reply.mode.clone(),
            gpu_units: reply.gpu_units,
            cpu_milli: reply.cpu_milli,
            memory_mib: reply.memory_mib,
            growth: reply.is_growth,
            bound: show_moment(reply.bound_ms),
            released: reply.released_ms.map(show_moment),
            quota_history: QuotaSegment::of_all(&reply.classes, paths),
            quota_times: QuotaTime::of((&reply.classes, reply.earlier.as_ref()), ended_ms, paths),
            unattributed_ms: reply.earlier.as_ref().map_or(0, |earlier| earlier.unattributed_ms),
            required: RequiredView::new(reply.topology.as_ref()),
            reported_gpu_unit_ms: reply.gpu_unit_ms.clone(),
            reported_idle_gpu_unit_ms: exact(&reply.idle_gpu_unit_ms),
            reported_clean_gpu_unit_ms: exact(&reply.clean_gpu_unit_ms),
        }
    }

    fn reported(&self) -> String {
        let (idle, clean) = (&self.reported_idle_gpu_unit_ms, &self.reported_clean_gpu_unit_ms);
        format!("{} GPU units x ms running, {idle} idle, {clean} in clean-up", self.reported_gpu_unit_ms)
    }

    /// For people.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let growth = if self.growth { ", growth" } else { "" };
        let mut held: Vec<String> = Vec::new();
        held.extend(
            (self.gpu_units > 0).then(|| format!("{} {} ({})", exact_cards(self.gpu_units), self.model, self.mode)),
        );
        held.extend((self.cpu_milli > 0).then(|| format!("{} CPUs", show_cpus(self.cpu_milli))));
        held.extend((self.memory_mib > 0).then(|| format!("{} of memory", show_mebibytes(self.memory_mib))));
        let quota = self.quota_history.iter().rev().map(QuotaSegment::words).collect::<Vec<_>>().join("; before: ");
        let times = self.quota_times.iter().map(QuotaTime::words).collect::<Vec<_>>().join(", ");
        let segments = self.required.required_segment_tasks;
        let segments = segments.map(|tasks| format!(" in segments of {tasks} on one island")).unwrap_or_default();
        let lines = [
            ("allocation", self.allocation.to_string()),
            ("job", format!("{}, attempt {}{growth}", self.job, self.attempt)),
            ("tenant", self.tenant.clone()),
            ("holds", held.join(", ")),
            ("topology", format!("{}{segments}", self.required.required_topology)),
            ("bound", self.bound.clone()),
            ("released", self.released.clone().unwrap_or_default()),
            ("quota", quota),
            ("times", if self.released.is_some() { times } else { String::new() }),
            ("reported", self.reported()),
        ];
        let said = lines.iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| format!("{key:<10} {value}"));
        vec![Block::Text(said.collect::<Vec<_>>().join("\n"))]
    }
}

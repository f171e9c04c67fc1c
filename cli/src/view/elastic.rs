//! An elastic gang: the sizes that it may have, and the one that it has.

use muster_proto::v1;
use serde::Serialize;

/// Of an elastic gang: its sizes.
#[derive(Clone, Debug, Serialize)]
pub struct ElasticView {
    /// The least tasks.
    pub tasks_min: u32,
    /// The most.
    pub tasks_max: u32,
    /// Now; absent while it holds nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_now: Option<u32>,
    /// Counts its sizes.
    pub generation: u64,
    /// What its tasks are sent when their number changes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resize_signal: String,
    /// How a task beyond the least ended by itself last; the job grows no more in this attempt after three.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_end: String,
}

impl ElasticView {
    pub(crate) fn new(elastic: &v1::Elastic, tasks_min: u32, job: &v1::Job) -> Self {
        let growth = job.growth.clone().unwrap_or_default();
        let last_end = growth.last_end.map(|end| match end.reason.as_str() {
            "" => format!("allocation {} exited with 0", end.allocation),
            reason => format!("allocation {}: {reason}", end.allocation),
        });
        ElasticView {
            tasks_min,
            tasks_max: elastic.tasks_max,
            tasks_now: job.allocation.map(|_| tasks_min + growth.tasks),
            generation: growth.generation,
            resize_signal: elastic.signal.clone(),
            last_end: last_end.unwrap_or_default(),
        }
    }

    /// `6 now, 4 to 16`.
    #[must_use]
    pub fn words(&self) -> String {
        let now = self.tasks_now.map(|now| format!("{now} now, ")).unwrap_or_default();
        let signal = if self.resize_signal.is_empty() {
            String::new()
        } else {
            format!(", {} at each new size", self.resize_signal)
        };
        let end = if self.last_end.is_empty() { String::new() } else { format!("; {}", self.last_end) };
        format!("{now}{} to {}{signal}{end}", self.tasks_min, self.tasks_max)
    }
}

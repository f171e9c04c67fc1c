//! The answer to a what-if question, as it is printed and written. Times are seconds from the beginning, amounts of GPUs are cards.

use muster_model::{JobId, PreemptReason};
use serde::Serialize;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// When the copy was made, in milliseconds since the Unix epoch.
    pub as_of_ms: u64,
    /// How far both runs went.
    pub horizon_s: u64,
    /// What is changed.
    pub edits: Vec<String>,
    /// What both runs assume.
    pub basis: Vec<String>,
    /// Cards, by model.
    pub models: Vec<ModelLine>,
    /// Every tenant that runs or waits in one of the runs, or whose floor is not met.
    pub tenants: Vec<TenantLine>,
    /// Jobs that start earlier, or are spared an eviction.
    pub gains: Vec<JobLine>,
    /// Jobs that start later or not at all.
    pub loses: Vec<JobLine>,
    /// Jobs that are evicted with the change.
    pub evicted: Vec<Evicted>,
    /// Jobs that are evicted without the change and not with it.
    pub spared: Vec<Evicted>,
    /// Jobs that still wait at the end, with the change.
    pub waiting: Vec<JobLine>,
    /// Jobs that waited at the beginning or were submitted, and start at the same time in both.
    pub unchanged: Vec<JobLine>,
}

/// When a job starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Start {
    /// It runs already.
    Running,
    /// It gets its devices then.
    Starts {
        /// Seconds from the beginning.
        in_s: u64,
    },
    /// It still waits at the end.
    Waits,
    /// It was cancelled, or gave up, before it started.
    Ended,
    /// The fleet refuses it.
    Refused {
        /// Why.
        why: String,
    },
    /// It is not submitted in this run.
    Absent,
}

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Why {
    /// A stable word, as in explanations.
    pub code: String,
    /// For people.
    pub text: String,
}

/// A job in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobLine {
    /// Its id, if it has one outside of the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Its number in the workload, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<usize>,
    /// Its index, if it is a task of an array that had no job yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_index: Option<u32>,
    /// For people.
    pub name: String,
    /// Who pays.
    pub tenant: String,
    /// Who submitted it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// What it holds or asks for.
    pub gpus: f64,
    /// Without the change.
    pub before: Start,
    /// With it.
    pub after: Start,
    /// Why it waits, with the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
}

/// A job that is stopped for another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evicted {
    /// Which.
    #[serde(flatten)]
    pub job: JobLine,
    /// When, in seconds from the beginning.
    pub in_s: u64,
    /// For which job: its id, or its number in the workload.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub for_job: String,
    /// The tenant of that job.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub for_tenant: String,
    /// Why.
    pub reason: String,
    /// Work that is lost, in seconds of one card: since the last known checkpoint, and what the restart costs.
    pub lost_gpu_seconds: u64,
    /// When it starts again, in seconds from the beginning; none: not by the end.
    pub again_in_s: Option<u64>,
    /// How often it is evicted.
    pub times: u64,
    /// It is evicted in the other run too.
    pub in_both: bool,
}

impl Evicted {
    pub(super) fn word(reason: PreemptReason) -> String {
        reason.to_string()
    }
}

/// The cards of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelLine {
    /// Which.
    pub model: String,
    /// Cards that hold something at the beginning.
    pub in_use: u64,
    /// Without the change.
    pub before: ModelState,
    /// With it.
    pub after: ModelState,
}

/// The cards of a model in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModelState {
    /// Cards of nodes that take work at the end.
    pub cards: u64,
    /// Cards that everything that runs and waits at the beginning needs when it is placed anew under the rules of the pools.
    pub needed: u64,
    /// Cards that hold something, as a mean over the run.
    pub allocated: f64,
    /// What running work asks of them, in cards, as a mean over the run.
    pub used: f64,
}

/// A tenant in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantLine {
    /// Which; what is below it counts.
    pub tenant: String,
    /// Without the change.
    pub before: TenantState,
    /// With it.
    pub after: TenantState,
}

/// A tenant in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TenantState {
    /// What its jobs hold, in hours of one card.
    pub gpu_hours: f64,
    /// Jobs that start.
    pub starts: u64,
    /// Jobs that still wait at the end.
    pub waiting: u64,
    /// Jobs that are evicted.
    pub evicted: u64,
    /// Guaranteed GPUs that healthy nodes cannot meet at the end.
    pub unmet: f64,
}

//! What reservations have to do with a job's waiting: its own, and those of others.

use super::trial::Trial;
use super::words::{counted, named_job, span, word};
use crate::job_class::START_MS;
use crate::job_class::rounded_down_s;
use crate::policy::gate::find_place;
use crate::search::Ask;
use crate::view::Known;
use muster_model::{GpuModel, JobId};
use std::collections::BTreeMap;

/// A place and a time are kept for the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// When it starts at the latest, ms since the Unix epoch.
    pub start_ms: u64,
    /// How far away that is; 0 when it is late.
    pub in_ms: u64,
    /// How many nodes are kept.
    pub nodes: u64,
}

/// A place is free, but reserved for a gang that starts before the job would be over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedForGang {
    /// Where.
    pub cell: String,
    /// The model.
    pub model: Option<GpuModel>,
    /// For whom.
    pub job: JobId,
    /// When that one starts at the latest, ms since the Unix epoch.
    pub start_ms: u64,
    /// How far away that is.
    pub in_ms: u64,
    /// The longest time limit with which the job could run there meanwhile, in seconds, if any is short enough.
    pub time_limit_s: Option<u64>,
}

/// The reservation of `job`, if it has one.
pub(super) fn reservation(job: &Known, now_ms: u64) -> Option<Reserved> {
    let kept = job.reserved.as_ref()?;
    let in_ms = kept.start_ms.saturating_sub(now_ms);
    Some(Reserved { start_ms: kept.start_ms, in_ms, nodes: kept.nodes.len() as u64 })
}

/// The gang whose nodes would hold the job now, beside free ones.
pub(super) fn in_the_way(trial: &mut Trial, ask: &Ask<'_>) -> Option<ReservedForGang> {
    // As if it were over at once.
    let at_once = Ask { over_ms: 0, ..*ask };
    let found = trial.with_own_nodes(|view, steps| find_place(view, &at_once, steps))?;
    let holds = found.iter().filter_map(|task| trial.view.fleet.index.hold_of(task.node));
    let hold = holds.filter(|hold| hold.job != trial.id).min()?;
    let in_ms = hold.until_ms.saturating_sub(trial.now_ms);
    let left_s = (in_ms.saturating_sub(START_MS) / 1_000).saturating_sub(ask.class.grace_s);
    Some(ReservedForGang {
        cell: super::cell_name(&trial.view, ask.cell),
        model: ask.model,
        job: hold.job,
        start_ms: hold.until_ms,
        in_ms,
        time_limit_s: Some(rounded_down_s(left_s)).filter(|limit_s| *limit_s > 0),
    })
}

impl Reserved {
    pub(super) fn text(&self) -> String {
        let nodes = counted(self.nodes, "node");
        let when = if self.in_ms == 0 { "at once".to_owned() } else { format!("within {}", span(self.in_ms)) };
        format!("{nodes} are reserved for it: it starts {when}, if the jobs on them end within their time limits")
    }

    pub(super) fn figures(&self) -> [(&'static str, String); 2] {
        [("start_ms", self.start_ms.to_string()), ("nodes", self.nodes.to_string())]
    }
}

impl ReservedForGang {
    pub(super) fn text(&self) -> String {
        let ReservedForGang { cell, job, in_ms, .. } = self;
        let on = word(self.model);
        let whom = named_job(*job);
        format!("{on} are free in cell {cell}, but reserved for {whom}, which starts there within {}", span(*in_ms))
    }

    pub(super) fn figures(&self) -> BTreeMap<String, String> {
        let limit = self.time_limit_s.map(|limit_s| ("time_limit_s".to_owned(), limit_s.to_string()));
        let start = ("start_ms".to_owned(), self.start_ms.to_string());
        std::iter::once(start).chain(limit).collect()
    }
}

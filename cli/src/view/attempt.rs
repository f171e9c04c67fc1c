//! How the attempts of a job ended, as they are shown: exit codes and signals, and which ranks failed first.

use crate::output::{Block, Columns};
use crate::units::{show_moment, show_seconds};
use crate::view::quota_class::{QuotaSegment, QuotaTime};
use muster_model::task::signal_name;
use muster_proto::v1;
use muster_proto::v1::task_state::Kind;
use serde::Serialize;
use std::collections::BTreeMap;

/// An attempt that is over.
#[derive(Clone, Debug, Serialize)]
pub struct AttemptView {
    /// Which.
    pub attempt: u32,
    /// When every task had been seen running, if that came to pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// When the last task was gone.
    pub ended: String,
    /// From the first to the second.
    pub ran_s: u64,
    /// How long its GPUs were cleaned after its tasks had ended, in milliseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub cleaned_ms: u64,
    /// Why it ended; empty when every task exited with 0.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How its ranks ended, most of them first.
    pub ends: Vec<EndView>,
    /// How each rank ended, from rank 0; of attempts of earlier versions it is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RanksView>,
    /// The first ranks that failed, in the order of their times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureView>,
    /// Who paid for it since when, the oldest first, until it ended. Of attempts long ago only `quota_times` is kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota_history: Vec<QuotaSegment>,
    /// For how long each class held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota_times: Vec<QuotaTime>,
    /// Time for which nobody is known to have paid, in milliseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub unattributed_ms: u64,
    /// How close together its tasks were required to stand.
    #[serde(flatten)]
    pub required: RequiredView,
}

/// How close together tasks were required to stand, when they were bound.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RequiredView {
    /// The whole gang inside one of these.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub required_topology: String,
    /// So many consecutive ranks each on one island.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_segment_tasks: Option<u32>,
}

impl RequiredView {
    /// From the message.
    #[must_use]
    pub fn new(topology: Option<&v1::RequiredTopology>) -> Self {
        let topology = topology.cloned().unwrap_or_default();
        RequiredView { required_topology: topology.level, required_segment_tasks: topology.segment_tasks }
    }
}

/// serde gives a reference.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// So many ranks ended in this way.
#[derive(Clone, Debug, Serialize)]
pub struct EndView {
    /// exited, signaled, stopped, timeout, could-not-start, node-lost, gpu-fault, over-gpu-share, out-of-memory, other.
    pub end: &'static str,
    /// The exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// How many.
    pub ranks: u32,
}

/// Consecutive ranks that ended alike.
#[derive(Clone, Debug, Serialize)]
pub struct RanksView {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
    /// How.
    #[serde(flatten)]
    pub end: EndView,
}

impl RanksView {
    fn of_runs(runs: &[v1::EndCount]) -> Vec<Self> {
        let mut next = 0_u32;
        let run = |run: &v1::EndCount| {
            let first = next;
            next = first.saturating_add(run.ranks);
            RanksView { first, last: next.saturating_sub(1), end: EndView::new(run.end.as_ref(), run.ranks) }
        };
        runs.iter().map(run).collect()
    }

    /// `0-6 stopped`, `7 exit code 1`.
    fn words(&self) -> String {
        let RanksView { first, last, end } = self;
        let which = if first == last { first.to_string() } else { format!("{first}-{last}") };
        format!("{which} {}", end.words())
    }
}

/// A rank that failed.
#[derive(Clone, Debug, Serialize)]
pub struct FailureView {
    /// Which.
    pub rank: u32,
    /// Where.
    pub node: String,
    /// How.
    #[serde(flatten)]
    pub end: EndView,
    /// What the node says of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When, by its node's clock.
    pub at: String,
}

impl EndView {
    /// How one task ended; `None` while it has not.
    #[must_use]
    pub fn of_task(state: &v1::TaskState) -> Option<Self> {
        let is_over = !matches!(state.kind(), Kind::Unspecified | Kind::Pending | Kind::Running);
        is_over.then(|| EndView::new(Some(state), 1))
    }

    fn new(state: Option<&v1::TaskState>, ranks: u32) -> Self {
        let code = state.map_or(0, |state| state.code);
        let end = |end| EndView { end, code: None, signal: None, ranks };
        match state.map(v1::TaskState::kind) {
            Some(Kind::Exited) => EndView { code: Some(code), ..end("exited") },
            Some(Kind::Signaled) => EndView { signal: Some(code), ..end("signaled") },
            Some(Kind::Stopped) => end("stopped"),
            Some(Kind::TimedOut) => end("timeout"),
            Some(Kind::StartFailed) => end("could-not-start"),
            Some(Kind::Fenced) => end("node-lost"),
            Some(Kind::DeviceFault) => end("gpu-fault"),
            Some(Kind::OverShare) => end("over-gpu-share"),
            Some(Kind::OutOfMemory) => end("out-of-memory"),
            Some(Kind::Unspecified | Kind::Pending | Kind::Running) | None => end("other"),
        }
    }

    /// For people.
    #[must_use]
    pub fn words(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (_, Some(signal)) => signal_words(signal),
            _ if self.end == "gpu-fault" => "GPU fault".to_owned(),
            _ if self.end == "over-gpu-share" => "over its GPU share".to_owned(),
            _ => self.end.replace('-', " "),
        }
    }
}

/// `signal 9 (SIGKILL)`.
#[must_use]
pub fn signal_words(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), |name| format!("signal {signal} ({name})"))
}

impl AttemptView {
    /// From the record; `names` of the nodes and `paths` of the tenants that it names.
    #[must_use]
    pub fn new(record: &v1::AttemptRecord, names: &BTreeMap<u32, String>, paths: &BTreeMap<u32, String>) -> Self {
        let failure = |failure: &v1::RankFailure| FailureView {
            rank: failure.rank,
            node: names.get(&failure.node).cloned().unwrap_or_else(|| format!("#{}", failure.node)),
            end: EndView::new(failure.end.as_ref(), 1),
            reason: failure.end.as_ref().map(|end| end.reason.clone()).unwrap_or_default(),
            at: show_moment(failure.at_ms),
        };
        let others = (record.others > 0).then(|| EndView::new(None, record.others));
        let ends = record.ends.iter().map(|count| EndView::new(count.end.as_ref(), count.ranks));
        AttemptView {
            attempt: record.attempt,
            started: record.started_ms.map(show_moment),
            ended: show_moment(record.ended_ms),
            ran_s: record.started_ms.map_or(0, |started| record.ended_ms.saturating_sub(started) / 1_000),
            cleaned_ms: record.cleaned_ms,
            reason: record.reason.clone(),
            ends: ends.chain(others).collect(),
            ranks: RanksView::of_runs(&record.end_runs),
            failures: record.failures.iter().map(failure).collect(),
            quota_history: QuotaSegment::of_all(&record.classes, paths),
            quota_times: QuotaTime::of((&record.classes, record.earlier.as_ref()), record.ended_ms, paths),
            unattributed_ms: record.earlier.as_ref().map_or(0, |earlier| earlier.unattributed_ms),
            required: RequiredView::new(record.topology.as_ref()),
        }
    }
}

/// Entries of ranks that the table shows; the rest is in `-o json`.
const RANKS_SHOWN_MAX: usize = 16;

impl AttemptView {
    /// How each rank ended, where they did not end alike.
    fn ranks_in_words(&self) -> Option<String> {
        let shown = self.ranks.iter().take(RANKS_SHOWN_MAX).map(RanksView::words).collect::<Vec<_>>().join(", ");
        let more = if self.ranks.len() > RANKS_SHOWN_MAX { ", and more: see -o json" } else { "" };
        (self.ranks.len() > 1).then(|| format!("Ranks of attempt {}: {shown}{more}", self.attempt))
    }

    /// `guaranteed by research/nlp 1:00:00, burst (spot) 5:00`.
    fn quota_words(&self) -> String {
        let mut words: Vec<String> = self.quota_times.iter().map(QuotaTime::words).collect();
        let unknown = show_seconds(self.unattributed_ms / 1_000);
        words.extend((self.unattributed_ms > 0).then(|| format!("not attributed {unknown}")));
        if words.is_empty() { "-".to_owned() } else { words.join(", ") }
    }
}

/// The table of attempts, and of the ranks that failed first in the last one.
#[must_use]
pub fn attempts_table(attempts: &[AttemptView]) -> Vec<Block> {
    // Attempts of a time before classes were recorded have none.
    let quota = attempts.iter().any(|attempt| !attempt.quota_times.is_empty());
    let mut heads = vec!["ATTEMPT", "ENDED", "RAN", "RANKS"];
    heads.extend(quota.then_some("QUOTA"));
    heads.push("REASON");
    let mut columns = Columns::new(&heads).right(&["ATTEMPT", "RAN"]);
    for attempt in attempts {
        let clean = (attempt.cleaned_ms > 0).then(|| format!("GPUs clean after {} ms", attempt.cleaned_ms));
        let ends: Vec<String> = attempt.ends.iter().map(|end| format!("{} {}", end.ranks, end.words())).collect();
        let mut row = vec![
            attempt.attempt.to_string(),
            attempt.ended.clone(),
            show_seconds(attempt.ran_s),
            ends.into_iter().chain(clean).collect::<Vec<_>>().join(", "),
        ];
        row.extend(quota.then(|| attempt.quota_words()));
        row.push(attempt.reason.clone());
        columns.row(row);
    }
    let mut blocks = vec![Block::Text(String::new()), columns.block()];
    if let Some(words) = attempts.last().and_then(AttemptView::ranks_in_words) {
        blocks.extend([Block::Text(String::new()), Block::Text(words)]);
    }
    let Some(last) = attempts.last().filter(|last| !last.failures.is_empty()) else { return blocks };
    let mut columns = Columns::new(&["FAILED RANK", "NODE", "HOW", "AT"]).right(&["FAILED RANK"]);
    for failure in &last.failures {
        let said = if failure.reason.is_empty() { String::new() } else { format!(": {}", failure.reason) };
        columns.row(vec![
            failure.rank.to_string(),
            failure.node.clone(),
            format!("{}{said}", failure.end.words()),
            failure.at.clone(),
        ]);
    }
    blocks.extend([Block::Text(String::new()), columns.block()]);
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_shown_with_its_end_where_they_differ() {
        let state = |kind, code| v1::TaskState { kind: i32::from(kind), code, ..v1::TaskState::default() };
        let run = |kind, code, ranks| v1::EndCount { end: Some(state(kind, code)), ranks };
        let words = |end_runs: Vec<v1::EndCount>| {
            let record = v1::AttemptRecord { attempt: 2, end_runs, ..v1::AttemptRecord::default() };
            AttemptView::new(&record, &BTreeMap::new(), &BTreeMap::new()).ranks_in_words()
        };
        assert_eq!(words(vec![run(Kind::Exited, 0, 512)]), None);
        let said = words(vec![run(Kind::Stopped, 0, 7), run(Kind::Exited, 1, 1), run(Kind::Signaled, 9, 504)]);
        let expected = "Ranks of attempt 2: 0-6 stopped, 7 exit code 1, 8-511 signal 9 (SIGKILL)";
        assert_eq!(said.as_deref(), Some(expected));
        let pair = |_| [run(Kind::Stopped, 0, 1), run(Kind::Exited, 1, 1)];
        let many = words((0..20).flat_map(pair).collect()).expect("many");
        assert!(many.ends_with("15 exit code 1, and more: see -o json"), "{many}");
    }
}

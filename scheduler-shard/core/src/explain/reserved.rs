//! What reservations have to do with a job's waiting: its own, and those of others.

use crate::job_class::rounded_down_s;
use crate::place::{Ask, Steps, place};
use crate::reserve::START_MS;
use crate::view::{Known, View};
use muster_model::{GpuModel, JobId};
use std::collections::BTreeMap;

/// A place and a time are kept for the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promised {
    /// When it starts at the latest, ms since the Unix epoch.
    pub start_ms: u64,
    /// How far away that is; 0 when it is late.
    pub in_ms: u64,
    /// How many nodes are kept.
    pub nodes: u64,
}

/// A place is free, but kept for a gang that starts before the job would be over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptForGang {
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

/// What is kept for `job`.
pub(super) fn promised(job: &Known, now_ms: u64) -> Option<Promised> {
    let kept = job.reserved.as_ref()?;
    let in_ms = kept.start_ms.saturating_sub(now_ms);
    Some(Promised { start_ms: kept.start_ms, in_ms, nodes: kept.nodes.len() as u64 })
}

/// The gang whose nodes would hold the job now; none when nothing is kept or it would not fit there either.
pub(super) fn in_the_way(view: &View, ask: &Ask<'_>, now_ms: u64) -> Option<KeptForGang> {
    view.index.shelves(ask.cell, ask.model).find(|(part, _)| part.hold.is_some())?;
    // As if it were over at once.
    let found = place(view, &Ask { over_ms: 0, ..*ask }, &mut Steps::default())?;
    let hold = view.index.hold_of(found.first()?.node)?;
    let in_ms = hold.until_ms.saturating_sub(now_ms);
    let grace_s = ask.class.grace_s;
    let left_s = (in_ms.saturating_sub(START_MS) / 1_000).saturating_sub(grace_s);
    Some(KeptForGang {
        cell: super::cell_name(view, ask.cell),
        model: ask.model,
        job: hold.job,
        start_ms: hold.until_ms,
        in_ms,
        time_limit_s: Some(rounded_down_s(left_s)).filter(|limit_s| *limit_s > 0),
    })
}

impl Promised {
    pub(super) fn text(&self) -> String {
        let nodes = self.nodes;
        let when = if self.in_ms == 0 { "by now".to_owned() } else { format!("within {}", words(self.in_ms)) };
        format!(
            "it starts {when} as far as what runs there keeps its time limits: {nodes} nodes take nothing that would outlast that"
        )
    }

    pub(super) fn figures(&self) -> [(&'static str, String); 2] {
        [("start_ms", self.start_ms.to_string()), ("nodes", self.nodes.to_string())]
    }
}

impl KeptForGang {
    pub(super) fn text(&self) -> String {
        let KeptForGang { cell, job, in_ms, .. } = self;
        let on = super::model_words(self.model);
        format!(
            "a place on {on} is free in cell {cell}, but kept for job {job}, which starts there within {}",
            words(*in_ms)
        )
    }

    pub(super) fn fix(&self) -> String {
        match self.time_limit_s {
            Some(limit_s) => format!("set a time limit of at most {}", words(1_000 * limit_s)),
            None => format!("it is free again when job {} has started or gone", self.job),
        }
    }

    pub(super) fn figures(&self) -> BTreeMap<String, String> {
        let limit = self.time_limit_s.map(|limit_s| ("time_limit_s".to_owned(), limit_s.to_string()));
        let start = ("start_ms".to_owned(), self.start_ms.to_string());
        std::iter::once(start).chain(limit).collect()
    }
}

/// A span of time in its two largest units: `3 d 4 h`, `2 h 5 min`, `40 s`. Rounded down.
fn words(span_ms: u64) -> String {
    let s = span_ms / 1_000;
    let two = |large: u64, large_word: &str, small: u64, small_word: &str| match small {
        0 => format!("{large} {large_word}"),
        small => format!("{large} {large_word} {small} {small_word}"),
    };
    match s {
        0..60 => format!("{s} s"),
        60..3_600 => two(s / 60, "min", s % 60, "s"),
        3_600..86_400 => two(s / 3_600, "h", s % 3_600 / 60, "min"),
        _ => two(s / 86_400, "d", s % 86_400 / 3_600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn spans_are_told_in_two_units() {
        let told = [0, 59_999, 60_000, 90_000, 3_600_000, 7_500_000, 86_400_000, 273_600_000].map(words);
        assert_eq!(told, ["0 s", "59 s", "1 min", "1 min 30 s", "1 h", "2 h 5 min", "1 d", "3 d 4 h"]);
    }
}

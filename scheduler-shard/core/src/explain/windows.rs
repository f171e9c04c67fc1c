//! What windows have to do with a job's waiting: maintenance, reservations of others, drains that lie ahead, and the reservation that it names.

use super::trial::Trial;
use super::words::{span, word};
use crate::policy::gate::find_place;
use crate::search::Ask;
use crate::view::ReservationFault;
use muster_model::{GpuModel, WindowKind, utc};
use std::collections::BTreeMap;

/// A place is free, but a window of a node of it is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InWindow {
    /// Where.
    pub cell: String,
    /// The model.
    pub model: Option<GpuModel>,
    /// Name of the first node with such a window.
    pub node: String,
    /// What the window is for.
    pub kind: WindowKind,
    /// Its name.
    pub name: String,
    /// When it begins, ms since the Unix epoch.
    pub start_ms: u64,
    /// When it ends.
    pub end_ms: Option<u64>,
    /// It has begun.
    pub open: bool,
    /// The job's time limit in seconds.
    pub limit_s: Option<u64>,
    /// The longest with which it could run there before the window, in seconds, if any is short enough.
    pub time_limit_s: Option<u64>,
}

/// The window in the way of the place that the job would find without windows.
pub(super) fn in_the_way(trial: &mut Trial, ask: &Ask<'_>) -> Option<InWindow> {
    let class = ask.class.edited(|key| key.heeds_windows = false);
    let without = Ask { class: &class, ..*ask };
    let found = trial.with_own_nodes(|view, steps| find_place(view, &without, steps))?;
    let view = &trial.view;
    let (node, times) = found.iter().find_map(|task| {
        let windows = view.fleet.index.windows_of(task.node);
        let closed = windows.iter().find(|times| !times.allows(ask.class.reservation.as_deref(), ask.ends_ms))?;
        Some((view.capacity().nodes().get(&task.node)?.node.spec.name.clone(), closed.clone()))
    })?;
    Some(InWindow {
        cell: super::cell_name(view, ask.cell),
        model: ask.model,
        node,
        kind: times.kind,
        name: times.name.to_string(),
        start_ms: times.start_ms,
        end_ms: times.end_ms,
        open: times.open,
        limit_s: trial.job().and_then(|(job, _)| job.time_limit_s),
        time_limit_s: (!times.open).then(|| ask.class.limit_until_s(trial.now_ms, times.start_ms)).flatten(),
    })
}

impl InWindow {
    pub(super) fn text(&self) -> String {
        let InWindow { cell, model, node, kind, name, start_ms, end_ms, open, limit_s, .. } = self;
        let (on, start) = (word(*model), utc::show(*start_ms));
        let until = end_ms.map(|end_ms| format!(" until {}", utc::show(end_ms))).unwrap_or_default();
        let why = match limit_s {
            _ if *open => "has begun".to_owned(),
            Some(limit_s) => format!("begins before the job's time limit of {} ends", span(1_000 * limit_s)),
            None => "is ahead, and the job has no time limit".to_owned(),
        };
        if node.is_empty() {
            return format!(
                "{on} are free in cell {cell}, but their nodes have {kind} from {start}{until}, which {why}"
            );
        }
        format!("{on} are free in cell {cell}, but node {node} has {kind} {name} from {start}{until}, which {why}")
    }

    pub(super) fn figures(&self) -> BTreeMap<String, String> {
        let limit = self.time_limit_s.map(|limit_s| ("time_limit_s".to_owned(), limit_s.to_string()));
        let end = self.end_ms.map(|end_ms| ("end_ms".to_owned(), end_ms.to_string()));
        let start = ("start_ms".to_owned(), self.start_ms.to_string());
        std::iter::once(start).chain(end).chain(limit).collect()
    }
}

/// The words for what keeps a job from the reservation that it names.
pub(super) fn reservation_text(name: &str, fault: &ReservationFault) -> String {
    match fault {
        ReservationFault::Gone => {
            format!("reservation {name}, which it names, does not exist any more: cancel the job, or submit it without")
        }
        ReservationFault::NotForTenant => format!("reservation {name}, which it names, is not for its tenant"),
        ReservationFault::NotOpen { start_ms } => {
            format!("reservation {name}, which it names, begins at {}", utc::show(*start_ms))
        }
        ReservationFault::TooLong { end_ms, .. } => {
            let end = utc::show(*end_ms);
            format!(
                "reservation {name}, which it names, ends at {end}: the job's time limit must end before, grace included"
            )
        }
        ReservationFault::Full => {
            format!("a place is free, but not on the nodes of reservation {name}, which it names")
        }
    }
}

//! Maintenance windows, advance reservations and drains as they are shown.

use crate::output::{Block, Columns};
use crate::units::{counted, show_moment};
use muster_proto::v1;
use serde::Serialize;

/// Names that one line shows.
const SHOWN_MAX: usize = 4;

/// A window.
#[derive(Clone, Debug, Serialize)]
pub struct WindowView {
    /// Its name.
    pub name: String,
    /// `maintenance`, `reservation`, `drain`.
    pub kind: String,
    /// `planned` or `open`.
    pub state: &'static str,
    /// When it begins; RFC 3339.
    pub start: String,
    /// When it ends; absent for a drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    /// Why.
    pub reason: String,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// GPUs on them.
    pub gpus: u64,
    /// Who may use a reservation.
    pub tenants: Vec<String>,
    /// Jobs that name it may start before it and run past its end.
    pub flex: bool,
    /// What may not use it is preempted before the start.
    pub preempt: bool,
    /// Jobs on its nodes that may run into it.
    pub jobs_in_the_way: Vec<u64>,
    /// For sorting.
    #[serde(skip)]
    pub start_ms: u64,
}

impl WindowView {
    /// From the message.
    #[must_use]
    pub fn new(view: v1::WindowView) -> Self {
        let window = view.window.unwrap_or_default();
        WindowView {
            name: window.name,
            kind: window.kind,
            state: if window.open { "open" } else { "planned" },
            start: show_moment(window.start_ms),
            end: window.end_ms.map(show_moment),
            reason: window.reason,
            nodes: view.nodes,
            gpus: view.gpus,
            tenants: view.tenants,
            flex: window.flex,
            preempt: window.preempt,
            jobs_in_the_way: view.jobs_in_the_way,
            start_ms: window.start_ms,
        }
    }

    /// What an operator is told when it was made.
    #[must_use]
    pub fn words(&self) -> String {
        let WindowView { name, kind, start, gpus, jobs_in_the_way, .. } = self;
        let until = self.end.as_ref().map(|end| format!(" to {end}")).unwrap_or_default();
        let nodes = some_of(&self.nodes);
        let jobs: Vec<String> = jobs_in_the_way.iter().map(ToString::to_string).collect();
        let then = if self.preempt { "are preempted in time" } else { "run on into it" };
        let in_the_way = match jobs.is_empty() {
            true => String::new(),
            false => format!("; jobs that may not have ended then {then}: {}", some_of(&jobs)),
        };
        format!("{kind} {name} from {start}{until}: {nodes} ({}){in_the_way}", counted(*gpus as usize, "GPU"))
    }
}

fn some_of(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(",");
    if names.len() > SHOWN_MAX { format!("{shown} and {} more", names.len() - SHOWN_MAX) } else { shown }
}

/// The table.
#[must_use]
pub fn table(windows: &[WindowView]) -> Vec<Block> {
    let heads = ["NAME", "KIND", "STATE", "START", "END", "NODES", "GPUS", "TENANTS", "IN THE WAY", "REASON"];
    let mut columns = Columns::new(&heads).right(&["NODES", "GPUS", "IN THE WAY"]);
    for window in windows {
        let or = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        columns.row(vec![
            window.name.clone(),
            window.kind.clone(),
            window.state.to_owned(),
            window.start.clone(),
            or(window.end.clone().unwrap_or_default()),
            window.nodes.len().to_string(),
            window.gpus.to_string(),
            or(some_of(&window.tenants)),
            window.jobs_in_the_way.len().to_string(),
            or(window.reason.clone()),
        ]);
    }
    vec![columns.block()]
}

//! Windows as the API shows them.

use muster_control_core::State;
use muster_control_core::plan::drain_name;
use muster_model::{Window, WindowKind, WindowSpec};
use muster_proto::v1;
use std::collections::BTreeSet;

/// Jobs that one answer names for each window: what is in the way of a whole cell nobody reads one by one.
const JOBS_SHOWN_MAX: usize = 1_000;

/// The windows of a kind, or all.
pub(crate) fn views(state: &State, kind: Option<WindowKind>) -> Vec<v1::WindowView> {
    let of_kind = state.windows.values().filter(|window| kind.is_none_or(|kind| window.kind == kind));
    of_kind.map(|window| view(state, window)).collect()
}

fn view(state: &State, window: &Window) -> v1::WindowView {
    let nodes = || window.nodes.iter().filter_map(|id| state.nodes.get(id));
    let tenants = window.tenants.iter().filter_map(|id| state.tenants.get(id));
    let jobs: BTreeSet<u64> = state.jobs_into(window).map(|job| job.0).take(JOBS_SHOWN_MAX).collect();
    v1::WindowView {
        window: Some(window.into()),
        nodes: nodes().map(|node| node.spec.name.clone()).collect(),
        tenants: tenants.map(|tenant| tenant.path.clone()).collect(),
        jobs_in_the_way: jobs.into_iter().collect(),
        gpus: nodes().map(|node| node.spec.gpus.len() as u64).sum(),
    }
}

/// The same as part of one of its nodes.
pub(crate) fn on_node(window: &Window) -> v1::Window {
    v1::Window { nodes: Vec::new(), tenants: Vec::new(), ..v1::Window::from(window) }
}

/// The window of a node that is to be drained by a time.
pub(crate) fn drain(node: &str, by_ms: u64, reason: &str) -> WindowSpec {
    WindowSpec {
        name: drain_name(node),
        kind: WindowKind::Drain,
        nodes: vec![node.to_owned()],
        gpus: 0,
        model: None,
        start_ms: by_ms,
        end_ms: None,
        reason: reason.to_owned(),
        tenants: Vec::new(),
        flex: false,
        preempt: true,
    }
}

//! Replays a trace: the real state machine and the real scheduler on virtual time, with a trivial model of nodes between.
//!
//! What must stay true: every submitted job is accounted for at the end; same input, same report.

use crate::engine::{Engine, Given};
use crate::error::ReplayError;
use crate::input::ReplayInput;
use crate::ledger::Ledger;
use crate::queue::Queues;
use crate::quota::tenants;
use crate::report::Report;
use crate::shape::Shaper;
use crate::window::Window;
use muster_model::tenant::TenantSpec;
use muster_model::tenant_edit::TenantEdit;
use std::collections::BTreeMap;
use std::io::Write;

/// Replays. `progress` is told now and then how many milliseconds of virtual time have passed, and how many the window has.
///
/// # Errors
/// When there is nothing to replay, the fleet is refused, or the cores are found at fault.
pub fn replay(input: &ReplayInput, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, ReplayError> {
    replay_logged(input, &[], None, progress)
}

/// The same under a quota tree, which goes before the quota that is imposed, with the event log written to `log`.
///
/// # Errors
/// As [`replay`], and when the log cannot be written.
pub fn replay_logged(
    input: &ReplayInput,
    tree: &[TenantEdit],
    log: Option<&mut dyn Write>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, ReplayError> {
    let tree: Vec<TenantSpec> = tree.iter().map(|edit| edit.on(None)).collect();
    replay_under(input, &tree, log, progress)
}

/// The same under a quota tree that is complete.
///
/// # Errors
/// As [`replay_logged`].
pub fn replay_under(
    input: &ReplayInput,
    tree: &[TenantSpec],
    log: Option<&mut dyn Write>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, ReplayError> {
    let (trace, fleet, options) = (&input.trace, &input.fleet, &input.options);
    fleet.validate()?;
    let empty = || ReplayError::Empty { jobs: trace.jobs.len(), bad: trace.bad.count };
    let window = Window::choose(&trace.jobs, options.window).ok_or_else(empty)?;
    let (mut running, submitted) = window.cut(&trace.jobs);
    if submitted.is_empty() {
        return Err(empty());
    }
    if !options.warm_start {
        running.clear();
    }
    let replayed: Vec<_> = running.iter().chain(&submitted).collect();
    let tenant_specs = tenants(options.quota, fleet, &window, &trace.jobs, &replayed);
    let tenant_specs = under_tree(tenant_specs, tree);
    let shaper = Shaper::new(fleet, options.shape);
    let queues = Queues::new(options.queue, &tenant_specs);
    let ledger = Ledger::new(&tenant_specs, &running, &submitted, (&shaper, &queues), window.from_s);

    let given = Given { fleet, tenants: &tenant_specs, queues: &queues, options, window_ms: window.length_s() * 1000 };
    let mut engine = Engine::set_up(&given, ledger, log)?;
    engine.run(progress)?;
    let report = engine.account(input, &window).report();
    if report.jobs.balances() {
        Ok(report)
    } else {
        Err(ReplayError::Unbalanced { counts: format!("{:?}", report.jobs) })
    }
}

/// The tenants of the trace and of the tree, in the order of their paths: parents before children.
fn under_tree(specs: Vec<TenantSpec>, tree: &[TenantSpec]) -> Vec<TenantSpec> {
    let mut by_path: BTreeMap<String, TenantSpec> = specs.into_iter().map(|spec| (spec.path.clone(), spec)).collect();
    by_path.extend(tree.iter().map(|spec| (spec.path.clone(), spec.clone())));
    by_path.into_values().collect()
}

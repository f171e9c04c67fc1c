//! Jobs of small traces.

use muster_twin::import::{EndState, TraceDevices, TraceJob};

/// A task of whole GPUs that completes.
pub(crate) fn job(tenant: &str, submit_s: u64, duration_s: u64, gpus: u32) -> TraceJob {
    TraceJob {
        name: format!("job-{submit_s}"),
        tenant: tenant.to_owned(),
        submit_s,
        duration_s,
        recorded_wait_s: None,
        time_limit_s: None,
        tasks: 1,
        devices: TraceDevices::Whole { gpus_per_task: gpus },
        cpu_milli: 0,
        memory_mib: 0,
        models: Vec::new(),
        end: EndState::Completed,
    }
}

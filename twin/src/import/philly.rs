//! Microsoft Philly (`timestamp,duration,num_gpus,gpu_time,cluster`; `cluster` is the virtual cluster).

use super::row::Table;
use super::{EndState, ImportError, Row, Rows, TraceDevices, TraceJob, plain_name};

pub(super) const ASSUMPTIONS: &[&str] = &[
    "Philly's timestamps are read as UTC; its virtual cluster is the tenant.",
    "Philly gives no CPU, memory, GPU model or end state here: jobs ask for GPUs alone, of any model, and end well after their recorded duration.",
    "Philly's num_gpus counts one gang: larger than a node it becomes tasks of equal size.",
];

pub(super) fn rows(table: Table<'_>) -> Result<Rows<'_>, ImportError> {
    let (submit, duration) = (table.need("timestamp")?, table.need("duration")?);
    let (gpus, tenant) = (table.need("num_gpus")?, table.need("cluster")?);
    let mut number = 0u64;
    Ok(table.rows(move |row| {
        number += 1;
        let gpus_per_task = row.gpus("num_gpus", gpus)?;
        if gpus_per_task == 0 {
            return Err("num_gpus is 0".to_owned());
        }
        if row.text(tenant).is_empty() {
            return Err("cluster is empty".to_owned());
        }
        Ok(Row::Job(TraceJob {
            name: format!("philly-{number}"),
            tenant: plain_name(row.text(tenant)),
            submit_s: row.time("timestamp", submit)?,
            duration_s: row.seconds("duration", duration)?,
            recorded_wait_s: None,
            time_limit_s: None,
            tasks: 1,
            devices: TraceDevices::Whole { gpus_per_task },
            cpu_milli: 0,
            memory_mib: 0,
            models: Vec::new(),
            end: EndState::Completed,
        }))
    }))
}

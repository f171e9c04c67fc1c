//! Microsoft ITP (`job_id,submission_time,duration,num_gpu`; one file per cluster, seconds from the start of the trace).

use super::row::Table;
use super::{EndState, ImportError, Row, Rows, TraceDevices, TraceJob, plain_name};

pub(super) const ASSUMPTIONS: &[&str] = &[
    "ITP gives seconds from the start of its trace, one clock for all clusters; the tenant is the file's name (one cluster, one tenant).",
    "ITP gives no CPU, memory, GPU model or end state: jobs ask for GPUs alone, of any model, and end well after their recorded duration.",
    "ITP's num_gpu counts one gang: larger than a node it becomes tasks of equal size.",
];

pub(super) fn rows(table: Table<'_>) -> Result<Rows<'_>, ImportError> {
    let (id, submit) = (table.need("job_id")?, table.need("submission_time")?);
    let (duration, gpus) = (table.need("duration")?, table.need("num_gpu")?);
    let tenant = tenant_of(table.source());
    Ok(table.rows(move |row| {
        let gpus_per_task = row.gpus("num_gpu", gpus)?;
        if gpus_per_task == 0 {
            return Err("num_gpu is 0".to_owned());
        }
        Ok(Row::Job(TraceJob {
            name: plain_name(row.text(id)),
            tenant: tenant.clone(),
            submit_s: row.seconds("submission_time", submit)?,
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

/// `traces/itp/cluster01.csv.gz` is `cluster01`.
fn tenant_of(source: &str) -> String {
    let file = source.rsplit(['/', '\\']).next().unwrap_or(source);
    let stem = file.split('.').next().unwrap_or(file);
    plain_name(stem)
}

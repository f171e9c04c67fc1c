//! Pod lists of Alibaba's 2023 GPU trace (`openb_pod_list_*.csv`).
//!
//! Some published lists have only `name,cpu_milli,memory_mib,num_gpu,gpu_milli`: they have no times and cannot be replayed in
//! time, which the missing column says.

use super::models::openb_models;
use super::row::{Fields, Table};
use super::{EndState, ImportError, Row, Rows, TraceDevices, TraceJob, plain_name};

pub(super) const ASSUMPTIONS: &[&str] = &[
    "openb pods live from creation_time to deletion_time there; here they run for deletion - scheduled time (deletion - creation where they were never scheduled), from when they are placed.",
    "openb's gpu_milli below 1000 is an MPS share of one card: compute percentage gpu_milli/10 rounded up, and the same share of the memory that the smallest acceptable card has for shares, less a context (the trace does not say how much GPU memory a pod needs).",
    "openb's gpu_spec is the list of acceptable models. P100, V100M16, V100M32, T4 and A10 are themselves; G2 and G3 are undisclosed models: a30 stands for G2 and a100-80 for G3, so figures per model of these two are stand-ins.",
    "openb has no tenants: each quality class (LS, BE, ...) is a tenant of the one organisation openb, so that pods may share cards.",
    "openb pods that failed exit with 1 after their recorded life and are not tried again; other phases end well.",
];

struct Columns {
    name: usize,
    cpu: usize,
    memory: usize,
    gpus: usize,
    milli: usize,
    created: usize,
    deleted: usize,
    scheduled: Option<usize>,
    spec: Option<usize>,
    class: Option<usize>,
    phase: Option<usize>,
}

pub(super) fn rows(table: Table<'_>) -> Result<Rows<'_>, ImportError> {
    let columns = Columns {
        name: table.need("name")?,
        cpu: table.need("cpu_milli")?,
        memory: table.need("memory_mib")?,
        gpus: table.need("num_gpu")?,
        milli: table.need("gpu_milli")?,
        created: table.need("creation_time")?,
        deleted: table.need("deletion_time")?,
        scheduled: table.column("scheduled_time"),
        spec: table.column("gpu_spec"),
        class: table.column("qos"),
        phase: table.column("pod_phase"),
    };
    Ok(table.rows(move |row| pod(&columns, row)))
}

fn pod(at: &Columns, row: &Fields<'_>) -> Result<Row, String> {
    let created = row.whole("creation_time", at.created)?;
    let deleted = row.whole("deletion_time", at.deleted)?;
    let scheduled =
        if row.text(at.scheduled).is_empty() { None } else { Some(row.whole("scheduled_time", at.scheduled)?) };
    let began = scheduled.unwrap_or(created);
    if deleted < began || began < created {
        return Err(format!("times go backwards: created {created}, scheduled {began}, deleted {deleted}"));
    }
    let cpu_milli = row.whole("cpu_milli", at.cpu)?;
    let devices = devices(row.gpus("num_gpu", at.gpus)?, row.whole("gpu_milli", at.milli)?)?;
    if devices == TraceDevices::None && cpu_milli == 0 {
        return Err("asks for neither GPU nor CPU".to_owned());
    }
    let class = plain_name(&row.text(at.class).to_ascii_lowercase());
    Ok(Row::Job(TraceJob {
        name: plain_name(row.text(at.name)),
        tenant: format!("openb/{class}"),
        submit_s: created,
        duration_s: deleted - began,
        recorded_wait_s: scheduled.map(|began| began - created),
        time_limit_s: None,
        tasks: 1,
        devices,
        cpu_milli,
        memory_mib: row.whole("memory_mib", at.memory)?,
        models: if devices == TraceDevices::None { Vec::new() } else { openb_models(row.text(at.spec))? },
        end: if row.text(at.phase).eq_ignore_ascii_case("failed") { EndState::Failed } else { EndState::Completed },
    }))
}

fn devices(gpus: u32, milli: u64) -> Result<TraceDevices, String> {
    match (gpus, milli) {
        (0, _) => Ok(TraceDevices::None),
        (1, 1..=999) => Ok(TraceDevices::Share { milli: milli as u32 }),
        (_, 1000) => Ok(TraceDevices::Whole { gpus_per_task: gpus }),
        _ => Err(format!("{gpus} GPUs of {milli} milli each: neither whole cards nor a share of one")),
    }
}

//! Slurm accounting, as `sacct -P -o JobID,User,Account,Submit,Start,End,Elapsed,AllocTRES,ReqTRES,State,NNodes,Timelimit` prints it.
//!
//! Columns may come in any order and in any case; `JobID`, `Submit` and one of `AllocTRES`, `ReqTRES` must be there, with
//! `Elapsed` or `ElapsedRaw`. Rows of steps (`123.batch`, `123.0`) are passed over, as are jobs that never ran.

use super::models::{Known, model_named};
use super::row::{Fields, Table, gpus};
use super::{EndState, ImportError, Row, Rows, TraceDevices, TraceJob, plain_name};
use muster_model::GpuModel;

pub(super) const ASSUMPTIONS: &[&str] = &[
    "sacct's times are read as UTC (or as seconds since 1970 where SLURM_TIME_FORMAT=%s was set); the tenant is account/user.",
    "sacct's AllocTRES is what a job holds, ReqTRES where nothing was allocated; GPUs, CPU and memory are split evenly over NNodes tasks, CPU and memory rounded up. Where the GPUs do not divide by NNodes they count as one gang to be split anew.",
    "sacct's GPU type (gres/gpu:h100=8) names the acceptable model; a type that the catalogue does not know means any model. Shares (gres/shard, gres/mps) and MIG types are not read: such rows are counted as bad.",
    "sacct's array tasks and the components of heterogeneous jobs are jobs of their own; dependencies and reservations are not re-enacted.",
    "sacct's FAILED, NODE_FAIL, OUT_OF_MEMORY, BOOT_FAIL and DEADLINE end with 1 after the recorded time and are not tried again; CANCELLED and PREEMPTED jobs are cancelled then; TIMEOUT jobs reach their time limit then; a job still RUNNING ran as long as it had so far.",
];

struct Columns {
    id: usize,
    submit: usize,
    start: Option<usize>,
    end: Option<usize>,
    elapsed: Option<usize>,
    elapsed_raw: Option<usize>,
    user: Option<usize>,
    account: Option<usize>,
    alloc: Option<usize>,
    req: Option<usize>,
    state: Option<usize>,
    nodes: Option<usize>,
    limit: Option<usize>,
    name: Option<usize>,
}

pub(super) fn rows(table: Table<'_>) -> Result<Rows<'_>, ImportError> {
    let columns = Columns {
        id: table.need("JobID")?,
        submit: table.need("Submit")?,
        start: table.column("Start"),
        end: table.column("End"),
        elapsed: table.column("Elapsed"),
        elapsed_raw: table.column("ElapsedRaw"),
        user: table.column("User"),
        account: table.column("Account"),
        alloc: table.column("AllocTRES"),
        req: table.column("ReqTRES"),
        state: table.column("State"),
        nodes: table.column("NNodes"),
        limit: table.column("Timelimit"),
        name: table.column("JobName"),
    };
    if columns.alloc.is_none() {
        table.need("ReqTRES")?;
    }
    if columns.elapsed_raw.is_none() && (columns.start.is_none() || columns.end.is_none()) {
        table.need("Elapsed")?;
    }
    Ok(table.rows(move |row| job(&columns, row)))
}

fn job(at: &Columns, row: &Fields<'_>) -> Result<Row, String> {
    let id = row.text(at.id);
    if !id.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("JobID {id:?} does not begin with a number"));
    }
    if id.contains('.') {
        return Ok(Row::Skipped("step of a job"));
    }
    let state = row.text(at.state).split_whitespace().next().unwrap_or("").trim_end_matches('+').to_ascii_uppercase();
    let duration_s = elapsed(at, row)?;
    if state == "PENDING"
        || id.contains('[')
        || (duration_s == 0 && is_unknown(row.text(at.start)) && at.start.is_some())
    {
        return Ok(Row::Skipped("job that never ran"));
    }
    let submit_s = row.time("Submit", at.submit)?;
    let start = row.text(at.start);
    let start_s = if is_unknown(start) { None } else { Some(row.time("Start", at.start)?) };
    if start_s.is_some_and(|start| start < submit_s) {
        return Err(format!("Start {start} lies before Submit"));
    }
    let tres = tres_of(at, row)?;
    let nodes = row.whole_or_0("NNodes", at.nodes)?.max(1);
    let nodes = u32::try_from(nodes).map_err(|_| format!("NNodes {nodes} is out of range"))?;
    let tasks = if tres.gpus.is_multiple_of(nodes) { nodes } else { 1 };
    let cpu_milli = (tres.cpu * 1000).div_ceil(u64::from(tasks));
    let devices = match tres.gpus / tasks {
        0 => TraceDevices::None,
        gpus_per_task => TraceDevices::Whole { gpus_per_task },
    };
    if devices == TraceDevices::None && cpu_milli == 0 {
        return Err("holds neither GPU nor CPU".to_owned());
    }
    Ok(Row::Job(TraceJob {
        name: plain_name(if row.text(at.name).is_empty() { id } else { row.text(at.name) }),
        tenant: tenant(row.text(at.account), row.text(at.user)),
        submit_s,
        duration_s,
        recorded_wait_s: start_s.map(|start| start - submit_s),
        time_limit_s: limit(row.text(at.limit))?,
        tasks,
        devices,
        cpu_milli,
        memory_mib: tres.memory_mib.div_ceil(u64::from(tasks)),
        models: if devices == TraceDevices::None { Vec::new() } else { tres.models },
        end: end_state(&state)?,
    }))
}

fn is_unknown(time: &str) -> bool {
    matches!(time, "" | "Unknown" | "None" | "0")
}

fn elapsed(at: &Columns, row: &Fields<'_>) -> Result<u64, String> {
    if !row.text(at.elapsed_raw).is_empty() {
        return row.whole("ElapsedRaw", at.elapsed_raw);
    }
    let text = row.text(at.elapsed);
    if !text.is_empty() {
        return span(text).ok_or_else(|| format!("Elapsed {text:?} is not [days-]hours:minutes:seconds"));
    }
    if is_unknown(row.text(at.start)) || is_unknown(row.text(at.end)) {
        return Ok(0);
    }
    let (start, end) = (row.time("Start", at.start)?, row.time("End", at.end)?);
    end.checked_sub(start).ok_or_else(|| "End lies before Start".to_owned())
}

/// `[days-]hours:minutes:seconds` or `minutes:seconds`, in seconds.
fn span(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let parts: Vec<&str> = clock.split(':').collect();
    // A fraction of a second may follow (`00:00:01.250`).
    let whole = |part: &str| part.split('.').next().unwrap_or(part).parse::<u64>().ok();
    let [hours, minutes, seconds] = match parts[..] {
        [h, m, s] => [h.parse().ok()?, m.parse().ok()?, whole(s)?],
        [m, s] => [0, m.parse().ok()?, whole(s)?],
        _ => return None,
    };
    let clock_s = hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?.checked_add(seconds)?;
    days.checked_mul(86_400)?.checked_add(clock_s)
}

fn limit(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() || matches!(text.to_ascii_uppercase().as_str(), "UNLIMITED" | "PARTITION_LIMIT" | "INVALID") {
        return Ok(None);
    }
    span(text)
        .map(|s| (s > 0).then_some(s))
        .ok_or_else(|| format!("Timelimit {text:?} is not [days-]hours:minutes:seconds"))
}

fn tenant(account: &str, user: &str) -> String {
    match (account.is_empty(), user.is_empty()) {
        (false, false) => format!("{}/{}", plain_name(account), plain_name(user)),
        (false, true) => plain_name(account),
        (true, false) => format!("no-account/{}", plain_name(user)),
        (true, true) => "no-account".to_owned(),
    }
}

fn end_state(state: &str) -> Result<EndState, String> {
    Ok(match state {
        "" | "COMPLETED" | "RUNNING" | "COMPLETING" | "REQUEUED" | "RESIZING" | "SUSPENDED" => EndState::Completed,
        "FAILED" | "NODE_FAIL" | "OUT_OF_MEMORY" | "BOOT_FAIL" | "DEADLINE" | "LAUNCH_FAILED" => EndState::Failed,
        "CANCELLED" | "PREEMPTED" | "REVOKED" => EndState::Cancelled,
        "TIMEOUT" => EndState::TimedOut,
        other => return Err(format!("State {other:?} is not one of sacct's")),
    })
}

/// What a TRES list says.
struct Tres {
    cpu: u64,
    memory_mib: u64,
    gpus: u32,
    models: Vec<GpuModel>,
}

fn tres_of(at: &Columns, row: &Fields<'_>) -> Result<Tres, String> {
    let text = if row.text(at.alloc).is_empty() { row.text(at.req) } else { row.text(at.alloc) };
    let (mut cpu, mut memory_mib, mut plain, mut typed) = (0, 0, 0u64, 0u64);
    let mut models = Vec::new();
    for item in text.split(',').filter(|item| !item.is_empty()) {
        let (key, value) = item.split_once('=').ok_or_else(|| format!("{item:?} in the TRES list has no '='"))?;
        let count = || value.parse::<u64>().map_err(|_| format!("{item:?} in the TRES list is not a whole number"));
        match key {
            "cpu" => cpu = count()?,
            "mem" => memory_mib = mib(value).ok_or_else(|| format!("{item:?} is not an amount of memory"))?,
            "gres/gpu" => plain = count()?,
            "gres/shard" | "gres/mps" => return Err(format!("{item:?}: shares of a card are not read")),
            key => {
                if let Some(name) = key.strip_prefix("gres/gpu:") {
                    if is_mig(name) {
                        return Err(format!("{item:?}: MIG types are not read"));
                    }
                    typed += count()?;
                    if let Known::Model(model) = model_named(name)
                        && !models.contains(&model)
                    {
                        models.push(model);
                    }
                }
            }
        }
    }
    if cpu > 100_000_000 {
        return Err(format!("cpu={cpu} is out of range"));
    }
    Ok(Tres { cpu, memory_mib, gpus: gpus("gres/gpu", plain.max(typed))?, models })
}

/// Whether a GPU type is a MIG profile: `1g.10gb`, `a100_2g.20gb`.
fn is_mig(name: &str) -> bool {
    name.match_indices("g.").any(|(at, _)| {
        let rest = &name[at + 2..];
        name[..at].ends_with(|c: char| c.is_ascii_digit()) && rest.starts_with(|c: char| c.is_ascii_digit())
    })
}

/// `1000G`, `512M`, `1.5T`, `2048K`, or plain MiB.
fn mib(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match text[digits.len()..].chars().next().map(|c| c.to_ascii_uppercase()) {
        None | Some('M') => 1.0,
        Some('K') => 1.0 / 1024.0,
        Some('G') => 1024.0,
        Some('T') => 1024.0 * 1024.0,
        Some('P') => 1024.0 * 1024.0 * 1024.0,
        Some(_) => return None,
    };
    let amount: f64 = digits.parse().ok()?;
    (amount.is_finite() && (0.0..=1e12).contains(&amount)).then(|| (amount * scale).ceil() as u64)
}

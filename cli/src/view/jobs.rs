//! Lists of jobs as they are shown: columns, order, and why each pending job waits.

use crate::args::jobs::SortKey;
use crate::output::{Block, Columns, by_number};
use crate::units::show_seconds;
use crate::view::devices::DevicesView;
use crate::view::job::JobView;
use std::cmp::Reverse;

/// The list, as a reader of squeue expects it.
#[must_use]
pub fn table(jobs: &[JobView], wide: bool) -> Vec<Block> {
    let narrow = ["JOBID", "TENANT", "USER", "NAME", "STATE", "TIME", "GPUS", "NODES", "REASON"];
    let more = ["MODEL", "TASKS", "PRIORITY", "ATTEMPT", "CELL", "QUOTA", "SUBMITTED", "WAITED"];
    let heads: Vec<&'static str> = if wide { narrow.iter().chain(&more).copied().collect() } else { narrow.to_vec() };
    let mut columns = Columns::new(&heads)
        .right(&["JOBID", "TIME", "GPUS", "NODES", "TASKS", "PRIORITY", "ATTEMPT", "WAITED"])
        .cut(&[("REASON", 30), ("TENANT", 10), ("NAME", 10), ("USER", 8), ("REASON", 12), ("NAME", 6), ("TENANT", 6)]);
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    for job in jobs {
        let mut row = vec![
            job.id.to_string(),
            job.tenant.clone(),
            dash(&job.user),
            job.name.clone(),
            job.state.to_owned(),
            // Of a job that waits how long it has waited, of others how long they have run.
            show_seconds(if job.state == "pending" { job.waited_s } else { job.ran_s }),
            job.devices.column(job.tasks),
            if job.nodes == 0 { "-".to_owned() } else { job.nodes.to_string() },
            job.reason.lines().next().unwrap_or_default().to_owned(),
        ];
        if wide {
            row.extend([
                if job.models.is_empty() { "any".to_owned() } else { job.models.join(",") },
                job.tasks.to_string(),
                job.priority.to_string(),
                job.attempt.to_string(),
                dash(&job.cell),
                dash(&job.quota),
                job.submitted.clone(),
                show_seconds(job.waited_s),
            ]);
        }
        columns.row(row);
    }
    vec![columns.block()]
}

/// Puts jobs in the order of a key: names from a to z, figures from the largest, ids from the oldest.
pub fn sort(jobs: &mut [JobView], key: SortKey, reverse: bool) {
    match key {
        SortKey::Id => jobs.sort_by_key(|job| job.id),
        SortKey::Tenant => jobs.sort_by(|a, b| a.tenant.split('/').cmp(b.tenant.split('/')).then(a.id.cmp(&b.id))),
        SortKey::User => jobs.sort_by(|a, b| by_number(&a.user, &b.user).then(a.id.cmp(&b.id))),
        SortKey::Name => jobs.sort_by(|a, b| by_number(&a.name, &b.name).then(a.id.cmp(&b.id))),
        SortKey::State => jobs.sort_by_key(|job| (job.state_order(), job.id)),
        SortKey::Gpus => jobs.sort_by_key(|job| (Reverse(gpus(job)), job.id)),
        SortKey::Nodes => jobs.sort_by_key(|job| (Reverse(job.nodes), job.id)),
        SortKey::Time => jobs.sort_by_key(|job| (Reverse(job.ran_s), job.id)),
        SortKey::Waited => jobs.sort_by_key(|job| (Reverse(job.waited_s), job.id)),
        SortKey::Priority => jobs.sort_by_key(|job| (Reverse(job.priority), job.id)),
    }
    if reverse {
        jobs.reverse();
    }
}

/// Whole cards of the gang; a part of a card counts as less than one and more than none.
fn gpus(job: &JobView) -> (u64, bool) {
    match job.devices {
        DevicesView::Gpus { count } => (u64::from(count) * u64::from(job.tasks), false),
        DevicesView::None => (0, false),
        _ => (0, true),
    }
}

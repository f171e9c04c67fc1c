//! What a job waits for, in words.

use muster_proto::v1;
use muster_proto::v1::JobPhase;

/// What a job was submitted to wait for, as it is written.
pub(super) fn dependencies(start: &v1::StartConditions) -> Vec<String> {
    let written = |on: &v1::Dependency| match on.delay_s {
        0 => format!("{}:{}", on.kind, on.job_id),
        delay_s => format!("{}:{}+{}", on.kind, on.job_id, delay_s / 60),
    };
    let mut all: Vec<String> = start.dependencies.iter().map(written).collect();
    if start.any_dependency && !all.is_empty() {
        all = vec![all.join("?")];
    }
    all.extend(start.singleton.then(|| "singleton".to_owned()));
    all
}

/// Why a pending job is not eligible to start, in the words of the control plane.
fn not_eligible(job: &v1::Job) -> Vec<String> {
    let unmet = job.unmet.clone().and_then(|unmet| muster_model::Unmet::try_from(unmet).ok());
    unmet.iter().flat_map(muster_model::NotEligible::all).map(|why| why.text()).collect()
}

/// Why it waits, or how it ended.
pub(super) fn reason(job: &v1::Job) -> String {
    match job.phase() {
        JobPhase::Pending if job.unmet.is_some() => not_eligible(job).join("; "),
        JobPhase::Pending if job.array.is_some() => String::new(),
        JobPhase::Pending if job.cell.is_none() && job.requeue_reason.is_empty() => {
            "no cell is large enough".to_owned()
        }
        JobPhase::Pending if job.reason.is_empty() => job.requeue_reason.clone(),
        JobPhase::Completing if job.cancelled && job.reason.is_empty() => "cancelled".to_owned(),
        _ => job.reason.clone(),
    }
}

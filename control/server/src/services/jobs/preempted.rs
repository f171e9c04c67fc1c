//! What a victim is told: who took its devices, by which rule, and what that costs it.
//!
//! What must stay true: it says what the state has recorded; tenants are named as they are called now.

use muster_control_core::State;
use muster_control_core::authz::Visibility;
use muster_model::attempt::PreemptedBy;
use muster_model::ids::{JobId, TenantId};
use muster_model::{AllocationState, EndCause, GpuUnits, Job, JobPhase, PreemptReason, utc};
use muster_proto::v1;
use std::collections::BTreeMap;

/// Of a job that is being preempted, or waits since it was.
pub(super) fn reason(state: &State, sees: &Visibility, job: &Job) -> Option<v1::Reason> {
    match &job.phase {
        JobPhase::Stopping(id) => {
            let (by, reason) = match &state.allocations.get(id)?.state {
                AllocationState::Stopping(EndCause::Preempted { by, reason }) => (*by, *reason),
                AllocationState::Stopping(EndCause::Window { kind, .. }) => (None, PreemptReason::from(*kind)),
                _ => return None,
            };
            let for_whom = by.and_then(|by| state.jobs.get(&by));
            let account = for_whom.and_then(|job| job.claim.as_ref()?.account);
            let by = By { job: by, tenant: for_whom.map(|job| job.tenant), account, reason }.limited(state, sees);
            let grace_s = job.spec.preemption.grace_s(job.spec.grace_s);
            let since_ms = for_whom.and_then(|job| Some(job.claim.as_ref()?.made_ms));
            let until = since_ms.map(|ms| format!(", until {}", utc::show(ms + 1_000 * grace_s))).unwrap_or_default();
            let text = format!(
                "it is being preempted {}: its tasks may take {grace_s} s to stop{until}; then it is pending again, with its place kept",
                by.in_words(state)
            );
            Some(by.wire(state, text, BTreeMap::new()))
        }
        JobPhase::Queued => {
            let record = job.attempts.last()?;
            let PreemptedBy { job: by, tenant, account, reason, lost_gpu_unit_ms } = record.preempted?;
            let by = By { job: by, tenant, account, reason }.limited(state, sees);
            let since = match job.checkpoint_ms.filter(|at_ms| *at_ms >= record.bound_ms) {
                Some(at_ms) => format!("since its checkpoint at {}", utc::show(at_ms)),
                None => "since its start, because it had made no checkpoint".to_owned(),
            };
            let hours = gpu_hours(lost_gpu_unit_ms);
            let text = format!(
                "it was preempted at {} {}, and lost {hours} GPU-hours of work {since}; its place in the queue is kept (preempted {} times)",
                utc::show(record.ended_ms),
                by.in_words(state),
                job.preemptions
            );
            let figures = [("lost_gpu_hours", hours), ("ended_ms", record.ended_ms.to_string())];
            let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
            Some(by.wire(state, text, figures))
        }
        _ => None,
    }
}

/// Who took devices, and by which rule.
struct By {
    job: Option<JobId>,
    tenant: Option<TenantId>,
    account: Option<TenantId>,
    reason: PreemptReason,
}

impl By {
    /// Without what names others, for whoever does not see them.
    fn limited(self, state: &State, sees: &Visibility) -> Self {
        let is_seen = self.tenant.is_some_and(|tenant| sees.shows(state, tenant)) || sees.shows_fleet();
        By {
            job: self.job.filter(|_| is_seen),
            tenant: self.tenant.filter(|_| is_seen),
            account: self.account.filter(|account| sees.shows_limits(state, *account)),
            reason: self.reason,
        }
    }

    /// `by job 9 of research/vision (reclaim: the floor of research pays)`.
    fn in_words(&self, state: &State) -> String {
        let tenant = self.tenant.map(|tenant| format!(" of {}", path(state, tenant))).unwrap_or_default();
        let job = self.job.map(|job| format!("by job {job}{tenant} ")).unwrap_or_default();
        let why = match (self.reason, self.account) {
            (PreemptReason::Reclaim, Some(account)) => format!(": the floor of {} pays", path(state, account)),
            (PreemptReason::Reclaim, None) => ": a floor pays".to_owned(),
            (PreemptReason::Priority, _) => ": it has the higher priority in the same tenant".to_owned(),
            (PreemptReason::Class, _) => ": its class goes before this one's".to_owned(),
            (PreemptReason::Maintenance, _) => ": its nodes have maintenance".to_owned(),
            (PreemptReason::Reservation, _) => ": its nodes are reserved for others".to_owned(),
            (PreemptReason::Drain, _) => ": its nodes are drained".to_owned(),
            (PreemptReason::Move, _) => ": it is started elsewhere to make room".to_owned(),
        };
        format!("{job}({}{why})", self.reason)
    }

    fn wire(&self, state: &State, text: String, mut figures: BTreeMap<String, String>) -> v1::Reason {
        let mut put =
            |name: &str, value: Option<String>| drop(value.map(|value| figures.insert(name.to_owned(), value)));
        put("by_job", self.job.map(|job| job.to_string()));
        put("by_tenant", self.tenant.map(|tenant| path(state, tenant)));
        put("account", self.account.map(|account| path(state, account)));
        put("rule", Some(self.reason.to_string()));
        let subject = self.job.map(|job| job.to_string()).unwrap_or_default();
        let figures = figures.into_iter().collect();
        v1::Reason { code: "preempted".to_owned(), text, subject, figures, ..v1::Reason::default() }
    }
}

fn path(state: &State, id: TenantId) -> String {
    state.tenants.get(&id).map_or_else(|| "a tenant that is gone".to_owned(), |tenant| tenant.path.clone())
}

/// Hours of whole GPUs with two decimals.
fn gpu_hours(unit_ms: u64) -> String {
    let hundredths = unit_ms / (GpuUnits::CARD.0 * 36_000);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

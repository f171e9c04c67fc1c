//! Reasons that are about quota alone: a ceiling, or a claim on what others are leaving.
//!
//! What must stay true: figures are those of the ledger; a job with a claim is in no queue, and waits for its victims' graces alone.

use super::reason::Why;
use crate::view::{Known, View};
use muster_model::capacity::OverMax;

impl Why {
    pub(super) fn over_max(view: &View, over: OverMax) -> Self {
        let used = view.capacity().tenants().get(&over.tenant).map_or(0, |at| at.used.get(over.resource));
        let asked = over.would_use.saturating_sub(used);
        Why::OverMax { tenant: over.path, resource: over.resource, used, asked, max: over.max }
    }

    /// The job has claimed what others are leaving.
    pub(super) fn preempting(job: &Known) -> Option<Self> {
        let claim = job.claim.as_ref()?;
        Some(Why::Preempting { left: claim.victims.len(), account: claim.account })
    }
}

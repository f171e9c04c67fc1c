//! SL4 of explanations: a caller who sees one job only is shown no other job, in words or in fields.

use super::fleet::Fleet;
use crate::explain::{Blocker, Estimate, Explanation, Names};
use muster_model::JobId;

/// Everything that a reader of the limited explanation could see.
fn texts(said: &Explanation) -> Vec<String> {
    let mut all: Vec<String> = said.estimates.iter().map(Estimate::text).collect();
    for reason in &said.reasons {
        all.extend([reason.text(), reason.subject(), reason.fix()]);
        all.extend(reason.fixes());
        all.extend(reason.figures().into_values());
        all.extend(reason.holders.iter().map(Blocker::text));
    }
    all
}

/// Checks what the explanation of `job` shows to a caller who sees that job, its tenant and those above it.
pub(super) fn check_names_no_other(fleet: &Fleet, job: JobId, said: &Explanation) {
    let own = fleet.jobs[&job].spec.tenant.clone();
    let is_above = |path: &str| own == path || own.starts_with(&format!("{path}/"));
    let sees_job = |id| id == job;
    let limited = said.clone().limited(&Names { job: &sees_job, tenant: &is_above });
    assert_eq!(limited.reasons.len(), said.reasons.len(), "every reason is told");
    let others: Vec<String> = {
        let capacity = fleet.view.capacity();
        let nodes = capacity.nodes().values().map(|there| there.node.spec.name.clone());
        let tenants = capacity.tenants().values().map(|at| at.path.clone());
        // Names of one letter are words too, `other` is one where it is not a name.
        nodes.chain(tenants.filter(|path| !is_above(path))).filter(|name| name.len() > 1).collect()
    };
    for text in texts(&limited) {
        let text = text.replace("of other tenants", "").replace("of another tenant", "").replace("for other jobs", "");
        let words: Vec<&str> =
            text.split(|letter: char| !letter.is_alphanumeric() && !"-_/.".contains(letter)).collect();
        let named = others.iter().find(|other| words.contains(&other.as_str()));
        // A job that is moved is told where it will be.
        let is_moved = text.starts_with("it is being moved for ");
        assert!(is_moved || named.is_none(), "{named:?} is named: {text}");
        let numbers = words.windows(2).filter(|pair| matches!(pair[0], "job" | "jobs"));
        let named: Vec<u64> = numbers.filter_map(|pair| pair[1].parse().ok()).filter(|id| *id != job.0).collect();
        assert!(named.is_empty(), "jobs {named:?} are named: {text}");
    }
    for held in limited.reasons.iter().flat_map(|reason| &reason.holders) {
        assert!(held.job.0 == 0 && held.node.is_empty() && held.others > 0, "{held:?}");
    }
}

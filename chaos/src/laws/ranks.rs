//! Law 6: "A rank of a job never runs in two places at once."
//!
//! Judged by the nodes' own record of what ran when, not by what the control plane believes: two spans of one rank that overlap, on
//! any nodes and of any attempts, break it. So does one allocation's rank that ran twice.

use super::{Findings, Violation};
use crate::history::{History, Run};
use std::collections::BTreeMap;

/// Reports every overlap.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("law 6");
    let mut by_rank: BTreeMap<_, Vec<&Run>> = BTreeMap::new();
    for run in &history.runs {
        by_rank.entry((run.job, run.rank)).or_default().push(run);
    }
    for ((job, rank), mut runs) in by_rank {
        runs.sort_by_key(|run| (run.from_ns, run.to_ns));
        for pair in runs.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            findings.add_if(first.to_ns.is_none_or(|to_ns| to_ns > second.from_ns), || {
                format!("rank {rank} of job {job} ran twice at once: {first:?} and {second:?}")
            });
        }
        let mut by_allocation: Vec<_> = runs.iter().map(|run| run.allocation).collect();
        by_allocation.sort_unstable();
        findings.add_if(by_allocation.windows(2).any(|pair| pair[0] == pair[1]), || {
            format!("rank {rank} of job {job} was started twice under one allocation: {runs:?}")
        });
    }
    findings.found
}

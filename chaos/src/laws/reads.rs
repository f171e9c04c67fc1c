//! Reads are linearizable by default: what was acknowledged before a read was asked for is seen by it, whatever node answers, and its
//! revision is no older.

use super::{Findings, Violation};
use crate::history::History;

/// Reports every read that looked back.
pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::of("linearizable reads");
    for read in &history.reads {
        findings.add_if(!read.found, || format!("acknowledged before it was asked for, and not found: {read:?}"));
        findings.add_if(read.answered < read.acknowledged, || format!("answered at an older revision: {read:?}"));
    }
    findings.found
}

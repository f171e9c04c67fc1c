//! The checkers: one law per file, each a function from the record of a run to what it found broken.
//!
//! What must stay true: a checker shares no arithmetic with the servers (what proves a placement there does not judge it here), and
//! each has a test in which a doctored record makes it report.

mod double_hold;
mod ends;
mod epochs;
mod exports;
mod identities;
mod linearizable;
mod ranks;
mod replicas;
mod sessions;
mod submissions;
mod time;
mod usage;
mod watches;
mod whole_gangs;

#[cfg(test)]
mod tests;

use crate::history::History;
use std::fmt;

/// A law that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which: its number in `muster_model::laws`, or the name of a promise that has none.
    pub law: &'static str,
    /// How, with the ids involved.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken: {}", self.law, self.what)
    }
}

/// Violations of one law, the first few only: one mistake repeats itself at every later revision.
struct Findings {
    law: &'static str,
    found: Vec<Violation>,
}

/// So many of one law tell the story.
const FINDINGS_MAX: usize = 5;

impl Findings {
    fn of(law: &'static str) -> Self {
        Findings { law, found: Vec::new() }
    }

    fn add(&mut self, what: impl FnOnce() -> String) {
        if self.found.len() < FINDINGS_MAX {
            self.found.push(Violation { law: self.law, what: what() });
        }
    }

    fn add_if(&mut self, broken: bool, what: impl FnOnce() -> String) {
        if broken {
            self.add(what);
        }
    }
}

/// Checks every law that must hold at any moment. What must hold once everything has come to rest is in [`check_rest`].
#[must_use]
pub fn check(history: &History) -> Vec<Violation> {
    let checkers: [fn(&History) -> Vec<Violation>; 13] = [
        double_hold::check,
        whole_gangs::check,
        submissions::check,
        ranks::check,
        linearizable::check,
        epochs::check,
        identities::check,
        sessions::check,
        ends::check,
        replicas::check,
        time::check,
        watches::check,
        exports::check,
    ];
    checkers.iter().flat_map(|checker| checker(history)).collect()
}

/// Checks what the nodes' own record of what ran says alone, also where the control plane has lost its memory.
#[must_use]
pub fn check_runs(history: &History) -> Vec<Violation> {
    ranks::check(history)
}

/// Checks what must hold when the faults are over and everything that was asked for has been done.
#[must_use]
pub fn check_rest(history: &History) -> Vec<Violation> {
    let mut found = submissions::check_ended(history);
    found.extend(usage::check(history));
    found
}

//! Who leaves which nodes for a job, in words. What must stay true: lists in a sentence are bounded.

use super::words::{listed, span};
use crate::view::View;
use muster_model::{Allocation, JobId, NodeId};
use std::collections::BTreeSet;

/// Jobs or nodes that one sentence names.
const NAMED_MAX: usize = 4;

/// What ends for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Whose.
    pub jobs: Vec<JobId>,
    /// The names of the nodes that become free.
    pub nodes: Vec<String>,
    /// When the job should have its devices, from now.
    pub in_ms: u64,
}

impl Leaving {
    pub(super) fn of<'a>(view: &View, held: impl Iterator<Item = &'a Allocation>, in_ms: u64) -> Self {
        let (mut jobs, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        for held in held {
            jobs.insert(held.job);
            nodes.extend(held.tasks.iter().map(|task| task.node));
        }
        Leaving { jobs: jobs.into_iter().collect(), nodes: names(view, nodes), in_ms }
    }

    fn words(&self) -> (String, String, String) {
        let jobs = if self.jobs.len() == 1 { "job" } else { "jobs" };
        let jobs = format!("{jobs} {}", listed(self.jobs.iter().map(ToString::to_string), NAMED_MAX));
        (jobs, listed(self.nodes.iter().cloned(), NAMED_MAX), span(self.in_ms))
    }

    /// Of jobs that are moved.
    pub(super) fn moving(&self) -> String {
        let (jobs, nodes, within) = self.words();
        let is = if self.jobs.len() == 1 { "is" } else { "are" };
        format!("{jobs} {is} being moved off {nodes} for it: it should start within {within}")
    }

    /// Of growth.
    pub(super) fn growth(&self) -> String {
        let (jobs, nodes, within) = self.words();
        let (gives, grown) = if self.jobs.len() == 1 { ("gives", "it has") } else { ("give", "they have") };
        format!("{jobs} {gives} back what {grown} grown by on {nodes} for it: it should start within {within}")
    }
}

/// In the order of their ids.
pub(super) fn names(view: &View, nodes: impl IntoIterator<Item = NodeId>) -> Vec<String> {
    let name = |id: NodeId| {
        let there = view.capacity().nodes().get(&id);
        there.map_or_else(|| format!("#{id}"), |there| there.node.spec.name.clone())
    };
    nodes.into_iter().map(name).collect()
}

/// For people, of a job that is moved.
pub(super) fn moved(gang: JobId, nodes: &[String], in_ms: u64) -> String {
    let nodes = listed(nodes.iter().cloned(), NAMED_MAX);
    format!("it is being moved for job {gang}: it should start on {nodes} within {}", span(in_ms))
}

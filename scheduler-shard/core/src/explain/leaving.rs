//! Who leaves which nodes for a job, in words. What must stay true: lists in a sentence are bounded.

use super::words::{listed, named_job, named_jobs, span};
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

    fn words(&self) -> (String, [String; 2], String) {
        let nodes = listed(self.nodes.iter().cloned(), NAMED_MAX);
        // Where others stand is not said.
        let on = |before: &str| if nodes.is_empty() { String::new() } else { format!(" {before} {nodes}") };
        (named_jobs(&self.jobs, NAMED_MAX), [on("off"), on("on")], span(self.in_ms))
    }

    /// Of jobs that are moved.
    pub(super) fn moving(&self) -> String {
        let (jobs, [off, _], within) = self.words();
        let is = if self.jobs.len() == 1 { "is" } else { "are" };
        format!("{jobs} {is} being moved{off} for it: it should start within {within}")
    }

    /// Of growth.
    pub(super) fn growth(&self) -> String {
        let (jobs, [_, on], within) = self.words();
        let (gives, grown) = if self.jobs.len() == 1 { ("gives", "it has") } else { ("give", "they have") };
        format!("{jobs} {gives} back what {grown} grown by{on} for it: it should start within {within}")
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
    format!("it is being moved for {}: it should start on {nodes} within {}", named_job(gang), span(in_ms))
}

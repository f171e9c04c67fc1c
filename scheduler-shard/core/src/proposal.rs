//! What a pass proposes.

use muster_model::{Attempt, GpuModel, JobId, Reservation, TaskPlacement};
use std::sync::Arc;

/// A gang and the places found for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The job.
    pub job: JobId,
    /// The attempt it would be.
    pub attempt: Attempt,
    /// Model of all its cards; `None` for a gang without GPUs.
    pub model: Option<GpuModel>,
    /// Rank by rank.
    pub tasks: Vec<TaskPlacement>,
}

/// What to ask of the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// Start this gang there; already charged to the view.
    Bind(Binding),
    /// Let another cell try.
    HandOver(JobId),
    /// Keep these nodes for a waiting gang, or none any more; they stand apart in the view already.
    Reserve {
        /// For whom.
        job: JobId,
        /// What is kept from now on.
        reserved: Option<Arc<Reservation>>,
    },
    /// Record that jobs behind a waiting gang have started on so many cards in all.
    RecordBypass {
        /// The gang.
        job: JobId,
        /// In all, what was recorded before included.
        cards: u64,
    },
}

impl Proposal {
    /// Whom it is about.
    #[must_use]
    pub fn job(&self) -> JobId {
        match self {
            Proposal::Bind(binding) => binding.job,
            Proposal::HandOver(job) | Proposal::Reserve { job, .. } | Proposal::RecordBypass { job, .. } => *job,
        }
    }
}

//! Kinds of work. What must stay true: a job is of one class, and a pool serves a set of them.

use crate::words::words;
use serde::{Deserialize, Serialize};

/// What kind of work it is; pools say which they serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WorkloadClass {
    /// Training.
    Training,
    /// Inference.
    Inference,
    /// Notebooks and shells.
    Interactive,
    /// Anything else that may wait.
    #[default]
    Batch,
}

impl WorkloadClass {
    /// All classes.
    pub const ALL: [WorkloadClass; 4] =
        [WorkloadClass::Training, WorkloadClass::Inference, WorkloadClass::Interactive, WorkloadClass::Batch];
}

words!(WorkloadClass, "workload class",
    WorkloadClass::Training => "training", WorkloadClass::Inference => "inference",
    WorkloadClass::Interactive => "interactive", WorkloadClass::Batch => "batch");

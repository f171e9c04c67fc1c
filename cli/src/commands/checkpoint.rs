//! `muster checkpoint`: a task says that it has saved its progress.
//!
//! What must stay true: it does what any program can do without it, which is to replace the file that MUSTER_CHECKPOINT_FILE names; it
//! needs neither the control plane nor the agent.

use crate::failure::Failure;
use muster_model::checkpoint::{FILE_VARIABLE, note};
use std::path::PathBuf;

/// Replaces the file with one that has this note.
///
/// # Errors
/// When this is no task of Muster, or the disk refuses.
pub fn run(text: Option<&str>) -> Result<(), Failure> {
    let Some(path) = std::env::var_os(FILE_VARIABLE).map(PathBuf::from) else {
        let problem = "is not set: this is not a task of Muster";
        return Err(Failure::field(FILE_VARIABLE, problem, "call it from the command of a job"));
    };
    let beside = path.with_extension(format!("new-{}", std::process::id()));
    let written = std::fs::write(&beside, note(text.unwrap_or_default()));
    written.and_then(|()| std::fs::rename(&beside, &path)).map_err(|error| {
        let problem = format!("names {}, which cannot be written: {error}", path.display());
        Failure::field(FILE_VARIABLE, problem, "free space on the node's disk; do not change the variable")
    })
}

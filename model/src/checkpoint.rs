//! Checkpoints: that a job has saved its progress, when, and its own note about it.
//!
//! A task says so by writing a file ([`FILE_VARIABLE`] names it); what it writes there is the note. What must stay true: a note is one
//! short line, whoever wrote it, because it is shown to people and given to the next attempt in its environment.

use crate::validate::clipped;
use serde::{Deserialize, Serialize};

/// The variable that names the file which a task replaces after each checkpoint.
pub const FILE_VARIABLE: &str = "MUSTER_CHECKPOINT_FILE";
/// The variable in which the next attempt finds the note of the newest checkpoint.
pub const NOTE_VARIABLE: &str = "MUSTER_CHECKPOINT_NOTE";
/// Bytes of a note: a step number, a path.
pub const NOTE_BYTES_MAX: usize = 256;
/// A checkpoint of a running job is recorded at most this often: recording one costs an entry in the log of every control node, and
/// what a job loses is known to this.
pub const CHECKPOINT_EVERY_MS: u64 = 10_000;

/// A checkpoint that a task says it has made.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Checkpoint {
    /// When, in milliseconds since the Unix epoch, by the node's clock.
    pub at_ms: u64,
    /// What the task wrote, as [`note`] keeps it.
    pub note: String,
}

/// What is kept of a note: one line without control characters.
#[must_use]
pub fn note(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clipped(plain.trim().to_owned(), NOTE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_one_short_line() {
        assert_eq!(note(" step 40\n"), "step 40");
        assert_eq!(note("a\0b\nc\u{7f}"), "a b c");
        assert_eq!(note("\0 step 40 \u{1b}"), "step 40");
        assert_eq!(note(""), "");
        let long = note(&"\u{e9}".repeat(NOTE_BYTES_MAX));
        assert!(long.len() <= NOTE_BYTES_MAX && long.ends_with("..."), "{long}");
        assert_eq!(note(&long), long, "keeping it again changes nothing");
    }
}

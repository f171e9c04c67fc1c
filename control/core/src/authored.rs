//! Commands with the name of whoever has made them.
//!
//! What must stay true: a command is wrapped once; what the cluster does by itself has no author.

use crate::command::Command;
use muster_model::identity::Author;

impl Command {
    /// The command itself, and who made it; nobody has made what the cluster does by itself.
    #[must_use]
    pub fn parts(&self) -> (Option<&Author>, &Command) {
        match self {
            Command::Authored { author, command } => (Some(author), command),
            command => (None, command),
        }
    }

    /// The same, as `author` says.
    #[must_use]
    pub fn by(self, author: Author) -> Command {
        Command::Authored { author, command: Box::new(self) }
    }
}

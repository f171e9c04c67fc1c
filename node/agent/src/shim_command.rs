//! How this node's shims are run.

use std::path::PathBuf;

/// A program that is a shim: the task folder is added as the last argument.
#[derive(Clone, Debug)]
pub struct ShimCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, for example `shim`.
    pub arguments: Vec<String>,
}

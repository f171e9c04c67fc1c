//! Files with secrets, such as tokens and private keys, that commands and roles are given.
//!
//! What must stay true: a file that others than its owner can read is refused, with the remedy.

use crate::failure::Failure;
use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What the group of a file and all others may do with it.
const OTHERS: u32 = 0o077;

/// Checks that a file is nobody's but its owner's to read. `field` names the file in the message.
///
/// # Errors
/// When others can read it.
pub fn check(path: &Path, meta: &Metadata, field: &str) -> Result<(), Failure> {
    if meta.permissions().mode() & OTHERS == 0 {
        return Ok(());
    }
    let problem = format!("{} can be read by others", path.display());
    Err(Failure::field(field, problem, "chmod 600 it"))
}

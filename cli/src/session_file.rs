//! Files with a session: of `muster login`, and of `muster dev`.
//!
//! What must stay true: such a file is nobody else's to read at any moment, and is replaced whole.

use crate::failure::Failure;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const OWNER_ONLY: u32 = 0o600;

/// Writes the text of a session.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, session: &str) -> Result<(), Failure> {
    let draft = path.with_extension("new");
    let write = || {
        // What a crash has left there may have been open to others.
        match std::fs::remove_file(&draft) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(OWNER_ONLY).open(&draft)?;
        writeln!(file, "{session}")?;
        std::fs::rename(&draft, path)
    };
    write().map_err(|error| Failure::io(format!("writing {}", path.display()), error))
}

//! Folders whose entries survive a power loss.

use crate::disk::DiskError;
use std::fs::{self, File};
use std::path::Path;

/// An error of the operating system with what was being done.
pub(super) fn io(doing: &str, path: &Path, error: &std::io::Error) -> DiskError {
    DiskError::Io { doing: format!("{doing} {}", path.display()), why: error.to_string() }
}

/// Syncs a folder: the names in it are durable afterwards.
pub(super) fn sync(folder: &Path) -> Result<(), DiskError> {
    File::open(folder).and_then(|opened| opened.sync_all()).map_err(|error| io("syncing", folder, &error))
}

/// Makes a folder and whatever is missing above it, durably.
pub(super) fn make(folder: &Path) -> Result<(), DiskError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make(parent)?;
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(io("making", folder, &error)),
        _ => {}
    }
    sync(parent.unwrap_or(Path::new(".")))
}

/// Names become file names as they are, so they are held to letters, digits, `-`, `_` and inner dots.
pub(super) fn check_name(name: &str) -> Result<(), DiskError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with('.') || !name.chars().all(plain) {
        return Err(DiskError::Io { doing: format!("naming {name:?}"), why: "it is not a plain file name".to_owned() });
    }
    Ok(())
}

/// Leaves room for a suffix below the 255 bytes that file systems allow.
const MAX_NAME_BYTES: usize = 200;

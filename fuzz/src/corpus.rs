//! The kept inputs: `corpus/TARGET/NAME`, good ones and hostile ones.
//!
//! What must stay true: they are read in the order of their names, so that a run is the same everywhere.

use std::io;
use std::path::PathBuf;

/// A kept input.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The name of its file.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Where the folders of all targets are. Asked when it runs: checkouts may share a build folder.
#[must_use]
pub fn folder() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).filter(|path| path.ends_with("fuzz"));
    own.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR"))).join("corpus")
}

/// The kept inputs of a target.
///
/// # Errors
/// When its folder cannot be read.
pub fn of(target: &str) -> io::Result<Vec<Kept>> {
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(folder().join(target))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        kept.push(Kept { bytes: std::fs::read(&path)?, name, path });
    }
    kept.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(kept)
}

/// The names of all folders.
///
/// # Errors
/// When the folder cannot be read.
pub fn folders() -> io::Result<Vec<String>> {
    let entries = std::fs::read_dir(folder())?;
    let mut names =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

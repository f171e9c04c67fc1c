//! Stand-ins for NVIDIA's commands, as far as an agent runs them. The binaries of this crate are thin: what they do is here.
//!
//! What must stay true: a stand-in serves the folder that the environment names, otherwise the one in whose `bin` it lies; it passes the
//! same fault rules as the library.

pub mod mps;
mod mps_daemon;
mod mps_folders;
mod mps_log;
pub mod smi;

use crate::library::FOLDER_VARIABLE;
use std::path::{Path, PathBuf};

/// The folder that an executable serves.
#[must_use]
pub fn folder(exe: &Path) -> Option<PathBuf> {
    let own = exe.parent().and_then(Path::parent).map(Path::to_owned);
    std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from).or(own).filter(|path| path.join("fleet.json").is_file())
}

//! The folders of an MPS control daemon.
//!
//! What must stay true: who sets neither variable gets the folders of the real one.

use std::path::{Path, PathBuf};

/// Where its socket is when the environment does not say.
const PIPE: &str = "/tmp/nvidia-mps";
/// Where its logs are when the environment does not say.
const LOG: &str = "/var/log/nvidia-mps";
/// The folders of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folders {
    /// Of its socket.
    pub(super) pipe: PathBuf,
    /// Of `control.log` and `server.log`.
    pub(super) log: PathBuf,
    /// Of the double.
    pub(super) double: PathBuf,
}

impl Folders {
    /// As the environment says.
    #[must_use]
    pub(super) fn of_environment(exe: &Path) -> Option<Self> {
        let folder = |variable, default: &str| std::env::var_os(variable).map_or_else(|| default.into(), PathBuf::from);
        Some(Folders {
            pipe: folder("CUDA_MPS_PIPE_DIRECTORY", PIPE),
            log: folder("CUDA_MPS_LOG_DIRECTORY", LOG),
            double: super::folder(exe)?,
        })
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.pipe.join("control")
    }
}

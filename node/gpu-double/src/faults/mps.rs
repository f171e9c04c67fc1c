//! Clients of MPS servers, and their faults.
//!
//! What must stay true: a server that has ended takes nobody.

use super::Faults;
use crate::files::{DoubleError, started_ticks};
use crate::state::mps::MpsServer;
use crate::state::refusal::Refusal;
use std::path::Path;

impl Faults {
    /// A client joins the MPS server of a pipe folder.
    ///
    /// # Errors
    /// The server is not there, or takes nobody after a fault; see [`Faults::hang`].
    pub fn mps_join(&self, pipe: &Path, pid: u32) -> Result<(), DoubleError> {
        self.change_mps(pipe, |server| server.join(pid))
    }

    /// A client leaves the MPS server of a pipe folder.
    ///
    /// # Errors
    /// The server is not there; see [`Faults::hang`].
    pub fn mps_leave(&self, pipe: &Path, pid: u32) -> Result<(), DoubleError> {
        self.change_mps(pipe, |server| {
            server.leave(pid);
            Ok(())
        })
    }

    /// A fatal fault of a client of the MPS server of a pipe folder.
    ///
    /// # Errors
    /// The server is not there; see [`Faults::hang`].
    pub fn mps_fault(&self, pipe: &Path) -> Result<(), DoubleError> {
        self.change_mps(pipe, |server| {
            server.fail();
            Ok(())
        })
    }

    /// Changes the MPS servers.
    ///
    /// # Errors
    /// See [`Faults::hang`].
    pub fn change_servers<T>(&self, change: impl FnOnce(&mut Vec<MpsServer>) -> T) -> Result<T, DoubleError> {
        self.change(|state| Ok(change(&mut state.fleet.mps)))
    }

    fn change_mps(
        &self,
        pipe: &Path,
        change: impl FnOnce(&mut MpsServer) -> Result<(), Refusal>,
    ) -> Result<(), DoubleError> {
        self.change(|state| {
            let is_there =
                |server: &&mut MpsServer| Path::new(&server.pipe) == pipe && started_ticks(server.pid).is_some();
            let server = state.fleet.mps.iter_mut().find(is_there);
            Ok(change(server.ok_or(Refusal::NotFound)?)?)
        })
    }
}

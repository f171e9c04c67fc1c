//! MPS servers, as the stand-in of `nvidia-cuda-mps-control` keeps them.
//!
//! What must stay true: after a fault a server takes no new client until every old one has gone, and serves again then.

use super::refusal::{Answer, Refusal};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MpsStatus {
    /// It takes clients.
    #[default]
    Active,
    /// A client has caused a fatal fault.
    Fault,
}

impl fmt::Display for MpsStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MpsStatus::Active => "ACTIVE",
            MpsStatus::Fault => "FAULT",
        })
    }
}

/// A server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpsServer {
    /// Folder of its control pipe.
    pub pipe: String,
    /// Its process id.
    pub pid: u32,
    /// For which user.
    pub uid: u32,
    /// How it is.
    pub status: MpsStatus,
    /// Its clients' process ids.
    pub clients: Vec<u32>,
    /// Limits set by `set_default_device_pinned_mem_limit`: device and amount, as written.
    #[serde(default)]
    pub memory_limits: Vec<(u32, String)>,
    /// Limit set by `set_default_active_thread_percentage`.
    #[serde(default)]
    pub thread_percentage: Option<String>,
}

impl MpsServer {
    /// Takes a client.
    ///
    /// # Errors
    /// The server has had a fault, and old clients are still there.
    pub fn join(&mut self, pid: u32) -> Answer<()> {
        if self.status == MpsStatus::Fault {
            return Err(Refusal::InvalidState);
        }
        if !self.clients.contains(&pid) {
            self.clients.push(pid);
        }
        Ok(())
    }

    /// Lets a client go; says whether it was one.
    pub fn leave(&mut self, pid: u32) -> bool {
        let before = self.clients.len();
        self.clients.retain(|client| *client != pid);
        self.recover();
        self.clients.len() < before
    }

    /// A fatal fault of one of its clients.
    pub fn fail(&mut self) {
        self.status = MpsStatus::Fault;
        self.recover();
    }

    fn recover(&mut self) {
        if self.clients.is_empty() {
            self.status = MpsStatus::Active;
        }
    }
}

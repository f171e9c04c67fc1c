//! MPS servers, as the stand-in of `nvidia-cuda-mps-control` keeps them.
//!
//! What must stay true: after a fault a server takes no new client until every old one has gone, and serves again then; a server takes clients of its own user
//! alone, unless its daemon was started for all; a client is granted the lower of what the server grants and what its own environment says, when it
//! joins, and keeps that.

use super::refusal::{Answer, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Where a client looks for its limit of memory.
pub const MEMORY_VARIABLE: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
/// Where a client looks for its limit of threads.
pub const THREADS_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// Bytes of a limit such as `2G`, `512M` or `0x100000`.
#[must_use]
pub fn bytes(limit: &str) -> Option<u64> {
    let (number, unit) = match limit.strip_suffix(['G', 'g']) {
        Some(number) => (number, 1 << 30),
        None => limit.strip_suffix(['M', 'm']).map_or((limit, 1), |number| (number, 1 << 20)),
    };
    let number = match number.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => number.parse().ok()?,
    };
    number.checked_mul(unit)
}

/// A CUDA program that is about to become a client: what the driver in it reads of its process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpsClient {
    /// Its process id.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// When its process started, if it is a real one.
    pub started_ticks: Option<u64>,
}

impl MpsClient {
    /// The limit of device 0 that its environment names, as `0=512M`, in bytes.
    fn memory_limit(&self) -> Option<u64> {
        let limits = self.env.get(MEMORY_VARIABLE)?;
        limits.split(',').find_map(|limit| bytes(limit.trim().strip_prefix("0=")?))
    }

    fn thread_limit(&self) -> Option<f32> {
        self.env.get(THREADS_VARIABLE)?.parse().ok()
    }
}

/// What a client has been granted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    /// Memory of the card, in bytes, contexts included; none: all that is free.
    pub memory_bytes: Option<u64>,
    /// Of the card's threads, in percent.
    pub thread_percentage: f32,
    /// When its process started, if it is a real one: then it leaves with its process.
    #[serde(default)]
    pub started_ticks: Option<u64>,
}

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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Its daemon was started with `-multiuser-server`: it takes clients of every user.
    #[serde(default)]
    pub is_for_all: bool,
    /// What its clients have been granted, by process id.
    #[serde(default)]
    pub granted: BTreeMap<u32, Granted>,
}

impl MpsServer {
    /// Takes a client.
    ///
    /// # Errors
    /// The server has had a fault, and old clients are still there.
    pub fn join(&mut self, pid: u32) -> Answer<()> {
        self.join_as(&MpsClient { pid, uid: self.uid, ..MpsClient::default() })
    }

    /// Takes a client with its user and its environment.
    ///
    /// # Errors
    /// The server has had a fault, and old clients are still there; or it is another user's, whose clients this one would wait for.
    pub fn join_as(&mut self, client: &MpsClient) -> Answer<()> {
        if self.status == MpsStatus::Fault {
            return Err(Refusal::InvalidState);
        }
        if !self.is_for_all && client.uid != self.uid {
            return Err(Refusal::NotReady);
        }
        let of_device = self.memory_limits.iter().find(|(device, _)| *device == 0);
        let own = of_device.and_then(|(_, limit)| bytes(limit));
        let memory_bytes = [own, client.memory_limit()].into_iter().flatten().min();
        let own = self.thread_percentage.as_deref().and_then(|text| text.parse().ok()).unwrap_or(100.0_f32);
        let thread_percentage = client.thread_limit().map_or(own, |asked| asked.min(own));
        let granted = Granted { memory_bytes, thread_percentage, started_ticks: client.started_ticks };
        if !self.clients.contains(&client.pid) {
            self.clients.push(client.pid);
            self.granted.insert(client.pid, granted);
        }
        Ok(())
    }

    fn ended(&self, started: impl Fn(u32) -> Option<u64>) -> impl Iterator<Item = u32> {
        let has_ended = move |(pid, granted): &(&u32, &Granted)| {
            granted.started_ticks.is_some_and(|before| started(**pid) != Some(before))
        };
        self.granted.iter().filter(has_ended).map(|(pid, _)| *pid)
    }

    /// Whether the process of a client has ended, by what `started` says of a process id.
    pub fn has_ended(&self, started: impl Fn(u32) -> Option<u64>) -> bool {
        self.ended(started).next().is_some()
    }

    /// Lets clients go whose process has ended.
    pub fn forget_ended(&mut self, started: impl Fn(u32) -> Option<u64>) {
        for pid in self.ended(started).collect::<Vec<_>>() {
            self.leave(pid);
        }
    }

    /// Lets a client go; says whether it was one.
    pub fn leave(&mut self, pid: u32) -> bool {
        let before = self.clients.len();
        self.clients.retain(|client| *client != pid);
        self.granted.remove(&pid);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn client(pid: u32, uid: u32, env: &[(&str, &str)]) -> MpsClient {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        MpsClient { pid, uid, env, started_ticks: None }
    }

    #[test]
    fn limits_are_bytes() {
        assert_eq!(bytes("2G"), Some(2 << 30));
        assert_eq!(bytes("512M"), Some(512 << 20));
        assert_eq!(bytes("0x10"), Some(16));
        assert_eq!(bytes("much"), None);
    }

    #[test]
    fn a_client_is_granted_the_lower_of_its_server_s_and_its_own() {
        let limits = (vec![(0, "2G".to_owned())], Some("50.0".to_owned()));
        let (memory_limits, thread_percentage) = limits;
        let mut server = MpsServer { uid: 7, memory_limits, thread_percentage, ..MpsServer::default() };
        for (pid, env, memory, threads) in [
            (1, vec![], 2_u64 << 30, 50.0),
            (2, vec![(MEMORY_VARIABLE, "0=512M"), (THREADS_VARIABLE, "25")], 512 << 20, 25.0),
            (3, vec![(MEMORY_VARIABLE, "0=64G"), (THREADS_VARIABLE, "100")], 2 << 30, 50.0),
            (4, vec![(MEMORY_VARIABLE, "1=1M")], 2 << 30, 50.0),
        ] {
            server.join_as(&client(pid, 7, &env)).unwrap();
            let granted = &server.granted[&pid];
            assert_eq!((granted.memory_bytes, granted.thread_percentage), (Some(memory), threads), "{env:?}");
        }
        // Who is there keeps what it was granted.
        server.memory_limits = vec![(0, "1M".to_owned())];
        server.join_as(&client(1, 7, &[])).unwrap();
        assert_eq!(server.granted[&1].memory_bytes, Some(2 << 30));
        server.leave(1);
        server.join_as(&client(1, 7, &[])).unwrap();
        assert_eq!(server.granted[&1].memory_bytes, Some(1 << 20));
    }

    #[test]
    fn clients_of_another_user_wait_unless_the_server_is_for_all() {
        let mut server = MpsServer { uid: 7, ..MpsServer::default() };
        assert_eq!(server.join_as(&client(1, 8, &[])), Err(Refusal::NotReady));
        server.is_for_all = true;
        assert_eq!(server.join_as(&client(1, 8, &[])), Ok(()));
        assert_eq!(server.granted[&1].memory_bytes, None);
    }
}

//! How many files and sockets this process may have open, and what connections get of that.
//!
//! Most systems start a process with a soft limit of 1,024 and let it raise that by itself. A node that runs out of descriptors can
//! neither accept a peer nor open a file. What must stay true: what all connections may take together leaves room for the node's own
//! files, whatever the limit is.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Clients, shards and agents of one endpoint: every agent of a large fleet on one control node, with room for people.
const CLIENTS_MAX: u64 = 16_384;
/// Connections of control nodes: three from each of eight others, ten times over.
const PEERS_MAX: u64 = 256;
/// Connections that have not asked anything yet: at the usual rates some hundredths of a second of them.
const SILENT_MAX: u64 = 1_024;
/// The node's own: stores, logs, what it dialled, the health page.
const OWN: u64 = 1_024;
/// With so many, nothing is held back.
pub const DESCRIPTORS_WANTED: u64 = CLIENTS_MAX + PEERS_MAX + SILENT_MAX + OWN;
/// With fewer, the stores alone may fail.
pub const DESCRIPTORS_MIN: u64 = 512;

/// Raises the soft limit to the hard one and gives it.
///
/// # Errors
/// When the operating system does not say or does not let it.
pub fn raise_descriptors() -> std::io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// Connections of one endpoint, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) clients: usize,
    pub(super) peers: usize,
    pub(super) silent: usize,
}

impl Budget {
    /// As the limit of this process allows.
    pub(super) fn now() -> Self {
        // A limit that nobody can tell is taken for the usual one.
        Budget::of(getrlimit(Resource::RLIMIT_NOFILE).map_or(1_024, |(soft, _)| soft))
    }

    fn of(limit: u64) -> Self {
        let left = limit.saturating_sub(OWN.min(limit / 2));
        let peers = (left / 8).clamp(1, PEERS_MAX);
        let silent = (left / 8).clamp(1, SILENT_MAX);
        let clients = left.saturating_sub(peers + silent).clamp(1, CLIENTS_MAX);
        // All are far below 2^32.
        Budget { clients: clients as usize, peers: peers as usize, silent: silent as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_the_nodes_own_files() {
        for limit in [DESCRIPTORS_MIN, 1_024, 4_096, 16_384, DESCRIPTORS_WANTED, 1 << 20, u64::MAX] {
            let Budget { clients, peers, silent } = Budget::of(limit);
            let taken = (clients + peers + silent) as u64;
            assert!(taken + OWN.min(limit / 2) <= limit, "{limit}: {taken} are taken");
            assert!(peers >= 16 && silent >= 16 && clients >= peers, "{limit}: {clients} {peers} {silent}");
        }
        let all = Budget { clients: CLIENTS_MAX as usize, peers: PEERS_MAX as usize, silent: SILENT_MAX as usize };
        assert_eq!(Budget::of(DESCRIPTORS_WANTED), all);
    }
}

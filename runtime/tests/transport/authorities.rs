//! The authorities of a cluster, for tests.

use muster_runtime::Host;
use muster_runtime::pki::{Authority, Credentials, LocalAuthorities, Role, Roots};

pub(crate) const DAY_MS: u64 = 24 * 3_600_000;
/// When everything is signed.
pub(crate) const NOW_MS: u64 = 1_790_000_000_000;

/// A root, and what it has signed.
pub(crate) struct Cluster(LocalAuthorities);

impl Cluster {
    /// With issuers of three control nodes.
    pub(crate) fn new(host: &Host, name: &str) -> Self {
        Cluster(LocalAuthorities::new(host.pki.clone(), name, 1..=3, NOW_MS).expect("authorities"))
    }

    /// The same authorities at a later time.
    pub(crate) fn at(&self, now_ms: u64) -> Self {
        Cluster(self.0.clone().at(now_ms))
    }

    pub(crate) fn root(&self) -> &Authority {
        self.0.root()
    }

    /// Credentials of a machine, with a new key.
    pub(crate) fn machine(&self, role: Role) -> Credentials {
        self.0.machine(role).expect("a machine")
    }

    /// The same, trusting these roots, of which one has to be this cluster's.
    pub(crate) fn machine_with(&self, role: Role, roots: Roots) -> Credentials {
        self.0.machine_trusting(role, roots).expect("a machine")
    }

    pub(crate) fn anonymous(&self) -> Credentials {
        self.0.anonymous().expect("a root")
    }
}

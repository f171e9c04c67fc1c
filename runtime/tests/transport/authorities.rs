//! The authorities of a cluster, for tests.

use muster_runtime::Host;
use muster_runtime::pki::{
    Authority, Credentials, MachineName, Role, Roots, Scheme, Subject, new_root, sign_issuer, sign_machine,
};
use std::sync::Arc;

pub(crate) const DAY_MS: u64 = 24 * 3_600_000;
/// When everything is signed.
pub(crate) const NOW_MS: u64 = 1_790_000_000_000;
/// Issuers of three control nodes.
const ISSUERS: u64 = 3;

/// A root, and what it has signed.
pub(crate) struct Cluster {
    pki: Arc<dyn Scheme>,
    name: String,
    root: Authority,
    issuers: Vec<Authority>,
}

impl Cluster {
    pub(crate) fn new(host: &Host, name: &str) -> Self {
        let pki = host.pki.clone();
        let root = new_root(&*pki, name, NOW_MS).expect("a root");
        let issuer = |id| {
            let key = pki.new_key().expect("a key");
            let request = pki.request(&key, &Subject::Issuer { cluster: name.to_owned(), id }).expect("a request");
            let certificate = sign_issuer(&*pki, &root, &request, id, NOW_MS).expect("signed");
            Authority::new(&*pki, key, certificate).expect("an issuer")
        };
        let issuers = (1..=ISSUERS).map(issuer).collect();
        Cluster { name: name.to_owned(), root, issuers, pki }
    }

    pub(crate) fn root(&self) -> &Authority {
        &self.root
    }

    fn roots(&self) -> Roots {
        Roots::new(&*self.pki, vec![self.root.certificate().clone()]).expect("a root")
    }

    /// Credentials of a machine, with a new key.
    pub(crate) fn machine(&self, role: Role) -> Credentials {
        self.machine_with(role, self.roots())
    }

    /// The same, trusting these roots, of which one has to be this cluster's.
    pub(crate) fn machine_with(&self, role: Role, roots: Roots) -> Credentials {
        let name = MachineName::new(self.name.clone(), role).expect("a name");
        let issuer = &self.issuers[name.control_id().unwrap_or(1) as usize - 1];
        let key = self.pki.new_key().expect("a key");
        let request = self.pki.request(&key, &Subject::Machine(name.clone())).expect("a request");
        let leaf = sign_machine(&*self.pki, issuer, &request, &name, NOW_MS).expect("signed");
        let chain = vec![leaf, issuer.certificate().clone()];
        Credentials::machine(&*self.pki, key, chain, roots).expect("they belong together")
    }

    /// A machine of this cluster's root that trusts another's as well.
    pub(crate) fn machine_trusting(&self, role: Role, other: &Cluster) -> Credentials {
        let both = [&self.root, &other.root].map(|root| root.certificate().clone()).to_vec();
        self.machine_with(role, Roots::new(&*self.pki, both).expect("one name"))
    }

    pub(crate) fn anonymous(&self) -> Credentials {
        Credentials::anonymous(self.roots())
    }
}

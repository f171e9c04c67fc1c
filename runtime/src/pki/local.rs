//! A root and the issuers below it, together in one process: for a whole cluster that one process makes, and for tests and benches.
//!
//! In production the root is offline and each issuer is at its own control node; what is signed is the same.

use super::authority::{new_root, sign_issuer};
use super::credentials::{Credentials, Roots};
use super::error::PkiError;
use super::kept::issue;
use super::name::{MachineName, Role, Subject};
use super::scheme::{Authority, Scheme};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module.
#[derive(Clone)]
pub struct LocalAuthorities {
    scheme: Arc<dyn Scheme>,
    root: Authority,
    issuers: BTreeMap<u64, Authority>,
    now_ms: u64,
}

impl LocalAuthorities {
    /// Makes a root for `cluster` and an issuer for each of these control nodes; everything is signed at `now_ms`.
    ///
    /// # Errors
    /// When the name of the cluster cannot be one, an id is 0, or no key can be made.
    pub fn new(
        scheme: Arc<dyn Scheme>,
        cluster: &str,
        control_ids: impl IntoIterator<Item = u64>,
        now_ms: u64,
    ) -> Result<Self, PkiError> {
        let root = new_root(&*scheme, cluster, now_ms)?;
        let mut issuers = BTreeMap::new();
        for id in control_ids {
            let key = scheme.new_key()?;
            let request = scheme.request(&key, &Subject::Issuer { cluster: cluster.to_owned(), id })?;
            let certificate = sign_issuer(&*scheme, &root, &request, id, now_ms)?;
            issuers.insert(id, Authority::new(&*scheme, key, certificate)?);
        }
        Ok(LocalAuthorities { scheme, root, issuers, now_ms })
    }

    /// The same, which sign at this time from now on.
    #[must_use]
    pub fn at(self, now_ms: u64) -> Self {
        LocalAuthorities { now_ms, ..self }
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> &Authority {
        &self.root
    }

    /// How keys and certificates are made.
    #[must_use]
    pub fn scheme(&self) -> &dyn Scheme {
        &*self.scheme
    }

    /// The issuer of a control node, for its disk.
    #[must_use]
    pub fn issuer(&self, id: u64) -> Option<&Authority> {
        self.issuers.get(&id)
    }

    /// The bundle with the root.
    ///
    /// # Errors
    /// None of a root that was made here.
    pub fn roots(&self) -> Result<Roots, PkiError> {
        Roots::new(&*self.scheme, vec![self.root.certificate().clone()])
    }

    /// Credentials of a machine with a new key, which trusts this root.
    ///
    /// # Errors
    /// When the name cannot be one, or there is no issuer for it.
    pub fn machine(&self, role: Role) -> Result<Credentials, PkiError> {
        self.machine_trusting(role, self.roots()?)
    }

    /// The same, which trusts these roots; this one is to be among them.
    ///
    /// # Errors
    /// As [`LocalAuthorities::machine`], and when this root is not among them.
    pub fn machine_trusting(&self, role: Role, roots: Roots) -> Result<Credentials, PkiError> {
        let name = MachineName::new(self.root.stated().subject.cluster(), role)?;
        let issuer = match name.control_id() {
            Some(id) => self.issuers.get(&id),
            None => self.issuers.values().next(),
        };
        let issuer = issuer.ok_or_else(|| PkiError::certificate(format_args!("there is no issuer for {name}")))?;
        issue(&*self.scheme, issuer, roots, (&name, self.scheme.new_key()?), self.now_ms)
    }

    /// Credentials of somebody without an identity.
    ///
    /// # Errors
    /// None of a root that was made here.
    pub fn anonymous(&self) -> Result<Credentials, PkiError> {
        Ok(Credentials::anonymous(self.roots()?))
    }
}

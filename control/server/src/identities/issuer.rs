//! Certificates that this control node's issuer signs.
//!
//! What must stay true: requests are bounded and checked before anything is decided about them; the issuer is read when it is needed, so that a renewed one
//! is used at once; without an identity this node signs nothing.

use super::principal_of;
use muster_model::Principal;
use muster_runtime::Host;
use muster_runtime::pki::{
    Authority, Certificate, ISSUER_FILE, MachineName, PkiError, Requested, SpkiHash, Subject, sign_machine,
};

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotIssued {
    /// This node runs in clear text.
    #[error("this cluster runs in clear text, so its machines have no identities; see `muster ca` and --identity")]
    ClearText,
    /// The request is wrong.
    #[error("{0}")]
    Request(PkiError),
    /// What this node has cannot sign.
    #[error("this control node cannot sign certificates: {0}")]
    Own(PkiError),
}

/// What a machine asks for.
pub(crate) struct Asked {
    name: MachineName,
    /// Who it wants to be.
    pub(crate) machine: Principal,
    /// The key that it has shown to have.
    pub(crate) key: SpkiHash,
}

/// A certificate, and whom its machine is to trust.
pub(crate) struct Issued {
    /// The machine's first, then the issuer's.
    pub(crate) chain: Vec<Certificate>,
    pub(crate) roots: Vec<Certificate>,
}

/// Signs, for the machines of the cluster of `host`.
pub(crate) struct Issuer<'a>(pub(crate) &'a Host);

impl Issuer<'_> {
    /// Reads a request.
    ///
    /// # Errors
    /// [`NotIssued`].
    pub(crate) fn read(&self, request: &[u8]) -> Result<Asked, NotIssued> {
        let own = self.0.net.credentials().ok_or(NotIssued::ClearText)?;
        let Requested { subject, spki_sha256 } = self.0.pki.check_request(request).map_err(NotIssued::Request)?;
        let cluster = own.roots().cluster();
        match subject {
            Subject::Machine(name) if name.cluster() == cluster => {
                Ok(Asked { machine: principal_of(name.role()), name, key: spki_sha256 })
            }
            other => Err(NotIssued::Request(PkiError::Other {
                what: "the name in the request",
                expected: format!("a machine of cluster {cluster}"),
                got: other.to_string(),
            })),
        }
    }

    /// Signs what was asked for, at `now_ms`.
    ///
    /// # Errors
    /// [`NotIssued`].
    pub(crate) fn sign(&self, request: &[u8], asked: &Asked, now_ms: u64) -> Result<Issued, NotIssued> {
        let own = self.0.net.credentials().ok_or(NotIssued::ClearText)?;
        let (scheme, files) = (&*self.0.pki, &*self.0.identity);
        let issuer = Authority::load(scheme, files, ISSUER_FILE).map_err(NotIssued::Own)?;
        let certificate = sign_machine(scheme, &issuer, request, &asked.name, now_ms).map_err(NotIssued::Own)?;
        let chain = vec![certificate, issuer.certificate().clone()];
        Ok(Issued { chain, roots: own.roots().certificates().to_vec() })
    }
}

//! The seam between what certificates mean and how they are made: keys, requests, certificates and chains as bytes.
//!
//! Production has X.509 ([`super::X509`]); a simulation has the same names, dates and chains without cryptography, whose keys follow from
//! the seed (`crate::sim`). Everything above (rules, files, both networks) is the same code for both. What must stay true: whatever comes
//! from outside is bounded before it is parsed; a chain is exactly a machine's certificate and that of the issuer that signed it.

use super::error::PkiError;
use super::name::{MachineName, Subject};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use zeroize::Zeroizing;

/// The largest certificate: those made here have half a kilobyte.
pub const CERTIFICATE_BYTES_MAX: usize = 4 << 10;
/// The largest request for one.
pub const REQUEST_BYTES_MAX: usize = 4 << 10;
/// The largest private key.
pub const KEY_BYTES_MAX: usize = 1 << 10;

/// A private key; PKCS#8 in production. Wiped from memory when dropped, and never printed.
#[derive(Clone)]
pub struct SecretKey(Zeroizing<Vec<u8>>);

impl SecretKey {
    /// From its bytes.
    ///
    /// # Errors
    /// [`PkiError::TooLarge`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, PkiError> {
        let bytes = Zeroizing::new(bytes);
        super::error::bounded("a private key", &bytes, KEY_BYTES_MAX)?;
        Ok(SecretKey(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(***)")
    }
}

/// SHA-256 of a public key (of its SubjectPublicKeyInfo): what is pinned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SpkiHash(pub [u8; 32]);

impl SpkiHash {
    /// Of these bytes.
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        SpkiHash(Sha256::digest(spki).into())
    }
}

impl fmt::Display for SpkiHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SpkiHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A certificate; DER in production.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate(Vec<u8>);

impl Certificate {
    /// From its bytes; nothing is said about what is in them.
    ///
    /// # Errors
    /// [`PkiError::TooLarge`].
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, PkiError> {
        let bytes = bytes.into();
        super::error::bounded("a certificate", &bytes, CERTIFICATE_BYTES_MAX)?;
        Ok(Certificate(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({} bytes)", self.0.len())
    }
}

/// From when to when, both included, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// From then.
    pub from_ms: u64,
    /// Until then.
    pub until_ms: u64,
}

impl Validity {
    /// When both are valid.
    #[must_use]
    pub fn and(self, other: Validity) -> Validity {
        Validity { from_ms: self.from_ms.max(other.from_ms), until_ms: self.until_ms.min(other.until_ms) }
    }
}

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stated {
    /// Of whom.
    pub subject: Subject,
    /// The hash of the key.
    pub spki_sha256: SpkiHash,
    /// When.
    pub validity: Validity,
}

/// What a request for a certificate says; its sender has shown that it has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// The name it asks for.
    pub subject: Subject,
    /// The hash of the key.
    pub spki_sha256: SpkiHash,
}

/// What a chain says of a machine. The rules of [`super::judge()`] read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presented {
    /// Which machine.
    pub name: MachineName,
    /// The hash of its key.
    pub spki_sha256: SpkiHash,
    /// When both certificates of the chain are valid. Nothing else judges dates.
    pub validity: Validity,
    /// The control node whose issuer has signed.
    pub issuer: u64,
}

/// A key and the certificate that lets it sign others.
#[derive(Clone, Debug)]
pub struct Authority {
    pub(crate) key: SecretKey,
    pub(crate) certificate: Certificate,
    pub(crate) stated: Stated,
}

impl Authority {
    /// Puts both together.
    ///
    /// # Errors
    /// When the certificate is not of this key, or of a machine.
    pub fn new(scheme: &dyn Scheme, key: SecretKey, certificate: Certificate) -> Result<Self, PkiError> {
        let stated = scheme.read(&certificate)?;
        let spki = scheme.public(&key)?;
        if stated.spki_sha256 != spki {
            let (expected, got) = (spki.to_string(), stated.spki_sha256.to_string());
            return Err(PkiError::Other { what: "the certificate is of another key", expected, got });
        }
        if let Subject::Machine(name) = &stated.subject {
            return Err(PkiError::certificate(format_args!("{name} is no authority")));
        }
        Ok(Authority { key, certificate, stated })
    }

    /// Its certificate.
    #[must_use]
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Its key, to be kept.
    #[must_use]
    pub fn key(&self) -> &SecretKey {
        &self.key
    }

    /// What its certificate says.
    #[must_use]
    pub fn stated(&self) -> &Stated {
        &self.stated
    }
}

/// How keys and certificates are made and read. Nothing here judges dates or names.
pub trait Scheme: Send + Sync + 'static {
    /// Makes a key.
    ///
    /// # Errors
    /// [`PkiError::Key`].
    fn new_key(&self) -> Result<SecretKey, PkiError>;

    /// The hash of the public key that belongs to `key`.
    ///
    /// # Errors
    /// [`PkiError::Key`].
    fn public(&self, key: &SecretKey) -> Result<SpkiHash, PkiError>;

    /// Makes a certificate of a root, which signs itself.
    ///
    /// # Errors
    /// [`PkiError::Key`].
    fn self_signed(&self, key: &SecretKey, cluster: &str, validity: Validity) -> Result<Certificate, PkiError>;

    /// Asks for a certificate, and shows that it has `key`.
    ///
    /// # Errors
    /// [`PkiError::Key`].
    fn request(&self, key: &SecretKey, subject: &Subject) -> Result<Vec<u8>, PkiError>;

    /// Reads a request, and checks that its sender has the key.
    ///
    /// # Errors
    /// [`PkiError::Request`] or [`PkiError::TooLarge`].
    fn check_request(&self, request: &[u8]) -> Result<Requested, PkiError>;

    /// Signs what was asked for. Who may sign what is decided by [`super::sign_issuer`] and [`super::sign_machine`].
    ///
    /// # Errors
    /// As [`Scheme::check_request`], and [`PkiError::Key`].
    fn sign(&self, authority: &Authority, request: &[u8], validity: Validity) -> Result<Certificate, PkiError>;

    /// Reads a certificate. Its signature is not checked: see [`Scheme::verify`].
    ///
    /// # Errors
    /// [`PkiError::Certificate`].
    fn read(&self, certificate: &Certificate) -> Result<Stated, PkiError>;

    /// Checks that the chain leads to one of the roots, whatever the date.
    ///
    /// # Errors
    /// [`PkiError::Chain`] and what [`presented`] finds.
    fn verify(&self, chain: &[Certificate], roots: &[Certificate]) -> Result<Presented, PkiError>;

    /// Signs bytes. What may be signed so is decided by [`super::sign_statement`].
    ///
    /// # Errors
    /// [`PkiError::Key`].
    fn sign_message(&self, key: &SecretKey, message: &[u8]) -> Result<Vec<u8>, PkiError>;

    /// Checks that `signature` is over these bytes and by the key of the certificate, about which it says nothing else: see [`Scheme::verify`].
    ///
    /// # Errors
    /// [`PkiError::Signature`]; [`PkiError::Certificate`] when it cannot be read.
    fn check_message(&self, certificate: &Certificate, message: &[u8], signature: &[u8]) -> Result<(), PkiError>;
}

/// What a chain says, signatures unchecked: of a resumed session they were checked when it began.
///
/// # Errors
/// When it is not a machine's certificate and that of an issuer of the same cluster; [`PkiError::Certificate`] when one cannot be read.
pub fn presented(scheme: &dyn Scheme, chain: &[Certificate]) -> Result<Presented, PkiError> {
    let [leaf, issuer] = chain else {
        return Err(PkiError::chain(format_args!("it has {} certificates instead of 2", chain.len())));
    };
    let (leaf, issuer) = (scheme.read(leaf)?, scheme.read(issuer)?);
    let Subject::Machine(name) = leaf.subject else {
        return Err(PkiError::certificate(format_args!("{} is no machine", leaf.subject)));
    };
    let Subject::Issuer { cluster, id } = issuer.subject else {
        return Err(PkiError::certificate(format_args!("{} is no issuer", issuer.subject)));
    };
    if cluster != name.cluster() {
        let got = name.cluster().to_owned();
        return Err(PkiError::Other { what: "the issuer is of another cluster", expected: cluster, got });
    }
    // A control node is worth more than any other machine: no other member's issuer may make one.
    if let Some(got) = name.control_id()
        && got != id
    {
        let what = "the certificate of a control node is signed by another's issuer";
        return Err(PkiError::Other { what, expected: got.to_string(), got: id.to_string() });
    }
    Ok(Presented { name, spki_sha256: leaf.spki_sha256, validity: leaf.validity.and(issuer.validity), issuer: id })
}

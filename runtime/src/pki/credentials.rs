//! What a machine shows and whom it trusts: its key with its chain, and the roots of its cluster.
//!
//! What must stay true: key and chain are one file that is replaced whole, so that no crash leaves a key without its certificate; what is
//! loaded was checked to belong together; files are written by [`crate::Files`], readable by their owner alone.

use super::error::{PkiError, bounded};
use super::judge::{NotAdmitted, PeerIdentity, Pin};
use super::name::{MachineName, Subject};
use super::scheme::{Certificate, Presented, Scheme, SecretKey, SpkiHash};
use crate::disk::Files;
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// The file with the key and the chain of a machine.
pub const MACHINE_FILE: &str = "machine.pem";
/// The keys with which control nodes seal the secrets of tenants: lines of 64 hexadecimal digits; the first seals, the others open.
pub const SECRETS_KEY_FILE: &str = "secrets.key";
/// The file with the roots that a machine trusts.
pub const ROOTS_FILE: &str = "roots.pem";
/// Roots trusted at a time: two while one is replaced, with room.
pub const ROOTS_MAX: usize = 8;
/// The largest of these files.
const FILE_BYTES_MAX: usize = 64 << 10;

pub(super) const KEY_TAG: &str = "PRIVATE KEY";
pub(super) const CERTIFICATE_TAG: &str = "CERTIFICATE";

/// Asked once for each connection, when the chain, the name and the dates are right: whether the key is pinned to the name. It must
/// answer at once, from memory.
pub trait Admit: Send + Sync + 'static {
    /// `from` is the address, for the log.
    ///
    /// # Errors
    /// Why not, in words for the machine.
    fn admit(&self, who: &PeerIdentity, from: &str) -> Result<(), NotAdmitted>;
}

/// Asks whoever has the pins.
pub(crate) fn ask(pins: Option<&dyn Admit>, who: &PeerIdentity, from: &str) -> Pin {
    match pins.map(|pins| pins.admit(who, from)) {
        None => Pin::NoList,
        Some(Ok(())) => Pin::Confirmed,
        Some(Err(why)) => Pin::Refused(why),
    }
}

/// The roots that a machine trusts, all of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    cluster: String,
    certificates: Vec<Certificate>,
}

impl Roots {
    /// From one root or several.
    ///
    /// # Errors
    /// When there is none, there are more than [`ROOTS_MAX`], or one is no root of the same cluster.
    pub fn new(scheme: &dyn Scheme, certificates: Vec<Certificate>) -> Result<Self, PkiError> {
        if certificates.len() > ROOTS_MAX {
            return Err(PkiError::TooLarge { what: "the list of roots", bytes: certificates.len(), most: ROOTS_MAX });
        }
        let mut of: Option<String> = None;
        for certificate in &certificates {
            let stated = scheme.read(certificate)?;
            let Subject::Root { cluster } = stated.subject else {
                return Err(PkiError::certificate(format_args!("{} is no root", stated.subject)));
            };
            match &of {
                Some(expected) if *expected != cluster => {
                    let (expected, got) = (expected.clone(), cluster);
                    return Err(PkiError::Other { what: "the roots are of two clusters", expected, got });
                }
                _ => of = Some(cluster),
            }
        }
        let cluster = of.ok_or_else(|| PkiError::certificate("there is no root"))?;
        Ok(Roots { cluster, certificates })
    }

    /// Reads a bundle.
    ///
    /// # Errors
    /// [`PkiError::File`], and as [`Roots::new`].
    pub fn from_pem(scheme: &dyn Scheme, text: &[u8]) -> Result<Self, PkiError> {
        let certificates = blocks(ROOTS_FILE, text)?.into_iter().map(|block| block.certificate(ROOTS_FILE));
        Roots::new(scheme, certificates.collect::<Result<_, _>>()?)
    }

    /// As a bundle.
    #[must_use]
    pub fn to_pem(&self) -> String {
        self.certificates.iter().map(|root| armoured(CERTIFICATE_TAG, root.bytes())).collect()
    }

    /// Their cluster.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Their certificates.
    #[must_use]
    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// These and those of `other`, each once.
    ///
    /// # Errors
    /// When they are too many, or not all of one cluster.
    pub fn and(&self, scheme: &dyn Scheme, other: &Roots) -> Result<Roots, PkiError> {
        let mut certificates = self.certificates.clone();
        certificates.extend(other.certificates.iter().filter(|root| !self.certificates.contains(root)).cloned());
        Roots::new(scheme, certificates)
    }

    /// The fingerprints by which people and joining machines know them.
    #[must_use]
    pub fn fingerprints(&self) -> Vec<String> {
        self.certificates.iter().map(fingerprint).collect()
    }

    /// Whether one of them has this fingerprint.
    #[must_use]
    pub fn has_fingerprint(&self, text: &str) -> bool {
        self.certificates.iter().any(|root| fingerprint(root) == text)
    }
}

/// The fingerprint of a root: `sha256:` and 64 hexadecimal digits, over the whole certificate.
#[must_use]
pub fn fingerprint(root: &Certificate) -> String {
    let hash = SpkiHash(Sha256::digest(root.bytes()).into());
    format!("sha256:{hash}")
}

/// What a host shows and whom it trusts. To be replaced while running, hand a new one to [`crate::Net::set_credentials`].
#[derive(Clone)]
pub struct Credentials {
    own: Option<Own>,
    roots: Roots,
    pins: Option<Arc<dyn Admit>>,
}

/// A machine's key and chain.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) key: SecretKey,
    pub(crate) chain: Vec<Certificate>,
    pub(crate) presented: Presented,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.own.as_ref().map(|own| &own.presented);
        f.debug_struct("Credentials").field("own", &own).field("roots", &self.roots).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Those of a machine: its certificate first, then its issuer's.
    ///
    /// # Errors
    /// When the key is not the certificate's, or the chain does not lead to a root.
    pub fn machine(
        scheme: &dyn Scheme,
        key: SecretKey,
        chain: Vec<Certificate>,
        roots: Roots,
    ) -> Result<Self, PkiError> {
        let presented = scheme.verify(&chain, roots.certificates())?;
        let spki = scheme.public(&key)?;
        if spki != presented.spki_sha256 {
            let (expected, got) = (spki.to_string(), presented.spki_sha256.to_string());
            return Err(PkiError::Other { what: "the certificate is of another key", expected, got });
        }
        if presented.name.cluster() != roots.cluster() {
            let (expected, got) = (roots.cluster().to_owned(), presented.name.cluster().to_owned());
            return Err(PkiError::Other { what: "the certificate is of another cluster", expected, got });
        }
        Ok(Credentials { own: Some(Own { key, chain, presented }), roots, pins: None })
    }

    /// Those of somebody without an identity: a person's tools, and a machine that is about to join.
    #[must_use]
    pub fn anonymous(roots: Roots) -> Self {
        Credentials { own: None, roots, pins: None }
    }

    /// The same machine, which trusts these roots and no others.
    ///
    /// # Errors
    /// When its chain does not lead to one of them.
    pub fn trusting(&self, scheme: &dyn Scheme, roots: Roots) -> Result<Self, PkiError> {
        match &self.own {
            Some(own) => Credentials::machine(scheme, own.key.clone(), own.chain.clone(), roots),
            None => Ok(Credentials::anonymous(roots)),
        }
    }

    /// The same, where whoever is dialled is looked up, too: a control node's.
    #[must_use]
    pub fn with_pins(self, pins: Arc<dyn Admit>) -> Self {
        Credentials { pins: Some(pins), ..self }
    }

    /// The name of the machine, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&MachineName> {
        self.own.as_ref().map(|own| &own.presented.name)
    }

    /// The key of the machine, if it has one: for a new certificate of the same key.
    #[must_use]
    pub fn key(&self) -> Option<&SecretKey> {
        self.own.as_ref().map(|own| &own.key)
    }

    /// What others see of the machine.
    #[must_use]
    pub fn presented(&self) -> Option<&Presented> {
        self.own.as_ref().map(|own| &own.presented)
    }

    /// Whom it trusts.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    pub(crate) fn own(&self) -> Option<&Own> {
        self.own.as_ref()
    }

    pub(crate) fn pins(&self) -> Option<&dyn Admit> {
        self.pins.as_deref()
    }

    /// Reads those of a machine.
    ///
    /// # Errors
    /// [`PkiError::Missing`] when there are none; and when they cannot be read or do not belong together.
    pub fn load(scheme: &dyn Scheme, files: &dyn Files) -> Result<Self, PkiError> {
        let read = |file| files.read(file)?.ok_or(PkiError::Missing { file });
        let roots = Roots::from_pem(scheme, &read(ROOTS_FILE)?)?;
        let (mut key, mut chain) = (None, Vec::new());
        for block in blocks(MACHINE_FILE, &zeroize::Zeroizing::new(read(MACHINE_FILE)?))? {
            match (block.tag.as_str(), &key) {
                (KEY_TAG, None) => key = Some(SecretKey::from_bytes(block.content)?),
                _ => chain.push(block.certificate(MACHINE_FILE)?),
            }
        }
        let key = key.ok_or(PkiError::File { file: MACHINE_FILE, why: "it has no private key".to_owned() })?;
        Credentials::machine(scheme, key, chain, roots)
    }

    /// Writes them; durable when it returns.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn save(&self, files: &dyn Files) -> Result<(), PkiError> {
        files.write(ROOTS_FILE, self.roots.to_pem().into_bytes()).await?;
        if let Some(own) = &self.own {
            let mut text = armoured(KEY_TAG, own.key.bytes());
            text.extend(own.chain.iter().map(|certificate| armoured(CERTIFICATE_TAG, certificate.bytes())));
            files.write(MACHINE_FILE, text.into_bytes()).await?;
        }
        Ok(())
    }
}

pub(super) struct Block {
    pub(super) tag: String,
    pub(super) content: Vec<u8>,
}

impl Block {
    pub(super) fn certificate(self, file: &'static str) -> Result<Certificate, PkiError> {
        match self.tag == CERTIFICATE_TAG {
            true => Certificate::from_bytes(self.content),
            false => {
                Err(PkiError::File { file, why: format!("it has a block that is no certificate: {:?}", self.tag) })
            }
        }
    }
}

/// The blocks of a PEM file, in order.
pub(super) fn blocks(file: &'static str, text: &[u8]) -> Result<Vec<Block>, PkiError> {
    bounded("a file of certificates", text, FILE_BYTES_MAX)?;
    let parsed = pem::parse_many(text).map_err(|error| PkiError::File { file, why: error.to_string() })?;
    Ok(parsed.into_iter().map(|block| Block { tag: block.tag().to_owned(), content: block.into_contents() }).collect())
}

pub(super) fn armoured(tag: &str, content: &[u8]) -> String {
    pem::encode(&pem::Pem::new(tag, content))
}

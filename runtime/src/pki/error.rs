//! What can be wrong with keys, certificates and names.

use crate::disk::DiskError;

/// What is wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PkiError {
    /// A text is no name of a machine or an authority.
    #[error("{text} is not a name such as spiffe://CLUSTER/node/NAME: {why}")]
    Name {
        /// What was given; cut, and without control characters.
        text: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// More bytes than such a thing has.
    #[error("{what} has {bytes} bytes; at most {most} are read")]
    TooLarge {
        /// What.
        what: &'static str,
        /// How many it has.
        bytes: usize,
        /// The bound.
        most: usize,
    },
    /// A key cannot be made or used.
    #[error("a private key cannot be used: {why}")]
    Key {
        /// Why.
        why: String,
    },
    /// A certificate cannot be read, or is not one that this system makes.
    #[error("a certificate is refused: {why}")]
    Certificate {
        /// Why.
        why: String,
    },
    /// A request for a certificate cannot be read, or its sender does not have the key.
    #[error("a request for a certificate is refused: {why}")]
    Request {
        /// Why.
        why: String,
    },
    /// A certificate does not lead to a root that is trusted.
    #[error("the certificate does not lead to a root of this cluster: {why}")]
    Chain {
        /// Why.
        why: String,
    },
    /// A signature is not by the key of a certificate, or not over these bytes.
    #[error("the signature is not by the key of the certificate, or what it was made for was altered")]
    Signature,
    /// Something else is named than was asked for.
    #[error("{what}: expected {expected}, got {got}")]
    Other {
        /// What.
        what: &'static str,
        /// What was expected.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A file of keys or certificates cannot be read.
    #[error("the file {file} cannot be read: {why}")]
    File {
        /// Which.
        file: &'static str,
        /// Why.
        why: String,
    },
    /// A machine is to talk over TLS and has no credentials.
    #[error("the file {file} is missing: this machine has no credentials yet; enrol it first")]
    Missing {
        /// Which.
        file: &'static str,
    },
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl PkiError {
    pub(crate) fn certificate(why: impl ToString) -> Self {
        PkiError::Certificate { why: why.to_string() }
    }

    pub(crate) fn key(why: impl ToString) -> Self {
        PkiError::Key { why: why.to_string() }
    }

    pub(crate) fn request(why: impl ToString) -> Self {
        PkiError::Request { why: why.to_string() }
    }

    pub(crate) fn chain(why: impl ToString) -> Self {
        PkiError::Chain { why: why.to_string() }
    }
}

/// Refuses what is longer than such a thing ever is, before anything parses it.
pub(crate) fn bounded<'a>(what: &'static str, bytes: &'a [u8], most: usize) -> Result<&'a [u8], PkiError> {
    match bytes.len() <= most {
        true => Ok(bytes),
        false => Err(PkiError::TooLarge { what, bytes: bytes.len(), most }),
    }
}

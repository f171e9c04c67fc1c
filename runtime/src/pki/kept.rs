//! Roots and issuers in files, and certificates that they sign for machines.
//!
//! What must stay true: an authority's key and certificate are one file, readable by its owner alone, and are checked to belong together when they are
//! read; a certificate is signed for a key that stays where it is.

use super::authority::sign_machine;
use super::credentials::{CERTIFICATE_TAG, Credentials, KEY_TAG, Roots, armoured, blocks};
use super::error::PkiError;
use super::name::{MachineName, Subject};
use super::scheme::{Authority, Scheme, SecretKey};
use crate::disk::Files;

/// The file with the key and certificate of a root: away from the cluster, where it is kept.
pub const ROOT_FILE: &str = "root.pem";
/// The file with the key and certificate of a control node's issuer: on that control node alone.
pub const ISSUER_FILE: &str = "issuer.pem";

impl Authority {
    /// Reads it.
    ///
    /// # Errors
    /// [`PkiError::Missing`] when the file is not there; and when it is no authority, or of another key.
    pub fn load(scheme: &dyn Scheme, files: &dyn Files, file: &'static str) -> Result<Self, PkiError> {
        let text = zeroize::Zeroizing::new(files.read(file)?.ok_or(PkiError::Missing { file })?);
        let (mut key, mut certificate) = (None, None);
        for block in blocks(file, &text)? {
            match (block.tag.as_str(), &key, &certificate) {
                (KEY_TAG, None, _) => key = Some(SecretKey::from_bytes(block.content)?),
                (CERTIFICATE_TAG, _, None) => certificate = Some(block.certificate(file)?),
                _ => {
                    return Err(PkiError::File {
                        file,
                        why: "it has more than one key and one certificate".to_owned(),
                    });
                }
            }
        }
        let without = |what: &str| PkiError::File { file, why: format!("it has no {what}") };
        let key = key.ok_or_else(|| without("private key"))?;
        Authority::new(scheme, key, certificate.ok_or_else(|| without("certificate"))?)
    }

    /// Writes it; durable when it returns.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn save(&self, files: &dyn Files, file: &'static str) -> Result<(), PkiError> {
        let text = armoured(KEY_TAG, self.key.bytes()) + &armoured(CERTIFICATE_TAG, self.certificate.bytes());
        Ok(files.write(file, text.into_bytes()).await?)
    }
}

/// Signs a certificate for a machine's key.
///
/// # Errors
/// As [`sign_machine`], and when the issuer does not lead to one of `roots`.
pub fn issue(
    scheme: &dyn Scheme,
    issuer: &Authority,
    roots: Roots,
    (name, key): (&MachineName, SecretKey),
    now_ms: u64,
) -> Result<Credentials, PkiError> {
    let request = scheme.request(&key, &Subject::Machine(name.clone()))?;
    let certificate = sign_machine(scheme, issuer, &request, name, now_ms)?;
    Credentials::machine(scheme, key, vec![certificate, issuer.certificate().clone()], roots)
}

//! X.509: keys are ECDSA over P-256, signatures SHA-256, names one URI each.
//!
//! What must stay true: nothing is accepted here that [`make`] would not make: other key types, other signatures, several names, missing
//! uses or trailing bytes are refused, so that there is one kind of certificate to reason about.

mod make;
mod read;
mod verify;

#[cfg(test)]
mod tests;

use super::error::PkiError;
use super::name::Subject;
use super::scheme::{Authority, Certificate, Presented, Requested, Scheme, SecretKey, SpkiHash, Stated, Validity};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct X509;

impl Scheme for X509 {
    fn new_key(&self) -> Result<SecretKey, PkiError> {
        make::new_key()
    }

    fn public(&self, key: &SecretKey) -> Result<SpkiHash, PkiError> {
        make::public(key)
    }

    fn self_signed(&self, key: &SecretKey, cluster: &str, validity: Validity) -> Result<Certificate, PkiError> {
        make::self_signed(key, cluster, validity)
    }

    fn request(&self, key: &SecretKey, subject: &Subject) -> Result<Vec<u8>, PkiError> {
        make::request(key, subject)
    }

    fn check_request(&self, request: &[u8]) -> Result<Requested, PkiError> {
        read::request(request).map(|(requested, _)| requested)
    }

    fn sign(&self, authority: &Authority, request: &[u8], validity: Validity) -> Result<Certificate, PkiError> {
        let (requested, public_key) = read::request(request)?;
        make::sign(authority, &requested.subject, &public_key, validity)
    }

    fn read(&self, certificate: &Certificate) -> Result<Stated, PkiError> {
        read::certificate(certificate)
    }

    fn verify(&self, chain: &[Certificate], roots: &[Certificate]) -> Result<Presented, PkiError> {
        verify::chain(chain, roots)
    }

    fn sign_message(&self, key: &SecretKey, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        make::sign_message(key, message)
    }

    fn check_message(&self, certificate: &Certificate, message: &[u8], signature: &[u8]) -> Result<(), PkiError> {
        verify::message(certificate, message, signature)
    }
}

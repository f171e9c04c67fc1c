//! Checking that a chain leads to a root, and who has signed something. Dates are not judged here: see [`crate::pki::judge()`].

use super::X509;
use crate::pki::error::PkiError;
use crate::pki::scheme::{Certificate, Presented, presented};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::time::Duration;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

pub(super) fn chain(chain: &[Certificate], roots: &[Certificate]) -> Result<Presented, PkiError> {
    let presented = presented(&X509, chain)?;
    let validity = presented.validity;
    if validity.from_ms > validity.until_ms {
        return Err(PkiError::chain("the machine's certificate and its issuer's were never valid together"));
    }
    // A moment at which both are valid, so that nothing but the signatures is left to be wrong.
    let moment = UnixTime::since_unix_epoch(Duration::from_millis(validity.until_ms));
    let trusted: Vec<_> = roots.iter().map(|root| CertificateDer::from(root.bytes())).collect();
    let anchors = trusted.iter().map(anchor_from_trusted_cert).collect::<Result<Vec<_>, _>>();
    let anchors = anchors.map_err(PkiError::chain)?;
    let ders: Vec<_> = chain.iter().map(|certificate| CertificateDer::from(certificate.bytes())).collect();
    let [leaf, issuer] = ders.as_slice() else {
        return Err(PkiError::chain("it does not have 2 certificates"));
    };
    let leaf = EndEntityCert::try_from(leaf).map_err(PkiError::chain)?;
    let algorithms = [webpki::ring::ECDSA_P256_SHA256];
    let path = leaf
        .verify_for_usage(
            &algorithms,
            &anchors,
            std::slice::from_ref(issuer),
            moment,
            KeyUsage::client_auth(),
            None,
            None,
        )
        .map_err(PkiError::chain)?;
    // A machine whose certificate the root has signed itself could name any issuer beside it.
    match path.intermediate_certificates().count() {
        1 => Ok(presented),
        _ => Err(PkiError::chain("it does not lead over the issuer that is named")),
    }
}

pub(super) fn message(certificate: &Certificate, message: &[u8], signature: &[u8]) -> Result<(), PkiError> {
    let der = CertificateDer::from(certificate.bytes());
    let read = EndEntityCert::try_from(&der).map_err(PkiError::certificate)?;
    read.verify_signature(webpki::ring::ECDSA_P256_SHA256, message, signature).map_err(|_| PkiError::Signature)
}

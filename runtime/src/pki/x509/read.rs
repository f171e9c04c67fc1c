//! Reading certificates and requests. What is not as [`super::make`] makes it is refused.

use crate::pki::error::{PkiError, bounded};
use crate::pki::name::Subject;
use crate::pki::scheme::{Certificate, REQUEST_BYTES_MAX, Requested, SpkiHash, Stated, Validity};
use rcgen::{CertificateSigningRequestParams, PublicKeyData, SanType};
use rustls_pki_types::CertificateSigningRequestDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

pub(super) fn certificate(certificate: &Certificate) -> Result<Stated, PkiError> {
    let (rest, read) = X509Certificate::from_der(certificate.bytes()).map_err(PkiError::certificate)?;
    if !rest.is_empty() {
        return Err(PkiError::certificate(format_args!("{} bytes follow it", rest.len())));
    }
    let subject = subject(&read)?;
    check_uses(&read, &subject)?;
    let spki_sha256 = SpkiHash::of(read.public_key().raw);
    let validity = Validity {
        from_ms: ms(read.validity().not_before.timestamp())?,
        until_ms: ms(read.validity().not_after.timestamp())?,
    };
    Ok(Stated { subject, spki_sha256, validity })
}

/// The one URI that it names.
fn subject(read: &X509Certificate<'_>) -> Result<Subject, PkiError> {
    let names = read.subject_alternative_name().map_err(PkiError::certificate)?;
    match names.map(|names| names.value.general_names.as_slice()) {
        Some([GeneralName::URI(text)]) => text.parse(),
        _ => Err(PkiError::certificate("it does not have exactly one name, a URI")),
    }
}

fn check_uses(read: &X509Certificate<'_>, subject: &Subject) -> Result<(), PkiError> {
    let constraints = read.basic_constraints().map_err(PkiError::certificate)?;
    let (is_ca, path_len) = constraints.map_or((false, None), |c| (c.value.ca, c.value.path_len_constraint));
    let uses = read.key_usage().map_err(PkiError::certificate)?.map(|uses| uses.value.flags);
    let signs_certificates =
        read.key_usage().map_err(PkiError::certificate)?.is_some_and(|uses| uses.value.key_cert_sign());
    let extended = read.extended_key_usage().map_err(PkiError::certificate)?;
    let right = match subject {
        Subject::Root { .. } => is_ca && path_len == Some(1) && signs_certificates,
        Subject::Issuer { .. } => is_ca && path_len == Some(0) && signs_certificates,
        Subject::Machine(_) => {
            !is_ca
                && uses.is_some()
                && !signs_certificates
                && extended.is_some_and(|uses| uses.value.server_auth && uses.value.client_auth)
        }
    };
    match right {
        true => Ok(()),
        false => Err(PkiError::certificate(format_args!("its uses are not those of {subject}"))),
    }
}

fn ms(seconds: i64) -> Result<u64, PkiError> {
    let seconds = u64::try_from(seconds).map_err(|_| PkiError::certificate("a date before 1970"))?;
    seconds.checked_mul(1_000).ok_or_else(|| PkiError::certificate("a date that is out of range"))
}

/// What a request asks for, and the key, which its sender has: the request is signed with it.
pub(super) fn request(request: &[u8]) -> Result<(Requested, impl PublicKeyData), PkiError> {
    bounded("a request for a certificate", request, REQUEST_BYTES_MAX)?;
    let (rest, _) = X509CertificationRequest::from_der(request).map_err(PkiError::request)?;
    if !rest.is_empty() {
        return Err(PkiError::request(format_args!("{} bytes follow it", rest.len())));
    }
    let der = CertificateSigningRequestDer::from(request);
    let read = CertificateSigningRequestParams::from_der(&der).map_err(PkiError::request)?;
    if *read.public_key.algorithm() != rcgen::PKCS_ECDSA_P256_SHA256 {
        return Err(PkiError::request("its key is not ECDSA over P-256"));
    }
    let [SanType::URI(text)] = read.params.subject_alt_names.as_slice() else {
        return Err(PkiError::request("it does not ask for exactly one name, a URI"));
    };
    let subject = text.as_str().parse()?;
    let spki_sha256 = SpkiHash::of(&read.public_key.subject_public_key_info());
    Ok((Requested { subject, spki_sha256 }, read.public_key))
}

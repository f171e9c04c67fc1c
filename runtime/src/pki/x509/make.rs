//! Making keys, requests and certificates.

use crate::pki::error::PkiError;
use crate::pki::name::Subject;
use crate::pki::scheme::{Authority, Certificate, SecretKey, SpkiHash, Validity};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SigningKey,
};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

pub(super) fn new_key() -> Result<SecretKey, PkiError> {
    let pair = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(PkiError::key)?;
    SecretKey::from_bytes(pair.serialize_der())
}

pub(super) fn pair(key: &SecretKey) -> Result<KeyPair, PkiError> {
    let der = PrivatePkcs8KeyDer::from(key.bytes());
    KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_ECDSA_P256_SHA256).map_err(PkiError::key)
}

pub(super) fn public(key: &SecretKey) -> Result<SpkiHash, PkiError> {
    Ok(SpkiHash::of(&pair(key)?.subject_public_key_info()))
}

pub(super) fn self_signed(key: &SecretKey, cluster: &str, validity: Validity) -> Result<Certificate, PkiError> {
    let pair = pair(key)?;
    let subject = Subject::Root { cluster: cluster.to_owned() };
    let params = params(&subject, validity, &pair.subject_public_key_info())?;
    let made = params.self_signed(&pair).map_err(PkiError::certificate)?;
    Certificate::from_bytes(made.der().to_vec())
}

pub(super) fn request(key: &SecretKey, subject: &Subject) -> Result<Vec<u8>, PkiError> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![uri(subject)?];
    params.distinguished_name = DistinguishedName::new();
    let made = params.serialize_request(&pair(key)?).map_err(PkiError::request)?;
    Ok(made.der().to_vec())
}

pub(super) fn sign(
    authority: &Authority,
    subject: &Subject,
    public_key: &impl PublicKeyData,
    validity: Validity,
) -> Result<Certificate, PkiError> {
    let above = CertificateDer::from(authority.certificate().bytes());
    let issuer = Issuer::from_ca_cert_der(&above, pair(authority.key())?).map_err(PkiError::certificate)?;
    let params = params(subject, validity, &public_key.subject_public_key_info())?;
    let made = params.signed_by(public_key, &issuer).map_err(PkiError::certificate)?;
    Certificate::from_bytes(made.der().to_vec())
}

pub(super) fn sign_message(key: &SecretKey, message: &[u8]) -> Result<Vec<u8>, PkiError> {
    pair(key)?.sign(message).map_err(PkiError::key)
}

fn uri(subject: &Subject) -> Result<SanType, PkiError> {
    // Names are ASCII.
    Ok(SanType::URI(subject.to_string().as_str().try_into().map_err(PkiError::certificate)?))
}

fn params(subject: &Subject, validity: Validity, spki: &[u8]) -> Result<CertificateParams, PkiError> {
    let mut name = DistinguishedName::new();
    // For people who look at a certificate, and for the search of the one above; it decides nothing.
    name.push(
        DnType::CommonName,
        match subject {
            Subject::Root { .. } => "muster root".to_owned(),
            Subject::Issuer { id, .. } => format!("muster issuer {id}"),
            Subject::Machine(_) => "muster machine".to_owned(),
        },
    );
    let authority_uses = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let (is_ca, key_usages, extended_key_usages) = match subject {
        Subject::Root { .. } => (IsCa::Ca(BasicConstraints::Constrained(1)), authority_uses, Vec::new()),
        Subject::Issuer { .. } => (IsCa::Ca(BasicConstraints::Constrained(0)), authority_uses, Vec::new()),
        Subject::Machine(_) => (
            IsCa::ExplicitNoCa,
            vec![KeyUsagePurpose::DigitalSignature],
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        ),
    };
    let mut params = CertificateParams::default();
    params.not_before = date(validity.from_ms)?;
    params.not_after = date(validity.until_ms)?;
    params.serial_number = Some(serial(spki, validity));
    params.subject_alt_names = vec![uri(subject)?];
    params.distinguished_name = name;
    params.is_ca = is_ca;
    params.key_usages = key_usages;
    params.extended_key_usages = extended_key_usages;
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// A certificate of another key, or renewed, has another number.
fn serial(spki: &[u8], validity: Validity) -> SerialNumber {
    let mut hash = Sha256::new();
    hash.update(spki);
    hash.update(validity.from_ms.to_be_bytes());
    let mut number = hash.finalize()[..16].to_vec();
    // Numbers are positive and not 0.
    number[0] = number[0] & 0x7f | 0x40;
    SerialNumber::from(number)
}

fn date(ms: u64) -> Result<OffsetDateTime, PkiError> {
    let seconds = i64::try_from(ms / 1_000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds).map_err(PkiError::certificate)
}

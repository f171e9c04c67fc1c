//! Keys and certificates without cryptography: the same names, dates and chains as in production, from the run's seed.
//!
//! A key is a random value of the seed; the hash of it stands for the public key. A certificate says who signed it, and is believed: what
//! a simulation tries is rotation, expiry, removal and clocks, not forgery. What must stay true: what [`crate::pki::X509`] refuses for its
//! names, its chain or its key is refused here, too; one conformance suite runs over both.

use crate::chance::Chance;
use crate::pki::{
    Authority, Certificate, PkiError, Presented, REQUEST_BYTES_MAX, Requested, Scheme, SecretKey, SpkiHash, Stated,
    Subject, Validity, bounded, presented,
};
use serde::{Deserialize, Serialize};

/// See the module.
pub(super) struct SimScheme {
    pub(super) chance: Chance,
}

#[derive(Serialize, Deserialize)]
struct SimCertificate {
    subject: String,
    spki: SpkiHash,
    signed_by: SpkiHash,
    validity: Validity,
}

#[derive(Serialize, Deserialize)]
struct SimRequest {
    subject: String,
    spki: SpkiHash,
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, PkiError> {
    postcard::to_stdvec(value).map_err(PkiError::certificate)
}

fn decode(certificate: &Certificate) -> Result<SimCertificate, PkiError> {
    match postcard::take_from_bytes(certificate.bytes()).map_err(PkiError::certificate)? {
        (read, []) => Ok(read),
        (_, rest) => Err(PkiError::certificate(format_args!("{} bytes follow it", rest.len()))),
    }
}

fn spki(key: &SecretKey) -> SpkiHash {
    SpkiHash::of(&[b"simulated key ", key.bytes()].concat())
}

/// Whoever knows the public key can make it, as with certificates.
fn signature(spki: &SpkiHash, message: &[u8]) -> Vec<u8> {
    SpkiHash::of(&[b"simulated signature ", &spki.0[..], message].concat()).0.to_vec()
}

impl Scheme for SimScheme {
    fn new_key(&self) -> Result<SecretKey, PkiError> {
        SecretKey::from_bytes(self.chance.token().into_bytes())
    }

    fn public(&self, key: &SecretKey) -> Result<SpkiHash, PkiError> {
        Ok(spki(key))
    }

    fn self_signed(&self, key: &SecretKey, cluster: &str, validity: Validity) -> Result<Certificate, PkiError> {
        let subject = Subject::Root { cluster: cluster.to_owned() }.to_string();
        let spki = spki(key);
        Certificate::from_bytes(encode(&SimCertificate { subject, spki, signed_by: spki, validity })?)
    }

    fn request(&self, key: &SecretKey, subject: &Subject) -> Result<Vec<u8>, PkiError> {
        encode(&SimRequest { subject: subject.to_string(), spki: spki(key) })
    }

    fn check_request(&self, request: &[u8]) -> Result<Requested, PkiError> {
        bounded("a request for a certificate", request, REQUEST_BYTES_MAX)?;
        let (SimRequest { subject, spki }, rest) = postcard::take_from_bytes(request).map_err(PkiError::request)?;
        if !rest.is_empty() {
            return Err(PkiError::request(format_args!("{} bytes follow it", rest.len())));
        }
        Ok(Requested { subject: subject.parse()?, spki_sha256: spki })
    }

    fn sign(&self, authority: &Authority, request: &[u8], validity: Validity) -> Result<Certificate, PkiError> {
        let Requested { subject, spki_sha256 } = self.check_request(request)?;
        let signed_by = authority.stated().spki_sha256;
        let made = SimCertificate { subject: subject.to_string(), spki: spki_sha256, signed_by, validity };
        Certificate::from_bytes(encode(&made)?)
    }

    fn read(&self, certificate: &Certificate) -> Result<Stated, PkiError> {
        let SimCertificate { subject, spki, validity, .. } = decode(certificate)?;
        Ok(Stated { subject: subject.parse()?, spki_sha256: spki, validity })
    }

    fn verify(&self, chain: &[Certificate], roots: &[Certificate]) -> Result<Presented, PkiError> {
        let presented = presented(self, chain)?;
        let [leaf, issuer] = chain else { return Err(PkiError::chain("it does not have 2 certificates")) };
        let (leaf, issuer) = (decode(leaf)?, decode(issuer)?);
        if leaf.signed_by != issuer.spki {
            return Err(PkiError::chain("it does not lead over the issuer that is named"));
        }
        for root in roots {
            if decode(root)?.spki == issuer.signed_by {
                return Ok(presented);
            }
        }
        Err(PkiError::chain("no root has signed the issuer"))
    }

    fn sign_message(&self, key: &SecretKey, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        Ok(signature(&spki(key), message))
    }

    fn check_message(&self, certificate: &Certificate, message: &[u8], signed: &[u8]) -> Result<(), PkiError> {
        match signature(&decode(certificate)?.spki, message) == signed {
            true => Ok(()),
            false => Err(PkiError::Signature),
        }
    }
}

//! What rustls asks while it shakes hands: whether a chain leads to a root, and whether the other side has the key.
//!
//! Names and dates are not judged here, but after the handshake, where resumed ones come by, too.

use super::chain;
use crate::pki::{PkiError, Roots, Scheme, X509};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};
use std::sync::Arc;

/// Keys are ECDSA over P-256.
static ALGORITHMS: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ECDSA_P256_SHA256],
    mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[webpki::ring::ECDSA_P256_SHA256])],
};

fn check(roots: &Roots, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> Result<(), Error> {
    let verified = || -> Result<(), PkiError> {
        let all: Vec<_> = std::iter::once(leaf).chain(rest).cloned().collect();
        X509.verify(&chain(&all)?, roots.certificates()).map(|_| ())
    };
    verified().map_err(|error| match error {
        PkiError::Chain { .. } => CertificateError::UnknownIssuer.into(),
        error => CertificateError::Other(OtherError(Arc::new(error))).into(),
    })
}

fn never() -> Error {
    Error::General("TLS 1.2 is not spoken".to_owned())
}

/// Checks servers.
#[derive(Debug)]
pub(super) struct CheckServer {
    roots: Roots,
}

impl CheckServer {
    pub(super) fn new(roots: Roots) -> Self {
        CheckServer { roots }
    }
}

impl ServerCertVerifier for CheckServer {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        check(&self.roots, leaf, rest).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(never())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signed, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}

/// Checks clients, which must show a certificate.
#[derive(Debug)]
pub(super) struct CheckClient {
    roots: Roots,
}

impl CheckClient {
    pub(super) fn new(roots: Roots) -> Self {
        CheckClient { roots }
    }
}

impl ClientCertVerifier for CheckClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A machine has one certificate and needs no hint.
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check(&self.roots, leaf, rest).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(never())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signed, &ALGORITHMS)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ALGORITHMS.supported_schemes()
    }
}

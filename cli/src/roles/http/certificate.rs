//! The certificate of the site with which the pages are served over TLS.
//!
//! It is one for names or addresses, as any web server has it, and not the machine's identity, whose name Prometheus would not check.
//! What must stay true: TLS 1.3 alone, whatever other crates have rustls compiled with.

use super::watched::Content;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use std::sync::Arc;

/// The pages are served by this protocol alone.
const ALPN: &[u8] = b"http/1.1";

/// The settings of TLS with one certificate.
pub(super) struct Certificate(Arc<ServerConfig>);

impl Content for Certificate {
    const OPTION: &'static str = "http-certificate";
    // A chain has few certificates of a few KiB.
    const BYTES_MAX: u64 = 256 * 1024;
    const REMEDY: &'static str =
        "give a PEM file with a private key that is not encrypted and its chain of certificates, the server's first";

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let broken = |error: Error| format!("is not a PEM file: {error}");
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(bytes).collect::<Result<_, Error>>().map_err(broken)?;
        if chain.is_empty() {
            return Err("has no certificate".to_owned());
        }
        let key = PrivateKeyDer::from_pem_slice(bytes).map_err(|error| match error {
            Error::NoItemsFound => "has no private key that can be read".to_owned(),
            other => broken(other),
        })?;
        let unusable = |error: rustls::Error| format!("cannot be used for TLS: {error}");
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Certificate(Arc::new(config)))
    }
}

impl Certificate {
    pub(super) fn settings(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_certificate_are_needed() {
        let made = || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let (one, other) = (made(), made());
        let (key, certificate) = (one.signing_key.serialize_pem(), one.cert.pem());
        let refused = |text: &str| Certificate::parse(text.as_bytes()).err().expect("refused");

        for usable in [format!("{key}{certificate}"), format!("{certificate}{key}{certificate}")] {
            let settings = Certificate::parse(usable.as_bytes()).expect("usable").settings();
            assert_eq!(settings.alpn_protocols, [ALPN]);
        }
        assert_eq!(refused(""), "has no certificate");
        assert_eq!(refused(&key), "has no certificate");
        assert_eq!(refused(&certificate), "has no private key that can be read");
        assert!(
            refused(&format!("{}{certificate}", other.signing_key.serialize_pem())).contains("cannot be used for TLS")
        );
        assert!(refused(&certificate[..certificate.len() / 2]).contains("is not a PEM file"));
    }
}

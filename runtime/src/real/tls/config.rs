//! The settings of rustls: TLS 1.3, ring, HTTP/2, tickets without early data.

use super::ALPN;
use super::verifiers::{CheckClient, CheckServer};
use crate::pki::{CertificateClock, Credentials, Own, Roots};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Tickets that a place hands out, for connections that are made side by side.
const TICKETS_KEPT: usize = 8;

/// The certificate clock as rustls asks for it.
struct Time(Arc<CertificateClock>);

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the certificate clock")
    }
}

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        // Only ages of tickets are judged by it: dates of certificates by the rule.
        Some(UnixTime::since_unix_epoch(Duration::from_millis(self.0.now_ms().unwrap_or(0))))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

fn shown(own: &Own) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = own.chain.iter().map(|certificate| CertificateDer::from(certificate.bytes().to_vec())).collect();
    (chain, PrivatePkcs8KeyDer::from(own.key.bytes().to_vec()).into())
}

/// `clients`: the roots that a client's certificate must lead to; none: clients show none.
pub(super) fn server(own: &Own, clients: Option<&Roots>, clock: &Arc<CertificateClock>) -> Result<ServerConfig, Error> {
    let builder = ServerConfig::builder_with_details(provider(), Arc::new(Time(Arc::clone(clock))))
        .with_protocol_versions(&[&TLS13])?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(roots) => builder.with_client_cert_verifier(Arc::new(CheckClient::new(roots.clone()))),
    };
    let (chain, key) = shown(own);
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Each configuration its own: a ticket of one port is worth nothing at the other.
    config.ticketer = Ticketer::new()?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

/// For one place and one expectation: sessions are found by nothing else.
pub(super) fn client(credentials: &Credentials, clock: &Arc<CertificateClock>) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_details(provider(), Arc::new(Time(Arc::clone(clock))))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(CheckServer::new(credentials.roots().clone())));
    let mut config = match credentials.own() {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let (chain, key) = shown(own);
            builder.with_client_auth_cert(chain, key)?
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_sni = false;
    config.enable_early_data = false;
    config.resumption = Resumption::in_memory_sessions(TICKETS_KEPT);
    Ok(config)
}

//! Connections of people's tools to control nodes over TLS: this side trusts roots and shows no certificate.
//!
//! What must stay true: nothing is sent to a side that has not proved to be a control node of the cluster. Dates are judged by this machine's clock,
//! since a tool has heard no other.

use super::net::connect;
use super::tls::TrustStore;
use crate::clock::Clock;
use crate::net::{Expect, NetError};
use crate::pki::{CertificateClock, Credentials, Roots};
use std::path::Path;
use std::sync::Arc;
use tonic::transport::{Channel, Endpoint};

/// Makes such connections. Cheap to clone.
#[derive(Clone)]
pub struct Dialler(Arc<TrustStore>);

impl std::fmt::Debug for Dialler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dialler")
    }
}

impl Dialler {
    /// One that trusts these roots.
    ///
    /// # Errors
    /// [`NetError::Credentials`].
    pub fn new(roots: Roots) -> Result<Self, NetError> {
        let clock: Arc<dyn Clock> = Arc::new(super::clock::SystemClock);
        let now_ms = clock.wall_ms();
        // Never saved.
        let heard = Arc::new(CertificateClock::new(clock, super::small_files(Path::new("/nonexistent"))));
        heard.hear(now_ms);
        let trust = TrustStore::new(heard);
        trust.set(Some(Credentials::anonymous(roots)))?;
        Ok(Dialler(Arc::new(trust)))
    }

    /// A channel to any control node at this endpoint; it connects when first used.
    #[must_use]
    pub fn channel(&self, endpoint: &Endpoint) -> Channel {
        let trust = Arc::clone(&self.0);
        let connector = move |to: http::Uri| connect(Arc::clone(&trust), to, Expect::Control);
        endpoint.connect_with_connector_lazy(tower::service_fn(connector))
    }
}

//! HTTP to servers of the organisation: its identity provider, and receivers of the audit.
//!
//! What must stay true: no redirect is followed, so that nobody sends this machine elsewhere; every answer is bounded in size and in time.

use crate::failure::Failure;
use muster_control_server::login::FETCHED_BYTES_MAX;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;

/// For one answer, connection included.
const ANSWER_MAX: Duration = Duration::from_secs(8);

fn bounded() -> ConfigBuilder<AgentScope> {
    Agent::config_builder().timeout_global(Some(ANSWER_MAX)).max_redirects(0).http_status_as_error(false)
}

/// A client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Web(Agent);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WebError(#[from] ureq::Error);

impl Web {
    /// One that trusts the usual authorities, or those of a file alone.
    ///
    /// # Errors
    /// When the file cannot be read or has no certificates.
    pub fn new(ca_file: Option<&Path>) -> Result<Self, Failure> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = ca_file {
            let text =
                std::fs::read(path).map_err(|error| Failure::io(format!("reading {}", path.display()), error))?;
            let certificates: Vec<Certificate<'static>> = parse_pem(&text)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate.to_owned()),
                    _ => None,
                })
                .collect();
            if certificates.is_empty() {
                let problem = format!("{} has no certificates", path.display());
                return Err(Failure::field("ca-file", problem, "give a PEM file with the authorities of that server"));
            }
            tls = tls.root_certs(RootCerts::Specific(Arc::new(certificates)));
        }
        Ok(Web(bounded().tls_config(tls.build()).build().into()))
    }

    /// One for servers on this machine: past every proxy.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Web(bounded().proxy(None).build().into())
    }

    /// Gets a document.
    ///
    /// # Errors
    /// In words: that there is no answer, or that it is none.
    pub fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let request = http::Request::get(url).body(Vec::new()).map_err(|error| error.to_string())?;
        let answer = self.send(request).map_err(|error| error.to_string())?;
        match answer.status().is_success() {
            true => Ok(answer.into_body()),
            false => Err(format!("it answers {}", answer.status())),
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// That there is no answer, or too large a one.
    pub fn send(&self, request: http::Request<Vec<u8>>) -> Result<http::Response<Vec<u8>>, WebError> {
        let (head, mut body) = self.0.run(request)?.into_parts();
        let content = body.with_config().limit(FETCHED_BYTES_MAX as u64).read_to_vec()?;
        Ok(http::Response::from_parts(head, content))
    }
}

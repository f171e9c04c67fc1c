//! A connection to one control node, with what proves who calls and who answers.
//!
//! What must stay true: a token is sent with every call and is never shown; where roots are given, nothing is sent to a side that has not proved to be
//! a control node under one of them.

use crate::failure::Failure;
use http::header::{AUTHORIZATION, HeaderValue};
use muster_runtime::pki::Roots;
use muster_runtime::real::Dialler;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::body::Body;
use tonic::transport::{Channel as Plain, Endpoint};
use tower::Service;

/// If a host does not even accept a connection in this time, the next endpoint is tried.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// How both sides prove who they are.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// A session or token that goes with every call.
    pub token: Option<String>,
    /// What control nodes have to prove themselves by, over TLS; none: clear text.
    pub roots: Option<Roots>,
}

/// Makes channels with the same proofs.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    bearer: Option<HeaderValue>,
    secure: Option<Dialler>,
}

impl Connector {
    pub(super) fn new(access: &Access) -> Result<Self, Failure> {
        let secure = access.roots.clone().map(Dialler::new).transpose();
        let secure = secure.map_err(|error| Failure::field("roots-file", error.to_string(), "give a roots.pem"))?;
        Ok(Connector { bearer: access.token.as_deref().map(bearer).transpose()?, secure })
    }

    pub(super) fn is_secure(&self) -> bool {
        self.secure.is_some()
    }

    /// A channel to `host:port`, or to a URL; it connects when first used.
    pub(super) fn connect(&self, text: &str) -> Result<Channel, Failure> {
        let bad = || Failure::field("endpoints", format!("{text:?} is not HOST:PORT"), "write it as 10.0.0.1:7400");
        let plain = text.trim().strip_prefix("http://").unwrap_or(text.trim());
        let port = plain.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>()));
        if !matches!(port, Some((true, Ok(_)))) {
            return Err(bad());
        }
        let endpoint = Endpoint::from_shared(format!("http://{plain}")).map_err(|_| bad())?;
        let endpoint = endpoint.connect_timeout(CONNECT_MAX).tcp_nodelay(true);
        let plain = match &self.secure {
            Some(dialler) => dialler.channel(&endpoint),
            None => endpoint.connect_lazy(),
        };
        Ok(Channel { plain, bearer: self.bearer.clone() })
    }
}

/// Cheap to clone; connects when first used and again after a failure.
#[derive(Clone, Debug)]
pub struct Channel {
    plain: Plain,
    bearer: Option<HeaderValue>,
}

/// What is sent for a token.
///
/// # Errors
/// When it has characters that no token has.
fn bearer(token: &str) -> Result<HeaderValue, Failure> {
    let value = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
    let mut value = value
        .map_err(|_| Failure::field("token", "has characters that no token has", "use the text as it was given"))?;
    // Never indexed by HTTP/2, never printed.
    value.set_sensitive(true);
    Ok(value)
}

impl Service<http::Request<Body>> for Channel {
    type Response = <Plain as Service<http::Request<Body>>>::Response;
    type Error = <Plain as Service<http::Request<Body>>>::Error;
    type Future = <Plain as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.plain, context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if let Some(bearer) = &self.bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        self.plain.call(request)
    }
}

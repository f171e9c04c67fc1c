//! A connection to one control node, with what proves who calls.
//!
//! What must stay true: a token is sent with every call and is never shown.

use crate::failure::Failure;
use http::header::{AUTHORIZATION, HeaderValue};
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::transport::Channel as Plain;
use tower::Service;

/// Cheap to clone; connects when first used and again after a failure.
#[derive(Clone, Debug)]
pub struct Channel {
    plain: Plain,
    bearer: Option<HeaderValue>,
}

impl From<Plain> for Channel {
    fn from(plain: Plain) -> Self {
        Channel { plain, bearer: None }
    }
}

impl Channel {
    /// The same with what proves who calls.
    #[must_use]
    pub fn with(self, bearer: Option<HeaderValue>) -> Self {
        Channel { bearer, ..self }
    }
}

/// What is sent for a token.
///
/// # Errors
/// When it has characters that no token has.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, Failure> {
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

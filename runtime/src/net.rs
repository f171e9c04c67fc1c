//! The network: channels that clients speak over, and endpoints that services are reached at.
//!
//! A tonic client takes a [`Channel`], and services are handed over as tonic `Routes`. In production a channel is HTTP/2 over TCP; in
//! simulation it calls the routes of the other host in the same process, through links that delay, drop and cut. An endpoint
//! is `host:port`.

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// What a client speaks over. Cheap to clone; connects when first used and again after a failure.
pub type Channel =
    tower::util::BoxCloneSyncService<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, CallError>;

/// Why a call got no answer. It is a type of its own, and not a boxed trait object, so that futures which hold a client across an
/// await are known to be `Send`; what happened is its source, where tonic looks for it.
#[derive(Debug, thiserror::Error)]
#[error("the call failed")]
pub struct CallError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl CallError {
    /// From what happened.
    pub fn new(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        CallError(source.into())
    }

    /// What happened.
    #[must_use]
    pub fn into_inner(self) -> Box<dyn std::error::Error + Send + Sync> {
        self.0
    }
}

/// Why an endpoint cannot be served or reached.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NetError {
    /// Not `host:port`.
    #[error("{endpoint:?} is not HOST:PORT")]
    BadEndpoint {
        /// What was given.
        endpoint: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {endpoint}: {why}")]
    Listen {
        /// Where.
        endpoint: String,
        /// Why.
        why: String,
    },
}

/// A host's network.
pub trait Net: Send + Sync + 'static {
    /// A channel to `endpoint`. Fails only on an endpoint that cannot be one; a host that is away fails the calls.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`].
    fn dial(&self, endpoint: &str) -> Result<Channel, NetError>;

    /// The same, for a stream on which both sides are heard of every second or so and that notices silence by itself: the connection is asked
    /// whether it lives only when that is late, and is not given up over a pause of a second.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`].
    fn dial_session(&self, endpoint: &str) -> Result<Channel, NetError> {
        self.dial(endpoint)
    }

    /// Whether the host of `endpoint` answers that nobody listens there: the process that did has ended. False where somebody listens,
    /// and where there is no answer; that may take seconds.
    fn is_refused(&self, endpoint: &str) -> BoxFuture<'static, bool>;

    /// Serves `routes` at `endpoint` until `stop`; the outer future is ready once the endpoint listens, the inner one when
    /// serving has ended. The address listened on is given back (port 0 chooses one).
    fn serve(
        &self,
        endpoint: &str,
        routes: tonic::service::Routes,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Serving, NetError>> {
        self.serve_with_peers(endpoint, routes, "", stop)
    }

    /// The same, with places for the connections of peers: those whose first request's path begins with `peers_path`. However many
    /// clients there are, they take none of them.
    fn serve_with_peers(
        &self,
        endpoint: &str,
        routes: tonic::service::Routes,
        peers_path: &'static str,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Serving, NetError>>;
}

/// An endpoint that is being served.
pub struct Serving {
    /// Where, with the real port.
    pub endpoint: String,
    /// Ready when serving has ended.
    pub ended: BoxFuture<'static, ()>,
}

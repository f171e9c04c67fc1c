//! The network: channels that clients speak over, and endpoints that services are reached at.
//!
//! A tonic client takes a [`Channel`], and services are handed over as tonic `Routes`. In production a channel is HTTP/2 over TCP; in
//! simulation it calls the routes of the other host in the same process, through links that delay, drop and cut. An endpoint
//! is `host:port`.
//!
//! A side that dials says whom it expects ([`Expect`]), and a side that serves what it demands ([`Admission`]). What must stay true: a
//! channel that expects a machine never carries a byte to anybody else; a request that reaches a service carries [`Peer`] beside it, which
//! says what was proved of its sender and nothing that the sender claims.

use crate::pki::{Admit, Credentials, PeerIdentity, Wanted};
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
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
    /// Keys or certificates cannot be used.
    #[error("the credentials of this machine cannot be used: {why}")]
    Credentials {
        /// Why.
        why: String,
    },
}

/// Whom a side that dials expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expect {
    /// Anybody, in clear text.
    Plain,
    /// Any control node of the cluster.
    Control,
    /// The control node with this id.
    Member(u64),
    /// The control node with this id; anybody in clear text where it does not speak TLS yet.
    MemberOrPlain(u64),
    /// Any control node; anybody in clear text where it does not speak TLS yet.
    ControlOrPlain,
}

impl Expect {
    /// Whether clear text is spoken at once.
    pub(crate) fn is_plain(self) -> bool {
        self == Expect::Plain
    }

    /// Whether clear text is spoken with a side that does not speak TLS.
    pub(crate) fn may_be_plain(self) -> bool {
        matches!(self, Expect::Plain | Expect::MemberOrPlain(_) | Expect::ControlOrPlain)
    }

    /// Who must be at the other end of a TLS connection.
    pub(crate) fn wanted(self) -> Option<Wanted> {
        match self {
            Expect::Plain => None,
            Expect::Control | Expect::ControlOrPlain => Some(Wanted::Control),
            Expect::Member(id) | Expect::MemberOrPlain(id) => Some(Wanted::Member(id)),
        }
    }
}

/// How the machines of a cluster talk with each other: a setting of every role, the same for all of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// In clear text, without identities.
    #[default]
    Plain,
    /// TLS with both certificates, from the host's [`Credentials`].
    Mutual,
    /// The same, and clear text with those that do not speak TLS yet: of control nodes, while a cluster is being encrypted. It protects no more
    /// than clear text does.
    MutualOrPlain,
}

impl Transport {
    /// Whom to expect where any control node serves.
    #[must_use]
    pub fn control(self) -> Expect {
        match self {
            Transport::Plain => Expect::Plain,
            Transport::Mutual => Expect::Control,
            Transport::MutualOrPlain => Expect::ControlOrPlain,
        }
    }

    /// Whom to expect where control node `id` serves.
    #[must_use]
    pub fn member(self, id: u64) -> Expect {
        match self {
            Transport::Plain => Expect::Plain,
            Transport::Mutual => Expect::Member(id),
            Transport::MutualOrPlain => Expect::MemberOrPlain(id),
        }
    }

    /// Whether this side has credentials to show.
    #[must_use]
    pub fn has_credentials(self) -> bool {
        self != Transport::Plain
    }
}

/// What an endpoint demands of whoever connects.
#[derive(Clone)]
pub struct Admission {
    pub(crate) demand: Demand,
    /// In clear text, connections whose first request's path begins like this are counted as peers'.
    pub(crate) peers_path: &'static str,
}

#[derive(Clone)]
pub(crate) enum Demand {
    Plain,
    Server,
    Mutual(Arc<dyn Admit>),
    MutualOrPlain(Arc<dyn Admit>),
}

impl Demand {
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Demand::Plain)
    }

    pub(crate) fn may_be_plain(&self) -> bool {
        matches!(self, Demand::Plain | Demand::MutualOrPlain(_))
    }

    /// Who is asked about certificates that are shown; none where none are demanded.
    pub(crate) fn admit(&self) -> Option<&dyn Admit> {
        match self {
            Demand::Plain | Demand::Server => None,
            Demand::Mutual(admit) | Demand::MutualOrPlain(admit) => Some(&**admit),
        }
    }
}

impl Admission {
    /// Nothing: clear text.
    #[must_use]
    pub fn plain() -> Self {
        Admission { demand: Demand::Plain, peers_path: "" }
    }

    /// TLS with the certificate of this side alone: for people and services, who show tokens.
    #[must_use]
    pub fn server_certificate() -> Self {
        Admission { demand: Demand::Server, peers_path: "" }
    }

    /// TLS with both certificates: for machines. `admit` is asked once for each connection.
    #[must_use]
    pub fn mutual(admit: Arc<dyn Admit>) -> Self {
        Admission { demand: Demand::Mutual(admit), peers_path: "" }
    }

    /// TLS with both certificates where the other side speaks TLS, else clear text: while a cluster is being encrypted.
    #[must_use]
    pub fn mutual_or_plain(admit: Arc<dyn Admit>) -> Self {
        Admission { demand: Demand::MutualOrPlain(admit), peers_path: "" }
    }

    /// The same, with places for the connections of peers: those whose first request's path begins with `path`, or, where both sides show
    /// certificates, those of control nodes. However many clients there are, they take none of them.
    #[must_use]
    pub fn with_peers(self, path: &'static str) -> Self {
        Admission { peers_path: path, ..self }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.demand {
            Demand::Plain => "plain",
            Demand::Server => "server certificate",
            Demand::Mutual(_) => "mutual",
            Demand::MutualOrPlain(_) => "mutual or plain",
        })
    }
}

/// The other side of a connection, beside every request that comes over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who it has proved to be; `None` where no certificate was demanded, and in clear text.
    pub identity: Option<Arc<PeerIdentity>>,
    /// Its address: of a socket without the port, or the name of a simulated host.
    pub from: Arc<str>,
}

/// A host's network.
pub trait Net: Send + Sync + 'static {
    /// A channel to `endpoint`. Fails only on an endpoint that cannot be one; a host that is away, or is not whom `expect` says, fails the
    /// calls.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`].
    fn dial(&self, endpoint: &str, expect: Expect) -> Result<Channel, NetError>;

    /// The same, for a stream on which both sides are heard of every second or so and that notices silence by itself: the connection is asked
    /// whether it lives only when that is late, and is not given up over a pause of a second.
    ///
    /// # Errors
    /// [`NetError::BadEndpoint`].
    fn dial_session(&self, endpoint: &str, expect: Expect) -> Result<Channel, NetError> {
        self.dial(endpoint, expect)
    }

    /// Whether the host of `endpoint` answers that nobody listens there: the process that did has ended. False where somebody listens,
    /// and where there is no answer; that may take seconds.
    fn is_refused(&self, endpoint: &str) -> BoxFuture<'static, bool>;

    /// Serves `routes` at `endpoint` until `stop`; the outer future is ready once the endpoint listens, the inner one when
    /// serving has ended. The address listened on is given back (port 0 chooses one). Every request carries [`Peer`] in its extensions.
    ///
    /// An endpoint that demands certificates serves nobody while the host has no credentials.
    fn serve(
        &self,
        endpoint: &str,
        routes: tonic::service::Routes,
        admission: Admission,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Serving, NetError>>;

    /// Replaces what this host shows and whom it trusts. Calls that are made from now on go over new connections, also those of channels that
    /// are open; those that are under way end as they would have. Nothing that an earlier connection has left for the next one is used again.
    ///
    /// # Errors
    /// [`NetError::Credentials`] when they cannot be used.
    fn set_credentials(&self, credentials: Option<Credentials>) -> Result<(), NetError>;

    /// What it shows and whom it trusts.
    fn credentials(&self) -> Option<Arc<Credentials>>;
}

/// An endpoint that is being served.
pub struct Serving {
    /// Where, with the real port.
    pub endpoint: String,
    /// Ready when serving has ended.
    pub ended: BoxFuture<'static, ()>,
}

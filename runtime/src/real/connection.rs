//! Which connections an endpoint keeps.
//!
//! A connection is *silent* until its first request has come. Silent ones are bounded, and the oldest makes room for a new one, so that
//! sockets which say nothing lock nobody out; one that stays silent is closed after a while. The first request decides what the
//! connection is counted as: a peer's (it has proved to be a control node, or, where nothing is proved, its path begins as the endpoint was
//! told) or a client's, each kind with a budget of its own. What must stay true: clients never take a peer's place; a connection beyond its
//! budget, or of a machine that is not let in, is told so, not left waiting; every request carries who has sent it, as proved, and nothing
//! that was in that place before.

use super::descriptors::Budget;
use super::silent::{Silent, SilentPlace};
use crate::net::Peer;
use futures::future::{Either, Ready, ready};
use http::{Request, Response};
use hyper::body::Incoming;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

/// A connection whose first request has not come by then is closed: whoever dials has something to ask.
pub(super) const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(10);

/// The connections of an endpoint.
pub(super) struct Connections {
    silent: Silent,
    clients: Arc<Semaphore>,
    peers: Arc<Semaphore>,
    budget: Budget,
    peers_path: &'static str,
}

impl Connections {
    /// For an endpoint where requests whose path begins with `peers_path` come from peers.
    pub(super) fn new(budget: Budget, peers_path: &'static str) -> Self {
        Connections {
            silent: Silent::new(budget.silent),
            clients: Arc::new(Semaphore::new(budget.clients)),
            peers: Arc::new(Semaphore::new(budget.peers)),
            budget,
            peers_path,
        }
    }

    /// A connection has been made: the oldest silent one goes when there are too many.
    pub(super) fn open(self: &Arc<Self>) -> Arc<Connection> {
        let place = self.silent.enter();
        let close = place.close().clone();
        Arc::new(Connection { of: Arc::clone(self), standing: Mutex::new(Standing::Silent { _place: place }), close })
    }
}

/// One connection.
pub(super) struct Connection {
    of: Arc<Connections>,
    standing: Mutex<Standing>,
    close: CancellationToken,
}

/// What a connection counts as; what is held is given back when it ends.
enum Standing {
    Silent { _place: SilentPlace },
    Counted { _place: Counted },
    Refused,
}

/// A place among its kind.
struct Counted {
    kind: &'static str,
    _permit: OwnedSemaphorePermit,
}

impl Counted {
    fn new(kind: &'static str, permit: OwnedSemaphorePermit) -> Self {
        metrics::gauge!("muster_connections", "kind" => kind).increment(1.0);
        Counted { kind, _permit: permit }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::gauge!("muster_connections", "kind" => self.kind).decrement(1.0);
    }
}

impl Connection {
    /// Ready when the connection is to be closed: another took its place, it stayed silent, or it was refused.
    pub(super) async fn closed(&self) {
        let silent = tokio::time::sleep(FIRST_REQUEST_WITHIN);
        tokio::select! {
            () = self.close.cancelled() => return,
            () = silent => {}
        }
        if matches!(*self.standing.lock(), Standing::Silent { .. }) {
            metrics::counter!("muster_connections_dropped_total", "why" => "silent").increment(1);
            return;
        }
        self.close.cancelled().await;
    }

    /// Lets a request in, or says why not.
    fn admit(&self, path: &str, peer: &Peer) -> Result<(), Status> {
        let mut standing = self.standing.lock();
        if let Standing::Counted { .. } = *standing {
            return Ok(());
        }
        let Connections { clients, peers, budget, peers_path, .. } = &*self.of;
        let is_peer = match &peer.identity {
            Some(identity) => identity.name.control_id().is_some(),
            None => !peers_path.is_empty() && path.starts_with(peers_path),
        };
        let (places, kind, most) = match is_peer {
            true => (peers, "peers", budget.peers),
            false => (clients, "clients", budget.clients),
        };
        match Arc::clone(places).try_acquire_owned() {
            Ok(permit) => {
                *standing = Standing::Counted { _place: Counted::new(kind, permit) };
                Ok(())
            }
            Err(_) => {
                metrics::counter!("muster_connections_dropped_total", "why" => "too-many").increment(1);
                drop(standing);
                self.refuse();
                let text = format!(
                    "this control node already has {most} connections of {kind}; connect to another control node"
                );
                Err(Status::unavailable(text))
            }
        }
    }
}

impl Connection {
    /// The connection is closed after the answer that says why.
    fn refuse(&self) {
        *self.standing.lock() = Standing::Refused;
        self.close.cancel();
    }
}

/// The routes as one connection sees them.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) connection: Arc<Connection>,
    pub(super) routes: Routes,
    /// Who is at the other end.
    pub(super) peer: Peer,
    /// The answer to a machine that is not let in.
    pub(super) refusal: Option<Status>,
}

impl Service<Request<Incoming>> for Gate {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<<Routes as Service<Request<Incoming>>>::Future, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Incoming>>::poll_ready(&mut self.routes, context)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        if let Some(refusal) = self.refusal.clone() {
            self.connection.refuse();
            return Either::Right(ready(Ok(refusal.into_http())));
        }
        match self.connection.admit(request.uri().path(), &self.peer) {
            Ok(()) => {
                request.extensions_mut().insert(self.peer.clone());
                Either::Left(self.routes.call(request))
            }
            Err(refusal) => Either::Right(ready(Ok(refusal.into_http()))),
        }
    }
}

//! TCP with HTTP/2.
//!
//! What must stay true: a peer that has silently gone is noticed by the connection itself within some seconds; connections and the
//! requests on them belong to the host's tasks; garbage on the port ends that connection and nothing else; sockets that say nothing keep
//! nobody out (`connection.rs`).

use super::connection::{Connections, Gate};
use super::descriptors::Budget;
use super::socket;
use crate::host::TaskGroup;
use crate::net::{CallError, Channel, Net, NetError, Serving};
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Endpoint;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

/// Connecting takes longer only to a host that is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Whoever dialled asks a quiet connection whether it still lives. A peer that is stopped, or whose host is away, is left within a
/// second: what hangs on the connection starts elsewhere meanwhile. Measured by `muster bench stall`.
const PING_INTERVAL: Duration = Duration::from_millis(400);
/// And closes it when it does not say so. The question waits behind what was sent before it, which takes about six round trips where that is
/// 1 MB on a connection that was idle.
const PING_TIMEOUT: Duration = Duration::from_millis(600);
const PING_ROUND_TRIPS: u32 = 8;
/// A session with heartbeats each second: nothing is asked while they are answered, which for thousands of sessions is most of what they cost.
const SESSION_PING_INTERVAL: Duration = Duration::from_millis(1_200);
/// A control node that stands still for a second keeps its sessions: thousands that come back at once would hold it up for longer.
const SESSION_PING_TIMEOUT: Duration = Duration::from_millis(1_500);
/// The side that was dialled only clears away what is dead, without hurry.
const SERVER_PING_INTERVAL: Duration = Duration::from_secs(5);
const SERVER_PING_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a stopping server waits for the requests it has taken.
const DRAIN: Duration = Duration::from_secs(2);
/// What a connection that is closed may take to tell the other side.
const CLOSING: Duration = Duration::from_secs(1);
/// Requests in flight on one connection; more wait at the sender.
const MAX_STREAMS: u32 = 4_096;
/// Bytes in flight per request and per connection: snapshots and appends of some megabytes at network speed.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// After a failed accept (usually: out of file descriptors), before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A host's TCP network.
pub(super) struct TcpNet {
    tasks: TaskGroup,
    /// How long messages to the farthest host need there and back.
    round_trip: Duration,
}

impl TcpNet {
    pub(super) fn new(tasks: TaskGroup, round_trip: Duration) -> Self {
        TcpNet { tasks, round_trip }
    }

    /// A channel whose connection is asked whether it lives after `interval` without a word, and given up after `timeout` without an answer.
    fn dial_with(&self, endpoint: &str, interval: Duration, timeout: Duration) -> Result<Channel, NetError> {
        check(endpoint)?;
        let channel = Endpoint::from_shared(format!("http://{endpoint}"))
            .map_err(|_| bad(endpoint))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(interval)
            .keep_alive_timeout(timeout + self.round_trip * PING_ROUND_TRIPS)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .executor(Spawner(self.tasks.clone()))
            .connect_with_connector_lazy(tower::service_fn(connect));
        Ok(BoxCloneSyncService::new(channel.map_err(CallError::new)))
    }
}

/// Lets hyper spawn into the host's tasks.
#[derive(Clone)]
struct Spawner(TaskGroup);

impl<F> hyper::rt::Executor<F> for Spawner
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        drop(self.0.spawn_for_one(future));
    }
}

fn bad(endpoint: &str) -> NetError {
    NetError::BadEndpoint { endpoint: endpoint.to_owned() }
}

fn check(endpoint: &str) -> Result<(&str, u16), NetError> {
    let (host, port) = endpoint.rsplit_once(':').ok_or_else(|| bad(endpoint))?;
    let port = port.parse().map_err(|_| bad(endpoint))?;
    if host.is_empty() || host.contains(['/', '@', ' ']) {
        return Err(bad(endpoint));
    }
    Ok((host, port))
}

async fn connect(to: http::Uri) -> std::io::Result<TokioIo<TcpStream>> {
    // IPv6 addresses come in brackets.
    let host = to.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, to.port_u16().unwrap_or_default())).await?;
    socket::tune(&stream);
    Ok(TokioIo::new(stream))
}

impl Net for TcpNet {
    fn dial(&self, endpoint: &str) -> Result<Channel, NetError> {
        self.dial_with(endpoint, PING_INTERVAL, PING_TIMEOUT)
    }

    fn dial_session(&self, endpoint: &str) -> Result<Channel, NetError> {
        self.dial_with(endpoint, SESSION_PING_INTERVAL, SESSION_PING_TIMEOUT)
    }

    fn is_refused(&self, endpoint: &str) -> BoxFuture<'static, bool> {
        let endpoint = endpoint.to_owned();
        async move {
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(endpoint)).await;
            matches!(connected, Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused)
        }
        .boxed()
    }

    fn serve_with_peers(
        &self,
        endpoint: &str,
        routes: Routes,
        peers_path: &'static str,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Serving, NetError>> {
        let (endpoint, tasks) = (endpoint.to_owned(), self.tasks.clone());
        async move {
            let host = check(&endpoint)?.0;
            let listening = async {
                let listener = TcpListener::bind(&endpoint).await?;
                let port = listener.local_addr()?.port();
                Ok::<_, std::io::Error>((listener, port))
            };
            let (listener, port) = listening
                .await
                .map_err(|error| NetError::Listen { endpoint: endpoint.clone(), why: error.to_string() })?;
            let connections = Arc::new(Connections::new(Budget::now(), peers_path));
            let accepting = tasks.spawn(accept(listener, routes.prepare(), connections, stop, tasks.clone()));
            Ok(Serving { endpoint: format!("{host}:{port}"), ended: accepting.map(|_| ()).boxed() })
        }
        .boxed()
    }
}

/// Accepts without waiting for anything else: which connections are kept is decided when they have said something.
async fn accept(
    listener: TcpListener,
    routes: Routes,
    connections: Arc<Connections>,
    stop: CancellationToken,
    tasks: TaskGroup,
) {
    // Closed when every connection has let go of its end.
    let (open, mut all_closed) = mpsc::channel::<Infallible>(1);
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let gate = Gate { connection: connections.open(), routes: routes.clone() };
                let connection = serve_connection(stream, gate, stop.clone(), tasks.clone());
                let open = open.clone();
                drop(tasks.spawn_for_one(async move {
                    connection.await;
                    drop(open);
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, open));
    let _ = all_closed.recv().await;
}

async fn serve_connection(stream: TcpStream, gate: Gate, stop: CancellationToken, tasks: TaskGroup) {
    socket::tune(&stream);
    let kept = Arc::clone(&gate.connection);
    let mut server = http2::Builder::new(Spawner(tasks));
    server
        .timer(TokioTimer::new())
        .keep_alive_interval(SERVER_PING_INTERVAL)
        .keep_alive_timeout(SERVER_PING_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let connection = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(gate));
    let mut connection = std::pin::pin!(connection);
    let time = tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended");
            }
            return;
        }
        () = stop.cancelled() => DRAIN,
        () = kept.closed() => CLOSING,
    };
    connection.as_mut().graceful_shutdown();
    let ended = match tokio::time::timeout(time, connection).await {
        Ok(ended) => ended,
        Err(_too_long) => return,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

//! TCP with HTTP/2.
//!
//! What must stay true: a peer that has silently gone is noticed by the connection itself within some seconds; connections and the
//! requests on them belong to the host's tasks; garbage on the port ends that connection and nothing else; sockets that say nothing keep
//! nobody out (`connection.rs`); where identities are shown, nothing is carried before they were accepted (`tls/`).

use super::connection::{Connection, Connections, Gate};
use super::descriptors::Budget;
use super::following::Following;
use super::socket;
use super::tls::{self, Entered, Entrance, TrustStore};
use crate::host::TaskGroup;
use crate::net::{Admission, CallError, Channel, Expect, Net, NetError, Serving};
use crate::pki::{CertificateClock, Credentials};
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::either::Either;
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
    trust: Arc<TrustStore>,
}

impl TcpNet {
    pub(super) fn new(tasks: TaskGroup, round_trip: Duration, clock: Arc<CertificateClock>) -> Self {
        TcpNet { tasks, round_trip, trust: Arc::new(TrustStore::new(clock)) }
    }

    /// A channel whose connection is asked whether it lives after `interval` without a word, and given up after `timeout` without an answer.
    fn dial_with(
        &self,
        endpoint: &str,
        expect: Expect,
        interval: Duration,
        timeout: Duration,
    ) -> Result<Channel, NetError> {
        check(endpoint)?;
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))
            .map_err(|_| bad(endpoint))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(interval)
            .keep_alive_timeout(timeout + self.round_trip * PING_ROUND_TRIPS)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .executor(Spawner(self.tasks.clone()));
        let trust = Arc::clone(&self.trust);
        let dial = move || {
            let trust = Arc::clone(&trust);
            let connector = move |to: http::Uri| connect(Arc::clone(&trust), to, expect);
            endpoint.connect_with_connector_lazy(tower::service_fn(connector))
        };
        Ok(match expect {
            // Nothing is shown, and nothing changes.
            Expect::Plain => BoxCloneSyncService::new(dial().map_err(CallError::new)),
            Expect::Control | Expect::Member(_) | Expect::ControlOrPlain | Expect::MemberOrPlain(_) => {
                BoxCloneSyncService::new(Following::new(Arc::clone(&self.trust), dial))
            }
        })
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

pub(super) async fn connect(
    trust: Arc<TrustStore>,
    to: http::Uri,
    expect: Expect,
) -> std::io::Result<TokioIo<tls::Dialled>> {
    let endpoint = to.authority().map_or("", |authority| authority.as_str());
    let connected = match tls::connect(&trust, open(&to).await?, endpoint, expect).await? {
        Some(connected) => connected,
        // What was sent is no request to a side that speaks clear text.
        None => Either::Left(open(&to).await?),
    };
    Ok(TokioIo::new(connected))
}

async fn open(to: &http::Uri) -> std::io::Result<TcpStream> {
    // IPv6 addresses come in brackets.
    let host = to.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, to.port_u16().unwrap_or_default())).await?;
    socket::tune(&stream);
    Ok(stream)
}

impl Net for TcpNet {
    fn dial(&self, endpoint: &str, expect: Expect) -> Result<Channel, NetError> {
        self.dial_with(endpoint, expect, PING_INTERVAL, PING_TIMEOUT)
    }

    fn dial_session(&self, endpoint: &str, expect: Expect) -> Result<Channel, NetError> {
        self.dial_with(endpoint, expect, SESSION_PING_INTERVAL, SESSION_PING_TIMEOUT)
    }

    fn is_refused(&self, endpoint: &str) -> BoxFuture<'static, bool> {
        let endpoint = endpoint.to_owned();
        async move {
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(endpoint)).await;
            matches!(connected, Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused)
        }
        .boxed()
    }

    fn serve(
        &self,
        endpoint: &str,
        routes: Routes,
        admission: Admission,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Serving, NetError>> {
        let (endpoint, tasks, trust) = (endpoint.to_owned(), self.tasks.clone(), Arc::clone(&self.trust));
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
            let served = Served {
                routes: routes.prepare(),
                connections: Arc::new(Connections::new(Budget::now(), admission.peers_path)),
                entrance: Arc::new(Entrance::new(&admission, trust)),
                stop,
                tasks: tasks.clone(),
            };
            let accepting = tasks.spawn(accept(listener, served));
            Ok(Serving { endpoint: format!("{host}:{port}"), ended: accepting.map(|_| ()).boxed() })
        }
        .boxed()
    }

    fn set_credentials(&self, credentials: Option<Credentials>) -> Result<(), NetError> {
        self.trust.set(credentials)
    }

    fn credentials(&self) -> Option<Arc<Credentials>> {
        self.trust.credentials()
    }
}

/// What all connections of an endpoint have in common.
#[derive(Clone)]
struct Served {
    routes: Routes,
    connections: Arc<Connections>,
    entrance: Arc<Entrance>,
    stop: CancellationToken,
    tasks: TaskGroup,
}

/// Accepts without waiting for anything else: which connections are kept is decided when they have said something.
async fn accept(listener: TcpListener, served: Served) {
    // Closed when every connection has let go of its end.
    let (open, mut all_closed) = mpsc::channel::<Infallible>(1);
    loop {
        let accepted = tokio::select! {
            biased;
            () = served.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                let kept = served.connections.open();
                let connection = enter(stream, from.ip().to_canonical(), kept, served.clone());
                let open = open.clone();
                drop(served.tasks.spawn_for_one(async move {
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

/// Learns who is there, and serves them.
async fn enter(stream: TcpStream, from: IpAddr, kept: Arc<Connection>, served: Served) {
    socket::tune(&stream);
    let entered = tokio::select! {
        biased;
        () = served.stop.cancelled() => return,
        () = kept.closed() => return,
        entered = served.entrance.enter(stream, from) => entered,
    };
    let Some(Entered { stream, peer, refusal }) = entered else { return };
    let gate = Gate { connection: kept, routes: served.routes, peer, refusal };
    match stream {
        Either::Left(plain) => serve_connection(plain, gate, served.stop, served.tasks).await,
        Either::Right(tls) => serve_connection(tls, gate, served.stop, served.tasks).await,
    }
}

async fn serve_connection<S>(stream: S, gate: Gate, stop: CancellationToken, tasks: TaskGroup)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
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

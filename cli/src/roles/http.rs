//! `/metrics` for Prometheus and `/healthz` for whoever restarts processes, on a port of their own.
//!
//! What must stay true: sockets that say nothing, however many, keep neither page from being served.

use crate::roles::telemetry;
use anyhow::Context;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use muster_runtime::real::{Silent, SilentPlace};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Polling, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// How often the recorder lets go of what is no longer shown: histograms grow otherwise.
const UPKEEP: Duration = Duration::from_secs(5);

/// Connections at a time: a few scrapers and probes, with room. The one that has been quiet for longest makes room for a new one.
const CONNECTIONS_MAX: usize = 256;
/// After a failed accept (usually: out of file descriptors), before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Whether the role is well; if not, why.
pub type Health = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What a role has on its page beside what it records, for listeners on a loopback address or elsewhere.
pub type Page = Arc<dyn Fn(Reach) -> String + Send + Sync>;

/// From where a page can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// From this host alone.
    Loopback,
    /// From other hosts too.
    Network,
}

/// Serves both pages at `address`, if one is given, until the process ends. `more` goes behind the recorded metrics.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve(address: Option<&str>, health: Health, more: Option<Page>) -> anyhow::Result<()> {
    let metrics = telemetry::metrics();
    if let Some(metrics) = metrics.clone() {
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                metrics.run_upkeep();
            }
        });
    }
    let Some(address) = address else { return Ok(()) };
    let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
    let own = listener.local_addr()?;
    tracing::info!(http = %own, "metrics and health page");
    let reach = if own.ip().is_loopback() { Reach::Loopback } else { Reach::Network };
    let page = move || async move {
        let mut text = metrics.map(|metrics| metrics.render()).unwrap_or_default();
        text.extend(more.map(|more| more(reach)));
        text
    };
    let healthz = move || async move {
        match health() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        }
    };
    let pages = Router::new().route("/metrics", get(page)).route("/healthz", get(healthz));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(Bounded::new(listener), pages).await {
            tracing::error!(%error, "metrics and health page stopped");
        }
    });
    Ok(())
}

/// A listener whose connections are bounded.
struct Bounded {
    listener: TcpListener,
    quiet: Silent,
}

impl Bounded {
    fn new(listener: TcpListener) -> Self {
        Bounded { listener, quiet: Silent::new(CONNECTIONS_MAX) }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => return (Connection::new(stream, self.quiet.clone()), from),
                Err(error) => {
                    tracing::warn!(%error, "a connection to the metrics and health page was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that is closed when it has been quiet for longest and another needs its place.
struct Connection {
    stream: TcpStream,
    among: Silent,
    place: SilentPlace,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    fn new(stream: TcpStream, among: Silent) -> Self {
        let place = among.enter();
        let closed = Box::pin(place.close().clone().cancelled_owned());
        Connection { stream, among, place, closed }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, polling: &mut Polling<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.closed.as_mut().poll(polling).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(polling, into))?;
        if into.filled().len() > before {
            // It has spoken: it is the least quiet now.
            self.place = self.among.enter();
            self.closed = Box::pin(self.place.close().clone().cancelled_owned());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, polling: &mut Polling<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(polling, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, polling: &mut Polling<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(polling)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, polling: &mut Polling<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(polling)
    }
}

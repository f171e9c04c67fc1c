//! Connections to the pages, in clear text or over TLS.
//!
//! What must stay true: there are at most [`CONNECTIONS_MAX`] connections, with those whose handshake has not ended among them, and the one that has been quiet
//! for longest makes room for a new one; no handshake holds up the next connection, and each ends soon.

use super::certificate::Certificate;
use super::watched::Watched;
use axum::serve::Listener;
use muster_runtime::real::{Silent, SilentPlace};
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Polling, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::WaitForCancellationFutureOwned;

/// Connections at a time: a few scrapers and probes, with room. The one that has been quiet for longest makes room for a new one.
const CONNECTIONS_MAX: usize = 256;
/// After a failed accept (usually: out of file descriptors), before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A handshake takes two round trips and a millisecond of work.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(3);

/// A listener whose connections are bounded.
pub(super) struct Bounded {
    listener: TcpListener,
    quiet: Silent,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Bounded { listener, quiet: Silent::new(CONNECTIONS_MAX) }
    }
}

impl Listener for Bounded {
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

/// A connection after its handshake, and where it comes from.
type Secured = (TlsStream<Connection>, SocketAddr);

/// A listener for TLS whose connections are bounded.
pub(super) struct Encrypted {
    address: SocketAddr,
    done: mpsc::Receiver<Secured>,
}

impl Encrypted {
    /// Begins to accept connections, each with the certificate of its time.
    ///
    /// # Errors
    /// When the listener has no address.
    pub(super) fn new(listener: TcpListener, certificate: Arc<Watched<Certificate>>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        // As many as may be open.
        let (secured, done) = mpsc::channel(CONNECTIONS_MAX);
        tokio::spawn(accept_all(Bounded::new(listener), certificate, secured));
        Ok(Encrypted { address, done })
    }
}

impl Listener for Encrypted {
    type Io = TlsStream<Connection>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Secured {
        match self.done.recv().await {
            Some(secured) => secured,
            // Whoever accepts has ended, which only the end of the process does.
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Gives each connection a task of its own for the handshake, until nobody takes connections any more.
async fn accept_all(mut listener: Bounded, certificate: Arc<Watched<Certificate>>, secured: mpsc::Sender<Secured>) {
    loop {
        let (connection, from) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = secured.closed() => return,
        };
        let (certificate, secured) = (Arc::clone(&certificate), secured.clone());
        tokio::spawn(async move {
            match timeout(HANDSHAKE_WITHIN, shake_hands(connection, &certificate)).await {
                // It fails when nobody takes it any more.
                Ok(Ok(stream)) => drop(secured.send((stream, from)).await),
                // Anybody can cause them as often as they like: they are not for the usual log.
                Ok(Err(error)) => {
                    tracing::debug!(%from, %error, "a TLS handshake for the metrics and health page failed")
                }
                Err(_) => tracing::debug!(%from, "a TLS handshake for the metrics and health page took too long"),
            }
        });
    }
}

async fn shake_hands(
    connection: Connection,
    certificate: &Arc<Watched<Certificate>>,
) -> io::Result<TlsStream<Connection>> {
    let settings = certificate.current().await.settings();
    TlsAcceptor::from(settings).accept(connection).await
}

/// A connection that is closed when it has been quiet for longest and another needs its place.
pub(super) struct Connection {
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

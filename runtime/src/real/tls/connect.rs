//! The side that dials.

use super::{ALPN, HANDSHAKE_WITHIN, TlsError, TrustStore, count, kind};
use crate::net::Expect;
use crate::pki::{Wanted, ask};
use rustls::pki_types::ServerName;
use std::io;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

/// A connection, in clear text or not.
pub(crate) type Dialled = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Makes a TCP connection one to whom is expected.
pub(crate) async fn connect(
    trust: &TrustStore,
    stream: TcpStream,
    endpoint: &str,
    expect: Expect,
) -> io::Result<Dialled> {
    let wanted = match expect {
        Expect::Plain => return Ok(Either::Left(stream)),
        Expect::Control => Wanted::Control,
        Expect::Member(id) => Wanted::Member(id),
    };
    match shake_hands(trust, stream, endpoint, expect, wanted).await {
        Ok(stream) => Ok(Either::Right(Box::new(stream))),
        Err(error) => {
            count("out", outcome(&error));
            if trust.may_say() {
                tracing::warn!(endpoint, ?expect, %error, "cannot connect over TLS");
            }
            Err(io::Error::other(error))
        }
    }
}

fn outcome(error: &TlsError) -> &'static str {
    match error {
        TlsError::Refused(_) => "refused",
        TlsError::Slow => "slow",
        _ => "failed",
    }
}

async fn shake_hands(
    store: &TrustStore,
    stream: TcpStream,
    endpoint: &str,
    expect: Expect,
    wanted: Wanted,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let trust = store.now()?;
    let config = trust.client(endpoint, expect, &store.clock)?;
    let address = stream.peer_addr().map_err(TlsError::Handshake)?;
    // Names of hosts decide nothing; sessions are kept for each place apart.
    let name = ServerName::IpAddress(address.ip().into());
    let connecting = TlsConnector::from(config).connect(name, stream);
    let connected = tokio::time::timeout(HANDSHAKE_WITHIN, connecting).await.map_err(|_| TlsError::Slow)?;
    let stream = connected.map_err(TlsError::Handshake)?;
    let session = stream.get_ref().1;
    if session.alpn_protocol() != Some(ALPN) {
        return Err(TlsError::Protocol);
    }
    let from = address.ip().to_string();
    store.judge(&trust, wanted, session.peer_certificates(), |who| ask(trust.credentials.pins(), who, &from))?;
    count("out", kind(session.handshake_kind()));
    if let Wanted::Member(_) = wanted {
        store.note_member(address.ip());
    }
    Ok(stream)
}

//! The side that dials.
//!
//! What must stay true: clear text is spoken only where it is expected, or where it may be and the other side has answered with what is no record of TLS; never
//! because of a certificate that is wrong.

use super::{ALPN, HANDSHAKE_WITHIN, TlsError, TrustStore, count, kind};
use crate::net::Expect;
use crate::pki::{Wanted, ask};
use rustls::pki_types::ServerName;
use rustls::{Error as RustlsError, InvalidMessage};
use std::io;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

/// A connection, in clear text or not.
pub(crate) type Dialled = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Makes a TCP connection one to whom is expected. `None`: the other side speaks clear text, as it may here, and the connection is used up.
pub(crate) async fn connect(
    trust: &TrustStore,
    stream: TcpStream,
    endpoint: &str,
    expect: Expect,
) -> io::Result<Option<Dialled>> {
    let Some(wanted) = expect.wanted() else { return Ok(Some(Either::Left(stream))) };
    match shake_hands(trust, stream, endpoint, expect, wanted).await {
        Ok(stream) => Ok(Some(Either::Right(Box::new(stream)))),
        Err(error) if expect.may_be_plain() && has_answered_in_clear_text(&error) => {
            count("out", "plain");
            Ok(None)
        }
        Err(error) => {
            count("out", outcome(&error));
            if trust.may_say() {
                tracing::warn!(endpoint, ?expect, %error, "cannot connect over TLS");
            }
            Err(io::Error::other(error))
        }
    }
}

/// An HTTP/2 server begins with its settings whatever it has read, and these are no record of TLS.
fn has_answered_in_clear_text(error: &TlsError) -> bool {
    let TlsError::Handshake(error) = error else { return false };
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<RustlsError>());
    matches!(inner, Some(RustlsError::InvalidMessage(InvalidMessage::InvalidContentType)))
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

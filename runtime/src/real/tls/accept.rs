//! The side that serves: a connection becomes one whose other side is known, or is closed.

use super::handshakes::Handshakes;
use super::{ALPN, HANDSHAKE_WITHIN, TlsError, TrustStore, count, kind};
use crate::net::{Admission, Demand, Peer};
use crate::pki::{PeerIdentity, Wanted, ask};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::Status;

/// The first byte of every TLS connection (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// The way in at one endpoint.
pub(crate) struct Entrance {
    demand: Demand,
    trust: Arc<TrustStore>,
    handshakes: Arc<Handshakes>,
}

/// A connection that is to be served.
pub(crate) struct Entered {
    pub(crate) stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    pub(crate) peer: Peer,
    /// The one answer that the other side gets: it is a machine of the cluster, and is not let in.
    pub(crate) refusal: Option<Status>,
}

impl Entrance {
    pub(crate) fn new(admission: &Admission, trust: Arc<TrustStore>) -> Self {
        Entrance { demand: admission.demand.clone(), trust, handshakes: Arc::default() }
    }

    /// Lets a connection in; `None`: it is not worth an answer.
    pub(crate) async fn enter(&self, stream: TcpStream, address: IpAddr) -> Option<Entered> {
        let from: Arc<str> = address.to_string().into();
        if self.demand.is_plain() || self.begins_in_clear_text(&stream, address).await? {
            return Some(Entered { stream: Either::Left(stream), peer: Peer { identity: None, from }, refusal: None });
        }
        let (error, stream) = match self.shake_hands(stream, address).await {
            Ok((stream, identity)) => {
                let peer = Peer { identity: identity.map(Arc::new), from };
                return Some(Entered { stream: Either::Right(Box::new(stream)), peer, refusal: None });
            }
            Err(failed) => *failed,
        };
        count(
            "in",
            match error {
                TlsError::Refused(_) => "refused",
                TlsError::Slow => "slow",
                TlsError::Crowded => "crowded",
                _ => "failed",
            },
        );
        // Whoever asks only whether somebody listens, as an election does, says nothing and goes.
        let has_left = matches!(&error, TlsError::Handshake(io) if io.kind() == std::io::ErrorKind::UnexpectedEof);
        if !has_left && self.trust.may_say() {
            tracing::warn!(%address, %error, "a connection is refused");
        }
        let TlsError::Refused(refusal) = &error else { return None };
        let refusal = Some(Status::unauthenticated(format!("this machine is refused: {refusal}")));
        Some(Entered { stream: Either::Right(Box::new(stream?)), peer: Peer { identity: None, from }, refusal })
    }

    /// Whether the other side speaks clear text where it may: a TLS connection begins with a handshake record. `None`: it says nothing more.
    async fn begins_in_clear_text(&self, stream: &TcpStream, address: IpAddr) -> Option<bool> {
        if !self.demand.may_be_plain() {
            return Some(false);
        }
        let mut first = [0];
        let is_plain = stream.peek(&mut first).await.ok()? > 0 && first != [HANDSHAKE_RECORD];
        if is_plain {
            metrics::counter!("muster_connections_in_clear_text_total").increment(1);
            if self.trust.may_say() {
                tracing::warn!(%address, "a connection in clear text; it is accepted until this node runs without --accept-plaintext");
            }
        }
        Some(is_plain)
    }

    async fn shake_hands(
        &self,
        stream: TcpStream,
        address: IpAddr,
    ) -> Result<(TlsStream<TcpStream>, Option<PeerIdentity>), Box<(TlsError, Option<TlsStream<TcpStream>>)>> {
        let fail = |error| Box::new((error, None));
        let pass = self.handshakes.enter(address, self.trust.is_member(address)).await;
        let pass = pass.map_err(|_crowded| fail(TlsError::Crowded))?;
        let trust = self.trust.now().map_err(fail)?;
        let servers = trust.servers.as_ref().ok_or_else(|| fail(TlsError::NoCredentials))?;
        let admit = self.demand.admit();
        let config = if admit.is_some() { &servers.mutual } else { &servers.alone };
        let accepting = TlsAcceptor::from(Arc::clone(config)).accept(stream);
        let accepted = tokio::time::timeout(HANDSHAKE_WITHIN, accepting).await;
        drop(pass);
        let stream = accepted.map_err(|_| fail(TlsError::Slow))?.map_err(|error| fail(TlsError::Handshake(error)))?;
        let session = stream.get_ref().1;
        if session.alpn_protocol() != Some(ALPN) {
            return Err(fail(TlsError::Protocol));
        }
        let kind = kind(session.handshake_kind());
        let identity = match admit {
            None => None,
            Some(admit) => {
                let from = address.to_string();
                let pin = |who: &PeerIdentity| ask(Some(admit), who, &from);
                match self.trust.judge(&trust, Wanted::Machine, session.peer_certificates(), pin) {
                    Ok(identity) => Some(identity),
                    Err(error) => return Err(Box::new((error, Some(stream)))),
                }
            }
        };
        count("in", kind);
        Ok((stream, identity))
    }
}

//! TLS 1.3 over the host's connections, with the credentials that the host has at that moment.
//!
//! What must stay true: a new handshake uses the newest credentials, and nothing (tickets, sessions, configurations) of older ones; the
//! rule of [`crate::pki::judge()`] is applied after every handshake, resumed ones included, since a resumed one checks no chain; nothing is
//! read or written for a side that was not accepted, but the one answer that says so.

mod accept;
mod config;
mod connect;
mod handshakes;
mod verifiers;

pub(super) use accept::{Entered, Entrance};
pub(super) use connect::{Dialled, connect};

use crate::net::{Expect, NetError};
use crate::pki::{Accepted, Certificate, CertificateClock, Credentials, Judging, Pin, PkiError, Refusal, Wanted, X509};
use crate::pki::{OutOfDate, PeerIdentity, judge, presented};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// HTTP/2 and nothing else is spoken.
const ALPN: &[u8] = b"h2";
/// A handshake takes two round trips and a millisecond of work.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(3);
/// Places that this host dials: control nodes, each as a member and as any control node, with room. When it is full, all are forgotten,
/// which costs full handshakes.
const CLIENTS_MAX: usize = 64;
/// Addresses of control nodes that were dialled: nine members with room for changes.
const MEMBERS_MAX: usize = 64;
/// What goes wrong with many connections is said in the log so often.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Why two sides do not come together.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error("this machine has no credentials: enrol it first")]
    NoCredentials,
    #[error("no TLS handshake within {HANDSHAKE_WITHIN:?}")]
    Slow,
    #[error("the TLS handshake failed (is clear text spoken on the other side?): {0}")]
    Handshake(std::io::Error),
    #[error("the other side does not speak HTTP/2 over TLS")]
    Protocol,
    #[error("the other side has shown no certificate")]
    NoCertificate,
    #[error("too many handshakes wait for this address")]
    Crowded,
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("the other side is refused: {0}")]
    Refused(#[from] Refusal),
}

/// What the host shows and whom it trusts, ready for use; replaced whole.
pub(super) struct Trust {
    pub(super) credentials: Arc<Credentials>,
    /// For those who show no certificate, and for those who must. None: this host cannot serve.
    servers: Option<Servers>,
    clients: Mutex<BTreeMap<(String, Expect), Arc<ClientConfig>>>,
}

struct Servers {
    alone: Arc<ServerConfig>,
    mutual: Arc<ServerConfig>,
}

/// The trust of a host, and what its connections have in common.
pub(super) struct TrustStore {
    current: ArcSwapOption<Trust>,
    /// How often it was replaced.
    number: AtomicU64,
    clock: Arc<CertificateClock>,
    /// Addresses at which a member has proved itself.
    members: Mutex<BTreeSet<IpAddr>>,
    said: Mutex<Option<Instant>>,
}

impl TrustStore {
    pub(super) fn new(clock: Arc<CertificateClock>) -> Self {
        TrustStore {
            current: ArcSwapOption::empty(),
            number: AtomicU64::new(0),
            clock,
            members: Mutex::default(),
            said: Mutex::default(),
        }
    }

    pub(super) fn set(&self, credentials: Option<Credentials>) -> Result<(), NetError> {
        let trust = credentials.map(|credentials| self.trust(Arc::new(credentials))).transpose();
        let trust = trust.map_err(|error| NetError::Credentials { why: error.to_string() })?;
        self.current.store(trust.map(Arc::new));
        self.number.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Another one after each replacement.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    fn trust(&self, credentials: Arc<Credentials>) -> Result<Trust, rustls::Error> {
        // The time at which it was signed has passed: the first that a new machine hears of the time.
        if let Some(presented) = credentials.presented() {
            self.clock.hear(presented.validity.from_ms);
        }
        let servers = match credentials.own() {
            None => None,
            Some(own) => Some(Servers {
                alone: Arc::new(config::server(own, None, &self.clock)?),
                mutual: Arc::new(config::server(own, Some(credentials.roots()), &self.clock)?),
            }),
        };
        Ok(Trust { credentials, servers, clients: Mutex::default() })
    }

    pub(super) fn credentials(&self) -> Option<Arc<Credentials>> {
        self.current.load().as_ref().map(|trust| Arc::clone(&trust.credentials))
    }

    fn now(&self) -> Result<Arc<Trust>, TlsError> {
        self.current.load_full().ok_or(TlsError::NoCredentials)
    }

    /// Judges what the other side has shown in a handshake. Signatures were checked: in it, or in the one that it resumes.
    fn judge(
        &self,
        trust: &Trust,
        wanted: Wanted,
        shown: Option<&[CertificateDer<'_>]>,
        pin: impl FnOnce(&PeerIdentity) -> Pin,
    ) -> Result<PeerIdentity, TlsError> {
        let chain = chain(shown.ok_or(TlsError::NoCertificate)?)?;
        let them = presented(&X509, &chain)?;
        let side = Judging {
            cluster: trust.credentials.roots().cluster(),
            own: trust.credentials.name(),
            wanted,
            now_ms: self.clock.now_ms(),
        };
        let Accepted { identity, alarm } = judge(side, &them, pin)?;
        if let Some(alarm) = alarm {
            self.alarm(&identity, alarm);
        }
        Ok(identity)
    }

    fn alarm(&self, who: &PeerIdentity, alarm: OutOfDate) {
        let (state, by_ms) = match alarm {
            OutOfDate::Expired { by_ms } => ("expired", by_ms),
            OutOfDate::Early { by_ms } => ("early", by_ms),
        };
        metrics::counter!("muster_certificates_out_of_date_total", "state" => state).increment(1);
        if self.may_say() {
            let hours = by_ms / 3_600_000;
            tracing::error!(machine = %who.name, state, hours, "a certificate is out of date and still accepted; renew it");
        }
    }

    /// Whether enough time has passed since the last line of the log about connections.
    fn may_say(&self) -> bool {
        let mut said = self.said.lock();
        let now = Instant::now();
        let may = said.is_none_or(|last| now.duration_since(last) >= SAY_EVERY);
        if may {
            *said = Some(now);
        }
        may
    }

    fn is_member(&self, address: IpAddr) -> bool {
        self.members.lock().contains(&address)
    }

    fn note_member(&self, address: IpAddr) {
        let mut members = self.members.lock();
        if members.len() >= MEMBERS_MAX {
            members.clear();
        }
        members.insert(address);
    }
}

impl Trust {
    fn client(
        &self,
        endpoint: &str,
        expect: Expect,
        clock: &Arc<CertificateClock>,
    ) -> Result<Arc<ClientConfig>, TlsError> {
        let mut clients = self.clients.lock();
        let key = (endpoint.to_owned(), expect);
        if let Some(known) = clients.get(&key) {
            return Ok(Arc::clone(known));
        }
        let new = config::client(&self.credentials, clock);
        let new = Arc::new(new.map_err(|error| PkiError::certificate(&error))?);
        if clients.len() >= CLIENTS_MAX {
            clients.clear();
        }
        clients.insert(key, Arc::clone(&new));
        Ok(new)
    }
}

fn chain(shown: &[CertificateDer<'_>]) -> Result<Vec<Certificate>, PkiError> {
    // A chain has two; more are not worth copying.
    const SHOWN_MAX: usize = 4;
    if shown.len() > SHOWN_MAX {
        return Err(PkiError::chain(format_args!("it has {} certificates instead of 2", shown.len())));
    }
    shown.iter().map(|certificate| Certificate::from_bytes(certificate.as_ref())).collect()
}

fn count(side: &'static str, outcome: &'static str) {
    metrics::counter!("muster_handshakes_total", "side" => side, "outcome" => outcome).increment(1);
}

/// How a handshake came to its end.
fn kind(kind: Option<rustls::HandshakeKind>) -> &'static str {
    match kind {
        Some(rustls::HandshakeKind::Resumed) => "resumed",
        _ => "full",
    }
}

/// The settings of the two sides of a connection between machines, as the network uses them: for measurements.
///
/// # Errors
/// When the credentials cannot be used, or are not a machine's.
pub fn settings(
    credentials: &Credentials,
    clock: &Arc<CertificateClock>,
) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), NetError> {
    let unusable = |why: String| NetError::Credentials { why };
    let own = credentials.own().ok_or_else(|| unusable(TlsError::NoCredentials.to_string()))?;
    let server = config::server(own, Some(credentials.roots()), clock).map_err(|error| unusable(error.to_string()))?;
    let client = config::client(credentials, clock).map_err(|error| unusable(error.to_string()))?;
    Ok((Arc::new(server), Arc::new(client)))
}

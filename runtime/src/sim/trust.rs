//! Handshakes of the simulated network: what both sides show, in virtual time and without cryptography.
//!
//! What must stay true: the rules are those of the real network, in the same order: a resumed session shows what was shown when it began
//! and checks no chain; a change of what either side shows or trusts leaves nothing to resume; the rule of names, dates and pins is applied
//! every time.

use super::network::{Listener, Network};
use crate::net::{Demand, Expect, Peer};
use crate::pki::{Admit, CertificateClock, Credentials, Judging, Own, PeerIdentity, Presented, Scheme, Wanted};
use crate::pki::{ask, judge};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;

/// What a host shows and whom it trusts, and what it keeps of earlier connections.
pub(super) struct SimTrust {
    /// No other of the run has it: it stands for the key of the tickets.
    number: u64,
    credentials: Arc<Credentials>,
    /// By the place and who was expected there; as many as a host dials.
    sessions: Mutex<BTreeMap<(String, Expect), Session>>,
}

#[derive(Clone)]
struct Session {
    server_trust: u64,
    server: Presented,
    /// None: none was demanded.
    client: Option<Presented>,
}

/// The trust of one life of a host.
pub(super) struct TrustCell {
    pub(super) scheme: Arc<dyn Scheme>,
    pub(super) clock: Arc<CertificateClock>,
    pub(super) current: Mutex<Option<Arc<SimTrust>>>,
}

impl TrustCell {
    pub(super) fn new(scheme: Arc<dyn Scheme>, clock: Arc<CertificateClock>) -> Self {
        TrustCell { scheme, clock, current: Mutex::default() }
    }

    pub(super) fn set(&self, network: &Network, credentials: Option<Credentials>) {
        if let Some(presented) = credentials.as_ref().and_then(Credentials::presented) {
            self.clock.hear(presented.validity.from_ms);
        }
        *self.current.lock() = credentials.map(|credentials| {
            let number = network.next_number();
            Arc::new(SimTrust { number, credentials: Arc::new(credentials), sessions: Mutex::default() })
        });
    }

    pub(super) fn credentials(&self) -> Option<Arc<Credentials>> {
        self.current.lock().as_ref().map(|trust| Arc::clone(&trust.credentials))
    }

    fn judge(
        &self,
        trust: &SimTrust,
        wanted: Wanted,
        them: &Presented,
        pins: Option<&dyn Admit>,
        from: &str,
    ) -> Result<PeerIdentity, Status> {
        let side = Judging {
            cluster: trust.credentials.roots().cluster(),
            own: trust.credentials.name(),
            wanted,
            now_ms: self.clock.now_ms(),
        };
        let accepted = judge(side, them, |who| ask(pins, who, from));
        accepted.map(|accepted| accepted.identity).map_err(|refusal| {
            Status::unauthenticated(format!("this machine is refused: {refusal}"))
        })
    }
}

fn failed(why: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("the TLS handshake failed: {why}"))
}

/// How a handshake ended well.
pub(super) struct Met {
    /// Who dialled, as the side that serves sees it.
    pub(super) peer: Peer,
    pub(super) resumed: bool,
}

/// Lets `from` and whoever listens meet, who is reached at `place`.
pub(super) fn meet(
    dials: &TrustCell,
    from: &str,
    place: &str,
    expect: Expect,
    listener: &Listener,
) -> Result<Met, Status> {
    let peer = |identity| Peer { identity, from: from.into() };
    let wanted = match (expect, listener.demand.is_plain()) {
        (Expect::Plain, true) => return Ok(Met { peer: peer(None), resumed: false }),
        (Expect::Plain, false) | (Expect::Control | Expect::Member(_), true) => {
            return Err(failed("one side speaks in clear text"));
        }
        (Expect::Control, false) => Wanted::Control,
        (Expect::Member(id), false) => Wanted::Member(id),
    };
    let ours = dials.current.lock().clone().ok_or_else(|| failed("this machine has no credentials"))?;
    let theirs = listener.trust.current.lock().clone().ok_or_else(|| failed("the other side has no credentials"))?;
    let server = theirs.credentials.own().ok_or_else(|| failed("the other side has no certificate"))?;
    let admit: Option<&dyn Admit> = if let Demand::Mutual(admit) = &listener.demand { Some(&**admit) } else { None };

    let key = (place.to_owned(), expect);
    let left = ours.sessions.lock().get(&key).cloned();
    let left = left.filter(|left| left.server_trust == theirs.number && left.client.is_some() == admit.is_some());
    let resumed = left.is_some();
    let session = match left {
        Some(session) => session,
        None => full(dials, &ours, listener, &theirs, server, admit.is_some())?,
    };
    let refused_here = |status: Status| failed(status.message());
    dials.judge(&ours, wanted, &session.server, ours.credentials.pins(), place).map_err(refused_here)?;
    let identity = match (admit, &session.client) {
        (Some(admit), Some(client)) => {
            Some(Arc::new(listener.trust.judge(&theirs, Wanted::Machine, client, Some(admit), from)?))
        }
        _ => None,
    };
    ours.sessions.lock().insert(key, session);
    Ok(Met { peer: peer(identity), resumed })
}

fn full(
    dials: &TrustCell,
    ours: &SimTrust,
    listener: &Listener,
    theirs: &SimTrust,
    server: &Own,
    is_mutual: bool,
) -> Result<Session, Status> {
    let shown = dials.scheme.verify(&server.chain, ours.credentials.roots()).map_err(failed)?;
    let client = match (is_mutual, ours.credentials.own()) {
        (false, _) => None,
        (true, None) => return Err(failed("the other side demands a certificate")),
        (true, Some(own)) => {
            Some(listener.trust.scheme.verify(&own.chain, theirs.credentials.roots()).map_err(failed)?)
        }
    };
    Ok(Session { server_trust: theirs.number, server: shown, client })
}

//! Handshakes of the simulated network: what both sides show, in virtual time and without cryptography.
//!
//! What must stay true: the rules are those of the real network, in the same order: a resumed session shows what was shown when it began
//! and checks no chain; the rule of names, dates and pins is applied every time.

use super::network::Listener;
use super::trust::{Session, SimTrust, TrustCell};
use crate::net::{Demand, Expect, Peer};
use crate::pki::{Own, Wanted};
use std::fmt;
use std::sync::Arc;
use tonic::Status;

fn failed(why: impl fmt::Display) -> Status {
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
    if !can_meet(expect, &listener.demand) {
        return Err(failed("one side speaks in clear text"));
    }
    let wanted = match expect.wanted() {
        Some(wanted) if !listener.demand.is_plain() => wanted,
        _ => return Ok(Met { peer: peer(None), resumed: false }),
    };
    let ours = dials.current.lock().clone().ok_or_else(|| failed("this machine has no credentials"))?;
    let theirs = listener.trust.current.lock().clone().ok_or_else(|| failed("the other side has no credentials"))?;
    let server = theirs.credentials.own().ok_or_else(|| failed("the other side has no certificate"))?;
    let admit = listener.demand.admit();

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

/// Whether there is something that both sides speak.
pub(super) fn can_meet(expect: Expect, demand: &Demand) -> bool {
    let in_clear_text = expect.may_be_plain() && demand.may_be_plain();
    let over_tls = !expect.is_plain() && !demand.is_plain();
    in_clear_text || over_tls
}

fn full(
    dials: &TrustCell,
    ours: &SimTrust,
    listener: &Listener,
    theirs: &SimTrust,
    server: &Own,
    is_mutual: bool,
) -> Result<Session, Status> {
    let shown = dials.scheme.verify(&server.chain, ours.credentials.roots().certificates()).map_err(failed)?;
    let client = match (is_mutual, ours.credentials.own()) {
        (false, _) => None,
        (true, None) => return Err(failed("the other side demands a certificate")),
        (true, Some(own)) => {
            Some(listener.trust.scheme.verify(&own.chain, theirs.credentials.roots().certificates()).map_err(failed)?)
        }
    };
    Ok(Session { server_trust: theirs.number, server: shown, client })
}

//! What a simulated host shows and whom it trusts, and what it keeps of earlier connections.
//!
//! What must stay true: a change of it leaves nothing that a later connection could resume.

use crate::net::Expect;
use crate::pki::{Admit, CertificateClock, Credentials, Judging, PeerIdentity, Presented, Scheme, Wanted, ask, judge};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;

/// What a host shows and whom it trusts, and what it keeps of earlier connections.
pub(super) struct SimTrust {
    /// No other of the run has it: it stands for the key of the tickets.
    pub(super) number: u64,
    pub(super) credentials: Arc<Credentials>,
    /// By the place and who was expected there; as many as a host dials.
    pub(super) sessions: Mutex<BTreeMap<(String, Expect), Session>>,
}

/// What was shown when a connection began.
#[derive(Clone)]
pub(super) struct Session {
    /// The trust of the side that serves, which alone can resume it.
    pub(super) server_trust: u64,
    pub(super) server: Presented,
    /// None: none was demanded.
    pub(super) client: Option<Presented>,
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

    /// `number`: one that no other of the run has.
    pub(super) fn set(&self, number: u64, credentials: Option<Credentials>) {
        if let Some(presented) = credentials.as_ref().and_then(Credentials::presented) {
            self.clock.hear(presented.validity.from_ms);
        }
        *self.current.lock() = credentials.map(|credentials| {
            Arc::new(SimTrust { number, credentials: Arc::new(credentials), sessions: Mutex::default() })
        });
    }

    /// Which credentials these are.
    pub(super) fn number(&self) -> Option<u64> {
        self.current.lock().as_ref().map(|trust| trust.number)
    }

    pub(super) fn credentials(&self) -> Option<Arc<Credentials>> {
        self.current.lock().as_ref().map(|trust| Arc::clone(&trust.credentials))
    }

    /// Judges what the other side has shown, as the real network does.
    pub(super) fn judge(
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
        accepted
            .map(|accepted| accepted.identity)
            .map_err(|refusal| Status::unauthenticated(format!("this machine is refused: {refusal}")))
    }
}

//! Who the hosts of a run are: every other run has certificates on all of its connections, the others are in clear text.
//!
//! In a run with certificates they were signed some time before it began, by the seed: new ones, such that expire soon, and such that have
//! expired and are accepted with an alarm. No task ends and no election fails over that (law SL13 of the design).

use muster_control_server::Machines;
use muster_runtime::pki::{AnyUnderRoot, LocalAuthorities, MACHINE_FILE, PkiError, Role};
use muster_runtime::sim::SimWorld;
use muster_runtime::{Expect, Host, Transport};
use std::sync::Arc;

/// Where machines are served in a run with certificates.
const MACHINES_PORT: u16 = 7001;
/// The oldest certificates: they live 30 days, and 90 more are borne.
const AGE_DAYS_MAX: u64 = 110;
const DAY_MS: u64 = 24 * 3_600_000;

/// A voter: its id, its host, and where it serves people.
pub(super) type Voter = (u64, &'static str, &'static str);

/// See the module.
pub(super) struct Identities {
    voters: &'static [Voter],
    authorities: Option<LocalAuthorities>,
}

impl Identities {
    pub(super) fn new(world: &SimWorld, voters: &'static [Voter]) -> Self {
        if world.seed().is_multiple_of(2) {
            return Identities { voters, authorities: None };
        }
        let age_ms = world.chance().between(0, AGE_DAYS_MAX) * DAY_MS;
        let ids = voters.iter().map(|(id, _, _)| *id);
        let scheme = world.boot("ca").pki;
        let made = LocalAuthorities::new(scheme, "sim", ids, world.wall_ms() - age_ms);
        Identities { voters, authorities: Some(made.expect("the names can be names")) }
    }

    pub(super) fn transport(&self) -> Transport {
        if self.authorities.is_some() { Transport::Mutual } else { Transport::Plain }
    }

    /// Whom a client expects where people are served.
    pub(super) fn expect(&self) -> Expect {
        self.transport().control()
    }

    /// Where the voters are reached by machines, by id.
    pub(super) fn endpoints(&self) -> Vec<(u64, String)> {
        let at = |name: &str, open: &str| match &self.authorities {
            Some(_) => format!("{name}:{MACHINES_PORT}"),
            None => open.to_owned(),
        };
        self.voters.iter().map(|(id, name, open)| (*id, at(name, open))).collect()
    }

    /// The endpoint for machines of a voter.
    pub(super) fn machines(&self) -> Option<Machines> {
        let listen = format!("0.0.0.0:{MACHINES_PORT}");
        self.authorities.as_ref().map(|_| Machines { listen, admit: Arc::new(AnyUnderRoot) })
    }

    /// Gives a machine its credentials, unless they are on its disk already.
    pub(super) async fn provide(&self, host: &Host, role: Role) -> Result<(), PkiError> {
        let Some(authorities) = &self.authorities else { return Ok(()) };
        if host.files.read(MACHINE_FILE)?.is_none() {
            authorities.machine(role)?.save(&*host.files).await?;
        }
        Ok(())
    }

    /// Gives a client the roots that it trusts.
    pub(super) fn introduce(&self, client: &Host) {
        if let Some(authorities) = &self.authorities {
            let credentials = authorities.anonymous().expect("there is a root");
            client.net.set_credentials(Some(credentials)).expect("a simulated host takes them");
        }
    }
}

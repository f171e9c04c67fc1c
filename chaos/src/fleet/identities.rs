//! Who the hosts of a run are: every other run has certificates on all of its connections, the others are in clear text.
//!
//! In a run with certificates they were signed some time before it began, by the seed: new ones, such that expire soon, and such that have
//! expired and are accepted with an alarm. Machines renew them while all else goes wrong. No task ends and no election fails over that (law SL13).
//! Machines whose folder was lost enrol anew with join tokens; some second hosts of a name have a copy of the first one's key, the others a key of their own.

use muster_enrolment::JoinFile;
use muster_proto::v1;
use muster_runtime::pki::{
    CLOCK_FILE, Credentials, ISSUER_FILE, LocalAuthorities, MACHINE_FILE, PkiError, ROOTS_FILE, Role,
};
use muster_runtime::sim::SimWorld;
use muster_runtime::{Expect, Files, Host, Transport};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Where machines are served in a run with certificates.
const MACHINES_PORT: u16 = 7001;
/// The oldest certificates: they live 30 days, and 90 more are borne.
const AGE_DAYS_MAX: u64 = 110;
const DAY_MS: u64 = 24 * 3_600_000;
/// Where an agent counts its sessions.
const SESSIONS_FILE: &str = "sessions.json";
/// For how long a machine with a join token asks before it is given an identity by hand.
const JOIN_MAX: Duration = Duration::from_secs(20);

/// A voter: its id, its host, and where it serves people.
pub(super) type Voter = (u64, &'static str, &'static str);

/// See the module.
pub(super) struct Identities {
    voters: &'static [Voter],
    authorities: Option<LocalAuthorities>,
    /// The files of each machine that was ever started, by the name that its certificate says.
    files: RefCell<BTreeMap<Role, Arc<dyn Files>>>,
    /// Join tokens that nobody has used, for one machine each.
    tokens: RefCell<BTreeMap<Role, JoinFile>>,
}

impl Identities {
    pub(super) fn new(world: &SimWorld, voters: &'static [Voter]) -> Self {
        let (files, tokens) = (RefCell::default(), RefCell::default());
        if world.seed().is_multiple_of(2) {
            return Identities { voters, authorities: None, files, tokens };
        }
        let age_ms = world.chance().between(0, AGE_DAYS_MAX) * DAY_MS;
        let ids = voters.iter().map(|(id, _, _)| *id);
        let scheme = world.boot("ca").pki;
        let made = LocalAuthorities::new(scheme, "sim", ids, world.wall_ms() - age_ms);
        Identities { voters, authorities: Some(made.expect("the names can be names")), files, tokens }
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
    pub(super) fn machines(&self) -> Option<String> {
        self.authorities.as_ref().map(|_| format!("0.0.0.0:{MACHINES_PORT}"))
    }

    /// Where people, and machines that join, reach the voters.
    fn open_endpoints(&self) -> Vec<String> {
        self.voters.iter().map(|(_, _, open)| (*open).to_owned()).collect()
    }

    /// Gives a machine its credentials, unless they are on its disk already.
    pub(super) async fn provide(&self, host: &Host, role: Role) -> Result<(), PkiError> {
        let Some(authorities) = &self.authorities else { return Ok(()) };
        self.files.borrow_mut().insert(role.clone(), host.files.clone());
        if host.files.read(MACHINE_FILE)?.is_some() {
            return Ok(());
        }
        let token = self.tokens.borrow_mut().remove(&role);
        if let Some(token) = token {
            let (host, role) = (host.clone(), role.clone());
            let joining =
                host.clone().spawn(async move { muster_enrolment::enrol(&host, role, &token, Some(JOIN_MAX)).await });
            // Without an answer it is given an identity by hand, which an operator pins later.
            if matches!(joining.await, Ok(Ok(()))) {
                return Ok(());
            }
        }
        if let Role::Control(id) = role
            && let Some(issuer) = authorities.issuer(id)
        {
            issuer.save(&*host.files, ISSUER_FILE).await?;
        }
        authorities.machine(role)?.save(&*host.files).await
    }

    /// Gives a second host of a name a certificate of its own, for another key.
    pub(super) async fn forge(&self, host: &Host, role: Role) -> Result<(), PkiError> {
        match &self.authorities {
            Some(authorities) => authorities.machine(role)?.save(&*host.files).await,
            None => Ok(()),
        }
    }

    /// Gives a second host of a name everything that the first one proves itself by; false where that cannot be read, or there are no certificates.
    pub(super) async fn copy(&self, host: &Host, of: &Role) -> bool {
        let Some(files) = self.files.borrow().get(of).cloned() else { return false };
        for name in [ROOTS_FILE, MACHINE_FILE, SESSIONS_FILE, CLOCK_FILE] {
            let copied = match files.read(name) {
                Ok(Some(content)) => host.files.write(name, content).await.is_ok(),
                Ok(None) => name != MACHINE_FILE,
                Err(_) => false,
            };
            if !copied {
                return false;
            }
        }
        true
    }

    /// The keys that all machines have on their disks now, as far as these can be read.
    pub(super) fn keys(&self) -> Vec<v1::PinnedKey> {
        let Some(authorities) = &self.authorities else { return Vec::new() };
        let files = self.files.borrow();
        let key = |(role, files): (&Role, &Arc<dyn Files>)| {
            let credentials = Credentials::load(authorities.scheme(), &**files).ok()?;
            let name = match role {
                Role::Control(id) => format!("member:{id}"),
                Role::Shard(name) => format!("shard:{name}"),
                Role::Node(name) => format!("node:{name}"),
            };
            Some(v1::PinnedKey { name, key_sha256: credentials.presented()?.spki_sha256.0.to_vec() })
        };
        files.iter().filter_map(key).collect()
    }

    /// Nodes without a join token.
    pub(super) fn without_token(&self) -> Vec<String> {
        let tokens = self.tokens.borrow();
        let nodes = self.files.borrow();
        let name = |role: &Role| match role {
            Role::Node(name) if !tokens.contains_key(role) => Some(name.clone()),
            _ => None,
        };
        nodes.keys().filter_map(name).collect()
    }

    /// Keeps a join token for a node, as the cluster has made it.
    pub(super) fn keep_token(&self, node: &str, made: v1::CreateJoinTokenReply) {
        let Some(authorities) = &self.authorities else { return };
        let v1::CreateJoinTokenReply { token, roots, .. } = made;
        let file = JoinFile::new(authorities.scheme(), token, self.open_endpoints(), roots);
        let file = file.expect("the cluster's own roots");
        self.tokens.borrow_mut().insert(Role::Node(node.to_owned()), file);
    }

    /// Gives a client the roots that it trusts.
    pub(super) fn introduce(&self, client: &Host) {
        if let Some(authorities) = &self.authorities {
            let credentials = authorities.anonymous().expect("there is a root");
            client.net.set_credentials(Some(credentials)).expect("a simulated host takes them");
        }
    }
}

//! Enrolment: a machine without an identity shows a join token, and has a certificate made for its own key.
//!
//! What must stay true: the key is on disk before it is sent, so that a lost answer is asked for again with the same key, which is the only one that the
//! token then lets in; a refusal is final, and everything else is tried again at another control node.

use crate::join_file::JoinFile;
use muster_proto::v1;
use muster_proto::v1::machines_client::MachinesClient;
use muster_runtime::pki::{
    Certificate, Credentials, MACHINE_FILE, MachineName, PkiError, Role, Roots, SecretKey, Subject,
};
use muster_runtime::{DiskError, Expect, Host, NetError};
use std::time::Duration;
use tonic::{Code, Status};

/// The key of a machine that has asked and has no certificate yet.
const JOINING_FILE: &str = "joining.key";
/// Between two attempts: half of it at the least, so that a rack that was switched on does not ask as one.
const AGAIN: Duration = Duration::from_secs(4);
/// For one call, connection included.
const CALL_MAX: Duration = Duration::from_secs(10);

/// Why a machine is not enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// Its files.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Keys or certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// An endpoint that is none.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The control plane says no.
    #[error("the control node at {endpoint} refuses to enrol {name}: {}", .status.message())]
    Refused {
        /// Who asked.
        name: MachineName,
        /// Whom.
        endpoint: String,
        /// Why not.
        status: Box<Status>,
    },
    /// Nobody has answered for so long as it was to be tried.
    #[error("no control node has answered for {waited_s} s; the last said: {}", .last.message())]
    NoAnswer {
        /// For how long it was tried.
        waited_s: u64,
        /// What came last.
        last: Box<Status>,
    },
}

/// Whether the host has an identity already.
///
/// # Errors
/// When its disk cannot be read.
pub fn is_enrolled(host: &Host) -> Result<bool, DiskError> {
    Ok(host.identity.read(MACHINE_FILE)?.is_some())
}

/// Enrols the host as this machine, and keeps its identity on disk; tries for `asks_for`, or for as long as it takes.
///
/// # Errors
/// [`EnrolError`].
pub async fn enrol(host: &Host, role: Role, file: &JoinFile, asks_for: Option<Duration>) -> Result<(), EnrolError> {
    let name = MachineName::new(file.roots.cluster(), role)?;
    let key = kept_key(host, JOINING_FILE).await?;
    let request = host.pki.request(&key, &Subject::Machine(name.clone()))?;
    // It has nothing to show yet.
    host.net.set_credentials(Some(Credentials::anonymous(file.roots.clone())))?;
    let asked = v1::EnrollRequest { token: file.token.clone(), request };
    let began = tokio::time::Instant::now();
    let mut next = host.chance.between(0, file.endpoints.len() as u64) as usize;
    let reply = loop {
        let endpoint = &file.endpoints[next % file.endpoints.len()];
        next += 1;
        let mut client = MachinesClient::new(host.net.dial(endpoint, Expect::Control)?);
        let answer = tokio::time::timeout(CALL_MAX, client.enroll(asked.clone())).await;
        let status = match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer within 10 s"))) {
            Ok(reply) => break reply.into_inner(),
            Err(status) => status,
        };
        if is_final(&status) {
            return Err(EnrolError::Refused { name, endpoint: endpoint.clone(), status: Box::new(status) });
        }
        if asks_for.is_some_and(|asks_for| began.elapsed() >= asks_for) {
            return Err(EnrolError::NoAnswer { waited_s: began.elapsed().as_secs(), last: Box::new(status) });
        }
        tracing::warn!(%name, endpoint, %status, "enrolment is tried again");
        let again_ms = AGAIN.as_millis() as u64;
        tokio::time::sleep(Duration::from_millis(host.chance.between(again_ms / 2, again_ms))).await;
    };
    let credentials = made(host, key, &file.roots, reply.chain, reply.roots)?;
    credentials.save(&*host.identity).await?;
    // The key has its certificate; the next enrolment in this folder, if any, draws another one.
    host.identity.write(JOINING_FILE, Vec::new()).await?;
    tracing::info!(%name, "enrolled");
    Ok(())
}

/// What came for a key, with the roots that are trusted already and those that came with it.
pub(crate) fn made(
    host: &Host,
    key: SecretKey,
    trusted: &Roots,
    chain: Vec<Vec<u8>>,
    roots: Vec<Vec<u8>>,
) -> Result<Credentials, PkiError> {
    let certificates = |all: Vec<Vec<u8>>| all.into_iter().map(Certificate::from_bytes).collect::<Result<Vec<_>, _>>();
    let scheme = &*host.pki;
    // Its sender has proved to be a control node under a trusted root: so a new root reaches every machine before an old one goes.
    let roots = trusted.and(scheme, &Roots::new(scheme, certificates(roots)?)?)?;
    Credentials::machine(scheme, key, certificates(chain)?, roots)
}

/// A key that has no certificate yet: the one that is kept in this file, or a new one. What is asked for again is asked for with the same key.
pub(crate) async fn kept_key(host: &Host, file: &str) -> Result<SecretKey, PkiError> {
    let kept = host.identity.read(file)?.filter(|kept| !kept.is_empty());
    if let Some(kept) = kept {
        return SecretKey::from_bytes(kept);
    }
    let key = host.pki.new_key()?;
    host.identity.write(file, key.bytes().to_vec()).await?;
    Ok(key)
}

/// What another attempt would be told as well.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::NotFound
            | Code::FailedPrecondition
            | Code::Unimplemented
    )
}

//! Renewal: a machine has its certificate made anew, for a new key, over the connection that the present one gives it.
//!
//! What must stay true: a certificate is renewed from a third of its life on, each machine at another moment; the new key is on disk before it is asked for
//! and pinned before it is used, and the old one holds until the new one was shown, so that no crash and no lost answer leaves a machine without a key that is taken; what fails is tried
//! again, and changes nothing.

use crate::enrol::{kept_key, made};
use muster_proto::v1;
use muster_proto::v1::machines_client::MachinesClient;
use muster_runtime::pki::{Credentials, MACHINE_FILE, PkiError, SecretKey, Subject, is_due};
use muster_runtime::{Host, NetError, Transport};
use std::time::Duration;
use tonic::{Code, Status};

/// Before the first look, at the most: machines that start together do not ask together.
const FIRST_LOOK_MAX: Duration = Duration::from_secs(30);
/// Between two looks: certificates live for weeks.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);
/// After a failure.
const AGAIN: Duration = Duration::from_secs(60);
/// Between two looks whether a renewed certificate is in use: it is taken over from the disk within seconds.
const IN_USE_LOOK: Duration = Duration::from_secs(5);
/// The next key, until it has a certificate.
const NEXT_FILE: &str = "next.key";
const CALL_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum NotRenewed {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("{0}")]
    Call(#[from] Box<Status>),
}

/// Renews the host's certificate whenever it is due, at one of these endpoints for machines, for as long as the host lives. In clear text there is nothing to
/// do.
pub async fn keep_renewed(host: Host, endpoints: Vec<String>, transport: Transport) {
    if transport == Transport::Plain {
        return;
    }
    let first_ms = host.chance.between(0, FIRST_LOOK_MAX.as_millis() as u64);
    tokio::time::sleep(Duration::from_millis(first_ms)).await;
    // The key that was shown last: so the cluster pins it where nothing was pinned, and drops the one before it.
    let mut shown = None;
    loop {
        let wait = match look(&host, &endpoints, &mut shown).await {
            Ok(true) => IN_USE_LOOK,
            Ok(false) => LOOK_EVERY,
            Err(error) => {
                // A cluster of before knows no enrolment; its certificates are renewed by hand.
                let old = matches!(&error, NotRenewed::Call(status) if status.code() == Code::Unimplemented);
                if old {
                    tracing::debug!(%error, "certificates are not renewed by this cluster");
                } else {
                    metrics::counter!("muster_certificate_renewals_failed_total").increment(1);
                    tracing::warn!(%error, "the certificate of this machine is not renewed; it is tried again");
                }
                if old { LOOK_EVERY } else { AGAIN }
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// One look; true when a renewed certificate is on disk and not yet in use.
async fn look(host: &Host, endpoints: &[String], shown: &mut Option<[u8; 32]>) -> Result<bool, NotRenewed> {
    let Some(own) = host.net.credentials() else { return Ok(false) };
    let (Some(presented), Some(key)) = (own.presented(), own.key()) else { return Ok(false) };
    let in_use = presented.spki_sha256.0;
    if *shown != Some(in_use) {
        ask(host, endpoints, &own, key).await?;
        *shown = Some(in_use);
    }
    let due = host.certificate_clock.now_ms().is_some_and(|now_ms| is_due(presented, now_ms));
    let kept = Credentials::load(&*host.pki, &*host.identity)?;
    if kept.presented().is_some_and(|kept| kept.spki_sha256.0 != in_use) {
        return Ok(true);
    }
    if !due {
        return Ok(false);
    }
    // On disk before it is asked for: on a disk that cannot be written nothing is asked, and what is asked for again changes nothing.
    let new = kept_key(host, NEXT_FILE).await?;
    let renewed = ask(host, endpoints, &own, &new).await?;
    renewed.save(&*host.identity).await?;
    host.identity.write(NEXT_FILE, Vec::new()).await.map_err(PkiError::from)?;
    metrics::counter!("muster_certificate_renewals_total").increment(1);
    tracing::info!("the certificate of this machine is renewed");
    Ok(true)
}

/// Has a certificate made for `key` by the first control node that answers.
async fn ask(host: &Host, endpoints: &[String], own: &Credentials, key: &SecretKey) -> Result<Credentials, NotRenewed> {
    let name = own.name().ok_or(PkiError::Missing { file: MACHINE_FILE })?;
    let request = host.pki.request(key, &Subject::Machine(name.clone()))?;
    let first = host.chance.between(0, endpoints.len().max(1) as u64) as usize;
    let mut last = Status::unavailable("there are no endpoints");
    for endpoint in endpoints.iter().cycle().skip(first).take(endpoints.len()) {
        let mut client = MachinesClient::new(host.net.dial(endpoint, Transport::Mutual.control())?);
        let call = client.renew(v1::RenewMachineRequest { request: request.clone() });
        match tokio::time::timeout(CALL_MAX, call).await {
            Ok(Ok(reply)) => {
                let v1::RenewMachineReply { chain, roots, .. } = reply.into_inner();
                return Ok(made(host, key.clone(), own.roots(), chain, roots)?);
            }
            Ok(Err(status)) => last = status,
            Err(_) => last = Status::deadline_exceeded("no answer within 10 s"),
        }
    }
    Err(Box::new(last).into())
}

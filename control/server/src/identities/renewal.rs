//! The renewal of this control node's own certificate, by its own issuer.
//!
//! What must stay true: a certificate is renewed from a third of its life on, and keeps its key, which lies beside that of the issuer: other control nodes that are
//! behind know no other. Whatever fails is tried again, and the earlier certificate stays in use meanwhile.

use super::principal_of;
use crate::consensus::Consensus;
use muster_control_core::Command;
use muster_model::identity::Author;
use muster_runtime::Host;
use muster_runtime::pki::{Authority, ISSUER_FILE, PkiError, Presented, is_due, issue};
use std::time::Duration;

/// Between two looks, and before something that failed is tried again: certificates live for weeks.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// From this feature level on keys are pinned.
pub(crate) const LEVEL: u32 = 5;

/// Why it was not renewed.
#[derive(Debug, thiserror::Error)]
enum NotRenewed {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("{0}")]
    Propose(#[from] crate::consensus::ProposeError),
    #[error("{0}")]
    Refused(#[from] muster_control_core::Reject),
}

/// Renews it whenever it is due, for as long as the host lives.
pub(crate) async fn renew(host: Host, consensus: Consensus) {
    let mut confirmed = false;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if consensus.read(|state, _| state.meta.feature_level) < LEVEL {
            continue;
        }
        if let Err(error) = look(&host, &consensus, &mut confirmed).await {
            tracing::warn!(%error, "the certificate of this control node is not renewed; it is tried again");
        }
    }
}

/// Pins the key that is in use, and renews the certificate if that is due.
async fn look(host: &Host, consensus: &Consensus, confirmed: &mut bool) -> Result<(), NotRenewed> {
    let Some(own) = host.net.credentials() else { return Ok(()) };
    let (Some(presented), Some(key)) = (own.presented(), own.key()) else { return Ok(()) };
    if !*confirmed {
        pin(consensus, presented).await?;
        *confirmed = true;
    }
    let Some(now_ms) = host.certificate_clock.now_ms().filter(|now_ms| is_due(presented, *now_ms)) else {
        return Ok(());
    };
    let issuer = match Authority::load(&*host.pki, &*host.identity, ISSUER_FILE) {
        Ok(issuer) => issuer,
        // Its identity was made without one: whoever made it renews it.
        Err(PkiError::Missing { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let renewed = issue(&*host.pki, &issuer, own.roots().clone(), (&presented.name, key.clone()), now_ms)?;
    renewed.save(&*host.identity).await?;
    tracing::info!("the certificate of this control node is renewed");
    Ok(())
}

/// Pins the key that is in use, where none is.
async fn pin(consensus: &Consensus, presented: &Presented) -> Result<(), NotRenewed> {
    let machine = principal_of(presented.name.role());
    if consensus.read(|state, _| state.machines.contains_key(&machine.to_string())) {
        return Ok(());
    }
    let key = presented.spki_sha256.0;
    let author = Author { principal: machine.clone(), ..Author::default() };
    let command = Command::RenewMachine { machine, shown_sha256: key, key_sha256: key };
    let proposed = consensus.propose(vec![command.by(author)]).await?;
    proposed.decided.into_iter().try_for_each(|decided| decided.map(drop))?;
    Ok(())
}

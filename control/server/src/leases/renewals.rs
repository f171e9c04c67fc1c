//! Carries renewals from this control node to the leader, many in one call.
//!
//! What must stay true: a renewal is answered `Renewed` only when a leader that a quorum has just confirmed has written it down; a
//! leader that cannot be reached delays nothing but the answers; the number of renewals that wait and of calls in flight is bounded.

use super::leader::LeaderLeases;
use super::renewal::{RenewAnswer, RenewMessage, Renewal, Verdict};
use crate::api::MESSAGE_BYTES_MAX;
use crate::consensus::Consensus;
use futures::FutureExt;
use muster_proto::v1;
use muster_proto::v1::peer_client::PeerClient;
use muster_runtime::Host;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Renewals that wait for the next call: every node and cell of a large fleet once, with room.
const WAITING_MAX: usize = 16_384;
/// Renewals of one call, so that it stays far below the message limit.
const BATCH_MAX: usize = 8_192;
/// Calls in flight: with more than a few the leader is not answering, and more would not help.
const IN_FLIGHT_MAX: usize = 8;
/// A confirmation takes one round trip; after this long the leader is gone or has lost its quorum.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

struct Waiting {
    renewal: Renewal,
    answer: oneshot::Sender<Verdict>,
}

/// The way to the leader. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Renewals {
    queue: mpsc::Sender<Waiting>,
}

impl Renewals {
    /// Starts the collector; it ends with the host.
    pub(crate) fn start(host: &Host, carrier: Carrier, batch: Duration) -> Self {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        host.spawn(collect(host.clone(), carrier, waiting, batch));
        Renewals { queue }
    }

    /// Renews one lease. Never waits for room: a full queue means that the leader does not answer.
    pub(crate) async fn renew(&self, renewal: Renewal) -> Verdict {
        let (answer, answered) = oneshot::channel();
        if self.queue.try_send(Waiting { renewal, answer }).is_err() {
            return Verdict::Unknown;
        }
        answered.await.unwrap_or(Verdict::Unknown)
    }
}

async fn collect(host: Host, carrier: Carrier, mut waiting: mpsc::Receiver<Waiting>, batch: Duration) {
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    loop {
        let Some(first) = waiting.recv().await else { return };
        tokio::time::sleep(batch).await;
        let mut items = vec![first];
        while items.len() < BATCH_MAX
            && let Ok(next) = waiting.try_recv()
        {
            items.push(next);
        }
        // Without a permit the items are dropped, which answers `Unknown`.
        let Ok(permit) = Arc::clone(&in_flight).try_acquire_owned() else { continue };
        let carrier = carrier.clone();
        host.spawn(async move {
            let _permit = permit;
            let (renewals, answers): (Vec<_>, Vec<_>) = items.into_iter().map(|w| (w.renewal, w.answer)).unzip();
            let count = renewals.len();
            let verdicts = match tokio::time::timeout(ANSWER_WITHIN, carrier.carry(renewals)).await {
                Ok(Some(verdicts)) if verdicts.len() == count => verdicts,
                _ => vec![Verdict::Unknown; count],
            };
            metrics::counter!("muster_lease_renewals_total").increment(count as u64);
            for (answer, verdict) in answers.into_iter().zip(verdicts) {
                let _ = answer.send(verdict);
            }
        });
    }
}

/// Brings a batch to the leader, here or elsewhere.
#[derive(Clone)]
pub(crate) struct Carrier {
    /// To know the leader.
    pub(crate) consensus: Consensus,
    /// For when it is here.
    pub(crate) leader_leases: Arc<LeaderLeases>,
}

impl Carrier {
    async fn carry(&self, renewals: Vec<Renewal>) -> Option<Vec<Verdict>> {
        let (leader, _) = self.consensus.leader()?;
        if leader == self.consensus.id() {
            return self.leader_leases.renew(&renewals).await;
        }
        let data = postcard::to_stdvec(&RenewMessage::V1(renewals)).ok()?;
        let mut client =
            PeerClient::new(self.consensus.channel_to(leader)?).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let reply = match client.renew_leases(v1::Payload { data }).boxed().await {
            Ok(reply) => reply.into_inner(),
            Err(status) => {
                tracing::debug!(leader, %status, "the leader refused lease renewals");
                return None;
            }
        };
        let RenewAnswer::V1(verdicts) = postcard::from_bytes(&reply.data).ok()?;
        Some(verdicts)
    }
}

//! Carries commands of many sessions to the log, many in one proposal.
//!
//! What must stay true: each command is answered with its own decision; what waits and what is in flight is bounded, and a full
//! batcher makes sessions wait, which makes their agents wait.

use crate::api::signed::signed;
use crate::consensus::{Consensus, ProposeError, Proposed};
use muster_control_core::{Command, Done, Reject};
use muster_model::identity::Author;
use muster_runtime::Host;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Commands that wait: one of each session of a large fleet.
const WAITING_MAX: usize = 8_192;
/// Commands of one proposal: enough to share the sync, few enough to stay small.
const BATCH_MAX: usize = 256;
/// Proposals in flight: one is being synced, one travels, and the rest hides the round trip of a follower.
const IN_FLIGHT_MAX: usize = 4;

type Answer = Result<Result<Done, Reject>, ProposeError>;

struct Item {
    author: Author,
    command: Command,
    answer: oneshot::Sender<Answer>,
}

/// The entrance. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Batcher {
    queue: mpsc::Sender<Item>,
}

impl Batcher {
    /// Starts the batcher; it ends with the host.
    pub(crate) fn start(host: &Host, consensus: Consensus) -> Self {
        let (queue, items) = mpsc::channel(WAITING_MAX);
        host.spawn(run(host.clone(), consensus, items));
        Batcher { queue }
    }

    /// Has one command of an agent decided.
    pub(crate) async fn decide(&self, author: Author, command: Command) -> Answer {
        let stopped = || ProposeError::Stopped { why: "the node is stopping".to_owned() };
        let (answer, answered) = oneshot::channel();
        self.queue.send(Item { author, command, answer }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }
}

async fn run(host: Host, consensus: Consensus, mut items: mpsc::Receiver<Item>) {
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    loop {
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { return };
        let mut batch = Vec::new();
        if items.recv_many(&mut batch, BATCH_MAX).await == 0 {
            return;
        }
        let consensus = consensus.clone();
        host.spawn(async move {
            let _permit = permit;
            propose(&consensus, batch).await;
        });
    }
}

async fn propose(consensus: &Consensus, batch: Vec<Item>) {
    let (commands, answers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|item| (signed(consensus, &item.author, item.command), item.answer)).unzip();
    let single = commands.len() == 1;
    match consensus.propose(commands.clone()).await {
        Ok(proposed) => {
            for (answer, decided) in answers.into_iter().zip(proposed.decided) {
                let _ = answer.send(Ok(decided));
            }
        }
        // Together they are more than an entry holds: one by one then.
        Err(ProposeError::TooLarge { .. }) if !single => {
            for (command, answer) in commands.into_iter().zip(answers) {
                let decided = consensus.propose(vec![command]).await;
                let _ = answer.send(decided.and_then(first));
            }
        }
        Err(error) => {
            for answer in answers {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

fn first(proposed: Proposed) -> Answer {
    proposed
        .decided
        .into_iter()
        .next()
        .ok_or_else(|| ProposeError::Unknown { why: "the log gave no answer".to_owned() })
}

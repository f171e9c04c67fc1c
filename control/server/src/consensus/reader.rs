//! Linearizable reads and proofs of leadership: concurrent ones share a round trip.
//!
//! What must stay true: a request is answered only by a round that began after the request did, because the index is taken when
//! the round begins.

use crate::consensus::core::Core;
use crate::consensus::error::ProposeError;
use crate::consensus::heartbeat::{CONFIRM_ROUND_TRIPS, CONFIRM_WITHIN};
use crate::consensus::peer::Raftward;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Requests waiting for a round; more wait at their sender.
const QUEUE: usize = 4_096;
/// A leader that does not answer for so much longer than its own confirmation may take is taken for none.
const ASK_LONGER: Duration = Duration::from_secs(1);

/// Finds out which index a read has to wait for. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Reader {
    core: Arc<Core>,
    queue: mpsc::Sender<Asked>,
}

struct Asked {
    /// Only this node's own leadership counts.
    here: bool,
    answer: oneshot::Sender<Result<u64, ProposeError>>,
}

impl Reader {
    /// Starts the task that makes rounds.
    pub(crate) fn start(core: Arc<Core>) -> Self {
        let (queue, asked) = mpsc::channel(QUEUE);
        core.host.spawn(run(core.clone(), asked));
        Reader { core, queue }
    }

    /// The index that a linearizable read has to wait for, from whoever leads.
    pub(crate) async fn index(&self) -> Result<u64, ProposeError> {
        self.ask(false).await
    }

    /// The same, but only when this node leads: a quorum has confirmed it after the call began.
    pub(crate) async fn confirm_here(&self) -> Result<u64, ProposeError> {
        self.ask(true).await
    }

    async fn ask(&self, here: bool) -> Result<u64, ProposeError> {
        self.core.stop.check()?;
        let (answer, answered) = oneshot::channel();
        let ended = || ProposeError::Stopped { why: self.core.stop.reason().unwrap_or_default() };
        self.queue.send(Asked { here, answer }).await.map_err(|_| ended())?;
        tokio::select! {
            biased;
            answer = answered => answer.map_err(|_| ended())?,
            why = self.core.stop.stopped() => Err(ProposeError::Stopped { why }),
        }
    }
}

async fn run(core: Arc<Core>, mut queue: mpsc::Receiver<Asked>) {
    let mut waiting: Vec<Asked> = Vec::new();
    loop {
        let taken = tokio::select! {
            biased;
            _why = core.stop.stopped() => return,
            taken = queue.recv_many(&mut waiting, QUEUE) => taken,
        };
        if taken == 0 {
            return;
        }
        metrics::histogram!("muster_raft_reads_per_round").record(taken as f64);
        let leads = core.is_leader();
        let round = if leads {
            core.confirm().await
        } else if waiting.iter().any(|asked| !asked.here) {
            ask_leader(&core).await
        } else {
            Err(ProposeError::NoLeader)
        };
        for asked in waiting.drain(..) {
            let answer = if asked.here && !leads { Err(ProposeError::NoLeader) } else { round.clone() };
            // Who does not wait any more does not need the answer.
            let _ = asked.answer.send(answer);
        }
    }
}

async fn ask_leader(core: &Core) -> Result<u64, ProposeError> {
    let Some((leader, member)) = core.other_leader() else { return Err(ProposeError::NoLeader) };
    let mut leadership = core.leadership.clone();
    let within = core.config.and_round_trips(CONFIRM_WITHIN + ASK_LONGER, CONFIRM_ROUND_TRIPS + 1);
    let call = core.peers.call::<_, Result<u64, ProposeError>>(leader, &member, Raftward::ReadIndex, &(), within);
    tokio::select! {
        biased;
        answered = call => match answered {
            // That the leader's node has stopped does not mean that this one has.
            Ok(Err(_)) | Err(_) => Err(ProposeError::NoLeader),
            Ok(Ok(index)) => Ok(index),
        },
        _ = leadership.wait_for(|now| now.leader.is_some_and(|other| other != leader)) => Err(ProposeError::NoLeader),
    }
}

//! The session with the control plane: one stream to any control node, and another one as soon as it fails.
//!
//! What must stay true: nothing waits on a full stream except output that somebody asked for, which has a lane of its own behind
//! everything else; a session whose heartbeats are not acknowledged is given up, because its control node may be cut off from its
//! quorum; what came in is on disk before it is acted on.

use crate::config::AgentError;
use crate::logs::LogReaders;
use crate::shared::Shared;
use crate::wire;
use futures::Stream;
use muster_enrolment::Sessions;
use muster_model::node::Withheld;
use muster_proto::v1;
use muster_proto::v1::agents_client::AgentsClient;
use muster_proto::v1::control_message::Message;
use muster_runtime::{NetError, Transport, timeline};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::Status;

/// Messages that wait for the stream; a full lane holds states and usage back where they are, until the next heartbeat.
const LANE_MAX: usize = 64;
/// Pieces of output that wait: few, so that a reader that is slow slows only the reading of files.
const LOG_LANE_MAX: usize = 8;
/// From dialling to the welcome: a control node that has no leader within this is no better than none.
const WELCOME_MAX: Duration = Duration::from_secs(5);
/// Until the cards were read for the first time. What was not read by then is withheld, until it is.
const CARDS_MAX: Duration = Duration::from_secs(1);
/// A control plane of another cluster is asked again after this: only a person can change that.
const OTHER_CLUSTER_AGAIN: Duration = Duration::from_secs(5);
/// A desired state of a node with hundreds of tasks and long environments fits; more is a fault.
const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Dial(#[from] NetError),
    #[error("{0}")]
    Rpc(#[from] Box<Status>),
    #[error("refused: {reason}")]
    Refused { reason: String, retry: Duration },
    #[error("the control node closed the session")]
    Closed,
    #[error("no welcome within {WELCOME_MAX:?}")]
    NoWelcome,
    #[error("no heartbeat was acknowledged for {0:?}")]
    Silent(Duration),
    #[error("the first message is not a welcome")]
    NotWelcome,
    #[error("{0}")]
    OtherCluster(AgentError),
    #[error("the control node reported cluster {said:016x} first and cluster {welcomed:016x} then")]
    TwoClusters { said: u64, welcomed: u64 },
    #[error(
        "the control node serves history {said} of the cluster, and this agent has served {own}, which began after a restore: stop that control node"
    )]
    EarlierHistory { said: u64, own: u64 },
    #[error("the agent is stopping")]
    Stopped,
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        Ended::Rpc(Box::new(status))
    }
}

/// Keeps a session up until the agent stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    let endpoints = &shared.config.endpoints;
    // Each agent starts somewhere else, so that a fleet spreads over the control nodes.
    let mut next = shared.host.chance.between(0, endpoints.len() as u64) as usize;
    let mut failures: u32 = 0;
    while !shared.stop.is_cancelled() {
        let endpoint = &endpoints[next % endpoints.len()];
        next += 1;
        let mut up_since = None;
        let ended = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            ended = session(&shared, endpoint, &mut up_since) => ended,
        };
        shared.session_down();
        // A session that breaks soon after it began is a failure too: a control node that cannot keep them is not asked without pauses.
        let lasted = up_since.is_some_and(|since: Instant| since.elapsed() >= shared.config.backoff_max);
        failures = if lasted { 0 } else { failures.saturating_add(1) };
        let wait = match &ended {
            Ended::Refused { reason, retry } => {
                tracing::error!(node = %shared.spec.name, endpoint, reason, "the control plane refuses this node");
                *retry
            }
            Ended::OtherCluster(reason) => {
                tracing::error!(node = %shared.spec.name, endpoint, %reason, "this endpoint belongs to another cluster");
                metrics::counter!("muster_agent_other_clusters_total").increment(1);
                OTHER_CLUSTER_AGAIN
            }
            other => {
                tracing::warn!(node = %shared.spec.name, endpoint, reason = %other, "session ended");
                backoff(&shared, failures)
            }
        };
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Half to all of a wait that doubles with each failure, so that agents which lost the same control node do not return as one.
fn backoff(shared: &Shared, failures: u32) -> Duration {
    let config = &shared.config;
    let full = config.backoff_min.saturating_mul(1 << failures.min(10)).min(config.backoff_max);
    let full_ms = full.as_millis() as u64;
    Duration::from_millis(shared.host.chance.between(full_ms / 2, full_ms + 1))
}

/// One session from dialling to its end.
async fn session(shared: &Arc<Shared>, endpoint: &str, up_since: &mut Option<Instant>) -> Ended {
    match try_session(shared, endpoint, up_since).await {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

async fn try_session(
    shared: &Arc<Shared>,
    endpoint: &str,
    up_since: &mut Option<Instant>,
) -> Result<std::convert::Infallible, Ended> {
    let channel = shared.host.net.dial_session(endpoint, shared.config.transport.control())?;
    let mut client = AgentsClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    // Whose control plane this is comes first: to another cluster's this node has nothing to say.
    let asked = tokio::time::timeout(WELCOME_MAX, client.identify(v1::IdentifyRequest {})).await;
    let v1::IdentifyReply { cluster, incarnation } = asked.map_err(|_| Ended::NoWelcome)??.into_inner();
    if let Some(own) = shared.serves_later_than(incarnation) {
        return Err(Ended::EarlierHistory { said: incarnation, own });
    }
    match shared.enter(cluster, endpoint).await {
        Ok(()) => {}
        Err(other @ AgentError::OtherCluster { .. }) => return Err(Ended::OtherCluster(other)),
        Err(error) => {
            shared.fail(error);
            return Err(Ended::Stopped);
        }
    }
    // So that a node is not said to be without its cards, only because its agent has just started. A silent card holds nobody up.
    let _ = tokio::time::timeout(CARDS_MAX, shared.cards.until_read()).await;
    // What this agent says of its sessions, where it has an identity.
    let session = match shared.config.transport {
        Transport::Plain => None,
        Transport::Mutual | Transport::MutualOrPlain => match Sessions(&shared.host).begin().await {
            Ok(session) => Some(session),
            Err(error) => {
                shared.fail(error.into());
                return Err(Ended::Stopped);
            }
        },
    };
    let (lane, first) = mpsc::channel(LANE_MAX);
    let (log_lane, last) = mpsc::channel(LOG_LANE_MAX);
    // The lane is new: it has room.
    let _ = lane.try_send(shared.hello(session, shared.held(incarnation)));
    let opening = async {
        let mut inbound = client.session(outbound(first, last)).await?.into_inner();
        match inbound.message().await?.and_then(|message| message.message) {
            Some(Message::Welcome(welcome)) => Ok((welcome, inbound)),
            Some(Message::Refused(refused)) => {
                Err(Ended::Refused { reason: refused.reason, retry: Duration::from_millis(refused.retry_ms.max(100)) })
            }
            _ => Err(Ended::NotWelcome),
        }
    };
    let (welcome, mut inbound) = tokio::time::timeout(WELCOME_MAX, opening).await.map_err(|_| Ended::NoWelcome)??;
    if welcome.cluster != cluster {
        return Err(Ended::TwoClusters { said: cluster, welcomed: welcome.cluster });
    }
    if let Err(error) = shared.enter_session(&welcome).await {
        shared.fail(error);
        return Err(Ended::Stopped);
    }
    *up_since = Some(Instant::now());
    metrics::counter!("muster_agent_sessions_total").increment(1);
    tracing::info!(node = %shared.spec.name, id = welcome.node, epoch = welcome.node_epoch, endpoint, "session opened");
    if shared.session_up(&welcome)
        && let Err(error) = shared.store_meter().await
    {
        shared.fail(error);
        return Err(Ended::Stopped);
    }

    let mut beat = tokio::time::interval(Duration::from_millis(welcome.heartbeat_ms.max(1)));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut confirmed_at = Instant::now();
    let mut logs = LogReaders::new(shared.clone(), log_lane);
    loop {
        tokio::select! {
            biased;
            message = inbound.message() => {
                let message = message?.ok_or(Ended::Closed)?;
                if matches!(message.message, Some(Message::Lease(_))) {
                    confirmed_at = Instant::now();
                }
                take(shared, message, &mut logs).await?;
            }
            _ = beat.tick() => {
                if confirmed_at.elapsed() > shared.config.silence_max {
                    return Err(Ended::Silent(shared.config.silence_max));
                }
                // A lane that is still full tells of a stream that does not move: the silence above ends it.
                if let Ok(room) = lane.try_reserve() {
                    room.send(shared.heartbeat());
                }
                shared.expire();
            }
            () = shared.outgoing.notified() => {}
        }
        while let Ok(room) = lane.try_reserve() {
            let Some(message) = shared.next_outgoing() else { break };
            room.send(message);
        }
    }
}

/// Both lanes as one stream: output goes only when nothing else waits.
fn outbound(
    first: mpsc::Receiver<v1::AgentMessage>,
    last: mpsc::Receiver<v1::AgentMessage>,
) -> impl Stream<Item = v1::AgentMessage> {
    futures::stream::unfold((first, last), |(mut first, mut last)| async move {
        let message = tokio::select! {
            biased;
            message = first.recv() => message?,
            Some(message) = last.recv() => message,
        };
        Some((message, (first, last)))
    })
}

/// Takes one message of the control plane.
async fn take(shared: &Arc<Shared>, message: v1::ControlMessage, logs: &mut LogReaders) -> Result<(), Ended> {
    match message.message {
        Some(Message::Desired(desired)) => take_desired(shared, desired).await?,
        Some(Message::Lease(lease)) => {
            shared.host.certificate_clock.hear(lease.now_ms);
            shared.lease_acknowledged(lease.seq);
        }
        Some(Message::Reports(reports)) => shared.reports_acknowledged(reports.seq),
        Some(Message::Usage(usage)) => shared.usage_acknowledged(usage.incarnation, usage.mark),
        Some(Message::Log(request)) => logs.take(request),
        Some(Message::Refused(refused)) => {
            let retry = Duration::from_millis(refused.retry_ms.max(100));
            return Err(Ended::Refused { reason: refused.reason, retry });
        }
        // A second welcome, or a message of a newer version.
        Some(Message::Welcome(_)) | None => {}
    }
    Ok(())
}

/// Takes a desired state, unless it is older than one taken before or than the session; what of its stamp must survive a crash is on disk when
/// anything acts on it.
async fn take_desired(shared: &Arc<Shared>, mut wire: v1::Desired) -> Result<(), Ended> {
    let cleared = std::mem::take(&mut wire.cleared_gpus);
    // What cannot be read stays withheld.
    let spared = std::mem::take(&mut wire.spared).into_iter().filter_map(|one| Withheld::try_from(one).ok());
    let spared = spared.map(|one| (one.gpu, one.slice)).collect();
    let desired = match wire::desired(wire) {
        Ok(desired) => Arc::new(desired),
        Err(error) => {
            tracing::error!(node = %shared.spec.name, %error, "cannot read a desired state; it is ignored");
            metrics::counter!("muster_agent_desired_refused_total", "why" => "malformed").increment(1);
            return Ok(());
        }
    };
    for key in desired.tasks.keys() {
        tracing::trace!(target: timeline::TARGET, step = "desired_received", allocation = key.allocation.0);
    }
    match shared.take_stamp(desired.stamp).await {
        Ok(Ok(())) => {}
        Ok(Err(stale)) => {
            tracing::warn!(node = %shared.spec.name, %stale, "a desired state is refused");
            metrics::counter!("muster_agent_desired_refused_total", "why" => "stale").increment(1);
            return Ok(());
        }
        Err(error) => {
            shared.fail(error);
            return Err(Ended::Stopped);
        }
    }
    if let Err(error) = shared.health.clear(cleared.into_iter().map(Into::into)).await {
        shared.fail(error);
        return Err(Ended::Stopped);
    }
    shared.health.set_sharing(desired.sharing);
    shared.health.set_spared(spared);
    shared.state.lock().desire(Arc::clone(&desired));
    for key in desired.tasks.keys() {
        tracing::trace!(target: timeline::TARGET, step = "desired_taken", allocation = key.allocation.0);
    }
    shared.replan.notify_one();
    Ok(())
}

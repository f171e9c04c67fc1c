//! Lets an agent in: its Hello becomes a `JoinNode`, which is tried again while there is no leader.
//!
//! What must stay true: an agent of another cluster is refused before anything of it is proposed, and so is one that cannot say what it runs where a state of a
//! backup has to know it.

use super::Hub;
use super::stream::{Inbound, Out, send};
use crate::api::refusal;
use crate::api::signed::signed;
use crate::consensus::ProposeError;
use crate::identities;
use muster_control_core::authz::{About, Ask, Shown, authorize};
use muster_control_core::{Command, Decided, Done, Reject, Restoration, State};
use muster_model::identity::{Author, SessionCount};
use muster_model::node::{NodeSpec, Repair};
use muster_model::object::FIRST_INCARNATION;
use muster_model::{Epoch, HeldTask, NodeId, Principal, Proof, Revision, Rpc};
use muster_proto::v1;
use std::time::Duration;
use tonic::Status;
use v1::control_message::Message;

/// The feature level from which on proofs of isolation are recorded.
pub(super) const PROOFS_LEVEL: u32 = 3;

/// Who has come in.
pub(super) struct Joined {
    pub(super) node: NodeId,
    pub(super) name: String,
    pub(super) epoch: Epoch,
    /// What it says of isolation.
    pub(super) proofs: Vec<Proof>,
}

/// Why nobody has.
pub(super) enum NotJoined {
    /// It has gone, or this node stops.
    Gone,
    /// It is told what is wrong with its Hello.
    Bad(Status),
    /// It is told to try again.
    Refused(String),
    /// Another agent is that node, or may have left something: it is told so, and to ask again after a while.
    TurnedAway(String),
}

/// What an agent says of itself.
struct Introduced {
    spec: NodeSpec,
    usage_incarnation: Option<u64>,
    agent: u64,
    cluster: Option<u64>,
    session: Option<SessionCount>,
    /// What it runs; none of an agent of an earlier version, and in a cluster that was never restored.
    held: Option<Held>,
}

/// What an agent says that it runs.
struct Held {
    tasks: Vec<HeldTask>,
    /// It has not served this history of the cluster.
    is_new: bool,
}

/// Waits for the Hello, joins the node and welcomes the agent.
pub(super) async fn admit(
    hub: &Hub,
    (author, shown): (&Author, Option<&Shown>),
    inbound: &mut Inbound,
    out: &Out,
) -> Result<Joined, NotJoined> {
    let Introduced { mut spec, usage_incarnation, agent, cluster, session, held } = hello(hub, inbound).await?;
    let name = spec.name.clone();
    let own =
        hub.cluster().ok_or_else(|| NotJoined::Refused("this control node is not part of a cluster yet".to_owned()))?;
    if let Some(other) = cluster.filter(|other| *other != own) {
        return Err(NotJoined::Refused(other_cluster(hub, &name, other, own)));
    }
    let proofs = spec.proofs.clone();
    // Below that level the log has no place for them; the session reports them once it has.
    if hub.consensus.read(|state, _| state.meta.feature_level < PROOFS_LEVEL) {
        spec.proofs.clear();
    }
    // The report that follows says it.
    spec.gpus.iter_mut().for_each(|gpu| gpu.repair = Repair::default());
    let ask = Ask { rpc: Rpc::AgentsSession, about: About::NodeNamed(&name) };
    let now_ms = hub.consensus.now_ms();
    let judged = hub.consensus.read(|state, _| authorize(state, now_ms, author, &ask));
    judged.map_err(|denied| NotJoined::Bad(refusal::denied(&denied)))?;
    // Before it counts as connected; a follower that is behind may not know it yet.
    if held.is_none() && hub.consensus.read(|state, _| state.awaits_held(&name)) {
        return Err(silent_on_tasks(&name));
    }
    let mut commands: Vec<Command> = counted(hub, author, session)?.into_iter().collect();
    commands.push(Command::JoinNode { spec, usage_incarnation, agent });
    let commands: Vec<Command> = commands.into_iter().map(|command| signed(&hub.consensus, author, command)).collect();
    let (mut decided, mut revision) = decided(hub, &name, commands, out).await?;
    let joined = decided.pop();
    let mut generation = 0;
    // A copy is suspended by what it says, and refused for that; it is told the reason.
    match decided.pop() {
        Some(Ok(Done::Numbered { id })) => generation = id,
        Some(Ok(Done::TurnedAway { why })) => {
            metrics::counter!("muster_machine_copies_total").increment(1);
            tracing::error!(node = name, agent, why, "two machines have one key");
            return Err(NotJoined::TurnedAway(why));
        }
        Some(Err(reject)) => return Err(refused(&name, &reject)),
        Some(Ok(_)) | None => {}
    }
    let done = match joined {
        Some(Ok(done)) => done,
        Some(Err(reject)) => return Err(refused(&name, &reject)),
        None => return Err(NotJoined::Refused("the log gave no answer".to_owned())),
    };
    let (node, epoch, usage_incarnation, usage_mark) = match done {
        Done::Joined { node, epoch, usage_incarnation, usage_mark } => (node, epoch, usage_incarnation, usage_mark),
        Done::TurnedAway { why } => {
            tracing::warn!(node = name, agent, why, "an agent may not serve this node");
            return Err(NotJoined::TurnedAway(why));
        }
        other => return Err(NotJoined::Refused(format!("joining was answered {other:?}"))),
    };
    hub.consensus.wait_applied(revision).await.map_err(|_| NotJoined::Gone)?;
    let epoch = match meets_restored(hub, (author, shown), (node, &name, epoch), held, out).await? {
        None => epoch,
        Some((later, epoch)) => {
            revision = later;
            epoch
        }
    };
    let welcome = v1::Welcome {
        node: node.0,
        node_epoch: epoch.0,
        cluster_incarnation: hub.consensus.read(|state, _| state.meta.incarnation),
        usage_incarnation,
        usage_mark,
        heartbeat_ms: hub.heartbeat_ms,
        cluster: own,
        revision: revision.0,
        generation,
    };
    send(out, Message::Welcome(welcome)).map_err(|_| NotJoined::Gone)?;
    Ok(Joined { node, name, epoch, proofs })
}

/// The answers to these commands, once there is a leader.
async fn decided(hub: &Hub, name: &str, commands: Vec<Command>, out: &Out) -> Result<(Decided, Revision), NotJoined> {
    loop {
        let proposed = tokio::select! {
            biased;
            () = out.closed() => return Err(NotJoined::Gone),
            proposed = hub.consensus.propose(commands.clone()) => proposed,
        };
        match proposed {
            Ok(proposed) => return Ok((proposed.decided, proposed.revision)),
            Err(ProposeError::Stopped { .. }) => return Err(NotJoined::Gone),
            Err(error @ ProposeError::TooLarge { .. }) => return Err(NotJoined::Bad(refusal::propose(&error))),
            // Joining twice is joining once, so an unknown outcome is tried again as well.
            Err(error) => {
                tracing::debug!(node = name, %error, "joining waits for a leader");
                tokio::time::sleep(Duration::from_millis(hub.config.retry_ms)).await;
            }
        }
    }
}

/// An agent that does not say what it runs would be told nothing, and its tasks' leases would be renewed.
fn silent_on_tasks(name: &str) -> NotJoined {
    metrics::counter!("muster_agents_without_held_tasks_total").increment(1);
    tracing::error!(
        node = name,
        "an agent of an earlier version does not say what it runs, which a restored state has to know"
    );
    let why = "the cluster was restored from a backup, and this agent does not say what it runs: install the version of the control nodes";
    NotJoined::Refused(why.to_owned())
}

/// An agent that meets a state of a backup says what it runs before anything else is said to it. Gives the revision of that, and the node's epoch then.
async fn meets_restored(
    hub: &Hub,
    (author, shown): (&Author, Option<&Shown>),
    (node, name, epoch): (NodeId, &str, Epoch),
    held: Option<Held>,
    out: &Out,
) -> Result<Option<(Revision, Epoch)>, NotJoined> {
    let is_awaited = hub.consensus.read(|state, _| state.awaits_held(name));
    let Some(Held { tasks, is_new }) = held else {
        return if is_awaited { Err(silent_on_tasks(name)) } else { Ok(None) };
    };
    let is_of_interest = |state: &State| {
        let is_restored = state.nodes.get(&node).is_some_and(|there| there.notes.restored.is_some());
        let has_old_key = state.unconfirmed_machine(name).is_some();
        // It joined the fleet after the backup.
        let is_late = state.meta.incarnation > FIRST_INCARNATION && tasks.iter().any(|task| !state.expects(node, task));
        is_awaited || is_new && (is_restored || has_old_key || is_late)
    };
    if !hub.consensus.read(|state, _| is_of_interest(state)) {
        return Ok(None);
    }
    let count = tasks.len();
    let step = Restoration::Held { node, epoch, tasks, shown: shown.copied() };
    let command = signed(&hub.consensus, author, Command::Restore(step));
    let (decided, revision) = decided(hub, name, vec![command], out).await?;
    if let Some(Err(reject)) = decided.into_iter().next() {
        return Err(refused(name, &reject));
    }
    hub.consensus.wait_applied(revision).await.map_err(|_| NotJoined::Gone)?;
    let epoch = hub.consensus.read(|state, _| state.nodes.get(&node).map_or(epoch, |there| there.epoch));
    tracing::info!(node = name, tasks = count, "a node of the backup has come back");
    Ok(Some((revision, epoch)))
}

/// What counts this session, of a machine that has shown who it is.
fn counted(hub: &Hub, author: &Author, session: Option<SessionCount>) -> Result<Option<Command>, NotJoined> {
    let machine = &author.principal;
    let (known, counts) = hub.consensus.read(|state, _| {
        let counts = state.machines.get(&machine.to_string()).is_some_and(|known| known.generation > 0);
        (state.meta.feature_level >= identities::LEVEL, counts)
    });
    match session.filter(|_| known && matches!(machine, Principal::Node(_))) {
        Some(session) => Ok(Some(Command::BeginSession { machine: machine.clone(), session })),
        // Whoever leaves it out would never be found.
        None if counts => Err(NotJoined::Bad(Status::failed_precondition(format!(
            "{machine} has counted its sessions before, and this agent does not. If an older version of the agent was installed, run \
             `muster machine resume {machine}`. Otherwise this is a copy of its key: run `muster machine suspend {machine}`"
        )))),
        None => Ok(None),
    }
}

/// Loud on both sides: it runs what another control plane told it, under numbers that mean something else here.
fn other_cluster(hub: &Hub, name: &str, other: u64, own: u64) -> String {
    metrics::counter!("muster_agents_of_other_clusters_total").increment(1);
    tracing::error!(
        node = name,
        agent_of = format!("{other:016x}"),
        own = format!("{own:016x}"),
        "an agent belongs to another cluster"
    );
    let control = hub.consensus.id();
    format!(
        "node {name} belongs to cluster {other:016x}, but control node {control} belongs to cluster {own:016x}: correct the agent's \
         --endpoints; or, to move the node here, stop the agent, delete its data folder and start it again"
    )
}

fn refused(name: &str, reject: &Reject) -> NotJoined {
    tracing::warn!(node = name, %reject, "a node was refused");
    match reject {
        Reject::Invalid(errors) => NotJoined::Bad(refusal::fields(
            &errors.iter().cloned().map(|error| error.under("spec")).collect::<Vec<_>>(),
        )),
        Reject::Full { .. } => NotJoined::Refused(reject.to_string()),
        other => NotJoined::Bad(refusal::reject(other)),
    }
}

async fn hello(hub: &Hub, inbound: &mut Inbound) -> Result<Introduced, NotJoined> {
    let first = tokio::time::timeout(Duration::from_millis(hub.config.hello_ms), inbound.message()).await;
    let message = match first {
        Ok(Ok(Some(first))) => first.message,
        Ok(Err(status)) if status.code() == tonic::Code::InvalidArgument => return Err(NotJoined::Bad(status)),
        Ok(Ok(None) | Err(_)) => return Err(NotJoined::Gone),
        Err(_) => return Err(NotJoined::Bad(Status::deadline_exceeded("no Hello message was received"))),
    };
    let Some(v1::agent_message::Message::Hello(hello)) = message else {
        let fault = refusal::field("hello", "is not the first message", "send Hello first");
        return Err(NotJoined::Bad(fault));
    };
    let missing = || NotJoined::Bad(refusal::field("spec", "is missing", "send the description of the node"));
    let wire = hello.spec.clone().ok_or_else(missing)?;
    let spec = NodeSpec::try_from(wire).map_err(|error| vec![error]);
    let spec = spec.and_then(|spec| spec.validate().map(|()| spec)).map_err(|errors| {
        let errors: Vec<_> = errors.into_iter().map(|error| error.under("spec")).collect();
        NotJoined::Bad(refusal::fields(&errors))
    })?;
    let v1::Hello { usage_incarnation, cluster_incarnation, agent, cluster, session, held, .. } = hello;
    let is_new = cluster_incarnation != Some(hub.consensus.read(|state, _| state.meta.incarnation));
    let held = held.map(|held| Held { tasks: held.tasks.into_iter().map(Into::into).collect(), is_new });
    let session = session.map(|v1::SessionCount { generation, nonce }| SessionCount { generation, nonce });
    Ok(Introduced { spec, usage_incarnation, agent, cluster, session, held })
}

//! What the session and the reconciler share: the state of the node core, and who wakes whom.
//!
//! What must stay true: the lock is never held across an await; whoever changes something that the other acts on notifies it.

use crate::cards::Cards;
use crate::clean::{self, Cleaner};
use crate::config::{AgentConfig, AgentError};
use crate::exec::Owner;
use crate::health::{Health, Parts};
use crate::stored::{self, Identity};
use crate::telemetry::{self, Telemetry};
use crate::wire;
use muster_model::Proof;
use muster_model::identity::SessionCount;
use muster_model::ids::{Epoch, NodeId};
use muster_model::node::{Gpu, NodeSpec, Repair, Withheld};
use muster_model::node_links::NodeLinks;
use muster_node_core::fence::{self, NS_PER_S};
use muster_node_core::{CardObserved, Desired, Gate, Leases, Meter, Reports, TaskKey};
use muster_proto::v1;
use muster_proto::v1::agent_message::Message;
use muster_runtime::{Host, timeline};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Intervals that are not acknowledged for this long are sent again: longer than a leader change usually takes.
const USAGE_AGAIN_NS: u64 = 10 * NS_PER_S;
/// So many acknowledgements of a record that lacks what follows mean that it is of another stream.
const USAGE_GAPS_MAX: u8 = 3;

/// The driver is asked some hundred things about eight cards.
const LINKS_MAX: Duration = Duration::from_secs(30);

pub(crate) struct Shared {
    pub(crate) host: Host,
    pub(crate) config: AgentConfig,
    /// What the node says of itself.
    pub(crate) spec: NodeSpec,
    /// Wakes the reconciler; the executor has it too.
    pub(crate) replan: Arc<Notify>,
    /// Wakes the session: there is something to send.
    pub(crate) outgoing: Notify,
    pub(crate) stop: CancellationToken,
    pub(crate) cards: Arc<Cards>,
    pub(crate) health: Arc<Health>,
    pub(crate) cleaner: Arc<Cleaner>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) state: Mutex<State>,
    /// Held while what is desired is carried out. Taken before `state`.
    pub(crate) acting: Mutex<()>,
    /// Held while the meter is written: an older one must not land on a newer.
    meter_file: tokio::sync::Mutex<()>,
}

pub(crate) struct State {
    /// As it is on disk, but for the revision of its highest stamp.
    pub(crate) identity: Identity,
    /// The gate as it is on disk, and since when.
    pub(crate) stored_gate: (Gate, Instant),
    /// The host is claimed for the node of its cluster.
    claimed: bool,
    /// Tasks that ran without a record when the host was claimed.
    pub(crate) lost: BTreeSet<TaskKey>,
    /// The newest desired state taken by this agent; none before its first session, and before it has heard what a restored control plane wants.
    pub(crate) desired: Option<Arc<Desired>>,
    pub(crate) leases: Leases,
    pub(crate) reports: Reports,
    pub(crate) meter: Meter,
    /// The stream and the last number in it that are on disk: nothing beyond is sent.
    usage_stored: (Option<u64>, u64),
    /// A desired task has not been started, perhaps for want of a lease.
    pub(crate) waits_for_lease: bool,
    pub(crate) session: Option<Session>,
    /// The links inside the node, once they are found, and whether this session has reported them.
    links: Option<NodeLinks>,
    links_told: bool,
    /// What the control plane was told last of cards that take no new work; none: a report is due.
    cards_told: Option<Vec<Withheld>>,
    /// What it was told last of isolation.
    proofs_told: Vec<Proof>,
    /// Why the agent gave up, if it did.
    pub(crate) failure: Option<AgentError>,
}

/// The session that is up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) node: NodeId,
    pub(crate) node_epoch: Epoch,
    /// Its control node has said at which revision the node joined.
    pub(crate) has_floor: bool,
    /// It has told what is desired.
    pub(crate) has_desired: bool,
    /// Intervals after this number are to be sent.
    usage_after: u64,
    /// Since when a message of intervals waits for its acknowledgement. There is one at a time, so that none overtakes another.
    usage_since_ns: Option<u64>,
    /// Acknowledgements in a row after which the control plane waited for an interval that is gone here.
    usage_gaps: u8,
}

impl Shared {
    /// Reads what an earlier agent of this folder has left, or begins anew. The identity is on disk when it returns.
    pub(crate) async fn open(
        host: Host,
        config: AgentConfig,
        spec: NodeSpec,
        gpus: Vec<Gpu>,
        replan: Arc<Notify>,
    ) -> Result<Self, AgentError> {
        let identity = match stored::read_identity(&host)? {
            Some(identity) => identity,
            // Whose tasks these are cannot be known: an old exit might pass for that of another cluster's task of the same number.
            None if !config.executor.observe().is_empty() => return Err(AgentError::NoIdentity),
            None => stored::new_identity(&host),
        };
        stored::write_identity(&host, &identity).await?;
        let meter = stored::read_meter(&host, &spec.boot_id)?;
        let stop = CancellationToken::new();
        let cards = Cards::open(host.clone(), config.gpus.clone(), gpus.clone(), replan.clone(), stop.clone());
        let health = Health::open(
            Parts {
                host: host.clone(),
                config: config.health.clone(),
                backend: config.gpus.clone(),
                cards: cards.clone(),
                executor: config.executor.clone(),
                gpus: gpus.clone(),
                replan: replan.clone(),
            },
            &spec.boot_id,
        )
        .await?;
        let cleaner = Cleaner::open(clean::Parts {
            host: host.clone(),
            backend: config.gpus.clone(),
            cards: cards.clone(),
            executor: config.executor.clone(),
            health: health.clone(),
            replan: replan.clone(),
            stop: stop.clone(),
        })?;
        let telemetry = Telemetry::new(telemetry::Parts {
            host: host.clone(),
            backend: config.gpus.clone(),
            cards: cards.clone(),
            health: health.clone(),
            executor: config.executor.clone(),
            gpus,
            cell: spec.cell.clone(),
        });
        Ok(Shared {
            host,
            config,
            spec,
            replan,
            outgoing: Notify::new(),
            stop,
            cards,
            health,
            cleaner,
            telemetry,
            state: Mutex::new(State {
                identity,
                stored_gate: (identity.gate, Instant::now()),
                claimed: false,
                lost: BTreeSet::new(),
                desired: None,
                leases: Leases::default(),
                reports: Reports::default(),
                usage_stored: (meter.incarnation(), meter.last_seq()),
                meter,
                waits_for_lease: false,
                session: None,
                links: None,
                links_told: false,
                cards_told: Some(Vec::new()),
                proofs_told: Vec::new(),
                failure: None,
            }),
            acting: Mutex::new(()),
            meter_file: tokio::sync::Mutex::new(()),
        })
    }

    /// The cluster that this agent belongs to, once it has met one.
    pub(crate) fn cluster(&self) -> Option<u64> {
        self.state.lock().identity.cluster
    }

    /// A control node says that it is of this cluster. The first that is met is the agent's own for ever, and on disk when this returns.
    pub(crate) async fn enter(&self, cluster: u64, endpoint: &str) -> Result<(), AgentError> {
        let (mut identity, claimed) = {
            let state = self.state.lock();
            (state.identity, state.claimed)
        };
        if let Some(own) = identity.cluster.filter(|own| *own != cluster) {
            return Err(AgentError::OtherCluster { endpoint: endpoint.to_owned(), own, got: cluster });
        }
        if !claimed {
            self.claim(cluster).await?;
        }
        if identity.cluster.is_none() {
            identity.cluster = Some(cluster);
            self.store_identity(identity).await?;
        }
        Ok(())
    }

    /// Puts the identity on disk and takes it for the agent's own.
    pub(crate) async fn store_identity(&self, identity: Identity) -> Result<(), AgentError> {
        stored::write_identity(&self.host, &identity).await?;
        let mut state = self.state.lock();
        state.identity = identity;
        state.stored_gate = (identity.gate, Instant::now());
        Ok(())
    }

    /// Takes the host for the node of this cluster.
    pub(crate) async fn claim(&self, cluster: u64) -> Result<(), AgentError> {
        let owner = Owner { cluster, node: self.spec.name.clone() };
        let lost = self.config.executor.claim(owner).await?;
        let mut state = self.state.lock();
        state.claimed = true;
        state.lost = lost;
        Ok(())
    }

    /// What takes no new work: what cannot be read, and what is not healthy.
    pub(crate) fn withheld(&self) -> Vec<Withheld> {
        let mut withheld = self.cards.withheld();
        withheld.extend(self.health.withheld());
        withheld
    }

    /// The cards as the plan sees them.
    pub(crate) fn observed_cards(&self) -> Vec<CardObserved> {
        let mut cards = self.cards.observed();
        // What asks for more than a reset is not reset.
        let mut worst: BTreeMap<u16, Repair> = BTreeMap::new();
        for Withheld { gpu, repair, .. } in self.health.withheld() {
            worst.entry(gpu).and_modify(|worst| *worst = (*worst).max(repair)).or_insert(repair);
        }
        for Withheld { gpu, slice, reason, .. } in self.health.refused() {
            let Some(card) = cards.get_mut(usize::from(gpu)) else { continue };
            match slice {
                None => drop(card.withheld.get_or_insert(reason)),
                Some(place) => card.withheld_slices.push((place, reason)),
            }
        }
        for (gpu, repair) in worst {
            if let Some(card) = cards.get_mut(usize::from(gpu)) {
                card.asks_for_reset = repair == Repair::Reset || (card.asks_for_reset && repair < Repair::Reset);
            }
        }
        cards
    }

    /// Finds the ways inside the node, and has the control plane told of them.
    pub(crate) async fn find_links(&self) {
        match tokio::time::timeout(LINKS_MAX, self.config.gpus.node_links()).await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(links))) => {
                self.state.lock().links = Some(links);
                self.outgoing.notify_one();
            }
            unknown => {
                tracing::warn!(node = %self.spec.name, ?unknown, "the links between the GPUs of the node are not known");
            }
        }
    }

    /// Has the control plane told whenever what is known of isolation changes.
    pub(crate) async fn tell_proofs(&self) {
        let mut proofs = self.config.proofs.clone();
        while proofs.changed().await.is_ok() {
            self.outgoing.notify_one();
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.host.clock.boottime_ns()
    }

    /// The agent cannot go on: without its disk it could obey an old desired state or number an interval twice. Its tasks stay.
    pub(crate) fn fail(&self, error: AgentError) {
        tracing::error!(node = %self.spec.name, error = &error as &dyn std::error::Error, "the agent is stopping");
        self.state.lock().failure.get_or_insert(error);
        self.stop.cancel();
    }

    pub(crate) fn hello(&self, session: Option<SessionCount>, held: Option<v1::HeldTasks>) -> v1::AgentMessage {
        let mut spec = self.spec.clone();
        let withheld = self.withheld();
        spec.gpus = spec.withholding(&withheld);
        // The report says what is to be done about it. A cluster of an earlier version has no place for that.
        spec.gpus.iter_mut().for_each(|gpu| gpu.repair = Repair::default());
        spec.proofs.clone_from(&self.config.proofs.borrow());
        let mut state = self.state.lock();
        // It does not say what of it are verdicts: a report follows, also when all of it was lifted meanwhile.
        state.cards_told = withheld.is_empty().then(Vec::new);
        state.proofs_told.clone_from(&spec.proofs);
        wire::message(Message::Hello(v1::Hello {
            spec: Some((&spec).into()),
            usage_incarnation: state.meter.incarnation(),
            cluster_incarnation: state.identity.gate.highest().map(|stamp| stamp.incarnation),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            agent: state.identity.agent,
            cluster: state.identity.cluster,
            session: session.map(|SessionCount { generation, nonce }| v1::SessionCount { generation, nonce }),
            held,
        }))
    }

    /// Puts the meter on disk as it is now: what it holds may be sent from then on. Gives the tasks whose usage is in it to the end.
    pub(crate) async fn store_meter(&self) -> Result<BTreeSet<TaskKey>, AgentError> {
        let writing = self.meter_file.lock().await;
        let meter = self.state.lock().meter.clone();
        let stored = (meter.incarnation(), meter.last_seq());
        let settled = meter.forgettable();
        stored::write_meter(&self.host, &self.spec.boot_id, meter).await?;
        self.state.lock().usage_stored = stored;
        drop(writing);
        Ok(settled)
    }

    /// A session is up. Says whether it was told of a new usage stream, which is to be stored.
    pub(crate) fn session_up(&self, welcome: &v1::Welcome) -> bool {
        let mut state = self.state.lock();
        let is_new = state.meter.incarnation() != Some(welcome.usage_incarnation);
        state.leases.new_session();
        state.links_told = false;
        state.reports.new_session();
        let dropped = state.meter.adopt(welcome.usage_incarnation, welcome.usage_mark);
        if dropped > 0 {
            tracing::warn!(node = %self.spec.name, dropped, "usage intervals of an earlier stream are dropped and will be estimated");
            metrics::counter!("muster_agent_usage_dropped_total").increment(dropped as u64);
        }
        state.session = Some(Session {
            node: NodeId(welcome.node),
            node_epoch: Epoch(welcome.node_epoch),
            has_floor: welcome.revision > 0,
            has_desired: false,
            usage_after: 0,
            usage_since_ns: None,
            usage_gaps: 0,
        });
        is_new
    }

    pub(crate) fn session_down(&self) {
        let mut state = self.state.lock();
        state.count_held_on();
        state.session = None;
    }

    pub(crate) fn heartbeat(&self) -> v1::AgentMessage {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        let seq = state.leases.send(now_ns);
        let stamp = state.desired.as_ref().map(|desired| wire::stamp_to_wire(desired.stamp));
        wire::message(Message::Heartbeat(v1::Heartbeat { seq, stamp }))
    }

    /// A heartbeat was acknowledged: every fence moves on.
    pub(crate) fn lease_acknowledged(&self, seq: u64) {
        let (confirmed_ns, session, waits) = {
            let mut state = self.state.lock();
            let Some(confirmed_ns) = state.leases.acknowledged(seq) else { return };
            let Some(session) = state.session else { return };
            (confirmed_ns, session, state.waits_for_lease)
        };
        for (key, task) in self.config.executor.observe() {
            // A task from before the node was fenced is dead to the control plane: its fence stays where it is.
            if task.is_live() && task.node_epoch == session.node_epoch {
                let deadline_ns = fence::deadline_ns(confirmed_ns, task.spec.disconnect_grace_s);
                self.config.executor.push_deadline(key, deadline_ns);
            }
        }
        if waits {
            self.replan.notify_one();
        }
    }

    /// A task state arrived. What is over and acknowledged can be forgotten now.
    pub(crate) fn reports_acknowledged(&self, seq: u64) {
        if self.state.lock().reports.acknowledged(seq) {
            self.replan.notify_one();
        }
    }

    /// Usage was counted up to `mark`; whatever comes after it is to be sent, again or for the first time.
    pub(crate) fn usage_acknowledged(&self, incarnation: u64, mark: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.meter.counted(incarnation, mark);
        if state.meter.incarnation() == Some(incarnation)
            && let Some(session) = &mut state.session
        {
            session.usage_after = mark;
            session.usage_since_ns = None;
            // An acknowledgement may be late, and of an earlier mark; several in a row are not.
            session.usage_gaps = if state.meter.lacks_what_follows(mark) { session.usage_gaps + 1 } else { 0 };
            if session.usage_gaps >= USAGE_GAPS_MAX {
                session.usage_gaps = 0;
                state.meter.leave();
                // The next message is refused, and the next session begins with a new stream.
                state.usage_stored.0 = state.meter.incarnation();
            }
        }
    }

    /// What waited too long for an acknowledgement is to be sent again.
    pub(crate) fn expire(&self) {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        state.reports.expire(now_ns);
        if let Some(session) = &mut state.session
            && session.usage_since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= USAGE_AGAIN_NS)
        {
            session.usage_after = 0;
            session.usage_since_ns = None;
        }
    }

    /// The next thing to send: cards before states, states before usage.
    pub(crate) fn next_outgoing(&self) -> Option<v1::AgentMessage> {
        let now_ns = self.now_ns();
        let withheld = self.withheld();
        let mut state = self.state.lock();
        let session = state.session?;
        if state.cards_told.as_ref() != Some(&withheld) {
            let report = v1::CardReport { withheld: withheld.iter().map(Into::into).collect() };
            state.cards_told = Some(withheld);
            return Some(wire::message(Message::Cards(report)));
        }
        let proofs = self.config.proofs.borrow();
        if state.proofs_told != *proofs {
            state.proofs_told.clone_from(&proofs);
            return Some(wire::proofs(&proofs));
        }
        drop(proofs);
        if !state.links_told
            && let Some(links) = state.links.clone()
        {
            state.links_told = true;
            return Some(wire::message(Message::Links((&links).into())));
        }
        if let Some((seq, batch)) = state.reports.next_batch(now_ns) {
            for report in &batch {
                tracing::trace!(target: timeline::TARGET, step = "report_sent", allocation = report.key.allocation.0);
            }
            let wall_ms = self.host.clock.wall_ms();
            let at = |then_ns: u64| wall_ms.saturating_sub(now_ns.saturating_sub(then_ns) / 1_000_000);
            return Some(wire::reports(seq, &batch, at));
        }
        if session.usage_since_ns.is_some() {
            return None;
        }
        let (stored_stream, stored) = state.usage_stored;
        let (incarnation, intervals) = state.meter.batch(session.usage_after, stored)?;
        if stored_stream != Some(incarnation) {
            return None;
        }
        state.session = Some(Session { usage_since_ns: Some(now_ns), ..session });
        let intervals = intervals.iter().map(Into::into).collect();
        Some(wire::message(Message::Usage(v1::UsageReport { incarnation, intervals })))
    }
}

//! Starting and stopping an agent. Many may live in one process, each with a host of its own.

use crate::config::{AgentConfig, AgentError};
use crate::reconcile::Reconciler;
use crate::session;
use crate::shared::Shared;
use crate::telemetry::Telemetry;
use muster_model::ids::{Epoch, NodeId};
use muster_model::node::Withheld;
use muster_node_core::Stamp;
use muster_runtime::Host;
use muster_runtime::pki::Role;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// An agent at work. Dropping it stops the agent; its tasks go on under their shims until their fences.
pub struct Agent {
    shared: Arc<Shared>,
    running: Vec<JoinHandle<()>>,
}

/// How an agent stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentStatus {
    /// It has given up; [`Agent::stop`] says why.
    pub failed: bool,
    /// The node's id and epoch, while a session is up.
    pub session: Option<(NodeId, Epoch)>,
    /// The highest desired state it has taken, now or in an earlier life.
    pub stamp: Option<Stamp>,
    /// Tasks on record that are not over.
    pub live_tasks: usize,
    /// Usage intervals that wait to be counted.
    pub usage_pending: usize,
    /// What takes no new work, and why.
    pub withheld: Vec<Withheld>,
}

impl Agent {
    /// Takes over what runs on the node and begins to talk with the control plane.
    ///
    /// # Errors
    /// When there is no endpoint, the agent is to show credentials and has none, another agent has the data folder or serves the node on this host, or the node's own records, tasks
    /// or cards cannot be read.
    pub async fn start(host: Host, config: AgentConfig) -> Result<Agent, AgentError> {
        if config.endpoints.is_empty() {
            return Err(AgentError::NoEndpoint);
        }
        host.prepare(config.transport, &Role::Node(config.spec.name.clone()), None)?;
        let gpus = config.gpus.cards().await?;
        let mut spec = config.spec.clone();
        if spec.gpus.is_empty() {
            spec.gpus.clone_from(&gpus);
        }
        // First, because it locks the folder in which all the rest lies.
        let replan = Arc::new(Notify::new());
        config.executor.attach(&host, replan.clone()).await?;
        let shared = Arc::new(Shared::open(host, config, spec, gpus, replan).await?);
        if let Some(cluster) = shared.cluster() {
            shared.claim(cluster).await?;
        }
        let reconciler = Reconciler::new(shared.clone());
        let mut running = vec![
            shared.host.spawn(reconciler.run()),
            shared.host.spawn(session::run(shared.clone())),
            spawn_until_stopped(&shared, shared.health.clone().run()),
            spawn_until_stopped(&shared, shared.cleaner.clone().run()),
        ];
        let (host, config) = (shared.host.clone(), &shared.config);
        let renewing = muster_enrolment::keep_renewed(host, config.endpoints.clone(), config.transport);
        running.push(spawn_until_stopped(&shared, async move {
            renewing.await;
            Ok(())
        }));
        let telling = shared.clone();
        let tell_proofs = async move {
            telling.tell_proofs().await;
            Ok(())
        };
        running.push(spawn_until_stopped(&shared, tell_proofs));
        // Simulated cards have no readings and no telemetry, and so no tasks for them.
        if shared.config.gpus.readings_every().is_some() {
            let reader = shared.clone();
            running.push(spawn_until_stopped(&shared, async move { reader.health.run_readings().await }));
            let finding = shared.clone();
            running.push(shared.host.spawn(async move { finding.find_links().await }));
        }
        if let Some(every) = shared.telemetry.every() {
            let telemetry = shared.telemetry.clone();
            let sample = async move {
                telemetry.run(every).await;
                Ok(())
            };
            running.push(spawn_until_stopped(&shared, sample));
        }
        Ok(Agent { shared, running })
    }

    /// How it stands now.
    #[must_use]
    pub fn status(&self) -> AgentStatus {
        let live_tasks = self.shared.config.executor.observe().values().filter(|task| task.is_live()).count();
        let withheld = self.shared.withheld();
        let state = self.shared.state.lock();
        AgentStatus {
            failed: state.failure.is_some(),
            session: state.session.map(|session| (session.node, session.node_epoch)),
            stamp: state.identity.gate.highest(),
            live_tasks,
            usage_pending: state.meter.pending(),
            withheld,
        }
    }

    /// Telemetry of its cards.
    #[must_use]
    pub fn telemetry(&self) -> Arc<Telemetry> {
        self.shared.telemetry.clone()
    }

    /// Ready when the agent has given up or was stopped.
    pub async fn stopped(&self) {
        self.shared.stop.cancelled().await;
    }

    /// Stops the agent. Its tasks go on, as after a crash: the next agent of the node takes them over.
    ///
    /// # Errors
    /// When it had given up before, why.
    pub async fn stop(mut self) -> Result<(), AgentError> {
        self.shared.stop.cancel();
        for task in self.running.drain(..) {
            // A task that was aborted with its host is stopped too.
            let _ = task.await;
        }
        self.shared.state.lock().failure.take().map_or(Ok(()), Err)
    }
}

/// Runs `work` until the agent is stopped; the agent gives up when it fails.
fn spawn_until_stopped(
    shared: &Arc<Shared>,
    work: impl Future<Output = Result<(), AgentError>> + Send + 'static,
) -> JoinHandle<()> {
    let shared = shared.clone();
    shared.host.clone().spawn(async move {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => {}
            ended = work => {
                if let Err(error) = ended {
                    shared.fail(error);
                }
            }
        }
    })
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

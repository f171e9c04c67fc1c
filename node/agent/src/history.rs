//! Which history of the cluster the agent serves, and how far it has come in it: a restore from a backup begins a new one.
//!
//! What must stay true: nothing that is older than what was taken before is taken, also after a crash; a history that the agent has not served yet is
//! told everything that the agent runs before it says what to run.

use crate::config::AgentError;
use crate::shared::Shared;
use muster_enrolment::Sessions;
use muster_model::HeldTask;
use muster_model::ids::{Epoch, Revision};
use muster_model::object::FIRST_INCARNATION;
use muster_node_core::{StaleStamp, Stamp};
use muster_proto::v1;
use std::time::Duration;

/// The stamp on disk is not older than this by much: a control plane that was put back to old disks is then found out after a
/// crash of the agent too.
const STAMP_AGE_MAX: Duration = Duration::from_secs(10);

impl Shared {
    /// The history that the agent serves, where this one is an earlier one: a control node of before a restore, which does not know that it is over.
    pub(crate) fn serves_later_than(&self, incarnation: u64) -> Option<u64> {
        let own = self.state.lock().identity.gate.highest().map(|stamp| stamp.incarnation);
        own.filter(|own| *own > incarnation)
    }

    /// Whether the agent has not served this history of its cluster.
    fn is_new_history(&self, incarnation: u64) -> bool {
        self.state.lock().identity.gate.highest().map(|stamp| stamp.incarnation) != Some(incarnation)
    }

    /// All that runs here, or has yet to be reported, for a history that may not know it. Nothing more is started until one that the agent has not served says
    /// what to run: it would be missing from the list.
    pub(crate) fn held(&self, incarnation: u64) -> Option<v1::HeldTasks> {
        let is_new = self.is_new_history(incarnation);
        (is_new || incarnation > FIRST_INCARNATION).then(|| {
            let _acting = self.acting.lock();
            if is_new {
                self.state.lock().desired = None;
            }
            let tasks = self.config.executor.observe();
            let held = tasks.iter().map(|(key, task)| HeldTask {
                allocation: key.allocation,
                rank: key.rank,
                job: task.spec.job,
                node_epoch: task.node_epoch,
                disconnect_grace_s: task.spec.disconnect_grace_s,
            });
            v1::HeldTasks { tasks: held.map(|task| (&task).into()).collect() }
        })
    }

    /// A session begins: nothing that is older than its join is taken from now on, also after a crash. A control plane that has gone back
    /// behind what was taken before lowers nothing: its desired states are refused one by one.
    pub(crate) async fn enter_session(&self, welcome: &v1::Welcome) -> Result<(), AgentError> {
        if self.config.transport.has_credentials() {
            Sessions(&self.host).begun(welcome.generation).await?;
        }
        let floor = Stamp {
            incarnation: welcome.cluster_incarnation,
            revision: Revision(welcome.revision),
            node_epoch: Epoch(welcome.node_epoch),
        };
        let mut identity = self.state.lock().identity;
        // What an earlier history has acknowledged, this one may not know.
        if self.is_new_history(welcome.cluster_incarnation) {
            self.state.lock().reports.new_history();
        }
        // A control node of an earlier version says no revision.
        if welcome.revision == 0 || !identity.gate.take(floor).unwrap_or(false) {
            return Ok(());
        }
        self.store_identity(identity).await
    }

    /// Takes the stamp of a desired state; on disk, where it must be, when this returns. Says why it may not be taken.
    pub(crate) async fn take_stamp(&self, stamp: Stamp) -> Result<Result<(), StaleStamp>, AgentError> {
        let (mut identity, (stored, since), has_floor) = {
            let state = self.state.lock();
            (state.identity, state.stored_gate, state.session.is_some_and(|session| session.has_floor))
        };
        match identity.gate.take(stamp) {
            Err(stale) => return Ok(Err(stale)),
            Ok(false) => return Ok(Ok(())),
            Ok(true) => {}
        }
        if !has_floor || identity.gate.must_store(&stored) || since.elapsed() >= STAMP_AGE_MAX {
            self.store_identity(identity).await?;
        } else {
            self.state.lock().identity = identity;
        }
        Ok(Ok(()))
    }
}

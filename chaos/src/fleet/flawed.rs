//! Planted bugs of a host: tasks without a fence, so that what control gives away still runs; and an agent that claims its host without
//! ending what an agent before it has left there.

use futures::FutureExt;
use futures::future::BoxFuture;
use muster_agent::exec::virtual_::VirtualMachine;
use muster_agent::exec::{ExecError, Executor, Fault, Launch, LogError, LogSlice, Owner, Stream};
use muster_model::ids::Epoch;
use muster_model::{Stop, TaskState, World};
use muster_node_core::{ObservedTask, TaskKey, TaskSpec};
use muster_runtime::Host;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::Notify;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Deadlines are not kept.
    NoFences,
    /// What runs without a record is left alone.
    StraysLive,
}

/// The machine below, but for its flaw.
pub(super) struct Flawed {
    pub(super) machine: VirtualMachine,
    pub(super) flaw: Flaw,
}

impl Executor for Flawed {
    fn attach(&self, host: &Host, changed: Arc<Notify>) -> BoxFuture<'_, Result<(), ExecError>> {
        self.machine.attach(host, changed)
    }

    fn claim(&self, owner: Owner) -> BoxFuture<'_, Result<BTreeSet<TaskKey>, ExecError>> {
        match self.flaw {
            Flaw::NoFences => self.machine.claim(owner),
            Flaw::StraysLive => std::future::ready(Ok(BTreeSet::new())).boxed(),
        }
    }

    fn start(&self, launch: Launch) {
        let deadline_ns = if self.flaw == Flaw::NoFences { u64::MAX } else { launch.deadline_ns };
        self.machine.start(Launch { deadline_ns, ..launch });
    }

    fn record_over(&self, spec: Arc<TaskSpec>, node_epoch: Epoch, state: TaskState) {
        self.machine.record_over(spec, node_epoch, state);
    }

    fn stop(&self, key: TaskKey, how: Stop) {
        self.machine.stop(key, how);
    }

    fn kill(&self, key: TaskKey) {
        self.machine.kill(key);
    }

    fn fault(&self, key: TaskKey, fault: Fault) {
        self.machine.fault(key, fault);
    }

    fn task_of(&self, pid: u32) -> Option<TaskKey> {
        self.machine.task_of(pid)
    }

    fn set_time_limit(&self, key: TaskKey, limit_s: Option<u64>) {
        self.machine.set_time_limit(key, limit_s);
    }

    fn set_world(&self, key: TaskKey, world: World) {
        self.machine.set_world(key, world);
    }

    fn push_deadline(&self, key: TaskKey, deadline_ns: u64) {
        self.machine.push_deadline(key, deadline_ns);
    }

    fn observe(&self) -> BTreeMap<TaskKey, ObservedTask> {
        self.machine.observe()
    }

    fn forget(&self, key: TaskKey) {
        self.machine.forget(key);
    }

    fn read_log(
        &self,
        key: TaskKey,
        stream: Stream,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'static, Result<LogSlice, LogError>> {
        self.machine.read_log(key, stream, offset, bytes_max)
    }
}

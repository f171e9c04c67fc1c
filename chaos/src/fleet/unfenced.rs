//! A planted bug: tasks without a fence. What control gives away when a node's fence has passed still runs there.

use futures::future::BoxFuture;
use muster_agent::exec::virtual_::VirtualMachine;
use muster_agent::exec::{ExecError, Executor, Launch, LogError, LogSlice, Owner, Stream};
use muster_model::TaskState;
use muster_model::ids::Epoch;
use muster_node_core::{ObservedTask, TaskKey, TaskSpec};
use muster_runtime::Host;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::Notify;

/// The machine below, but for the deadlines.
pub(super) struct Unfenced(pub(super) VirtualMachine);

impl Executor for Unfenced {
    fn attach(&self, host: &Host, changed: Arc<Notify>) -> BoxFuture<'_, Result<(), ExecError>> {
        self.0.attach(host, changed)
    }

    fn claim(&self, owner: Owner) -> BoxFuture<'_, Result<BTreeSet<TaskKey>, ExecError>> {
        self.0.claim(owner)
    }

    fn start(&self, launch: Launch) {
        self.0.start(Launch { deadline_ns: u64::MAX, ..launch });
    }

    fn record_over(&self, spec: Arc<TaskSpec>, node_epoch: Epoch, state: TaskState) {
        self.0.record_over(spec, node_epoch, state);
    }

    fn stop(&self, key: TaskKey) {
        self.0.stop(key);
    }

    fn kill(&self, key: TaskKey) {
        self.0.kill(key);
    }

    fn push_deadline(&self, _: TaskKey, _: u64) {}

    fn observe(&self) -> BTreeMap<TaskKey, ObservedTask> {
        self.0.observe()
    }

    fn forget(&self, key: TaskKey) {
        self.0.forget(key);
    }

    fn read_log(
        &self,
        key: TaskKey,
        stream: Stream,
        offset: u64,
        bytes_max: usize,
    ) -> BoxFuture<'static, Result<LogSlice, LogError>> {
        self.0.read_log(key, stream, offset, bytes_max)
    }
}

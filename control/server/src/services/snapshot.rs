//! The state as schedulers see it, at one revision.
//!
//! Objects are shared with the state where they can be, so that the state is held only while they are counted, and converted
//! afterwards, part by part.

use muster_control_core::State;
use muster_model::{
    Allocation, Cell, Job, MoveRecord, Node, Object, Pool, PriorityClass, Revision, Tenant, UseHistory, Window,
};
use std::sync::Arc;

/// What a snapshot consists of.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) revision: Revision,
    pub(crate) now_ms: u64,
    tenants: Vec<Tenant>,
    pools: Vec<Pool>,
    priority_classes: Vec<PriorityClass>,
    moves: Vec<MoveRecord>,
    use_histories: Vec<UseHistory>,
    cells: Vec<Cell>,
    nodes: Vec<Arc<Node>>,
    windows: Vec<Window>,
    jobs: Vec<Arc<Job>>,
    allocations: Vec<Arc<Allocation>>,
}

impl Snapshot {
    pub(crate) fn take(state: &State, revision: Revision) -> Self {
        Snapshot {
            revision,
            now_ms: state.meta.now_ms,
            tenants: state.tenants.values().cloned().collect(),
            pools: state.pools.values().cloned().collect(),
            priority_classes: state.priority_classes.values().cloned().collect(),
            moves: state.moves.values().cloned().collect(),
            use_histories: state.use_histories.values().cloned().collect(),
            cells: state.cells.values().cloned().collect(),
            nodes: state.nodes.values().map(Arc::clone).collect(),
            windows: state.windows.values().cloned().collect(),
            jobs: state.jobs.values().map(Arc::clone).collect(),
            allocations: state.allocations.values().map(Arc::clone).collect(),
        }
    }

    /// What is referred to comes before what refers to it.
    pub(crate) fn objects(self) -> impl Iterator<Item = Object> + Send {
        let tenants = self.tenants.into_iter().map(Object::Tenant);
        let pools = self.pools.into_iter().map(Object::Pool);
        let classes = self.priority_classes.into_iter().map(Object::PriorityClass);
        let moves = self.moves.into_iter().map(Object::Move);
        let histories = self.use_histories.into_iter().map(Object::UseHistory);
        let cells = self.cells.into_iter().map(Object::Cell);
        let nodes = self.nodes.into_iter().map(|node| Object::Node(Node::clone(&node)));
        let windows = self.windows.into_iter().map(Object::Window);
        let jobs = self.jobs.into_iter().map(|job| Object::Job(Job::clone(&job)));
        let allocations = self.allocations.into_iter().map(|held| Object::Allocation(Allocation::clone(&held)));
        let before = tenants.chain(pools).chain(classes).chain(moves).chain(histories).chain(cells);
        before.chain(nodes).chain(windows).chain(jobs).chain(allocations)
    }
}

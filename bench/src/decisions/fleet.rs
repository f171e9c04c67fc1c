//! The fleet, the tenants and the jobs that decisions are measured on.

use anyhow::{Context, Result};
use muster_model::Binding;
use muster_model::ids::{AllocationId, CellId, Epoch, JobId, NodeId, TenantId};
use muster_model::node::NodeSpec;
use muster_model::request::TaskRequest;
use muster_model::{
    Allocation, Cell, Change, DeviceRequest, Gpu, GpuModel, Job, JobPhase, JobSpec, Node, Object, Tenant, ValidJobSpec,
};
use muster_scheduler_core::View;
use rand::Rng;

/// The one cell.
pub(crate) const CELL: CellId = CellId(1);
/// Tenants that submit, side by side.
pub(crate) const TENANTS: u32 = 300;
/// Cards of a node.
pub(crate) const CARDS: u32 = 8;

/// Who submits: teams side by side, and users below them who submit in their place.
#[derive(Clone, Copy, Debug)]
pub struct Tenants {
    /// Tenants at the top of the tree, at least one.
    pub teams: u32,
    /// Tenants below the teams, in equal numbers; none: the teams submit themselves.
    pub users: u32,
}

impl Default for Tenants {
    fn default() -> Self {
        Tenants { teams: TENANTS, users: 0 }
    }
}

impl Tenants {
    /// One of those that submit.
    pub(crate) fn any(self, chance: &mut impl Rng) -> TenantId {
        match self.users {
            0 => TenantId(chance.gen_range(1..=self.teams)),
            users => TenantId(self.teams + chance.gen_range(1..=users)),
        }
    }

    /// An id that none of them has.
    pub(crate) fn unused(self) -> TenantId {
        TenantId(self.teams + self.users + 1)
    }

    /// For the text of a row: nothing where only teams submit.
    pub(crate) fn in_words(self) -> String {
        match self.users {
            0 => String::new(),
            users => format!(", {users} users of {} teams", self.teams),
        }
    }

    fn all(self) -> impl Iterator<Item = Tenant> {
        let teams = (1..=self.teams).map(|id| Tenant::usual(TenantId(id), &format!("t{id}")));
        let users = (0..self.users).map(move |user| {
            let team = TenantId(1 + user % self.teams);
            let path = format!("t{team}/u{user}");
            Tenant { parent: Some(team), ..Tenant::usual(TenantId(self.teams + 1 + user), &path) }
        });
        teams.chain(users)
    }
}

/// A view of `nodes` empty nodes.
pub(crate) fn view(nodes: u32) -> View {
    view_of(nodes, Tenants::default())
}

/// The same with these tenants.
pub(crate) fn view_of(nodes: u32, tenants: Tenants) -> View {
    let mut view = View::default();
    for tenant in tenants.all() {
        view.absorb(Change::put(Object::Tenant(tenant)));
    }
    let cell = Cell { id: CELL, name: "cell".into(), epoch: Epoch(1), holder: Some("bench".into()) };
    view.absorb(Change::put(Object::Cell(cell)));
    for id in 1..=nodes {
        view.absorb(Change::put(Object::Node(node(id))));
    }
    view
}

/// A job of `tasks` tasks.
pub(crate) fn spec(tasks: u32, devices: DeviceRequest) -> Result<ValidJobSpec> {
    spec_of(tasks, TaskRequest { devices, cpu_milli: 1_000, memory_mib: 4_096 })
}

/// The same with its own host share.
pub(crate) fn spec_of(tasks: u32, request: TaskRequest) -> Result<ValidJobSpec> {
    let spec = JobSpec { name: "measured".to_owned(), tasks, ..JobSpec::usual("bench", request, &["true"]) };
    spec.validate().ok().context("the mix is valid")
}

/// Leaves of eight nodes, blocks of sixteen leaves.
pub(crate) fn node(id: u32) -> Node {
    let name = format!("n{id}");
    let gpu = |index| Gpu { numa: (index / 4) as u8, ..Gpu::usual(&name, index, GpuModel::H100) };
    let mut spec = NodeSpec::usual(&name, (0..CARDS).map(gpu).collect());
    spec.place.block = format!("b{}", id / 128);
    spec.place.leaf = format!("l{}", id / 8);
    (spec.cpu_milli, spec.memory_mib) = (128_000, 1_048_576);
    Node::usual(NodeId(id), CELL, spec)
}

/// A job that waits.
pub(crate) fn job(id: JobId, tenant: TenantId, spec: ValidJobSpec) -> Job {
    Job { cell: Some(CELL), visited: [CELL].into(), submitted_ms: id.0, ..Job::usual(id, tenant, spec) }
}

/// What the control plane would commit of a binding: the allocation, its tasks running, and the job as it is then.
pub(crate) fn committed(mut job: Job, binding: Binding, id: AllocationId) -> (Allocation, Job) {
    let request = &job.spec.request;
    let charge = job.spec.charge_on(binding.model.unwrap_or(GpuModel::H100));
    let allocation = Allocation {
        attempt: binding.attempt,
        cell: CELL,
        model: binding.model,
        cpu_milli: request.cpu_milli,
        memory_mib: request.memory_mib,
        charge,
        ..Allocation::usual(id, job.id, job.tenant, binding.tasks)
    };
    job.phase = JobPhase::Running(id);
    job.attempt = binding.attempt;
    (allocation, job)
}

//! The fleet, the tenants and the jobs that decisions are measured on.

use anyhow::{Context, Result};
use muster_model::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, TenantId};
use muster_model::request::TaskRequest;
use muster_model::{
    Allocation, AllocationState, Cell, Change, DeviceRequest, Gpu, GpuModel, Job, JobPhase, JobSpec, Limits, Node,
    NodeHealth, Object, Place, ResourceVec, TaskState, Tenant, Trust, ValidJobSpec,
};
use muster_scheduler_core::{Binding, View};
use std::collections::BTreeMap;

/// The one cell.
pub(crate) const CELL: CellId = CellId(1);
/// Tenants that submit, side by side.
pub(crate) const TENANTS: u32 = 300;
/// Cards of a node.
pub(crate) const CARDS: u32 = 8;

/// A view of `nodes` empty nodes.
pub(crate) fn view(nodes: u32) -> View {
    let mut view = View::default();
    for id in 1..=TENANTS {
        view.absorb(Change::put(Object::Tenant(tenant(id))));
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

fn tenant(id: u32) -> Tenant {
    Tenant {
        id: TenantId(id),
        path: format!("t{id}"),
        parent: None,
        guarantee: ResourceVec::default(),
        max: Limits::default(),
        weight: 1,
        trust: Trust::Trusted,
        apart_from: Vec::new(),
    }
}

/// Leaves of eight nodes, blocks of sixteen leaves.
pub(crate) fn node(id: u32) -> Node {
    let gpu = |index: u32| Gpu {
        uuid: format!("GPU-{id}-{index}"),
        model: GpuModel::H100,
        memory_mib: GpuModel::H100.memory_mib(),
        numa: (index / 4) as u8,
        island: 0,
        withheld: None,
    };
    Node {
        id: NodeId(id),
        spec: muster_model::node::NodeSpec {
            name: format!("n{id}"),
            address: "127.0.0.1".into(),
            place: Place {
                region: "r".into(),
                zone: "z".into(),
                block: format!("b{}", id / 128),
                leaf: format!("l{}", id / 8),
                nvlink_domain: String::new(),
            },
            cell: "cell".into(),
            pool: "default".into(),
            gpus: (0..CARDS).map(gpu).collect(),
            cpu_milli: 128_000,
            memory_mib: 1_048_576,
            driver: "570.00".into(),
            labels: BTreeMap::new(),
            boot_id: "b".into(),
        },
        cell: CELL,
        epoch: Epoch(1),
        health: NodeHealth::Ready,
        drained: false,
        notes: Default::default(),
    }
}

/// A job that waits.
pub(crate) fn job(id: JobId, tenant: TenantId, spec: ValidJobSpec) -> Job {
    Job {
        id,
        tenant,
        spec,
        phase: JobPhase::Queued,
        attempt: Attempt(0),
        failures: 0,
        cancelled: false,
        cell: Some(CELL),
        visited: [CELL].into(),
        routed_ms: 0,
        submitted_ms: id.0,
        bound_ms: None,
        started_ms: None,
        finished_ms: None,
        nodes: Vec::new(),
        requeue_reason: None,
        reserved: None,
        bypassed_cards: 0,
        attempts: Vec::new(),
        start_faults: 0,
        last_allocation: None,
    }
}

/// What the control plane would commit of a binding: the allocation, its tasks running, and the job as it is then.
pub(crate) fn committed(mut job: Job, binding: Binding, id: AllocationId) -> (Allocation, Job) {
    let request = &job.spec.request;
    let allocation = Allocation {
        id,
        job: job.id,
        attempt: binding.attempt,
        tenant: job.tenant,
        cell: CELL,
        cell_epoch: Epoch(1),
        model: binding.model,
        cpu_milli: request.cpu_milli,
        memory_mib: request.memory_mib,
        charge: job.spec.charge_on(binding.model.unwrap_or(GpuModel::H100)),
        task_states: vec![TaskState::Running; binding.tasks.len()],
        tasks: binding.tasks,
        node_epochs: BTreeMap::new(),
        state: AllocationState::Active,
        bound_ms: 0,
        failures: Vec::new(),
    };
    job.phase = JobPhase::Running(id);
    job.attempt = binding.attempt;
    (allocation, job)
}

//! Objects as most of them are: for simulations, benchmarks and tests, which change the fields that matter to them.
//!
//! What must stay true: what is made here is valid; a field that is added to an object gets its usual value here, once.

use crate::allocation::{Allocation, AllocationState};
use crate::gpu::GpuModel;
use crate::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, TenantId};
use crate::job::{Job, JobPhase, ValidJobSpec};
use crate::node::{Gpu, Node, NodeHealth, NodeSpec, Place, Repair};
use crate::resources::{Limits, ResourceVec};
use crate::task::{TaskPlacement, TaskState};
use crate::tenant::{Tenant, Trust};
use std::collections::BTreeMap;

impl Gpu {
    /// Card `index` of the node `of`: the only NUMA node, the only island, nothing wrong with it.
    #[must_use]
    pub fn usual(of: &str, index: u32, model: GpuModel) -> Self {
        Gpu {
            uuid: format!("GPU-{of}-{index}"),
            model,
            memory_mib: model.memory_mib(),
            numa: 0,
            island: 0,
            withheld: None,
            withheld_slices: Vec::new(),
            repair: Repair::Wait,
        }
    }

    /// `count` cards of the node `of`.
    #[must_use]
    pub fn usual_cards(of: &str, count: u32, model: GpuModel) -> Vec<Self> {
        (0..count).map(|index| Gpu::usual(of, index, model)).collect()
    }
}

impl NodeSpec {
    /// A node of the default pool with CPU and memory for eight cards, on the only leaf of its network.
    #[must_use]
    pub fn usual(name: &str, gpus: Vec<Gpu>) -> Self {
        let [region, zone, block, leaf] = ["region", "zone", "block", "leaf"].map(str::to_owned);
        NodeSpec {
            name: name.to_owned(),
            address: name.to_owned(),
            place: Place { region, zone, block, leaf, nvlink_domain: String::new() },
            cell: "cell-1".to_owned(),
            pool: "default".to_owned(),
            gpus,
            cpu_milli: 64_000,
            memory_mib: 512_000,
            driver: "570.00".to_owned(),
            labels: BTreeMap::new(),
            boot_id: "boot-1".to_owned(),
            proofs: Vec::new(),
        }
    }
}

impl Node {
    /// A node that has joined and takes work.
    #[must_use]
    pub fn usual(id: NodeId, cell: CellId, spec: NodeSpec) -> Self {
        Node { id, spec, cell, epoch: Epoch(1), health: NodeHealth::Ready, drained: false, notes: Default::default() }
    }
}

impl Tenant {
    /// A trusted tenant without guarantee and limits, at the top of the tree.
    #[must_use]
    pub fn usual(id: TenantId, path: &str) -> Self {
        Tenant {
            id,
            path: path.to_owned(),
            parent: None,
            guarantee: ResourceVec::default(),
            max: Limits::default(),
            weight: 1,
            trust: Trust::Trusted,
            anti_affinity: Vec::new(),
            lend: true,
            weights: BTreeMap::new(),
            lends: BTreeMap::new(),
            run_as: None,
        }
    }
}

impl Job {
    /// A job that waits in no cell yet.
    #[must_use]
    pub fn usual(id: JobId, tenant: TenantId, spec: ValidJobSpec) -> Self {
        Job {
            id,
            tenant,
            spec,
            phase: JobPhase::Queued,
            attempt: Attempt(0),
            failures: 0,
            cancelled: false,
            cell: None,
            visited: Default::default(),
            routed_ms: 0,
            submitted_ms: 0,
            bound_ms: None,
            started_ms: None,
            finished_ms: None,
            nodes: Vec::new(),
            last_allocation: None,
            requeue_reason: None,
            reserved: None,
            bypassed_cards: 0,
            attempts: Vec::new(),
            start_faults: 0,
            claim: None,
            preemptions: 0,
            checkpoint_ms: None,
            checkpoint_note: String::new(),
            requeue_asked: false,
            unmet: Default::default(),
            array: None,
            array_task: None,
            preemptor: crate::priority_class::Preemptor::default(),
            moving: None,
            growth: crate::elastic::Growth::default(),
        }
    }
}

impl Allocation {
    /// The first attempt of a job that nothing is charged for, its tasks running.
    #[must_use]
    pub fn usual(id: AllocationId, job: JobId, tenant: TenantId, tasks: Vec<TaskPlacement>) -> Self {
        Allocation {
            id,
            job,
            attempt: Attempt(1),
            tenant,
            cell: CellId(1),
            cell_epoch: Epoch(1),
            model: None,
            cpu_milli: 1,
            memory_mib: 1,
            charge: ResourceVec::default(),
            task_states: vec![TaskState::Running; tasks.len()],
            tasks,
            node_epochs: BTreeMap::new(),
            state: AllocationState::Active,
            bound_ms: 0,
            failures: Vec::new(),
            classes: Default::default(),
            priority: 0,
            submitted_ms: 0,
            is_growth: false,
            cleaning: Default::default(),
            cleaned_ms: 0,
            topology: Default::default(),
            ports: Default::default(),
        }
    }
}

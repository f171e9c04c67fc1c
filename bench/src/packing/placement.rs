//! The experiment decided by what a shard decides by: the view, the queue and the placement of whole cards and shares, not the
//! scorer of fractions alone.
//!
//! A fraction is an MPS share of so many percent and next to no card memory, a pod without cards wants CPU only; every kind of card
//! stands for a model of ours. What must stay true: the shard knows what has come and nothing else; a pod that is not bound at once
//! has failed and is gone.

use super::trace::Node as Given;
use crate::decisions::fleet::{self, CELL};
use anyhow::{Context, Result, ensure};
use muster_model::capacity::MPS_CLIENTS_MAX;
use muster_model::ids::{AllocationId, JobId, TenantId};
use muster_model::request::TaskRequest;
use muster_model::{Change, DeviceRequest, Gpu, GpuModel, Key, Node, Object, Pool, ValidJobSpec};
use muster_scheduler_core::fractions::{Demand, Kinds, Spot};
use muster_scheduler_core::{Bounds, Proposal, View, plan};

/// Card memory of a share: there is none in the experiment.
const SHARE_MEMORY_MIB: u64 = 1;
/// The one tenant that submits.
const TENANT: TenantId = TenantId(1);

/// A shard's view of the experiment's fleet.
pub(super) struct Placement {
    view: View,
    next: u64,
}

impl Placement {
    /// Over these nodes, empty, in this order.
    ///
    /// # Errors
    /// When they have more kinds of cards than there are models.
    pub(super) fn over<'a>(nodes: impl Iterator<Item = &'a Given>) -> Result<Self> {
        let mut view = fleet::view(0);
        let pool = Pool { mps_clients: MPS_CLIENTS_MAX, ..Pool::standard() };
        view.absorb(Change::put(Object::Pool(pool)));
        for (id, given) in (1..).zip(nodes) {
            view.absorb(Change::put(Object::Node(node(id, given)?)));
        }
        Ok(Placement { view, next: 0 })
    }

    /// Submits the pod and takes what one pass does with it.
    pub(super) fn decide(&mut self, demand: &Demand) -> Result<Option<Spot>> {
        if demand.kinds != Kinds::ANY && !(0..GpuModel::COUNT as u8).any(|kind| demand.kinds.admit(kind)) {
            return Ok(None);
        }
        self.next += 1;
        let job = fleet::job(JobId(self.next), TENANT, spec(demand)?);
        self.view.absorb(Change::put(Object::Job(job.clone())));
        let found = plan(&mut self.view, CELL, &Bounds { proposals_max: 1, ..Bounds::default() }, self.next);
        let Some(Proposal::Bind(binding)) = found.proposals.into_iter().next() else {
            self.view.absorb(Change::Delete(Key::Job(job.id)));
            return Ok(None);
        };
        let task = binding.tasks.first().context("a binding has a task")?;
        let spot = Spot { node: task.node.0 - 1, cards: task.devices.iter().map(|hold| hold.gpu).collect() };
        let (allocation, job) = fleet::committed(job, binding, AllocationId(self.next));
        self.view.absorb(Change::put(Object::Allocation(allocation)));
        self.view.absorb(Change::put(Object::Job(job)));
        Ok(Some(spot))
    }
}

fn model(kind: u8) -> Result<GpuModel> {
    GpuModel::ALL.get(usize::from(kind)).copied().context("more kinds of cards than models to stand for them")
}

fn spec(demand: &Demand) -> Result<ValidJobSpec> {
    let named = (0..).zip(GpuModel::ALL).filter(|(kind, _)| demand.kinds != Kinds::ANY && demand.kinds.admit(*kind));
    let models: Vec<GpuModel> = named.map(|(_, model)| model).collect();
    let devices = match (demand.cards, demand.milli) {
        (0, _) => DeviceRequest::None,
        (1, milli @ 1..=999) => {
            ensure!(milli % 10 == 0, "a share of {milli} milli-GPU is no whole percent");
            DeviceRequest::Mps { percent: (milli / 10) as u8, memory_mib: SHARE_MEMORY_MIB, models }
        }
        (count, _) => DeviceRequest::Whole { count: u32::from(count), models },
    };
    let request = TaskRequest { devices, cpu_milli: demand.cpu_milli, memory_mib: demand.memory_mib };
    fleet::spec_of(1, request)
}

fn node(id: u32, given: &Given) -> Result<Node> {
    let model = model(given.kind)?;
    let gpus = Gpu::usual_cards(&format!("n{id}"), given.cards.into(), model);
    let mut node = fleet::node(id);
    node.spec.gpus = gpus;
    node.spec.cpu_milli = given.cpu_milli;
    node.spec.memory_mib = given.memory_mib;
    Ok(node)
}

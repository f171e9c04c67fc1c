//! S1: decisions of one shard core, at 90 % occupancy with departures mixed in, over fleets of several sizes.
//!
//! One decision is: a job arrives, one pass of `plan` binds it, the binding is committed to the view. What leaves makes room for what
//! comes, so every decision is a success (a job that finds no room is dropped from the figure and counted apart). The time of a decision
//! is that of its pass; the rate counts everything the view does for it, departures included.

use crate::table::{self, Row};
use anyhow::{Context, Result};
use muster_model::ids::{AllocationId, Attempt, CellId, Epoch, JobId, NodeId, TenantId};
use muster_model::request::TaskRequest;
use muster_model::{
    Allocation, AllocationState, Cell, Change, DeviceRequest, Gpu, GpuModel, Job, JobPhase, JobSpec, Key, Limits, Node,
    NodeHealth, Object, Place, ResourceVec, TaskState, Tenant, Topology, Trust, ValidJobSpec, WorkloadClass,
};
use muster_scheduler_core::{Binding, Bounds, Proposal, View, plan};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::time::Instant;

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fleet sizes, in nodes of eight cards.
    pub nodes: Vec<u32>,
    /// Decisions measured at each size.
    pub decisions: u32,
    /// Seed of the mix.
    pub seed: u64,
}

const CELL: CellId = CellId(1);
const TENANTS: u32 = 300;
const OCCUPANCY_PERCENT: u64 = 90;

/// Runs every size and prints the table.
pub fn run(options: &Options, json: bool) -> Result<()> {
    let mut rows = Vec::new();
    for &nodes in &options.nodes {
        let found = measure(nodes, options.decisions, options.seed)?;
        let at = |share| found.nanos.get(((found.nanos.len() - 1) as f64 * share) as usize).map_or(0, |ns| *ns);
        let us = |ns: u64| format!("{:.1} µs", ns as f64 / 1e3);
        rows.push(Row::new(
            format!("S1 decisions, {nodes} nodes × 8 at {:.0} % held", found.held_share * 100.0),
            format!(
                "{:.0}/s; pass p50 {}, p99 {}, max {}; {} of {} found no room",
                found.per_second,
                us(at(0.5)),
                us(at(0.99)),
                us(at(1.0)),
                found.no_room,
                options.decisions
            ),
            "Slurm 22-28 jobs/s at 6,250 nodes; YuniKorn 204/s at 2,000; Nomad C1M 3,750/s on 5,000",
            ">= 100,000/s, p99 <= 100 µs, cost < 1.5x from 625 to 6,250 nodes",
        ));
    }
    table::print(
        "Scheduling decisions of one shard core (1-8 GPUs, MIG instances, MPS and time-slice shares)",
        &rows,
        json,
    )
}

struct Found {
    per_second: f64,
    nanos: Vec<u64>,
    no_room: u32,
    held_share: f64,
}

struct Bench {
    view: View,
    chance: ChaCha8Rng,
    live: Vec<AllocationId>,
    held: BTreeMap<AllocationId, (JobId, u64)>,
    held_units: u64,
    units: u64,
    next: u64,
    specs: Vec<ValidJobSpec>,
}

fn measure(nodes: u32, decisions: u32, seed: u64) -> Result<Found> {
    let mut bench = Bench::new(nodes, seed)?;
    while bench.held_units * 100 < bench.units * OCCUPANCY_PERCENT {
        bench.decide();
    }
    let mut nanos = Vec::with_capacity(decisions as usize);
    let mut no_room = 0;
    let begin = Instant::now();
    for _ in 0..decisions {
        while bench.held_units * 100 > bench.units * OCCUPANCY_PERCENT {
            bench.leave();
        }
        let (took, bound) = bench.decide();
        if bound { nanos.push(took) } else { no_room += 1 }
    }
    let elapsed = begin.elapsed().as_secs_f64();
    nanos.sort_unstable();
    anyhow::ensure!(!nanos.is_empty(), "nothing was bound");
    let held_share = bench.held_units as f64 / bench.units as f64;
    Ok(Found { per_second: nanos.len() as f64 / elapsed, nanos, no_room, held_share })
}

impl Bench {
    fn new(nodes: u32, seed: u64) -> Result<Self> {
        let mut view = View::default();
        for id in 1..=TENANTS {
            view.apply(&Change::put(Object::Tenant(tenant(id))));
        }
        let cell = Cell { id: CELL, name: "cell".into(), epoch: Epoch(1), holder: Some("bench".into()) };
        view.apply(&Change::put(Object::Cell(cell)));
        for id in 1..=nodes {
            view.apply(&Change::put(Object::Node(node(id))));
        }
        let specs = mix().into_iter().map(spec).collect::<Result<_>>()?;
        let chance = ChaCha8Rng::seed_from_u64(seed);
        let units = u64::from(nodes) * 8 * 7_000;
        Ok(Bench { view, chance, live: Vec::new(), held: BTreeMap::new(), held_units: 0, units, next: 0, specs })
    }

    /// A job arrives and is decided: nanoseconds of the pass, and whether it was bound.
    fn decide(&mut self) -> (u64, bool) {
        self.next += 1;
        let spec = self.specs.choose(&mut self.chance).expect("the mix is not empty").clone();
        let tenant = TenantId(self.chance.gen_range(1..=TENANTS));
        let job = job(JobId(self.next), tenant, spec);
        self.view.apply(&Change::put(Object::Job(job.clone())));
        let bounds = Bounds { proposals_max: 1, ..Bounds::default() };
        let begin = Instant::now();
        let found = plan(&mut self.view, CELL, &bounds, self.next);
        let took = begin.elapsed().as_nanos() as u64;
        match found.proposals.into_iter().next() {
            Some(Proposal::Bind(binding)) if binding.job == job.id => {
                self.commit(job, binding);
                (took, true)
            }
            _ => {
                self.view.apply(&Change::Delete(Key::Job(job.id)));
                (took, false)
            }
        }
    }

    fn commit(&mut self, mut job: Job, binding: Binding) {
        let id = AllocationId(self.next);
        let model = binding.model.unwrap_or(GpuModel::H100);
        let charge = job.spec.charge_on(model);
        let allocation = Allocation {
            id,
            job: job.id,
            attempt: binding.attempt,
            tenant: job.tenant,
            cell: CELL,
            cell_epoch: Epoch(1),
            model: binding.model,
            cpu_milli: job.spec.request.cpu_milli,
            memory_mib: job.spec.request.memory_mib,
            charge,
            task_states: vec![TaskState::Running; binding.tasks.len()],
            tasks: binding.tasks,
            node_epochs: BTreeMap::new(),
            state: AllocationState::Active,
            bound_ms: 0,
        };
        job.phase = JobPhase::Running(id);
        job.attempt = binding.attempt;
        let units = charge.gpu_total().0;
        self.held.insert(id, (job.id, units));
        self.live.push(id);
        self.held_units += units;
        self.view.apply(&Change::put(Object::Allocation(allocation)));
        self.view.apply(&Change::put(Object::Job(job)));
    }

    fn leave(&mut self) {
        let at = self.chance.gen_range(0..self.live.len());
        let id = self.live.swap_remove(at);
        let Some((job, units)) = self.held.remove(&id) else { return };
        self.held_units -= units;
        self.view.apply(&Change::Delete(Key::Allocation(id)));
        self.view.apply(&Change::Delete(Key::Job(job)));
    }
}

/// Equal parts of each: whole cards 1, 1, 1, 2, 4, 8; MIG 1g and 3g; an MPS share; a time-slice.
fn mix() -> Vec<DeviceRequest> {
    let whole = |count| DeviceRequest::Whole { count, models: Vec::new() };
    let mig = |profile: &str| DeviceRequest::Mig { profile: profile.to_owned(), models: Vec::new() };
    vec![
        whole(1),
        whole(1),
        whole(1),
        whole(2),
        whole(4),
        whole(8),
        mig("1g.10gb"),
        mig("3g.40gb"),
        DeviceRequest::Mps { percent: 25, memory_mib: 16_384, models: Vec::new() },
        DeviceRequest::TimeSlice { memory_mib: 16_384, models: Vec::new() },
    ]
}

fn spec(devices: DeviceRequest) -> Result<ValidJobSpec> {
    let spec = JobSpec {
        tenant: "bench".to_owned(),
        name: "s1".to_owned(),
        tasks: 1,
        request: TaskRequest { devices, cpu_milli: 1_000, memory_mib: 4_096 },
        topology: Topology::default(),
        numa: muster_model::NumaPolicy::None,
        driver_min: None,
        asked: muster_model::Asked::default(),
        class: WorkloadClass::Batch,
        pool: None,
        priority: 0,
        command: vec!["true".to_owned()],
        env: BTreeMap::new(),
        workdir: None,
        time_limit_s: None,
        grace_s: 30,
        disconnect_grace_s: 600,
        max_retries: 0,
    };
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
    }
}

/// Leaves of eight nodes, blocks of sixteen leaves.
fn node(id: u32) -> Node {
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
            },
            cell: "cell".into(),
            pool: "default".into(),
            gpus: (0..8).map(gpu).collect(),
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
    }
}

fn job(id: JobId, tenant: TenantId, spec: ValidJobSpec) -> Job {
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
        last_allocation: None,
    }
}

//! S3: how long a shard takes to find the victims for a large gang that a floor account covers, on a fleet full of burst work.
//!
//! Every card is held by jobs of one to eight cards of 300 tenants without a guarantee, bound at random times of the last day. A gang of a tenant with
//! a guarantee then comes to wait. Measured is the pass from its arrival to the proposal: order, search for victims, proof, restoring those that
//! are not needed. Each round begins with the same view and another gang.

use crate::decisions::Tenants;
use crate::decisions::fleet::{self, CARDS, CELL};
use crate::table::{Row, Table, percentile};
use anyhow::{Context, Result, ensure};
use muster_model::{
    Allocation, AllocationId, Attempt, Change, DeviceHold, DeviceRequest, GpuModel, GpuUnits, HoldMode, Job, JobId,
    JobPhase, NodeId, Object, ResourceVec, TaskPlacement, Tenant, TenantId, TopologyLevel,
};
use muster_scheduler_core::{Bounds, Proposal, View, plan};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::time::Instant;

const NOW_MS: u64 = 1_000_000_000_000;
const DAY_MS: u64 = 86_400_000;
/// Cards of the jobs that run: 30,000 jobs fill 50,000 cards.
const SIZES: [u32; 7] = [1, 1, 1, 1, 2, 2, 4];

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fleet sizes, in nodes of eight cards.
    pub nodes: Vec<u32>,
    /// Tasks of the gang, of eight cards each.
    pub tasks: u32,
    /// Gangs measured on each fleet.
    pub rounds: u32,
    /// Seed of what runs.
    pub seed: u64,
    /// Whose burst jobs run.
    pub tenants: Tenants,
}

/// Runs every size and gives the table.
///
/// # Errors
/// When the mix is refused, or no victims are found.
pub fn run(options: &Options) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    for &nodes in &options.nodes {
        let (view, running) = full(nodes, options.tenants, options.seed)?;
        for level in [None, Some(TopologyLevel::Block)] {
            rows.push(measure(&view, nodes, running, level, options)?);
        }
    }
    Ok(vec![Table::new("Victims for a gang that a floor account covers, on a fleet full of burst jobs", rows)])
}

fn measure(view: &View, nodes: u32, running: u64, level: Option<TopologyLevel>, options: &Options) -> Result<Row> {
    let (mut took_us, mut victims_of) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let mut view = view.clone();
        let spec = fleet::spec(options.tasks, DeviceRequest::Whole { count: CARDS, models: vec![GpuModel::H100] })?;
        let mut spec = muster_model::JobSpec::clone(&spec);
        spec.topology.required = level;
        let spec = spec.validate().ok().context("the gang is valid")?;
        let id = JobId(10_000_000 + u64::from(round));
        view.absorb(Change::put(Object::Job(fleet::job(id, options.tenants.unused(), spec))));
        let begin = Instant::now();
        let found = plan(&mut view, CELL, &Bounds::default(), NOW_MS);
        took_us.push(begin.elapsed().as_micros() as u64);
        let victims = found.proposals.iter().find_map(|proposal| match proposal {
            Proposal::Preempt { binding, victims } if binding.job == id => Some(victims.len()),
            _ => None,
        });
        ensure!(victims.is_some(), "no victims were found for a gang of {} tasks", options.tasks);
        victims_of.extend(victims);
    }
    took_us.sort_unstable();
    victims_of.sort_unstable();
    let ms = |share| percentile(&took_us, share) as f64 / 1_000.0;
    let (cards, most) = (options.tasks * CARDS, took_us.last().copied().unwrap_or_default() as f64 / 1_000.0);
    let block = if level.is_some() { ", in one block" } else { "" };
    let what = format!(
        "{cards}-GPU gang{block}: {nodes} nodes, {running} burst jobs{}, {} victims",
        options.tenants.in_words(),
        percentile(&victims_of, 0.5)
    );
    let measured = format!("p50 {:.1} ms, p90 {:.1}, max {most:.1}", ms(0.5), ms(0.9));
    Ok(Row::new(
        what,
        measured,
        "KAI: 9 s at 500 nodes, unfinished after 40 min at 1,000 (published)",
        "20 ms at 6,250 nodes",
    ))
}

/// A fleet whose every card is held, and the number of its jobs.
fn full(nodes: u32, tenants: Tenants, seed: u64) -> Result<(View, u64)> {
    let mut view = fleet::view_of(nodes, tenants);
    // The tenant that is guaranteed something.
    let owner = tenants.unused();
    let cards = u64::from(nodes) * u64::from(CARDS);
    let guarantee = ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(cards / 2));
    view.absorb(Change::put(Object::Tenant(Tenant { guarantee, ..Tenant::usual(owner, "owner") })));
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let mut next = 0;
    for node in 1..=nodes {
        let mut gpu = 0;
        while gpu < CARDS {
            let size = SIZES.choose(&mut chance).copied().unwrap_or(1).min(CARDS - gpu);
            next += 1;
            let devices = (gpu..gpu + size).map(|gpu| DeviceHold { gpu: gpu as u16, mode: HoldMode::Whole }).collect();
            let task = TaskPlacement { node: NodeId(node), devices };
            let tenant = tenants.any(&mut chance);
            let bound_ms = NOW_MS - chance.gen_range(0..DAY_MS);
            start(&mut view, (next, tenant), (size, task), bound_ms)?;
            gpu += size;
        }
    }
    Ok((view, next))
}

fn start(
    view: &mut View,
    (id, tenant): (u64, TenantId),
    (size, task): (u32, TaskPlacement),
    bound_ms: u64,
) -> Result<()> {
    let spec = fleet::spec(1, DeviceRequest::Whole { count: size, models: vec![GpuModel::H100] })?;
    let charge = spec.charge_on(GpuModel::H100);
    let (job, allocation) = (JobId(id), AllocationId(id));
    let held = Allocation {
        cell: CELL,
        model: Some(GpuModel::H100),
        cpu_milli: 1_000,
        memory_mib: 4_096,
        charge,
        bound_ms,
        ..Allocation::usual(allocation, job, tenant, vec![task])
    };
    let running = Job {
        phase: JobPhase::Running(allocation),
        attempt: Attempt(1),
        visited: BTreeSet::new(),
        ..fleet::job(job, tenant, spec)
    };
    view.absorb(Change::put(Object::Allocation(held)));
    view.absorb(Change::put(Object::Job(running)));
    Ok(())
}

//! Plans of moves on a full fleet whose free cards are scattered: what `muster plan` and `muster explain` cost.
//!
//! Every node has one or two cards free and holds jobs of one and two cards, three in four of which may be moved. Gangs of one island, of a leaf
//! and of a block wait, and MIG slices that no pool lets in.

use crate::decisions::fleet::{CARDS, CELL, TENANTS, job, spec, view};
use crate::table::{self, Row, Table};
use anyhow::{Result, ensure};
use muster_model::movable::Movable;
use muster_model::request::SharingMode;
use muster_model::{
    Allocation, AllocationId, Attempt, Change, DeviceHold, DeviceRequest, GpuModel, HoldMode, JobId, JobPhase, NodeId,
    Object, Pool, TaskPlacement, TenantId, TopologyLevel, ValidJobSpec,
};
use muster_scheduler_core::planner::{Settings, open_for, plan_moves};
use muster_scheduler_core::{View, starts_if_ended};
use std::time::Instant;

/// Trials of which the percentiles are.
const TRIALS: usize = 1_000;
/// Jobs have run for two hours.
const NOW_MS: u64 = 7_200_000;
/// Islands wanted; then leaves and blocks; then slices.
const WAITING: [u64; 4] = [20, 3, 1, 900];

/// Runs every size and gives the table.
///
/// # Errors
/// When a job of the mix is refused.
pub fn run(nodes: &[u32], share_percent: u8) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    for &nodes in nodes {
        let Fleet { mut view, first, on_four_nodes } = fleet(nodes)?;
        let settings = Settings { share_percent, ..Settings::at(NOW_MS) };
        let begun = Instant::now();
        let plan = plan_moves(&mut view, CELL, &settings);
        let planned_ms = begun.elapsed().as_millis();
        let begun = Instant::now();
        let alone = open_for(&mut view, first, &Settings { share_percent: 100, ..settings });
        let explained_ms = begun.elapsed().as_millis();
        let moves: usize = plan.openings.iter().map(|one| one.moves.len()).sum();
        let lost: u64 = plan.openings.iter().flat_map(|one| &one.moves).map(|made| made.loss.card_seconds()).sum();
        let opened: u64 = plan.openings.iter().map(|one| one.cards).sum();
        rows.push(Row::new(
            format!("plan, {nodes} nodes × 8, {} movable jobs, share {share_percent} %", plan.movable_jobs),
            format!(
                "{planned_ms} ms, {} steps{}; {} gangs of {opened} GPUs would start by {moves} moves that lose {:.0} GPU-hours at most; {} gangs \
                 without a plan, {} conversions",
                plan.steps,
                if plan.complete { "" } else { ", stopped at its limit" },
                plan.openings.len(),
                lost as f64 / 3_600.0,
                plan.unhelped.len(),
                plan.conversions.len()
            ),
            "none published",
            "short enough for a person who waits",
        ));
        rows.push(Row::new(
            format!("moves for one gang, {nodes} nodes × 8"),
            format!("{explained_ms} ms; {}", if matches!(alone, Some(Ok(_))) { "found" } else { "none" }),
            "none published",
            "short enough for a person who waits",
        ));
        rows.push(trial(&mut view, nodes, JobId(first.0 + WAITING[0]), &on_four_nodes)?);
    }
    Ok(vec![Table::new("Plans of moves on a full fleet", rows)])
}

/// A trial for a gang that needs four whole nodes of a leaf: would it start if the jobs of the first four nodes ended?
fn trial(view: &mut View, nodes: u32, gang: JobId, ended: &[AllocationId]) -> Result<Row> {
    let mut took = Vec::with_capacity(TRIALS);
    for _ in 0..TRIALS {
        let begun = Instant::now();
        let starts = starts_if_ended(view, gang, CELL, ended, NOW_MS);
        took.push(begun.elapsed().as_nanos() as u64);
        ensure!(starts, "four nodes of a leaf are empty, and the gang of four has no place");
        ensure!(!starts_if_ended(view, gang, CELL, &[], NOW_MS), "the trial left something behind");
    }
    took.sort_unstable();
    let us = |share| table::percentile(&took, share) as f64 / 1e3;
    Ok(Row::new(
        format!("trial of a gang of 4 × 8 if {} jobs ended, {nodes} nodes × 8", ended.len()),
        format!("p50 {:.0} µs, p99 {:.0} µs", us(0.5), us(0.99)),
        "a copy of the view took 45 ms",
        "<= 1 ms",
    ))
}

/// A full fleet on which gangs wait.
struct Fleet {
    view: View,
    /// The first gang that waits: it wants an island. After [`WAITING`] of these come those that want four nodes of a leaf.
    first: JobId,
    /// What runs on the first four nodes.
    on_four_nodes: Vec<AllocationId>,
}

fn fleet(nodes: u32) -> Result<Fleet> {
    let mut view = view(nodes);
    let no_slices = Pool { modes: [SharingMode::Whole].into(), ..Pool::standard() };
    view.absorb(Change::put(Object::Pool(no_slices)));
    let mut next = 0;
    let mut tenant = move || {
        next = next % TENANTS + 1;
        TenantId(next)
    };
    let mut id = 0;
    let mut on_four_nodes = Vec::new();
    for node in 1..=nodes {
        let held = CARDS - 1 - node % 2;
        let mut card = 0;
        while card < held {
            let cards = (1 + (node + card) % 2).min(held - card);
            id += 1;
            let how = Movable { checkpoint_every_s: Some(600 + id * 37 % 3_000), restart_s: 60 + id * 13 % 240 };
            let running = whole(1, cards, None, (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & 3 > 0).then_some(how))?;
            start(&mut view, id, tenant(), running, NodeId(node), card..card + cards);
            if node <= 4 {
                on_four_nodes.push(AllocationId(id));
            }
            card += cards;
        }
    }
    let first = id + 1;
    let mut wait = |view: &mut View, count: u64, spec: ValidJobSpec| {
        for _ in 0..count {
            id += 1;
            view.absorb(Change::put(Object::Job(job(JobId(id), tenant(), spec.clone()))));
        }
    };
    let [islands, leaves, blocks, slices] = WAITING;
    wait(&mut view, islands, whole(1, 8, Some(TopologyLevel::Island), None)?);
    wait(&mut view, leaves, whole(4, 8, Some(TopologyLevel::Leaf), None)?);
    wait(&mut view, blocks, whole(16, 8, Some(TopologyLevel::Block), None)?);
    let slice = DeviceRequest::Mig { profile: "1g.10gb".to_owned(), models: vec![GpuModel::H100] };
    wait(&mut view, slices, spec(1, slice)?);
    Ok(Fleet { view, first: JobId(first), on_four_nodes })
}

fn whole(tasks: u32, count: u32, required: Option<TopologyLevel>, movable: Option<Movable>) -> Result<ValidJobSpec> {
    let valid = spec(tasks, DeviceRequest::Whole { count, models: vec![GpuModel::H100] })?;
    let mut spec = muster_model::JobSpec::clone(&valid);
    spec.topology.required = required;
    spec.movable = movable;
    spec.validate().map_err(|errors| anyhow::anyhow!("the mix is refused: {errors:?}"))
}

fn start(view: &mut View, id: u64, tenant: TenantId, spec: ValidJobSpec, node: NodeId, cards: std::ops::Range<u32>) {
    let devices = cards.map(|gpu| DeviceHold { gpu: gpu as u16, mode: HoldMode::Whole }).collect();
    let task = TaskPlacement { node, devices };
    let held = Allocation {
        cell: CELL,
        model: Some(GpuModel::H100),
        cpu_milli: spec.request.cpu_milli,
        memory_mib: spec.request.memory_mib,
        charge: spec.charge_on(GpuModel::H100),
        task_states: Vec::new(),
        ..Allocation::usual(AllocationId(id), JobId(id), tenant, vec![task])
    };
    let running =
        muster_model::Job { phase: JobPhase::Running(held.id), attempt: Attempt(1), ..job(JobId(id), tenant, spec) };
    view.absorb(Change::put(Object::Allocation(held)));
    view.absorb(Change::put(Object::Job(running)));
}

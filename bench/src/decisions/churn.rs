//! S1: jobs come and go on a fleet that stays nine tenths full.

use super::fleet::{self, CELL, TENANTS};
use anyhow::Result;
use muster_model::Binding;
use muster_model::ids::{AllocationId, JobId, TenantId};
use muster_model::request::TaskRequest;
use muster_model::{Change, DeviceRequest, Job, Key, Object, ValidJobSpec};
use muster_scheduler_core::{Bounds, Proposal, View, plan};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::time::Instant;

const OCCUPANCY_PERCENT: u64 = 90;
/// A mix that cannot fill the fleet so far is measured this many points below what it reached.
const BELOW_FULL_PERCENT: u64 = 3;
/// CPU asked for beside each card, or part of one, where CPU is scarce, in milli-cores: a host has 16,000 for each.
const TIGHT_CPU_MILLI: u64 = 9_000;
/// So many refusals in a row while filling mean that the mix does not fill it further.
const REFUSED_IN_A_ROW_MAX: u32 = 200;

/// What the jobs ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Equal parts: whole cards 1, 1, 1, 2, 4, 8; MIG 1g and 3g; an MPS share; a time-slice.
    All,
    /// Whole cards, 1 to 8.
    Whole,
    /// MIG instances.
    Mig,
    /// MPS shares and time-slices.
    Shares,
    /// The first, where each card that is asked for comes with its share of the host's CPU.
    Tight,
}

impl Mix {
    /// Each of them.
    pub const ALL: [Mix; 5] = [Mix::All, Mix::Whole, Mix::Mig, Mix::Shares, Mix::Tight];

    pub(super) fn name(self) -> &'static str {
        match self {
            Mix::All => "mix of all",
            Mix::Whole => "whole 1-8",
            Mix::Mig => "MIG",
            Mix::Shares => "MPS and time-slices",
            Mix::Tight => "all, CPU scarce",
        }
    }

    fn requests(self) -> Vec<DeviceRequest> {
        let whole = |count| DeviceRequest::Whole { count, models: Vec::new() };
        let mig = |profile: &str| DeviceRequest::Mig { profile: profile.to_owned(), models: Vec::new() };
        let mps = |percent, memory_mib| DeviceRequest::Mps { percent, memory_mib, models: Vec::new() };
        let slice = |memory_mib| DeviceRequest::TimeSlice { memory_mib, models: Vec::new() };
        match self {
            Mix::All | Mix::Tight => vec![
                whole(1),
                whole(1),
                whole(1),
                whole(2),
                whole(4),
                whole(8),
                mig("1g.10gb"),
                mig("3g.40gb"),
                mps(25, 16_384),
                slice(16_384),
            ],
            Mix::Whole => (1..=8).map(whole).collect(),
            Mix::Mig => vec![mig("1g.10gb"), mig("1g.10gb"), mig("2g.20gb"), mig("3g.40gb")],
            Mix::Shares => vec![mps(25, 16_384), mps(50, 40_960), slice(20_480), slice(10_240)],
        }
    }
}

impl Mix {
    fn specs(self) -> Result<Vec<ValidJobSpec>> {
        let spec = |devices: DeviceRequest| {
            let cpu_milli = if self == Mix::Tight { TIGHT_CPU_MILLI * u64::from(devices.cards()) } else { 1_000 };
            fleet::spec_of(1, TaskRequest { devices, cpu_milli, memory_mib: 4_096 })
        };
        self.requests().into_iter().map(spec).collect()
    }
}

impl std::str::FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Mix::All),
            "whole" => Ok(Mix::Whole),
            "mig" => Ok(Mix::Mig),
            "shares" => Ok(Mix::Shares),
            "tight" => Ok(Mix::Tight),
            other => Err(format!("unknown mix {other:?}; use all, whole, mig, shares or tight")),
        }
    }
}

pub(super) struct Found {
    /// Decisions a second of the view's own time.
    pub(super) per_second: f64,
    /// Nanoseconds of each pass, sorted.
    pub(super) passes: Vec<u64>,
    /// Nanoseconds from a job's arrival to its committed binding, sorted.
    pub(super) wholes: Vec<u64>,
    pub(super) no_room: u32,
    pub(super) held_share: f64,
    /// Memory of the process that the full view has added.
    pub(super) memory_mib: u64,
}

pub(super) struct Bench {
    pub(super) view: View,
    chance: ChaCha8Rng,
    live: Vec<AllocationId>,
    held: BTreeMap<AllocationId, (JobId, u64)>,
    held_units: u64,
    units: u64,
    next: u64,
    specs: Vec<ValidJobSpec>,
    /// Nanoseconds that the view has worked.
    worked_ns: u64,
}

/// Fills a fleet and measures; the bench is handed on as it was left.
pub(super) fn measure(nodes: u32, mix: Mix, decisions: u32, seed: u64) -> Result<(Found, Bench)> {
    let before_mib = resident_mib();
    let mut bench = Bench::new(nodes, mix, seed)?;
    let mut target = bench.units * OCCUPANCY_PERCENT / 100;
    let mut refused = 0;
    while bench.held_units < target {
        refused = if bench.decide().2 { 0 } else { refused + 1 };
        if refused > REFUSED_IN_A_ROW_MAX {
            target = bench.held_units - bench.units * BELOW_FULL_PERCENT / 100;
        }
    }
    let memory_mib = resident_mib().saturating_sub(before_mib);
    let (mut passes, mut wholes) = (Vec::with_capacity(decisions as usize), Vec::with_capacity(decisions as usize));
    let mut no_room = 0;
    bench.worked_ns = 0;
    for _ in 0..decisions {
        while bench.held_units > target {
            bench.leave();
        }
        let (pass, whole, bound) = bench.decide();
        if bound {
            passes.push(pass);
            wholes.push(whole);
        } else {
            no_room += 1;
        }
    }
    anyhow::ensure!(!passes.is_empty(), "nothing was bound");
    let per_second = passes.len() as f64 / (bench.worked_ns as f64 / 1e9);
    passes.sort_unstable();
    wholes.sort_unstable();
    let held_share = bench.held_units as f64 / bench.units as f64;
    Ok((Found { per_second, passes, wholes, no_room, held_share, memory_mib }, bench))
}

impl Bench {
    fn new(nodes: u32, mix: Mix, seed: u64) -> Result<Self> {
        let specs = mix.specs()?;
        Ok(Bench {
            view: fleet::view(nodes),
            chance: ChaCha8Rng::seed_from_u64(seed),
            live: Vec::new(),
            held: BTreeMap::new(),
            held_units: 0,
            units: u64::from(nodes) * u64::from(fleet::CARDS) * muster_model::GpuUnits::CARD.0,
            next: 0,
            specs,
            worked_ns: 0,
        })
    }

    /// A job arrives and is decided: nanoseconds of the pass and from arrival to commit, and whether it was bound.
    fn decide(&mut self) -> (u64, u64, bool) {
        self.next += 1;
        let spec = self.specs.choose(&mut self.chance).expect("the mix is not empty").clone();
        let tenant = TenantId(self.chance.gen_range(1..=TENANTS));
        let job = fleet::job(JobId(self.next), tenant, spec);
        let arrival = Change::put(Object::Job(job.clone()));
        let bounds = Bounds { proposals_max: 1, ..Bounds::default() };
        let begin = Instant::now();
        self.view.absorb(arrival);
        let arrived = begin.elapsed();
        let found = plan(&mut self.view, CELL, &bounds, self.next);
        let planned = begin.elapsed();
        let (changes, bound) = match found.proposals.into_iter().next() {
            Some(Proposal::Bind(binding)) if binding.job == job.id => (self.committed(job, binding), true),
            _ => (vec![Change::Delete(Key::Job(job.id))], false),
        };
        let begin = Instant::now();
        changes.into_iter().for_each(|change| self.view.absorb(change));
        let whole = (planned + begin.elapsed()).as_nanos() as u64;
        self.worked_ns += whole;
        ((planned - arrived).as_nanos() as u64, whole, bound)
    }

    /// What the control plane would commit.
    fn committed(&mut self, job: Job, binding: Binding) -> Vec<Change> {
        let (allocation, job) = fleet::committed(job, binding, AllocationId(self.next));
        let units = allocation.charge.gpu_total().0;
        self.held.insert(allocation.id, (job.id, units));
        self.live.push(allocation.id);
        self.held_units += units;
        vec![Change::put(Object::Allocation(allocation)), Change::put(Object::Job(job))]
    }

    fn leave(&mut self) {
        let at = self.chance.gen_range(0..self.live.len());
        let id = self.live.swap_remove(at);
        let Some((job, units)) = self.held.remove(&id) else { return };
        self.held_units -= units;
        let begin = Instant::now();
        self.view.absorb(Change::Delete(Key::Allocation(id)));
        self.view.absorb(Change::Delete(Key::Job(job)));
        self.worked_ns += begin.elapsed().as_nanos() as u64;
    }

    /// A number that no job has had.
    pub(super) fn next_job(&mut self) -> JobId {
        self.next += 1;
        JobId(self.next)
    }
}

/// Resident memory of this process; 0 where the kernel does not tell.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

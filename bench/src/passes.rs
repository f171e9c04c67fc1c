//! S4: the first full pass over thousands of waiting jobs on a full fleet, with reservations and backfill, and the passes after it.
//!
//! The fleet is filled until nothing more fits, with jobs of one to sixty-four cards that have run for a part of their time limits; one in a
//! hundred then ends. Jobs of all kinds come to wait, four in five with a time limit. The first pass tries all of them, gives the first
//! gangs reservations, and starts what fits or is over in time. Later passes follow one change each. Nothing that is bound on a reserved node may
//! outlast the reservation; that is checked by hand.

use crate::decisions::Tenants;
use crate::decisions::fleet::{self, CARDS, CELL};
use crate::table::{self, Row, Table};
use anyhow::{Context, Result, ensure};
use muster_model::Binding;
use muster_model::{
    AllocationId, Change, DeviceRequest, Job, JobId, JobSpec, Key, NodeId, Object, Reservation, TopologyLevel,
    ValidJobSpec,
};
use muster_scheduler_core::{Bounds, Plan, Proposal, RESERVATIONS_MAX, View, plan};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state's clock when the jobs come to wait.
const NOW_MS: u64 = 1_000_000_000_000;
/// Time limits, in minutes.
const LIMITS_MIN: [u64; 9] = [10, 30, 60, 120, 240, 480, 720, 1_440, 2_880];
/// Time limits of what runs, so that large gangs wait for hours.
const RUNNING_MIN: [u64; 3] = [720, 1_440, 2_880];
/// So many refusals in a row while filling mean that the fleet is full.
const REFUSED_IN_A_ROW_MAX: u32 = 200;
/// Passes measured after each kind of change.
const LATER: usize = 300;

/// How to run it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fleet sizes, in nodes of eight cards.
    pub nodes: Vec<u32>,
    /// Jobs that wait.
    pub waiting: u32,
    /// Who submits.
    pub tenants: Tenants,
    /// Seed of the mix.
    pub seed: u64,
}

/// Runs every size and gives the table.
///
/// # Errors
/// When the mix is refused, or something is bound on a reserved node that outlasts the reservation.
pub fn run(options: &Options) -> Result<Vec<Table>> {
    let mut rows = Vec::new();
    for &nodes in &options.nodes {
        let mut bench = Bench::full(nodes, options.tenants, options.seed)?;
        bench.end_some();
        let lines = bench.wait(options.waiting)?;
        // What filling left behind is over.
        bench.now_ms += 60_000;
        rows.push(bench.first_pass(nodes, options.waiting, lines)?);
        rows.extend(bench.later_passes(nodes)?);
    }
    Ok(vec![Table::new("Scheduling passes over pending jobs on a full fleet, with reservations and backfill", rows)])
}

/// What passes came to.
#[derive(Default)]
struct Sum {
    took: Duration,
    passes: u32,
    decisions: u64,
    started: u32,
    /// On nodes that were kept for others.
    passed: u32,
    reserved: u32,
}

struct Bench {
    view: View,
    tenants: Tenants,
    chance: ChaCha8Rng,
    now_ms: u64,
    next: u64,
    jobs: BTreeMap<JobId, Job>,
    running: Vec<(AllocationId, JobId)>,
    /// The reservation of each reserved node.
    kept: BTreeMap<NodeId, (JobId, u64)>,
}

impl Bench {
    fn full(nodes: u32, tenants: Tenants, seed: u64) -> Result<Self> {
        let mut bench = Bench {
            view: fleet::view_of(nodes, tenants),
            tenants,
            chance: ChaCha8Rng::seed_from_u64(seed),
            now_ms: NOW_MS,
            next: 0,
            jobs: BTreeMap::new(),
            running: Vec::new(),
            kept: BTreeMap::new(),
        };
        let mut refused = 0;
        while refused < REFUSED_IN_A_ROW_MAX {
            // What finds no room any more is no hole: single cards fill the rest.
            let tasks = if refused > REFUSED_IN_A_ROW_MAX / 2 { (1, 1) } else { bench.size() };
            let limit_s = 60 * RUNNING_MIN.choose(&mut bench.chance).copied().unwrap_or(60);
            let job = bench.arrive(whole(tasks, None, Some(limit_s))?);
            let found = plan(&mut bench.view, CELL, &Bounds { proposals_max: 1, ..Bounds::default() }, bench.now_ms);
            let bound = found.proposals.into_iter().find_map(|proposal| match proposal {
                Proposal::Bind(binding) => Some(binding),
                _ => None,
            });
            match bound {
                Some(binding) => {
                    refused = 0;
                    let age_ms = 1_000 * bench.chance.gen_range(0..limit_s);
                    bench.commit(binding, NOW_MS - age_ms)?;
                }
                None => {
                    refused += 1;
                    bench.view.absorb(Change::Delete(Key::Job(job)));
                    bench.jobs.remove(&job);
                }
            }
        }
        Ok(bench)
    }

    /// Tasks and cards of each: half of the jobs want one card, the largest sixty-four.
    fn size(&mut self) -> (u32, u32) {
        let sizes = [(1, 1), (1, 1), (1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8)];
        sizes.choose(&mut self.chance).copied().unwrap_or((1, 1))
    }

    fn arrive(&mut self, spec: ValidJobSpec) -> JobId {
        self.next += 1;
        let job = fleet::job(JobId(self.next), self.tenants.any(&mut self.chance), spec);
        self.view.absorb(Change::put(Object::Job(job.clone())));
        self.jobs.insert(job.id, job);
        JobId(self.next)
    }

    /// One in a hundred running jobs ends.
    fn end_some(&mut self) {
        for _ in 0..self.running.len() / 100 {
            self.end_one();
        }
    }

    fn end_one(&mut self) {
        let at = self.chance.gen_range(0..self.running.len());
        let (allocation, job) = self.running.swap_remove(at);
        self.view.absorb(Change::Delete(Key::Allocation(allocation)));
        self.view.absorb(Change::Delete(Key::Job(job)));
        self.jobs.remove(&job);
    }

    /// Jobs come to wait; answers how many differ in tenant or in what they ask for.
    fn wait(&mut self, count: u32) -> Result<usize> {
        let mut kinds = BTreeSet::new();
        for _ in 0..count {
            let job = self.one_more()?;
            let job = &self.jobs[&job];
            kinds.insert((
                job.tenant,
                format!("{:?}", (&job.spec.request, job.spec.tasks, &job.spec.topology, job.spec.time_limit_s)),
            ));
        }
        Ok(kinds.len())
    }

    fn one_more(&mut self) -> Result<JobId> {
        let limit_min = if self.chance.gen_ratio(4, 5) { LIMITS_MIN.choose(&mut self.chance).copied() } else { None };
        let limit_s = limit_min.map(|minutes| 60 * minutes);
        let mps = || DeviceRequest::Mps { percent: 25, memory_mib: 16_384, models: Vec::new() };
        let mig = || DeviceRequest::Mig { profile: "1g.10gb".to_owned(), models: Vec::new() };
        let spec = match self.chance.gen_range(0..20) {
            0 => limited(fleet::spec(1, mig())?, None, limit_s)?,
            1 => limited(fleet::spec(1, mps())?, None, limit_s)?,
            2 | 3 => whole((16, 8), Some(TopologyLevel::Block), limit_s)?,
            4 => whole((64, 8), None, limit_s)?,
            5 => whole((8, 8), Some(TopologyLevel::Leaf), limit_s)?,
            _ => whole(self.size(), None, limit_s)?,
        };
        Ok(self.arrive(spec))
    }

    /// Plans until there is no more to plan at once, committing what is proposed between the passes.
    fn plan(&mut self) -> Result<Sum> {
        let mut sum = Sum::default();
        loop {
            let begin = Instant::now();
            let Plan { proposals, more, decisions, .. } = plan(&mut self.view, CELL, &Bounds::default(), self.now_ms);
            sum.took += begin.elapsed();
            sum.passes += 1;
            sum.decisions += decisions;
            let idle = proposals.is_empty();
            for proposal in proposals {
                match proposal {
                    Proposal::Bind(binding) => {
                        sum.started += 1;
                        sum.passed += u32::from(self.check_reservations(&binding)?);
                        self.commit(binding, self.now_ms)?;
                    }
                    Proposal::Reserve { job, reserved } => {
                        sum.reserved += u32::from(reserved.is_some());
                        self.keep(job, reserved);
                    }
                    Proposal::RecordBypass { job, cards } => self.record_bypass(job, cards),
                    // One tenant without a floor preempts nobody, no pool moves jobs, and no gang is elastic.
                    Proposal::HandOver(_)
                    | Proposal::Preempt { .. }
                    | Proposal::Move { .. }
                    | Proposal::Grow(_)
                    | Proposal::Shrink { .. } => {}
                }
            }
            if idle && !more {
                return Ok(sum);
            }
        }
    }

    fn record_bypass(&mut self, id: JobId, cards: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.bypassed_cards = cards;
            self.view.absorb(Change::put(Object::Job(job.clone())));
        }
    }

    fn commit(&mut self, binding: Binding, bound_ms: u64) -> Result<()> {
        let job = self.jobs.remove(&binding.job).context("a job that waits")?;
        self.kept.retain(|_, (kept, _)| *kept != binding.job);
        self.next += 1;
        let (mut allocation, job) =
            fleet::committed(Job { reserved: None, bypassed_cards: 0, ..job }, binding, AllocationId(self.next));
        allocation.bound_ms = bound_ms;
        self.running.push((allocation.id, job.id));
        self.view.absorb(Change::put(Object::Allocation(allocation)));
        self.view.absorb(Change::put(Object::Job(job.clone())));
        self.jobs.insert(job.id, job);
        Ok(())
    }

    fn keep(&mut self, id: JobId, reserved: Option<Arc<Reservation>>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.reserved = reserved.as_deref().cloned();
        self.view.absorb(Change::put(Object::Job(job.clone())));
        self.kept.retain(|_, (kept, _)| *kept != id);
        if let Some(reserved) = reserved {
            self.kept.extend(reserved.nodes.iter().map(|node| (*node, (id, reserved.start_ms))));
        }
    }

    /// Whether it stands on nodes that are kept for others; it must be over in time.
    fn check_reservations(&self, binding: &Binding) -> Result<bool> {
        let spec = &self.jobs[&binding.job].spec;
        let over_ms = spec.time_limit_s.map(|limit_s| self.now_ms + 1_000 * (limit_s + spec.grace_s));
        let mut passes = false;
        for (owner, start_ms) in binding.tasks.iter().filter_map(|task| self.kept.get(&task.node)) {
            if *owner != binding.job {
                passes = true;
                ensure!(
                    over_ms.is_some_and(|over_ms| over_ms <= *start_ms),
                    "job {} would outlast the reservation of job {owner}",
                    binding.job
                );
            }
        }
        Ok(passes)
    }

    fn first_pass(&mut self, nodes: u32, waiting: u32, lines: usize) -> Result<Row> {
        let free = self.free_cards();
        let sum = self.plan()?;
        let hours = |at_ms: u64| (at_ms - self.now_ms) as f64 / 3.6e6;
        let starts: BTreeSet<u64> = self.kept.values().map(|(_, start_ms)| *start_ms).collect();
        let range = match (starts.first(), starts.last()) {
            (Some(first), Some(last)) => {
                format!("in {:.1} to {:.1} h on {} nodes", hours(*first), hours(*last), self.kept.len())
            }
            _ => "at no time".to_owned(),
        };
        Ok(Row::new(
            format!(
                "S4 first pass over {waiting} pending jobs ({lines} kinds){}, {nodes} nodes × 8, {free} GPUs free",
                self.tenants.in_words()
            ),
            format!(
                "{:.0} ms in {} passes: {} decisions, {} started, {} of at most {RESERVATIONS_MAX} \
                 gangs with a reservation {range}",
                sum.took.as_secs_f64() * 1e3,
                sum.passes,
                sum.decisions,
                sum.started,
                sum.reserved,
            ),
            "Slurm backfill unfinished after 309 s; Kueue with topology about 40 workloads/s; Spur 24-45 s at 1,000 nodes",
            "<= 1 s",
        ))
    }

    fn free_cards(&self) -> usize {
        self.view.capacity().nodes().values().map(muster_model::capacity::NodeUse::free_cards).sum()
    }

    /// One change each, then planned until nothing more is found; a second goes by between two.
    fn later_passes(&mut self, nodes: u32) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (name, change) in [("nothing changed", 0), ("one job came", 1), ("one job ended", 2)] {
            let mut took = Vec::with_capacity(LATER);
            let (mut started, mut passed, mut reserved) = (0, 0, 0);
            for _ in 0..LATER {
                self.now_ms += 1_000;
                match change {
                    1 => {
                        self.one_more()?;
                    }
                    2 => self.end_one(),
                    _ => {}
                }
                let sum = self.plan()?;
                took.push(sum.took.as_nanos() as u64);
                (started, passed, reserved) = (started + sum.started, passed + sum.passed, reserved + sum.reserved);
            }
            took.sort_unstable();
            let us = |share| format!("{:.0}", table::percentile(&took, share) as f64 / 1e3);
            rows.push(Row::new(
                format!("S4 later pass, {name}, {nodes} nodes × 8"),
                format!(
                    "p50 {}, p90 {}, p99 {}, max {} µs; {started} started ({passed} on reserved nodes), {reserved} reserved in {LATER} seconds",
                    us(0.5),
                    us(0.9),
                    us(0.99),
                    us(1.0)
                ),
                "none published",
                "cost follows what changed",
            ));
        }
        Ok(rows)
    }
}

fn whole((tasks, count): (u32, u32), required: Option<TopologyLevel>, limit_s: Option<u64>) -> Result<ValidJobSpec> {
    ensure!(count <= CARDS, "a task stands on one node");
    limited(fleet::spec(tasks, DeviceRequest::Whole { count, models: Vec::new() })?, required, limit_s)
}

fn limited(spec: ValidJobSpec, required: Option<TopologyLevel>, limit_s: Option<u64>) -> Result<ValidJobSpec> {
    let mut spec = JobSpec::clone(&spec);
    spec.topology.required = required;
    spec.time_limit_s = limit_s;
    spec.validate().map_err(|errors| anyhow::anyhow!("the mix is refused: {errors:?}"))
}

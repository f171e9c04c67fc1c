//! Keeps account of a replay while it runs.

use crate::closeness::{Closeness, Largest};
use crate::fleet::Fleet;
use crate::gauge::{Bins, Gauge};
use crate::report::Fragmentation;
use muster_model::capacity::{Capacity, CardUse};
use muster_model::{Allocation, GpuUnits, NodeId};
use std::collections::BTreeMap;

/// The gang whose room on single islands is watched: one full node of the usual fleet.
pub(crate) const FRAGMENTATION_GANG_GPUS: u32 = 8;

/// Everything that is counted over time. Amounts are GPU units.
pub(crate) struct Measure {
    bins: Bins,
    pub(crate) allocated: Gauge,
    pub(crate) running: Gauge,
    pub(crate) waiting_units: Gauge,
    pub(crate) waiting_jobs: Gauge,
    /// By index of the tenant.
    pub(crate) tenants: Vec<Gauge>,
    /// GPU units of the fleet.
    fleet_units: u64,
    /// GPU units × milliseconds within the window that were free while waiting jobs asked for as many.
    pub(crate) idle_unit_ms: u128,
    /// GPU units × milliseconds held, the time after the window included.
    pub(crate) unit_ms_to_stop: u128,
    held_since_ms: u64,
    sampled: usize,
    places: Places,
    pub(crate) closeness: Closeness,
    pub(crate) fragmentation: Fragmentation,
}

/// Where nodes stand, as indexes.
#[derive(Default)]
pub(crate) struct Places {
    by_node: BTreeMap<NodeId, (usize, usize)>,
    leaves: BTreeMap<String, usize>,
    blocks: BTreeMap<String, usize>,
}

impl Places {
    /// Notes where a node stands.
    pub(crate) fn add(&mut self, node: NodeId, leaf: &str, block: &str) {
        let number = |of: &mut BTreeMap<String, usize>, name: &str| {
            let next = of.len();
            *of.entry(name.to_owned()).or_insert(next)
        };
        let place = (number(&mut self.leaves, leaf), number(&mut self.blocks, block));
        self.by_node.insert(node, place);
    }

    /// How many leaves and blocks there are.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.leaves.len() as u64, self.blocks.len() as u64)
    }
}

impl Measure {
    pub(crate) fn new(bins: Bins, tenants: usize, places: Places, fleet: &Fleet) -> Self {
        let gauge = || Gauge::new(bins);
        Measure {
            bins,
            allocated: gauge(),
            running: gauge(),
            waiting_units: gauge(),
            waiting_jobs: gauge(),
            tenants: vec![gauge(); tenants],
            fleet_units: GpuUnits::cards(fleet.gpus()).0,
            idle_unit_ms: 0,
            unit_ms_to_stop: 0,
            held_since_ms: 0,
            sampled: 0,
            places,
            closeness: Closeness::new(Largest::of(fleet)),
            fragmentation: Fragmentation { gang_gpus: FRAGMENTATION_GANG_GPUS, ..Fragmentation::default() },
        }
    }

    /// The bins of the window.
    pub(crate) fn bins(&self) -> Bins {
        self.bins
    }

    /// Time moves to `now_ms`; nothing has changed since the last moment, so every bin that ends before it is sampled as is.
    pub(crate) fn advance(&mut self, now_ms: u64, capacity: &Capacity) {
        while self.sampled < self.bins.count && (self.sampled as u64 + 1) * self.bins.bin_ms <= now_ms {
            self.sampled += 1;
            self.sample(capacity);
        }
        self.unit_ms_to_stop += u128::from(self.allocated.value()) * u128::from(now_ms - self.held_since_ms);
        let free = self.fleet_units.saturating_sub(self.allocated.value());
        let idle = u128::from(free.min(self.waiting_units.value()));
        let until_ms = now_ms.min(self.bins.end_ms());
        self.idle_unit_ms += idle * u128::from(until_ms.saturating_sub(self.held_since_ms));
        self.held_since_ms = now_ms;
    }

    /// A gang takes its devices.
    pub(crate) fn take(&mut self, now_ms: u64, tenant: usize, units: GpuUnits) {
        self.allocated.add(now_ms, units.0);
        self.tenants[tenant].add(now_ms, units.0);
    }

    /// A gang of the window was bound for the first time.
    pub(crate) fn placed(&mut self, held: &Allocation) {
        let by_node = &self.places.by_node;
        self.closeness.count(held, |node| by_node.get(&node).copied());
    }

    /// A gang gives them back.
    pub(crate) fn give(&mut self, now_ms: u64, tenant: usize, units: GpuUnits) {
        self.allocated.sub(now_ms, units.0);
        self.tenants[tenant].sub(now_ms, units.0);
    }

    /// Brings every sum up to the window's end or `now_ms`, whichever is earlier.
    pub(crate) fn settle(&mut self, now_ms: u64) {
        let gauges = [&mut self.allocated, &mut self.running, &mut self.waiting_units, &mut self.waiting_jobs];
        for gauge in gauges.into_iter().chain(&mut self.tenants) {
            gauge.settle(now_ms);
        }
    }

    fn sample(&mut self, capacity: &Capacity) {
        let mut leaves = vec![0u64; self.places.leaves.len()];
        let mut blocks = vec![0u64; self.places.blocks.len()];
        let (mut free, mut usable, mut largest_island, mut partly) = (0, 0, 0, 0);
        let gang = u64::from(self.fragmentation.gang_gpus);
        for (id, node) in capacity.nodes() {
            let mut islands = [0u64; ISLANDS_MAX];
            let mut islands_used = 0;
            for (card, gpu) in node.cards.iter().zip(&node.node.spec.gpus) {
                match card {
                    CardUse::Free if gpu.withheld.is_none() => {
                        let island = usize::from(gpu.island);
                        islands[island] += 1;
                        islands_used = islands_used.max(island + 1);
                    }
                    CardUse::Free | CardUse::Whole(_) => {}
                    _ => partly += 1,
                }
            }
            let mut here = 0;
            for island in &islands[..islands_used] {
                largest_island = largest_island.max(*island);
                usable += island / gang * gang;
                here += island;
            }
            free += here;
            if let Some((leaf, block)) = self.places.by_node.get(id) {
                leaves[*leaf] += here;
                blocks[*block] += here;
            }
        }
        let out = &mut self.fragmentation;
        out.free_gpus.push(free);
        out.largest_island.push(largest_island);
        out.largest_leaf.push(leaves.into_iter().max().unwrap_or(0));
        out.largest_block.push(blocks.into_iter().max().unwrap_or(0));
        out.unusable_share.push(if free == 0 { 0.0 } else { rounded((free - usable) as f64 / free as f64) });
        out.partly_held.push(partly);
    }

    /// The finished account of free cards.
    pub(crate) fn fragmentation(&self) -> Fragmentation {
        let mut out = self.fragmentation.clone();
        let free: u64 = out.free_gpus.iter().sum();
        let unusable: f64 =
            out.unusable_share.iter().zip(&out.free_gpus).map(|(share, free)| share * *free as f64).sum();
        out.unusable_share_mean = if free == 0 { 0.0 } else { unusable / free as f64 };
        out
    }
}

/// To a ten-thousandth: a hundredth of a percent.
fn rounded(share: f64) -> f64 {
    (share * 10_000.0).round() / 10_000.0
}

/// Islands are numbered from 0 in a fleet's description, so a node has no more of them than cards.
const ISLANDS_MAX: usize = muster_model::validate::bounds::GPUS_PER_NODE_MAX;

/// The fleet in figures for the report.
pub(crate) fn fleet_facts(fleet: &Fleet, places: (u64, u64), cells: u64) -> crate::report::FleetFacts {
    crate::report::FleetFacts {
        name: fleet.name.clone(),
        nodes: fleet.groups.iter().map(|group| u64::from(group.nodes)).sum(),
        gpus: fleet.gpus(),
        gpus_by_model: fleet.gpus_by_model().into_iter().map(|(model, gpus)| (model.to_string(), gpus)).collect(),
        leaves: places.0,
        blocks: places.1,
        cells,
    }
}

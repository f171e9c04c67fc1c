//! Whether floors held and how evenly burst was shared, from what tenants hold and wait for alone.
//!
//! The same is measured whatever the policy, also one that knows no quota, always against the tree that was given. What must stay true: nothing is
//! counted after the window; amounts are GPU units of all models together.

use crate::report::{Fairness, FloorRow, JainRow};
use muster_model::tenant::TenantSpec;
use muster_model::{GpuUnits, Tenant};
use std::collections::BTreeMap;

/// Burst shares are compared over windows of this length.
const JAIN_WINDOW_MS: u64 = 600_000;

/// What is known of one tenant, its descendants included.
#[derive(Clone, Debug)]
struct Watched {
    parent: Option<usize>,
    children: Vec<usize>,
    guarantee: u64,
    /// What it does not hand down.
    has_account: bool,
    max: Option<u64>,
    weight: u64,
    used: u64,
    /// Waiting jobs by size.
    waiting: BTreeMap<u64, u64>,
    /// Nothing waited at some time of the present window.
    gap: bool,
    /// Burst of the present window, up to `since_ms`.
    burst_unit_ms: u128,
    since_ms: u64,
    below_since_ms: Option<u64>,
    below_ms: u64,
    below_longest_ms: u64,
    /// Since it is below its floor, or since something of it started last.
    unserved_since_ms: Option<u64>,
    unserved_longest_ms: u64,
}

impl Watched {
    fn burst(&self) -> u64 {
        self.used.saturating_sub(self.guarantee)
    }

    /// Something waits that its guarantee holds beside all that it uses.
    fn is_below_floor(&self) -> bool {
        self.has_account && self.waiting.keys().next().is_some_and(|least| self.used + least <= self.guarantee)
    }

    fn settle(&mut self, now_ms: u64) {
        self.burst_unit_ms += u128::from(self.burst()) * u128::from(now_ms - self.since_ms);
        self.since_ms = now_ms;
    }

    /// Something of it starts, or it is not below its floor any more: what it waited for until now counts as one wait.
    fn note_served(&mut self, now_ms: u64) {
        if let Some(since_ms) = &mut self.unserved_since_ms {
            self.unserved_longest_ms = self.unserved_longest_ms.max(now_ms - *since_ms);
            *since_ms = now_ms;
        }
    }

    fn note_floor(&mut self, below: bool, now_ms: u64) {
        match (below, self.below_since_ms) {
            (true, None) => (self.below_since_ms, self.unserved_since_ms) = (Some(now_ms), Some(now_ms)),
            (false, Some(since_ms)) => {
                self.note_served(now_ms);
                self.unserved_since_ms = None;
                self.below_since_ms = None;
                self.below_ms += now_ms - since_ms;
                self.below_longest_ms = self.below_longest_ms.max(now_ms - since_ms);
            }
            _ => {}
        }
    }
}

/// Windows of one group of children.
#[derive(Clone, Copy, Debug, Default)]
struct Jain {
    windows: u64,
    weighted: f64,
    weights: f64,
    least: f64,
}

/// See the module.
pub(crate) struct Watch {
    tenants: Vec<Watched>,
    window_ms: u64,
    /// End of the present window of burst shares.
    next_ms: u64,
    /// By the parent; the organisations have none.
    jain: BTreeMap<Option<usize>, Jain>,
}

impl Watch {
    /// Over tenants in the order of their paths; nothing is watched where no tenant has a guarantee.
    pub(crate) fn new(specs: &[TenantSpec], window_ms: u64) -> Option<Self> {
        if specs.iter().all(|spec| spec.guarantee.gpu_total().0 == 0) {
            return None;
        }
        let index = |path: &str| specs.iter().position(|spec| spec.path == path);
        let parents: Vec<Option<usize>> =
            specs.iter().map(|spec| Tenant::parent_path(&spec.path).and_then(index)).collect();
        let watched = |(at, spec): (usize, &TenantSpec)| {
            let children: Vec<usize> = (0..specs.len()).filter(|child| parents[*child] == Some(at)).collect();
            let handed: u64 = children.iter().map(|child| specs[*child].guarantee.gpu_total().0).sum();
            let guarantee = spec.guarantee.gpu_total().0;
            Watched {
                parent: parents[at],
                has_account: guarantee > handed,
                children,
                guarantee,
                max: (!spec.max.gpu.is_empty()).then(|| spec.max.gpu.values().map(|units| units.0).sum()),
                weight: u64::from(spec.weight.max(1)),
                used: 0,
                waiting: BTreeMap::new(),
                gap: true,
                burst_unit_ms: 0,
                since_ms: 0,
                below_since_ms: None,
                below_ms: 0,
                below_longest_ms: 0,
                unserved_since_ms: None,
                unserved_longest_ms: 0,
            }
        };
        Some(Watch {
            tenants: specs.iter().enumerate().map(watched).collect(),
            window_ms,
            next_ms: JAIN_WINDOW_MS,
            jain: BTreeMap::new(),
        })
    }

    /// A job of `tenant` waits.
    pub(crate) fn waits(&mut self, now_ms: u64, tenant: usize, units: u64) {
        self.change(now_ms, tenant, |at| *at.waiting.entry(units).or_default() += 1);
    }

    /// It does not any more.
    pub(crate) fn waits_no_more(&mut self, now_ms: u64, tenant: usize, units: u64) {
        self.change(now_ms, tenant, |at| {
            if let Some(count) = at.waiting.get_mut(&units) {
                *count -= 1;
                if *count == 0 {
                    at.waiting.remove(&units);
                }
            }
            at.gap |= at.waiting.is_empty();
        });
    }

    /// A gang of `tenant` pays for devices.
    pub(crate) fn uses(&mut self, now_ms: u64, tenant: usize, units: u64) {
        let at_ms = now_ms.min(self.window_ms);
        self.change(now_ms, tenant, |at| {
            at.note_served(at_ms);
            at.used += units;
        });
    }

    /// It does not any more.
    pub(crate) fn uses_no_more(&mut self, now_ms: u64, tenant: usize, units: u64) {
        self.change(now_ms, tenant, |at| at.used = at.used.saturating_sub(units));
    }

    fn change(&mut self, now_ms: u64, tenant: usize, change: impl Fn(&mut Watched)) {
        self.advance(now_ms);
        let now_ms = now_ms.min(self.window_ms);
        let mut next = Some(tenant);
        while let Some(index) = next {
            let at = &mut self.tenants[index];
            at.settle(now_ms);
            change(at);
            if now_ms + JAIN_WINDOW_MS == self.next_ms {
                // It waits, or not, from the beginning of the window on.
                at.gap = at.waiting.is_empty();
            }
            let below = at.is_below_floor();
            at.note_floor(below, now_ms);
            next = at.parent;
        }
    }

    /// Closes the windows that end until `now_ms`.
    fn advance(&mut self, now_ms: u64) {
        while self.next_ms <= now_ms.min(self.window_ms) {
            let end_ms = self.next_ms;
            self.tenants.iter_mut().for_each(|at| at.settle(end_ms));
            self.close_window();
            for at in &mut self.tenants {
                at.burst_unit_ms = 0;
                at.gap = at.waiting.is_empty();
            }
            self.next_ms += JAIN_WINDOW_MS;
        }
    }

    fn close_window(&mut self) {
        let mut children: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for (index, at) in self.tenants.iter().enumerate() {
            if !at.gap && self.has_room(index) {
                children.entry(at.parent).or_default().push(index);
            }
        }
        for (parent, group) in children.into_iter().filter(|(_, group)| group.len() > 1) {
            let shares: Vec<f64> = group
                .iter()
                .map(|index| self.tenants[*index].burst_unit_ms as f64 / self.tenants[*index].weight as f64)
                .collect();
            let burst: f64 = group.iter().map(|index| self.tenants[*index].burst_unit_ms as f64).sum();
            if burst > 0.0 {
                let (sum, squares) =
                    (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
                let index = sum * sum / (shares.len() as f64 * squares);
                let jain = self.jain.entry(parent).or_insert(Jain { least: 1.0, ..Jain::default() });
                jain.windows += 1;
                jain.weighted += index * burst;
                jain.weights += burst;
                jain.least = jain.least.min(index);
            }
        }
    }

    /// A waiting job of it stays below the max of each tenant from its own to this one.
    fn has_room(&self, index: usize) -> bool {
        let at = &self.tenants[index];
        let fits = |least: &u64| at.max.is_none_or(|max| at.used + least <= max);
        at.waiting.keys().next().is_some_and(fits)
            && (at.children.is_empty() || at.children.iter().any(|child| self.has_room(*child)))
    }

    /// What came of it, the window being over.
    pub(crate) fn result(mut self, paths: &[String]) -> Fairness {
        self.advance(self.window_ms);
        let end_ms = self.window_ms;
        self.tenants.iter_mut().for_each(|at| at.note_floor(false, end_ms));
        let floors = self.tenants.iter().zip(paths).filter(|(at, _)| at.has_account).map(|(at, path)| FloorRow {
            path: path.clone(),
            guarantee_gpus: GpuUnits(at.guarantee).as_cards(),
            waited_h: at.below_ms as f64 / 3_600_000.0,
            waited_longest_s: at.below_longest_ms as f64 / 1_000.0,
            unserved_longest_s: at.unserved_longest_ms as f64 / 1_000.0,
        });
        let jain = self.jain.iter().map(|(parent, jain)| JainRow {
            parent: parent.map_or_else(|| "root".to_owned(), |parent| paths[parent].clone()),
            windows: jain.windows,
            burst_gpu_h: jain.weights / GpuUnits::CARD.0 as f64 / 3_600_000.0,
            mean: jain.weighted / jain.weights,
            least: jain.least,
        });
        Fairness { floors: floors.collect(), jain: jain.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::Watch;
    use muster_model::tenant::TenantSpec;
    use muster_model::{GpuModel, GpuUnits, ResourceVec};

    fn tenant(path: &str, cards: u64) -> TenantSpec {
        let guarantee = ResourceVec::of_gpu(GpuModel::H100, GpuUnits::cards(cards));
        TenantSpec { guarantee, ..TenantSpec::usual(path) }
    }

    #[test]
    fn a_floor_that_is_waited_for_and_an_uneven_burst_are_seen() {
        let specs = [tenant("a", 4), tenant("b", 4), tenant("c", 0)];
        let paths: Vec<String> = specs.iter().map(|spec| spec.path.clone()).collect();
        let card = GpuUnits::CARD.0;
        let mut watch = Watch::new(&specs, 1_200_000).expect("there are guarantees");
        watch.uses(0, 0, 12 * card); // eight above its guarantee
        watch.waits(0, 0, card);
        watch.waits(0, 2, card);
        watch.waits(60_000, 1, 4 * card);
        watch.waits_no_more(90_000, 1, 4 * card);
        watch.uses(90_000, 1, 4 * card);
        // At its guarantee: what waits now is not a matter of its floor.
        watch.waits(100_000, 1, card);
        watch.uses(600_000, 2, 8 * card);
        let found = watch.result(&paths);
        let waited: Vec<f64> = found.floors.iter().map(|row| row.waited_longest_s).collect();
        assert_eq!(waited, [0.0, 30.0]);
        let unserved: Vec<f64> = found.floors.iter().map(|row| row.unserved_longest_s).collect();
        assert_eq!(unserved, waited, "nothing of it started in between");
        // First a alone has burst, c none (1/2); then a and c eight cards each, b waits with none (2/3).
        let row = &found.jain[0];
        assert_eq!((row.parent.as_str(), row.windows), ("root", 2));
        assert!(
            (row.least - 0.5).abs() < 1e-9 && (row.mean - (0.5 * 8.0 + 2.0 / 3.0 * 16.0) / 24.0).abs() < 1e-9,
            "{row:?}"
        );
    }
}

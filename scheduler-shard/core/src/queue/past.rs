//! What tenants used before, where a half-life is set: it counts beside present use in the order of tenants.
//!
//! What must stay true: all shares of one tournament are of one time, which goes on in steps, so that a kept tournament equals one played anew
//! at the same step; without records nothing is computed.

use muster_model::capacity::TenantUse;
use muster_model::resources::Resource;
use muster_model::use_history::counted;
use muster_model::{TenantId, UseHistory};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Steps of a half-life: in one of them an average changes by about a hundredth of its distance from present use.
const STEPS: u64 = 64;
/// The shortest and the longest step: below a second a tournament would be played anew in every pass, and operators expect an effect within a minute.
const STEP_MS_MIN: u64 = 1_000;
const STEP_MS_MAX: u64 = 60_000;

/// The records, and the time by which they count.
#[derive(Clone, Debug, Default)]
pub(crate) struct PastUse {
    records: BTreeMap<TenantId, Arc<UseHistory>>,
    /// None: no pass has been planned yet; the newest record's time.
    at_ms: Option<u64>,
}

/// Which use is asked about.
#[derive(Clone, Copy)]
pub(super) enum Of {
    /// Burst, descendants included.
    Burst,
    /// Of its own jobs.
    Own,
}

impl PastUse {
    /// All records have the same.
    fn half_life_s(&self) -> Option<u64> {
        self.records.values().next().map(|record| record.half_life_s)
    }

    /// The step that `now_ms` lies in.
    fn step_of(&self, now_ms: u64) -> u64 {
        let half_life_ms = self.half_life_s().map_or(0, |half_life_s| half_life_s.saturating_mul(1_000));
        let step_ms = (half_life_ms / STEPS).clamp(STEP_MS_MIN, STEP_MS_MAX);
        now_ms - now_ms % step_ms
    }

    /// The time of the order goes on to that of a pass. Answers whether that changes shares.
    pub(crate) fn go_on(&mut self, now_ms: u64) -> bool {
        if self.records.is_empty() {
            return false;
        }
        let at_ms = Some(self.step_of(now_ms));
        std::mem::replace(&mut self.at_ms, at_ms) != at_ms
    }

    /// Takes over a record. Answers whether more than this tenant's share changes by it.
    pub(crate) fn put(&mut self, record: UseHistory) -> bool {
        let half_life_s = record.half_life_s;
        let old = self.records.insert(record.tenant, Arc::new(record));
        self.records.len() == 1 || old.is_some_and(|old| old.half_life_s != half_life_s)
    }

    /// From `now_ms` on tenants have this in use. Answers whether that is other than before.
    pub(crate) fn settle(&mut self, now_ms: u64, tenants: &BTreeMap<TenantId, TenantUse>) -> bool {
        let Some(half_life_s) = self.half_life_s() else { return false };
        let mut changed = false;
        for (tenant, at) in tenants {
            let known = self.records.get(tenant).map(Arc::as_ref);
            if let Some(record) = UseHistory::settled(known, (*tenant, at), half_life_s, now_ms) {
                self.records.insert(*tenant, Arc::new(record));
                changed = true;
            }
        }
        changed
    }

    /// Past use of a tenant does not count any more.
    pub(crate) fn remove(&mut self, tenant: TenantId) {
        self.records.remove(&tenant);
    }

    /// The time by which a tournament that is played at `now_ms` for an explanation is decided.
    pub(crate) fn at(&self, now_ms: u64) -> u64 {
        if self.records.is_empty() { 0 } else { self.step_of(now_ms) }
    }

    /// The time of the kept tournament.
    pub(crate) fn kept_at(&self) -> u64 {
        let newest = || self.records.values().map(|record| record.at_ms).max();
        self.at_ms.or_else(newest).unwrap_or(0)
    }

    /// What counts of a tenant's present use of a resource: all of it where no past does.
    pub(super) fn counting(&self, tenant: TenantId, of: Of, at_ms: u64) -> impl Fn(Resource, u64) -> u64 + '_ {
        let past_counts = !self.records.is_empty();
        let record = self.records.get(&tenant);
        let left = record.map_or(0, |record| record.left_at(at_ms));
        move |resource, present| {
            let past = match (record, of) {
                (None, _) => 0,
                (Some(record), Of::Burst) => record.burst.after(resource, left),
                (Some(record), Of::Own) => record.own.after(resource, left),
            };
            if past_counts { counted(present, past) } else { present }
        }
    }
}

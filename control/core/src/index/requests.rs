//! Remembered requests by their time of issue, and by who pays for them.
//!
//! What must stay true: whoever has most of them, and the oldest of anybody, is found without a scan: room is made at every submission
//! once the table is full.

use muster_model::ids::{JobId, TenantId};
use muster_model::object::RequestRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A time of issue, and the first job, which no two requests share.
type Place = (u64, JobId);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestIndex {
    by_issue: BTreeMap<Place, Arc<RequestRecord>>,
    of_tenant: BTreeMap<TenantId, BTreeSet<Place>>,
    /// How many each tenant has.
    by_count: BTreeSet<(u64, TenantId)>,
}

impl RequestIndex {
    /// Requests, those issued first before the others.
    pub fn oldest(&self) -> impl Iterator<Item = &RequestRecord> {
        self.by_issue.values().map(AsRef::as_ref)
    }

    /// The tenant with the most requests, and how many it has.
    #[must_use]
    pub fn greediest(&self) -> Option<(TenantId, u64)> {
        self.by_count.last().map(|(count, tenant)| (*tenant, *count))
    }

    /// How many a tenant has.
    #[must_use]
    pub fn count_of(&self, tenant: TenantId) -> u64 {
        self.of_tenant.get(&tenant).map_or(0, |places| places.len() as u64)
    }

    /// How many tenants have some.
    #[must_use]
    pub fn tenants(&self) -> usize {
        self.of_tenant.len()
    }

    /// The request of a tenant that was issued first.
    #[must_use]
    pub fn oldest_of(&self, tenant: TenantId) -> Option<&RequestRecord> {
        self.at(self.of_tenant.get(&tenant)?.first()?)
    }

    /// The request of a tenant that was issued last.
    #[must_use]
    pub fn newest_of(&self, tenant: TenantId) -> Option<&RequestRecord> {
        self.at(self.of_tenant.get(&tenant)?.last()?)
    }

    fn at(&self, place: &Place) -> Option<&RequestRecord> {
        self.by_issue.get(place).map(AsRef::as_ref)
    }

    pub(super) fn add(&mut self, request: &Arc<RequestRecord>) {
        let place = (request.issued_ms, request.first_job);
        self.by_issue.insert(place, Arc::clone(request));
        self.change(request.tenant, |places| {
            places.insert(place);
        });
    }

    pub(super) fn remove(&mut self, request: &RequestRecord) {
        let place = (request.issued_ms, request.first_job);
        self.by_issue.remove(&place);
        self.change(request.tenant, |places| {
            places.remove(&place);
        });
    }

    fn change(&mut self, tenant: TenantId, change: impl FnOnce(&mut BTreeSet<Place>)) {
        let places = self.of_tenant.entry(tenant).or_default();
        self.by_count.remove(&(places.len() as u64, tenant));
        change(places);
        if places.is_empty() {
            self.of_tenant.remove(&tenant);
        } else {
            self.by_count.insert((places.len() as u64, tenant));
        }
    }
}

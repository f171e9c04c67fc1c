//! Remembered submissions by request id.
//!
//! Each submission looks for an id that is not there, among up to a million strings that mostly begin alike. They are therefore kept by a hash
//! of the id: finding one compares numbers that lie side by side. What must stay true:
//! - what a replica decides does not depend on this table's own order, which comes of the hashes and of the order of arrival: whoever takes
//!   some of the requests takes them from [`RequestTable::sorted`];
//! - ids with the same hash are told apart.

use muster_model::object::RequestRecord;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

/// The hash of an id, and which of those with the same hash it is.
type Slot = (u64, u32);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct RequestTable(BTreeMap<Slot, Arc<RequestRecord>>);

fn hash_of(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(id.as_bytes());
    hasher.finish()
}

impl RequestTable {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The submission with this id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Arc<RequestRecord>> {
        self.find(hash_of(id), id).map(|(_, request)| request)
    }

    fn find(&self, hash: u64, id: &str) -> Option<(Slot, &Arc<RequestRecord>)> {
        let alike = self.0.range((hash, 0)..=(hash, u32::MAX));
        alike.map(|(slot, request)| (*slot, request)).find(|(_, request)| *request.id == *id)
    }

    /// Remembers it, in the place of one with the same id, which is returned.
    pub(crate) fn insert(&mut self, request: Arc<RequestRecord>) -> Option<Arc<RequestRecord>> {
        self.insert_at(hash_of(&request.id), request)
    }

    fn insert_at(&mut self, hash: u64, request: Arc<RequestRecord>) -> Option<Arc<RequestRecord>> {
        let slot = match self.find(hash, &request.id) {
            Some((slot, _)) => slot,
            None => (hash, self.0.range((hash, 0)..=(hash, u32::MAX)).last().map_or(0, |((_, last), _)| last + 1)),
        };
        self.0.insert(slot, request)
    }

    /// Forgets it.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Arc<RequestRecord>> {
        let (slot, _) = self.find(hash_of(id), id)?;
        self.0.remove(&slot)
    }

    /// All, in an order that may differ between replicas.
    pub(crate) fn unordered(&self) -> impl Iterator<Item = &Arc<RequestRecord>> {
        self.0.values()
    }

    /// All, by id.
    pub fn sorted(&self) -> impl Iterator<Item = &Arc<RequestRecord>> {
        let mut all: Vec<_> = self.0.values().collect();
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::ids::{JobId, TenantId};

    fn request(id: &str, first_job: u64) -> Arc<RequestRecord> {
        let (first_job, tenant) = (JobId(first_job), TenantId(1));
        Arc::new(RequestRecord {
            id: id.into(),
            payload_hash: 0,
            accepted_ms: 0,
            first_job,
            jobs: 1,
            issued_ms: 0,
            tenant,
        })
    }

    #[test]
    fn ids_of_the_same_hash_are_told_apart() {
        let mut table = RequestTable::default();
        for (id, job) in [("a", 1), ("b", 2), ("c", 3)] {
            assert!(table.insert_at(7, request(id, job)).is_none());
        }
        let job = |table: &RequestTable, id| table.find(7, id).map(|(_, found)| found.first_job.0);
        assert_eq!(["a", "b", "c", "d"].map(|id| job(&table, id)), [Some(1), Some(2), Some(3), None]);
        assert_eq!(table.insert_at(7, request("b", 9)).map(|old| old.first_job.0), Some(2));
        assert_eq!((job(&table, "b"), table.len()), (Some(9), 3));
        let (slot, _) = table.find(7, "a").expect("is there");
        table.0.remove(&slot);
        assert!(table.insert_at(7, request("d", 4)).is_none());
        assert_eq!(["a", "b", "c", "d"].map(|id| job(&table, id)), [None, Some(9), Some(3), Some(4)]);
    }

    #[test]
    fn they_are_found_by_id_and_listed_by_id() {
        let mut table = RequestTable::default();
        for number in 0..200 {
            table.insert(request(&format!("request-{number:03}"), number));
        }
        assert_eq!(table.get("request-017").map(|found| found.first_job.0), Some(17));
        assert_eq!(table.remove("request-017").map(|found| found.first_job.0), Some(17));
        assert!(table.get("request-017").is_none() && table.remove("request-017").is_none());
        assert_eq!((table.len(), table.unordered().count()), (199, 199));
        assert!(table.sorted().map(|request| &request.id).is_sorted());
    }
}

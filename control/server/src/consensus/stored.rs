//! The stored and sent bytes of everything: the number of their form, the value in that form, and a checksum over both; and the order of keys.
//!
//! What must stay true: a value that is not what was written is never taken for one; keys order by bytes as their ids order by number.

use super::forms::{self, Lacking, NEWEST, OLDEST};
use muster_model::object::FinishedJob;
use muster_model::{Job, JobId, Key, Object};
use muster_runtime::DiskError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Checksum at the end.
const CRC_BYTES: usize = 4;

/// Spaces of the log store.
pub(crate) mod log_space {
    /// Entries by index.
    pub(crate) const ENTRIES: &str = "entries";
    /// Vote, marks, identity.
    pub(crate) const META: &str = "meta";
    /// All.
    pub(crate) const ALL: [&str; 2] = [ENTRIES, META];
}

/// Spaces of a state store.
pub(crate) mod state_space {
    /// Live objects by key.
    pub(crate) const OBJECTS: &str = "objects";
    /// Finished jobs by id.
    pub(crate) const HISTORY: &str = "history";
    /// What has been applied, and the membership.
    pub(crate) const META: &str = "meta";
    /// Finished jobs by when they ended: the key says it all, there is no value.
    pub(crate) const ENDED: &str = "ended";
    /// Records of the audit by number.
    pub(crate) const AUDIT: &str = "audit";
    /// All, in the order in which snapshots number them.
    pub(crate) const ALL: [&str; 5] = [OBJECTS, HISTORY, META, ENDED, AUDIT];
}

/// Why bytes are not a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("{got} bytes are too few")]
    Short { got: usize },
    #[error("checksum is {got:08x}, should be {expected:08x}")]
    Checksum { expected: u32, got: u32 },
    #[error("it has form {got}; this version of muster reads forms {OLDEST} to {NEWEST}")]
    Version { got: u8 },
    #[error("{why}")]
    Form { why: String },
}

/// The bytes of `value` in exactly this form.
///
/// # Panics
/// When the form lacks something of the value: a bug, since nothing makes such values below their feature level.
pub(crate) fn encode<T: Serialize + ?Sized>(form: u8, value: &T) -> Vec<u8> {
    let written = forms::write(form, value, vec![form]);
    checked(written.unwrap_or_else(|lacking| panic!("form {form} is written, but {lacking}")))
}

/// The bytes of `value` in this form, or in the newer one that it needs: an entry may come from a leader that has applied the raising of the
/// feature level before this node has.
pub(crate) fn encode_raised<T: Serialize + ?Sized>(form: u8, value: &T) -> Vec<u8> {
    match forms::write(form, value, vec![form]) {
        Ok(bytes) => checked(bytes),
        Err(lacking) => encode_raised(lacking.form, value),
    }
}

fn checked(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Whether that form holds `value`.
pub(crate) fn fits<T: Serialize + ?Sized>(form: u8, value: &T) -> Result<(), Lacking> {
    if form == NEWEST { Ok(()) } else { forms::write(form, value, Vec::new()).map(drop) }
}

/// The value whose bytes these are.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    decode_head(bytes)
}

/// The first part of the value whose bytes these are, all of them checked.
pub(crate) fn decode_head<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    let (form, value) = check(bytes)?;
    forms::read(form, value).map_err(|error| Unreadable::Form { why: error.to_string() })
}

/// Like [`decode`], for what was read from a disk.
pub(crate) fn decode_stored<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, DiskError> {
    decode(bytes).map_err(|why| match why {
        Unreadable::Version { got } if got > NEWEST => newer(what, &why),
        _ => corrupt(what, &why),
    })
}

/// A newer version of muster was here.
pub(crate) fn newer(what: &str, why: &impl ToString) -> DiskError {
    DiskError::Newer { what: what.to_owned(), why: why.to_string() }
}

pub(crate) fn corrupt(what: &str, why: &impl ToString) -> DiskError {
    DiskError::Corrupt { what: what.to_owned(), why: why.to_string() }
}

/// The form, and the value in it.
fn check(bytes: &[u8]) -> Result<(u8, &[u8]), Unreadable> {
    let Some((body, tail)) = bytes.split_last_chunk::<CRC_BYTES>() else {
        return Err(Unreadable::Short { got: bytes.len() });
    };
    let (expected, got) = (u32::from_le_bytes(*tail), crc32fast::hash(body));
    if expected != got {
        return Err(Unreadable::Checksum { expected, got });
    }
    match body.split_first() {
        Some((&form @ OLDEST..=NEWEST, value)) => Ok((form, value)),
        Some((&got, _)) => Err(Unreadable::Version { got }),
        None => Err(Unreadable::Short { got: bytes.len() }),
    }
}

/// Bytes of the postcard form, without making it.
pub(crate) fn size<T: Serialize + ?Sized>(value: &T) -> usize {
    postcard::experimental::serialized_size(value).unwrap_or(usize::MAX)
}

/// The key of a log entry.
pub(crate) fn index_key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

/// The key of a finished job.
pub(crate) fn job_key(id: JobId) -> [u8; 8] {
    id.0.to_be_bytes()
}

/// The key of an object: its kind, then its id in the order of numbers or its name.
pub(crate) fn object_key(key: &Key) -> Vec<u8> {
    key.to_bytes()
}

/// The key of a finished job among all by when they ended.
pub(crate) fn ended_key(job: &FinishedJob) -> [u8; 16] {
    job.to_bytes()
}

/// The finished job whose key [`ended_key`] gave.
pub(crate) fn ended(key: &[u8]) -> Result<FinishedJob, DiskError> {
    let (Some((finished_ms, rest)), 16) = (key.split_first_chunk::<8>(), key.len()) else {
        return Err(corrupt("the order of finished jobs", &format!("a key of {} bytes", key.len())));
    };
    let mut id = [0; 8];
    id.copy_from_slice(rest);
    Ok(FinishedJob { finished_ms: u64::from_be_bytes(*finished_ms), id: JobId(u64::from_be_bytes(id)) })
}

/// An object as it was stored; what an older form lacks is made up for where its default would mean something else.
pub(crate) fn object(bytes: &[u8]) -> Result<Object, DiskError> {
    let mut object = decode_stored("a stored object", bytes)?;
    if bytes.first() == Some(&4) {
        match &mut object {
            // It was issued no later than it was accepted.
            Object::Request(request) => request.issued_ms = request.accepted_ms,
            // The identity of the cluster was called its incarnation. It stays, too: agents know it, and take nothing from a lower one.
            Object::Meta(meta) => meta.cluster = meta.incarnation,
            _ => {}
        }
    }
    Ok(object)
}

/// A finished job as it was stored.
pub(crate) fn job(bytes: &[u8]) -> Result<Job, DiskError> {
    decode_stored("a finished job", bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_model::ids::TenantId;

    #[test]
    fn a_changed_byte_is_noticed() {
        let stored = encode(NEWEST, &(7_u64, "seven"));
        assert_eq!(decode::<(u64, String)>(&stored), Ok((7, "seven".to_owned())));
        assert_eq!(decode_head::<u64>(&stored), Ok(7));
        for place in 0..stored.len() {
            for bit in 0..8 {
                let mut changed = stored.clone();
                changed[place] ^= 1 << bit;
                assert!(decode::<(u64, String)>(&changed).is_err(), "byte {place} bit {bit}");
            }
        }
        for end in 0..stored.len() {
            assert!(decode::<(u64, String)>(&stored[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_version_of_the_future_is_refused_by_name() {
        let mut stored = encode(NEWEST, &7_u64);
        stored[0] = NEWEST + 1;
        let end = stored.len() - CRC_BYTES;
        let crc = crc32fast::hash(&stored[..end]).to_le_bytes();
        stored[end..].copy_from_slice(&crc);
        assert_eq!(decode::<u64>(&stored), Err(Unreadable::Version { got: NEWEST + 1 }));
    }

    #[test]
    fn finished_jobs_order_by_their_end_and_then_by_id() {
        let of = |finished_ms, id| FinishedJob { finished_ms, id: JobId(id) };
        let jobs = [of(0, 9), of(255, 1), of(256, 1), of(256, 2), of(256, 256), of(u64::MAX, 0)];
        assert!(jobs.is_sorted() && jobs.map(|job| ended_key(&job)).is_sorted());
        for job in jobs {
            assert_eq!(ended(&ended_key(&job)).expect("a key"), job);
        }
        assert!(ended(&[0; 15]).is_err() && ended(&[0; 17]).is_err());
    }

    #[test]
    fn keys_order_as_ids_do() {
        let keys: Vec<_> = [1, 255, 256, 65_536].map(|id| object_key(&Key::Tenant(TenantId(id)))).to_vec();
        assert!(keys.is_sorted());
        assert!(
            object_key(&Key::Job(JobId(u64::MAX))) < object_key(&Key::Allocation(muster_model::ids::AllocationId(0)))
        );
    }
}

//! Whether a record follows from the one before it.
//!
//! What must stay true: a record is accepted only with the next number and the hash that follows from its content and the record before it.

use crate::failure::Failure;
use muster_control_core::audit_link;
use muster_model::AuditRecord;

/// A record's number and hash: whoever has them can tell whether any record up to there was altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The record's number.
    pub number: u64,
    /// The record's hash.
    pub hash: [u8; 32],
}

/// Why a record does not follow from the one before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Records between the two are missing.
    #[error("record {found} follows record {last}, so some are missing")]
    Missing {
        /// The last that was there.
        last: u64,
        /// The one after it.
        found: u64,
    },
    /// A record that has been there already.
    #[error("record {found} follows record {last}, so it is out of its place or there twice")]
    OutOfPlace {
        /// The last that was there.
        last: u64,
        /// The one after it.
        found: u64,
    },
    /// The content of the record, or of the one before it, is not what was written.
    #[error(
        "the hash of record {0} does not follow from its content and the record before it, so one of the two was altered"
    )]
    Altered(u64),
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        Failure::Server { what: "the audit is not whole".to_owned(), why: broken.to_string() }
    }
}

/// The head after `record`, which comes after `last`. The first record of all follows from nothing; another one without a `last` is believed.
///
/// # Errors
/// When it does not follow.
pub fn follow(last: Option<Head>, record: &AuditRecord) -> Result<Head, Broken> {
    let number = record.number;
    let before = match last {
        Some(last) if number <= last.number => return Err(Broken::OutOfPlace { last: last.number, found: number }),
        Some(last) if number - last.number > 1 => return Err(Broken::Missing { last: last.number, found: number }),
        Some(last) => Some(last.hash),
        None if number == 1 => Some([0; 32]),
        None => None,
    };
    match before {
        Some(before) if audit_link(&before, record) != record.hash => Err(Broken::Altered(number)),
        _ => Ok(Head { number, hash: record.hash }),
    }
}

/// A chain of made-up records, for tests.
#[cfg(test)]
pub(crate) fn example(count: u64) -> Vec<AuditRecord> {
    use muster_model::{Author, Principal};
    let mut records: Vec<AuditRecord> = Vec::new();
    for number in 1..=count {
        let author = Author {
            principal: if number % 3 == 0 { Principal::System } else { Principal::User(format!("user-{number}")) },
            credential: (number % 2 == 0).then_some(number),
            from: if number % 3 == 0 { String::new() } else { "10.0.0.9:4411".to_owned() },
            request_sha256: (number % 2 == 1).then_some([7; 32]),
        };
        let (at_ms, target) = (1_700_000_000_000 + 1_001 * number, format!("tenant \"ä\\{number}\""));
        let mut record = AuditRecord { number, at_ms, author, rpc: "Tenants.Apply".to_owned(), target, hash: [0; 32] };
        record.hash = audit_link(&records.last().map_or([0; 32], |last| last.hash), &record);
        records.push(record);
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(records: &[AuditRecord]) -> Result<Option<Head>, Broken> {
        records.iter().try_fold(None, |last, record| follow(last, record).map(Some))
    }

    #[test]
    fn what_is_whole_is_accepted_and_its_last_record_is_the_head() {
        let records = example(5);
        assert_eq!(check(&records), Ok(Some(Head { number: 5, hash: records[4].hash })));
        // A part of it too: what was before is not known.
        assert!(check(&records[2..]).is_ok());
    }

    #[test]
    fn records_that_are_missing_altered_or_out_of_place_are_named() {
        let mut missing = example(5);
        missing.remove(2);
        assert_eq!(check(&missing), Err(Broken::Missing { last: 2, found: 4 }));
        let mut repeated = example(5);
        repeated.insert(2, repeated[1].clone());
        assert_eq!(check(&repeated), Err(Broken::OutOfPlace { last: 2, found: 2 }));
        let mut altered = example(5);
        altered[3].target.push('x');
        assert_eq!(check(&altered), Err(Broken::Altered(4)));
        // A forger who also makes the hash anew is found at the next record.
        altered[3].hash = audit_link(&altered[2].hash, &altered[3]);
        assert_eq!(check(&altered), Err(Broken::Altered(5)));
        let mut first = example(2);
        first[0].rpc.push('x');
        assert_eq!(check(&first), Err(Broken::Altered(1)));
    }
}

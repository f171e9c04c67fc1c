//! Copies of the audit outside of the cluster: what is sent, to where, and up to which record.
//!
//! What must stay true: records leave in their order and without a gap, at least once; each has been checked against the one before it; how far an export
//! has come is kept only after the destination has the records; a head that a control node has signed comes after the record that it is about.

pub mod chain;
pub mod destination;
pub mod file;
pub mod line;
pub mod position;
pub mod post;
pub mod progress;
pub mod signed;
pub mod syslog;

pub use chain::Head;
pub use line::Line;
pub use signed::SignedHead;

use crate::failure::Failure;

/// Records and signed heads that are sent at once.
const BATCH_RECORDS_MAX: usize = 500;
/// Bytes that are sent at once, but for the record that passes them: what receivers of JSON lines usually take is a megabyte.
const BATCH_BYTES_MAX: usize = 256 << 10;

/// Why a batch did not arrive.
#[derive(Debug)]
pub enum NotTaken {
    /// Trying again may help.
    ForNow(String),
    /// It does not.
    ForGood(Failure),
}

/// A record or a signed head that is ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The number and hash of the record, or of the one that was signed.
    pub head: Head,
    /// The time of the record or the signature, as RFC 3339 writes it.
    pub time: String,
    /// One line of JSON, without its end.
    pub json: String,
    /// Not a signed head.
    pub is_record: bool,
}

/// Records in parts that are sent at once.
#[must_use]
pub fn batches(records: Vec<Outgoing>) -> Vec<Vec<Outgoing>> {
    let mut batches: Vec<Vec<Outgoing>> = Vec::new();
    let mut bytes = 0;
    for record in records {
        let length = record.json.len();
        match batches.last_mut().filter(|last| last.len() < BATCH_RECORDS_MAX && bytes < BATCH_BYTES_MAX) {
            Some(last) => {
                bytes += length;
                last.push(record);
            }
            None => {
                bytes = length;
                batches.push(vec![record]);
            }
        }
    }
    batches
}

/// JSON lines, each with its end.
#[must_use]
pub fn json_lines(batch: &[Outgoing]) -> String {
    batch.iter().flat_map(|record| [record.json.as_str(), "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(number: u64, length: usize) -> Outgoing {
        let head = Head { number, hash: [0; 32] };
        Outgoing { head, time: String::new(), json: "x".repeat(length), is_record: true }
    }

    #[test]
    fn batches_are_bounded_and_keep_the_order() {
        for length in [1, BATCH_BYTES_MAX / 10, 2 * BATCH_BYTES_MAX] {
            let parts = batches((1..=1_203).map(|number| outgoing(number, length)).collect());
            for part in &parts {
                assert!(part.len() <= BATCH_RECORDS_MAX);
                assert!(json_lines(part).len() <= BATCH_BYTES_MAX + BATCH_RECORDS_MAX + length);
            }
            let numbers: Vec<u64> = parts.iter().flatten().map(|record| record.head.number).collect();
            assert_eq!(numbers, (1..=1_203).collect::<Vec<_>>());
        }
    }
}

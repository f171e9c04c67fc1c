//! The signed heads of a file that was exported: whether each is of the record before it, and who has signed it.
//!
//! What must stay true: without roots no signature is called checked; a head that is wrong in anything is an error, never one less that is counted.

use crate::audit_export::{Head, SignedHead};
use muster_runtime::pki::{NotBelieved, Roots};
use std::collections::BTreeSet;

/// Why a signed head is wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadHead {
    /// It stands at another place than where it was written.
    #[error("the signed head is of record {signed}, and {}", before(*.last))]
    Place {
        /// Its record.
        signed: u64,
        /// The record before it, if there is one.
        last: Option<u64>,
    },
    /// The record before it is not the one that was signed.
    #[error("the hash in the signed head is not that of record {0}, so one of the two was altered")]
    Hash(u64),
    /// Its signature is wrong.
    #[error("the signed head of record {number} is not to be believed: {why}")]
    Signature {
        /// Its record.
        number: u64,
        /// What is wrong.
        why: NotBelieved,
    },
}

fn before(last: Option<u64>) -> String {
    match last {
        Some(last) => format!("the record before it is {last}"),
        None => "there is no record before it".to_owned(),
    }
}

/// What was found so far.
pub(super) struct Signatures<'a> {
    roots: Option<&'a Roots>,
    /// Signed heads.
    pub(super) count: u64,
    /// The control nodes that have signed, where that was checked.
    by: BTreeSet<u64>,
    /// The last of them: its record, and when it was signed.
    last: (u64, u64),
}

impl<'a> Signatures<'a> {
    /// Nothing yet. Without roots signatures are not checked.
    pub(super) fn new(roots: Option<&'a Roots>) -> Self {
        Signatures { roots, count: 0, by: BTreeSet::new(), last: (0, 0) }
    }

    /// Takes a head that stands behind the record `last`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn take(&mut self, last: Option<Head>, signed: &SignedHead) -> Result<(), BadHead> {
        let number = signed.head.number;
        match last {
            Some(last) if last == signed.head => {}
            Some(last) if last.number == number => return Err(BadHead::Hash(number)),
            _ => return Err(BadHead::Place { signed: number, last: last.map(|last| last.number) }),
        }
        if let Some(roots) = self.roots {
            let by = signed.verify(roots).map_err(|why| BadHead::Signature { number, why })?;
            self.by.extend(by.control_id());
        }
        self.count += 1;
        self.last = (number, signed.at_ms);
        Ok(())
    }

    /// What was found in a file whose last record is `end`, in words.
    pub(super) fn text(&self, end: u64) -> String {
        let heads = if self.count == 1 { "head" } else { "heads" };
        let (number, at_ms) = self.last;
        let at = muster_model::utc::show(at_ms);
        let mut text = match (self.count, self.roots) {
            (0, _) => return "none of its heads is signed".to_owned(),
            (count, None) => format!(
                "{count} signed {heads}, the last of record {number} at {at}; signatures were not checked: give the cluster's roots with --roots FILE, \
                 MUSTER_ROOTS_FILE or roots-file of the configuration"
            ),
            (count, Some(roots)) => {
                let by: Vec<String> = self.by.iter().map(u64::to_string).collect();
                let nodes = if by.len() == 1 { "node" } else { "nodes" };
                let (by, cluster) = (by.join(", "), roots.cluster());
                format!(
                    "{count} signed {heads}, by control {nodes} {by} of cluster {cluster}; the last of record {number} at {at}"
                )
            }
        };
        if number < end {
            text.push_str(&format!("\nrecords {} to {end} come after the last signed head", number + 1));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_runtime::pki::Signed;

    fn signed(number: u64, hash: [u8; 32]) -> SignedHead {
        let signed = Signed { signature: Vec::new(), chain: Vec::new() };
        SignedHead { head: Head { number, hash }, at_ms: 1_700_000_000_000, signed }
    }

    #[test]
    fn a_head_has_to_be_of_the_record_before_it() {
        let mut signatures = Signatures::new(None);
        let last = Some(Head { number: 7, hash: [1; 32] });
        assert!(signatures.take(last, &signed(7, [1; 32])).is_ok());
        for (last, head, words) in [
            (last, signed(7, [2; 32]), "not that of record 7"),
            (last, signed(8, [1; 32]), "is of record 8, and the record before it is 7"),
            (None, signed(7, [1; 32]), "there is no record before it"),
        ] {
            let why = signatures.take(last, &head).expect_err(words).to_string();
            assert!(why.contains(words), "{why}");
        }
        assert_eq!(signatures.count, 1);
        let text = signatures.text(9);
        let words = ["1 signed head, the last of record 7", "not checked", "--roots", "records 8 to 9 come after"];
        assert!(words.iter().all(|words| text.contains(words)), "{text}");
        assert_eq!(Signatures::new(None).text(9), "none of its heads is signed");
    }
}
